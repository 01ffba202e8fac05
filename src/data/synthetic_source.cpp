#include "data/synthetic_source.h"

#include "base/error.h"
#include "data/sample_order.h"

namespace lockstep::data {
namespace {

enum class Draw : uint64_t { token = 1, follows = 2, masked = 3, document_end = 4 };

// Uniform 32 bits for one use at one place.
uint64_t draw(uint64_t sample_key, Draw use, size_t at) {
    return mix64(sample_key ^ mix64(static_cast<uint64_t>(use) << 56 | at)) >> 32;
}

}  // namespace

SyntheticSource::SyntheticSource(const SyntheticOptions& options) : options_(options) {
    ensure(options_.seq_len >= 1 && options_.vocab_size >= 2, "SyntheticSource: seq_len or vocab_size too small");
    ensure(options_.masked_target_fraction >= 0 && options_.masked_target_fraction <= 1, "SyntheticSource: not a fraction");
    ensure(options_.mean_document_tokens >= 0, "SyntheticSource: a negative document length");
}

void SyntheticSource::sample(int64_t samples_seen, std::span<int32_t> ids, std::span<int32_t> targets,
                             std::span<int32_t> positions, std::span<int32_t> documents) const {
    const auto length = static_cast<size_t>(options_.seq_len);
    ensure(ids.size() == length && targets.size() == length && positions.size() == length && documents.size() == length,
           "SyntheticSource: every span is seq_len long");
    const uint64_t key = mix64(options_.seed ^ mix64(static_cast<uint64_t>(samples_seen)));
    const auto vocab = static_cast<uint64_t>(options_.vocab_size);
    const auto masked_below = static_cast<uint64_t>(options_.masked_target_fraction * 0x1p32);
    const auto document_tokens = static_cast<uint64_t>(options_.mean_document_tokens);
    uint64_t token = draw(key, Draw::token, length) % vocab;
    int32_t position = 0, document = 0;
    for (size_t t = 0; t < length; ++t) {
        const uint64_t random = draw(key, Draw::token, t) % vocab;
        const uint64_t next = draw(key, Draw::follows, t) % 4 != 0 ? (5 * token + 1) % vocab : random;
        ids[t] = static_cast<int32_t>(token);
        targets[t] = draw(key, Draw::masked, t) < masked_below ? kNoTarget : static_cast<int32_t>(next);
        positions[t] = position++;
        documents[t] = document;
        token = next;
        if (document_tokens == 0 || draw(key, Draw::document_end, t) % document_tokens != 0) continue;
        position = 0;
        ++document;
    }
}

}  // namespace lockstep::data
