// Samples made from a seed, for tests: the same interface as a dataset, no files. A pure function of (seed, samples seen).
// Three tokens in four follow from the one before (5 * token + 1 modulo the vocabulary), so that a model can learn something.
#pragma once

#include "data/sampler.h"

namespace lockstep::data {

struct SyntheticOptions {
    uint64_t seed = 0;
    int vocab_size = 256;
    int seq_len = 0;
    double masked_target_fraction = 0;  // each target is kNoTarget with this probability
    int mean_document_tokens = 0;       // documents end at random, this long on average; 0: one document
};

class SyntheticSource : public Source {
public:
    explicit SyntheticSource(const SyntheticOptions& options);

    int seq_len() const override { return options_.seq_len; }
    int vocab_size() const override { return options_.vocab_size; }
    void sample(int64_t samples_seen, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                std::span<int32_t> documents) const override;

private:
    SyntheticOptions options_;
};

}  // namespace lockstep::data
