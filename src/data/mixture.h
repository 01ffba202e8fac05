// Several data sets as one source of samples, in given proportions. A pure function of the number of samples seen, as every
// source: the proportions hold after any number of samples, to a few samples, whatever the layout or the point of resumption. A
// data set that is small for its weight begins another epoch while the others go on.
#pragma once

#include <vector>

#include "data/sampler.h"

namespace lockstep::data {

// Which of several parts gives sample n, and the sample's index within that part. Each part's samples are spread evenly.
class Proportions {
public:
    // At least one weight, all finite and above 0; only their ratios count.
    explicit Proportions(const std::vector<double>& weights);

    struct Pick {
        size_t part;
        int64_t index;
        bool operator==(const Pick&) const = default;
    };
    Pick operator()(int64_t sample) const;

private:
    // The first part against all behind it, the second against those behind it, and so on, in units of 2^-32.
    std::vector<uint64_t> shares_;
};

class Mixture : public Source {
public:
    // The data sets have one sequence length and one vocabulary.
    Mixture(std::vector<Dataset> parts, const std::vector<double>& weights);

    int seq_len() const override { return parts_.front().seq_len(); }
    int vocab_size() const override { return parts_.front().vocab_size(); }
    void sample(int64_t samples_seen, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                std::span<int32_t> documents) const override;

private:
    std::vector<Dataset> parts_;
    Proportions proportions_;
};

}  // namespace lockstep::data
