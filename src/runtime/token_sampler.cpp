#include "runtime/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/random.h"

namespace lockstep::runtime {

namespace {

std::vector<int32_t> all_tokens(int64_t vocab) {
    std::vector<int32_t> tokens(static_cast<size_t>(vocab));
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
}

}  // namespace

TokenSampler::TokenSampler(std::vector<int32_t> tokens, const SamplingOptions& options)
    : options_(options), tokens_(std::move(tokens)), order_(tokens_), weights_(tokens_.size()) {}
TokenSampler::TokenSampler(int64_t vocab, const SamplingOptions& options) : TokenSampler(all_tokens(vocab), options) {}

int32_t TokenSampler::pick(std::span<const double> logits, int64_t sequence, int64_t place) {
    const auto larger = [&](int32_t a, int32_t b) {
        const double x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
    };
    order_ = tokens_;
    if (options_.temperature == 0) return *std::min_element(order_.begin(), order_.end(), larger);
    size_t count = order_.size();
    if (options_.top_k > 0) count = std::min(count, static_cast<size_t>(options_.top_k));
    if (count < order_.size() || options_.top_p < 1)  // else any order serves
        std::partial_sort(order_.begin(), order_.begin() + static_cast<long>(count), order_.end(), larger);
    double largest = -INFINITY;
    for (size_t i = 0; i < count; ++i) largest = std::max(largest, logits[static_cast<size_t>(order_[i])]);
    double total = 0;
    for (size_t i = 0; i < count; ++i)
        total += weights_[i] = std::exp((logits[static_cast<size_t>(order_[i])] - largest) / options_.temperature);
    double kept = 0;
    for (size_t i = 0; i < count; ++i) {
        kept += weights_[i];
        if (kept >= options_.top_p * total) count = i + 1;
    }
    const uint64_t stream = splitmix64(options_.seed) ^ hash_name("sample");
    const uint64_t bits = splitmix64(stream + splitmix64((static_cast<uint64_t>(sequence) << 40) + static_cast<uint64_t>(place)));
    double left = static_cast<double>(bits >> 11) * 0x1p-53 * kept;  // in [0, kept)
    for (size_t i = 0; i < count; ++i) {
        if (left < weights_[i]) return order_[i];
        left -= weights_[i];
    }
    return order_[count - 1];  // rounding
}

}  // namespace lockstep::runtime
