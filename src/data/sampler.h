// What training reads: one sample at a time, by the number of samples seen before it.
// A Source is a pure function of that number: no state, no allocation, any number of threads, any order.
#pragma once

#include <cstdint>
#include <span>

#include "data/token_stream.h"

namespace lockstep::data {

inline constexpr int32_t kNoTarget = -1;  // this position counts neither in the loss nor in its number of tokens

class Source {
public:
    virtual ~Source() = default;
    virtual int seq_len() const = 0;
    virtual int vocab_size() const = 0;
    // All spans are [seq_len]. `targets` is the next token or kNoTarget, `positions` counts from 0 in each document,
    // `documents` numbers the documents inside this sample from 0.
    virtual void sample(int64_t samples_seen, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                        std::span<int32_t> documents) const = 0;
};

// windows: the tokens are one stream; positions are 0 to seq_len - 1 and all documents 0.
// packed: the same windows and targets, but positions and documents change after each separator, so that attention can stay
//   inside a document. The separator belongs to the document that it ends. What a window cut off counts from 0 as well.
enum class SampleMode { windows, packed };

struct DatasetOptions {
    int seq_len = 0;
    SampleMode mode = SampleMode::windows;
    uint64_t seed = 0;
    int64_t window_stride = 0;  // tokens from the start of a window to that of the next; 0: seq_len
};

// Windows of seq_len + 1 tokens. At stride seq_len every token but the first is a target once an epoch; at stride seq_len + 1
// no two windows share a token; a smaller stride makes a token a target of several windows. The last few tokens, which do not
// fill a window, are not used. The order is window_of_sample (sample_order.h).
class Dataset : public Source {
public:
    // Errors: data.seq_len (below 1), data.window_stride, data.too_few_tokens (there is no whole window).
    Dataset(TokenStream tokens, const DatasetOptions& options);

    int64_t windows() const { return windows_; }  // samples in an epoch
    int seq_len() const override { return options_.seq_len; }
    int vocab_size() const override { return tokens_.vocab_size(); }

    // In shuffled order; past the last window the next epoch begins.
    void sample(int64_t samples_seen, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                std::span<int32_t> documents) const override;
    // In the file's order, for validation: window `index` modulo windows().
    void sequential(int64_t index, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                    std::span<int32_t> documents) const;

private:
    void fill(int64_t window, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
              std::span<int32_t> documents) const;

    TokenStream tokens_;
    DatasetOptions options_;
    int64_t windows_ = 0;
};

}  // namespace lockstep::data
