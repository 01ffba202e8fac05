// Text to tokens with one tokenizer: scratch memory and a bounded cache of pieces already merged, so an Encoder belongs to one
// thread and is worth keeping. Its result does not depend on what it encoded before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "data/tokenizer.h"

namespace lockstep::data {

class Encoder {
public:
    // `tokenizer` must outlive the encoder.
    explicit Encoder(const Tokenizer& tokenizer);

    // Appends the tokens of `text`.
    void encode(std::string_view text, std::vector<int32_t>& tokens);

    // Appends the tokens of a part of a text that Tokenizer::part_end() cut. `first`: it is the text's first.
    void encode_part(std::string_view part, bool first, std::vector<int32_t>& tokens);
    // Hands the tokens of a long part out on the way: memory does not grow with it, but for what its normalizer needs, and for
    // a word without end of a tokenizer whose merges are not in order (Tokenizer::merge_reach).
    using Drain = FunctionRef<void(std::span<const int32_t> tokens)>;
    void encode_long_part(std::string_view part, bool first, Drain drain);

private:
    // One cache line: pieces up to 23 bytes that make up to 8 tokens. A newer piece takes the place of an older one.
    struct alignas(64) CachedPiece {
        uint8_t piece_bytes = 0;  // 0: empty slot
        uint8_t tokens = 0;
        char piece[23] = {};
        int32_t ids[8] = {};
    };
    struct Candidate {
        int32_t rank;
        int32_t at;  // index of the left symbol
        int32_t left, right;
        int32_t result;
        bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
    };

    void append_segment(std::string_view text, Before before, std::vector<int32_t>& tokens);
    void append_pieces(std::string_view text, Before before, std::vector<int32_t>& tokens);
    void append_words(std::string_view piece, std::vector<int32_t>& tokens);
    void append_piece(std::string_view piece, std::vector<int32_t>& tokens);
    void find_symbols(std::string_view piece);
    void drain_full(std::vector<int32_t>& tokens);
    void merge_piece(std::string_view piece, std::vector<int32_t>& tokens);
    void merge_in_windows(std::string_view piece, size_t reach, std::vector<int32_t>& tokens);
    size_t settled_tokens(std::span<const int32_t> tokens, size_t settled_bytes, size_t& bytes) const;
    void merge_symbols(std::vector<int32_t>& tokens);
    void merge_short(std::vector<int32_t>& tokens);
    void merge_long(std::vector<int32_t>& tokens);
    void push_candidate(int32_t left_at, int32_t right_at);

    const Tokenizer& tokenizer_;
    PreTokenizerRun pre_tokenizer_;
    std::string normalized_;
    std::vector<CachedPiece> cache_;
    std::vector<int32_t> symbols_;         // of the piece being merged
    std::vector<uint32_t> unknown_bytes_;  // of its unknown symbols
    std::optional<Drain> drain_;           // while a long part is encoded
    std::vector<PairMerge> merges_;
    std::vector<int32_t> previous_, next_;
    std::vector<Candidate> heap_;
};

}  // namespace lockstep::data
