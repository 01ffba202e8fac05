#include "data/batch_encoder.h"

#include <atomic>
#include <exception>
#include <utility>

#include "base/processors.h"

namespace lockstep::data {
namespace {

constexpr size_t kTurnBytes = size_t{1} << 17;       // a thread's turn: some milliseconds
constexpr size_t kLongPartBytes = size_t{4} << 20;   // without a place to cut
constexpr size_t kBytesOfAThread = size_t{4} << 20;  // between two times that the threads wait for each other

int count_of(int threads) { return threads > 0 ? threads : static_cast<int>(usable_cpus().size()); }

}  // namespace

BatchEncoder::BatchEncoder(const Tokenizer& tokenizer, int threads) : tokenizer_(tokenizer), threads_(count_of(threads)) {
    for (int thread = 0; thread < threads_.threads(); ++thread) encoders_.emplace_back(tokenizer);
}

void BatchEncoder::encode(std::span<const std::string_view> texts, Sink sink) {
    const size_t bytes_at_once = kBytesOfAThread * encoders_.size();
    size_t bytes = 0;
    for (size_t t = 0; t < texts.size(); ++t) {
        for (size_t begin = 0; begin < texts[t].size();) {
            const size_t end = tokenizer_.part_end(texts[t], begin, kTurnBytes);
            if (end - begin > kLongPartBytes) {
                encode_parts(sink);
                encoders_[0].encode_long_part(texts[t].substr(begin, end - begin), begin == 0,
                                              [&](std::span<const int32_t> tokens) { sink(t, tokens); });
                begin = end;
                bytes = 0;
                continue;
            }
            parts_.push_back({t, texts[t].substr(begin, end - begin), begin == 0});
            bytes += end - begin;
            begin = end;
            if (bytes < bytes_at_once) continue;
            encode_parts(sink);
            bytes = 0;
        }
    }
    encode_parts(sink);
}

// Encodes parts_, hands their tokens out and forgets them.
void BatchEncoder::encode_parts(Sink sink) {
    if (tokens_.size() < parts_.size()) tokens_.resize(parts_.size());
    std::atomic<size_t> next{0};
    std::vector<std::exception_ptr> errors(encoders_.size());
    threads_.parallel([&](int thread, int) {
        try {
            for (size_t p = next++; p < parts_.size(); p = next++) {
                tokens_[p].clear();
                encoders_[static_cast<size_t>(thread)].encode_part(parts_[p].part, parts_[p].first, tokens_[p]);
            }
        } catch (...) {
            errors[static_cast<size_t>(thread)] = std::current_exception();
            next = parts_.size();
        }
    });
    const std::vector<Part> done = std::exchange(parts_, {});
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
    for (size_t p = 0; p < done.size(); ++p)
        if (!tokens_[p].empty()) sink(done[p].text, tokens_[p]);
}

}  // namespace lockstep::data
