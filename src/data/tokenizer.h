// A byte-level byte-pair tokenizer, read from and written to Hugging Face's tokenizer.json.
// Text is split by a pattern (pre_split.h); inside a piece the merge of lowest rank applies first, leftmost among equals.
// Guarantees: decode(encode(bytes)) == bytes for any bytes. encode never yields the separator or another special token, even
// where the text spells one, so a document cannot forge its own end.
// Immutable: one Tokenizer may serve many threads; each thread that encodes much makes its own Encoder (encoder.h).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/pair_table.h"
#include "data/pre_split.h"

namespace lockstep::data {

inline constexpr std::string_view kSeparatorText = "<|end_of_text|>";
inline constexpr int kBytesVocab = 257;  // 256 bytes and the separator: the smallest vocabulary

struct Merge {
    int32_t left, right, result;  // token ids; a merge's rank is its place in the list
    bool operator==(const Merge&) const = default;
};

// What a tokenizer is made of. Every byte is a token; `special` tokens are never produced from text.
struct TokenizerParts {
    std::vector<std::string> tokens;  // bytes of each id; a special token's own text; empty for an id that is not used
    std::vector<Merge> merges;
    std::vector<int32_t> special;  // ascending; holds the separator
    int32_t separator = 0;
    std::string split_pattern{kLlama3SplitPattern};
    bool whole_pieces_first = false;  // Llama 3's "ignore_merges": a piece that is a token is not merged step by step
};

class Tokenizer {
public:
    // UserError data.tokenizer_byte_missing where a byte has no token, data.split_pattern where the pattern is not valid.
    explicit Tokenizer(TokenizerParts parts);

    // Ids 0 to 255 are the bytes, 256 is the separator, there are no merges.
    static Tokenizer bytes();

    // Errors: data.file_unreadable, data.tokenizer_malformed, data.tokenizer_unsupported, data.tokenizer_no_separator, and the
    // constructor's.
    static Tokenizer load(const std::filesystem::path& file);
    // `origin` names the text in error messages.
    static Tokenizer from_json(std::string_view json, const std::string& origin);

    // save: written under a temporary name, then renamed. UserError file.cannot_write.
    void save(const std::filesystem::path& file) const;
    std::string to_json() const;

    int vocab_size() const { return static_cast<int>(parts_.tokens.size()); }
    int32_t separator() const { return parts_.separator; }
    const TokenizerParts& parts() const { return parts_; }

    // The second appends. For much text use an Encoder, which keeps its cache between calls.
    std::vector<int32_t> encode(std::string_view text) const;
    void encode(std::string_view text, std::vector<int32_t>& tokens) const;

    // Special tokens decode to their text. UserError data.token_out_of_range where an id is outside the vocabulary.
    std::string decode(std::span<const int32_t> tokens) const;

private:
    friend class Encoder;

    TokenizerParts parts_;
    PreSplitPattern pattern_;
    PairTable pairs_;
    std::array<int32_t, 256> byte_ids_;
    std::unordered_map<std::string, int32_t> whole_pieces_;  // filled only for whole_pieces_first
};

}  // namespace lockstep::data
