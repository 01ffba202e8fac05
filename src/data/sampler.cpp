#include "data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "data/sample_order.h"

namespace lockstep::data {

Dataset::Dataset(TokenStream tokens, const DatasetOptions& options) : tokens_(std::move(tokens)), options_(options) {
    if (options_.seq_len < 1) {
        throw UserError("data.seq_len", "training.seq_len",
                        fmt::format("a sequence length of {} is asked for; it must be at least 1.", options_.seq_len));
    }
    if (options_.window_stride == 0) options_.window_stride = options_.seq_len;
    if (options_.window_stride < 1) {
        throw UserError("data.window_stride", "window_stride",
                        fmt::format("a window stride of {} is asked for; it must be at least 1, or 0 for the sequence length.",
                                    options_.window_stride));
    }
    const int64_t needed = int64_t{options_.seq_len} + 1;
    if (tokens_.tokens() < needed) {
        throw UserError("data.too_few_tokens", "training.seq_len",
                        fmt::format("{} holds {} tokens, a sequence length of {} needs {}. Shorten the sequence length to {} or "
                                    "less, or prepare more text.",
                                    tokens_.name(), tokens_.tokens(), options_.seq_len, needed, tokens_.tokens() - 1));
    }
    windows_ = (tokens_.tokens() - needed) / options_.window_stride + 1;
}

void Dataset::sample(int64_t samples_seen, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                     std::span<int32_t> documents) const {
    ensure(samples_seen >= 0, "Dataset::sample: a negative number of samples seen");
    fill(window_of_sample(samples_seen, windows_, options_.seed), ids, targets, positions, documents);
}

void Dataset::sequential(int64_t index, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                         std::span<int32_t> documents) const {
    ensure(index >= 0, "Dataset::sequential: a negative index");
    fill(index % windows_, ids, targets, positions, documents);
}

void Dataset::fill(int64_t window, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                   std::span<int32_t> documents) const {
    const auto length = static_cast<size_t>(options_.seq_len);
    ensure(ids.size() == length && targets.size() == length && positions.size() == length && documents.size() == length,
           "Dataset: every span is seq_len long");
    const int64_t first = window * options_.window_stride;
    tokens_.read(first, ids);
    std::copy(ids.begin() + 1, ids.end(), targets.begin());
    tokens_.read(first + options_.seq_len, targets.last(1));
    if (options_.mode == SampleMode::windows) {
        std::iota(positions.begin(), positions.end(), 0);
        std::fill(documents.begin(), documents.end(), 0);
        return;
    }
    int32_t position = 0, document = 0;
    for (size_t t = 0; t < length; ++t) {
        positions[t] = position++;
        documents[t] = document;
        if (ids[t] != tokens_.separator()) continue;
        position = 0;
        ++document;
    }
}

}  // namespace lockstep::data
