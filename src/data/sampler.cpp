#include "data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "data/sample_order.h"

namespace lockstep::data {

Dataset::Dataset(TokenFile file, const DatasetOptions& options) : file_(std::move(file)), options_(options) {
    if (options_.seq_len < 1) {
        throw UserError("data.seq_len", "seq_len",
                        fmt::format("a sequence length of {} is asked for; it must be at least 1.", options_.seq_len));
    }
    windows_ = (file_.tokens() - 1) / options_.seq_len;
    if (windows_ < 1) {
        throw UserError("data.too_few_tokens", "seq_len",
                        fmt::format("{} holds {} tokens, a sequence length of {} needs {}. Shorten the sequence length to {} or "
                                    "less, or prepare more text.",
                                    file_.path().string(), file_.tokens(), options_.seq_len, int64_t{options_.seq_len} + 1,
                                    file_.tokens() - 1));
    }
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
    const int64_t first = window * options_.seq_len;
    file_.read(first, ids);
    std::copy(ids.begin() + 1, ids.end(), targets.begin());
    file_.read(first + options_.seq_len, targets.last(1));
    if (options_.mode == SampleMode::windows) {
        std::iota(positions.begin(), positions.end(), 0);
        std::fill(documents.begin(), documents.end(), 0);
        return;
    }
    int32_t position = 0, document = 0;
    for (size_t t = 0; t < length; ++t) {
        positions[t] = position++;
        documents[t] = document;
        if (ids[t] != file_.separator()) continue;
        position = 0;
        ++document;
    }
}

}  // namespace lockstep::data
