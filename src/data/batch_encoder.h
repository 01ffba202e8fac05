// Many texts to tokens on several threads, in order. Long texts are cut where the tokenizer knows that no token reaches across
// (Tokenizer::part_end), so that one large file keeps all threads busy, too.
// The result depends on the texts only, not on the number of threads. A BatchEncoder serves one caller at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "data/encoder.h"

namespace lockstep::data {

class BatchEncoder {
public:
    // `tokenizer` outlives this. `threads` counts the caller; 0: one for each processor that the process may use.
    explicit BatchEncoder(const Tokenizer& tokenizer, int threads = 0);

    int threads() const { return threads_.threads(); }

    // Calls sink(text, tokens) in order, on the caller's thread; a long text gets several calls, an empty one none.
    // Memory: the tokens of some megabytes of text. A long text that cannot be cut is one thread's (Encoder::encode_long_part).
    using Sink = FunctionRef<void(size_t text, std::span<const int32_t> tokens)>;
    void encode(std::span<const std::string_view> texts, Sink sink);

private:
    struct Part {
        size_t text;
        std::string_view part;
        bool first;
    };

    void encode_parts(Sink sink);

    const Tokenizer& tokenizer_;
    ThreadPool threads_;
    std::vector<Encoder> encoders_;  // of each thread
    std::vector<Part> parts_;
    std::vector<std::vector<int32_t>> tokens_;  // of each part; kept between calls for their memory
};

}  // namespace lockstep::data
