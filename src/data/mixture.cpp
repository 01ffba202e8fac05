#include "data/mixture.h"

#include <cmath>

#include "base/error.h"

namespace lockstep::data {
namespace {

constexpr int kShareBits = 32;

// How many of the first `samples` go to a part with this share: rounded, so that the counts never fall behind by a sample.
int64_t count_of(uint64_t share, int64_t samples) {
    const auto product = static_cast<unsigned __int128>(static_cast<uint64_t>(samples)) * share;
    return static_cast<int64_t>((product + (uint64_t{1} << (kShareBits - 1))) >> kShareBits);
}

}  // namespace

Proportions::Proportions(const std::vector<double>& weights) {
    ensure(!weights.empty(), "Proportions: no part");
    double left = 0;
    for (const double weight : weights) {
        ensure(std::isfinite(weight) && weight > 0, "Proportions: a weight that is not above 0");
        left += weight;
    }
    for (size_t part = 0; part + 1 < weights.size(); ++part) {
        shares_.push_back(static_cast<uint64_t>(std::llround(std::min(weights[part] / left, 1.0) * 0x1p32)));
        left -= weights[part];
    }
}

Proportions::Pick Proportions::operator()(int64_t sample) const {
    for (size_t part = 0; part < shares_.size(); ++part) {
        const int64_t before = count_of(shares_[part], sample);
        if (count_of(shares_[part], sample + 1) > before) return {part, before};
        sample -= before;
    }
    return {shares_.size(), sample};
}

Mixture::Mixture(std::vector<Dataset> parts, const std::vector<double>& weights)
    : parts_(std::move(parts)), proportions_(weights) {
    ensure(parts_.size() == weights.size(), "Mixture: a weight for each data set");
}

void Mixture::sample(int64_t samples_seen, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                     std::span<int32_t> documents) const {
    ensure(samples_seen >= 0, "Mixture::sample: a negative number of samples seen");
    const Proportions::Pick place = proportions_(samples_seen);
    parts_[place.part].sample(place.index, ids, targets, positions, documents);
}

}  // namespace lockstep::data
