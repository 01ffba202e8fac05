// Choosing a token by its logits, on the host: the same choice in any layout and on any machine up to the rounding of the
// logits. Random numbers are a function of (seed, sequence, place in the sequence), in integer arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::runtime {

struct SamplingOptions {
    double temperature = 1;  // logits are divided by it; 0: the largest logit, the lowest id among equals
    int64_t top_k = 0;       // number of largest logits to choose from; 0: all
    double top_p = 1;        // of these the fewest largest whose probabilities reach it
    uint64_t seed = 0;
};

class TokenSampler {
public:
    // Chooses among these tokens and no others, ascending and at least one:
    // a model may have more rows than its tokenizer tokens.
    TokenSampler(std::vector<int32_t> tokens, const SamplingOptions& options);
    // Among all.
    TokenSampler(int64_t vocab, const SamplingOptions& options);
    // logits [vocab]. Allocates nothing.
    int32_t pick(std::span<const double> logits, int64_t sequence, int64_t place);

private:
    SamplingOptions options_;
    const std::vector<int32_t> tokens_;
    std::vector<int32_t> order_;
    std::vector<double> weights_;
};

}  // namespace lockstep::runtime
