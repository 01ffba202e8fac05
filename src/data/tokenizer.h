// A byte-pair tokenizer, read from and written to Hugging Face's tokenizer.json. Its stages, in order:
//   added tokens that text may spell (added_tokens.h), normalizer (normalizer.h), pre-tokenizer (pre_tokenizer.h), merges.
// Merges: inside a piece the merge of lowest rank applies first, leftmost among equals. They begin with bytes (`byte_level`),
// or with characters; those without a token become bytes (`byte_fallback`) or the unknown token. Guarantees: encode never
// yields the separator or another special token, even where the text spells one, so a document cannot forge its own end.
// Without a normalizer and an unknown token, decode(encode(bytes)) == bytes for any bytes. Immutable: one Tokenizer may serve
// many threads; each thread that encodes much makes its own Encoder (encoder.h).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/added_tokens.h"
#include "data/document_tokens.h"
#include "data/normalizer.h"
#include "data/pair_table.h"
#include "data/pre_tokenizer.h"

namespace lockstep::data {

inline constexpr std::string_view kSeparatorText = "<|end_of_text|>";
inline constexpr int kBytesVocab = 257;  // 256 bytes and the separator: the smallest vocabulary

struct Merge {
    int32_t left, right, result;  // token ids; a merge's rank is its place in the list
    bool operator==(const Merge&) const = default;
};

// How tokens become text again, beyond their bytes.
struct DecoderParts {
    std::vector<std::pair<std::string, std::string>> replace;  // in each token: what, by what
    bool byte_fallback = false;                                // a token <0x0A> is that byte
    enum class Start { as_it_is, without_space, without_marks };
    Start start = Start::as_it_is;  // what the first token of a text loses: one space, or every `mark`
    std::string mark{};
};

// What a tokenizer is made of. `special` tokens are never produced from text.
struct TokenizerParts {
    std::vector<std::string> tokens;  // of each id what merges make: bytes or UTF-8; an added token's text; empty: not used
    std::vector<Merge> merges;
    std::vector<int32_t> special;  // ascending; holds the separator
    int32_t separator = 0;
    std::string separator_said_by{};  // the file that says it, or "--end-token"; empty: it has one of the known names
    int32_t begin = -1;               // what documents begin with; -1: nothing
    std::vector<AddedToken> added{};  // those that are searched in text, and special ones, which hide them
    std::vector<NormalizerStep> normalizer{};
    std::vector<PreTokenizerStep> pre_tokenizer{SplitStep{PreSplitPattern{std::string(kLlama3SplitPattern)}}};
    DecoderParts decoder{};
    bool byte_level = true;
    bool byte_fallback = false;
    int32_t unknown = -1;             // of what has no token; -1: there is none
    bool fuse_unknown = false;        // several in a row become one
    bool whole_pieces_first = false;  // Llama 3's "ignore_merges": a piece that is a token is not merged step by step
};

// The byte that a token <0x0A> stands for, -1 for any other token.
int fallback_byte(std::string_view token);

class Tokenizer {
public:
    // UserError data.tokenizer_byte_missing where a byte has no token and there is no unknown token either.
    explicit Tokenizer(TokenizerParts parts);

    // Ids 0 to 255 are the bytes, 256 is the separator, there are no merges.
    static Tokenizer bytes();

    // Errors: data.file_unreadable, data.tokenizer_malformed, data.tokenizer_unsupported, data.tokenizer_no_separator,
    // data.split_pattern, and the constructor's.
    // With the tokens that end and begin documents as the files next to it say.
    static Tokenizer load(const std::filesystem::path& file);
    // `origin` names the text in error messages.
    static Tokenizer from_json(std::string_view json, const std::string& origin, const DocumentTokens& documents = {});

    // save: written under a temporary name, then renamed. UserError file.cannot_write.
    void save(const std::filesystem::path& file) const;
    // A tokenizer that was read: byte for byte what it was read from.
    std::string to_json() const;

    int vocab_size() const { return static_cast<int>(parts_.tokens.size()); }
    int32_t separator() const { return parts_.separator; }
    int32_t begin() const { return parts_.begin; }  // what documents begin with; -1: nothing
    // The special tokens that end documents by their names, the one that is taken first; there may be none.
    std::vector<int32_t> known_separators() const;
    const TokenizerParts& parts() const { return parts_; }

    // The second appends. For much text use an Encoder, which keeps its cache between calls.
    std::vector<int32_t> encode(std::string_view text) const;
    void encode(std::string_view text, std::vector<int32_t>& tokens) const;

    // Special tokens decode to their text. UserError data.token_out_of_range where an id is outside the vocabulary.
    std::string decode(std::span<const int32_t> tokens) const;
    // What one token adds to a text; `first`: it is the text's first, which some tokenizers begin with a space of their own.
    std::string decode_one(int32_t token, bool first) const;

    // Of each token, how many bytes of text it stands for; a special token stands for none.
    std::vector<int64_t> text_bytes() const;

    // Where a part of `text` may end that begins at `begin` and holds about `bytes`: the tokens of the parts are those of the
    // whole. text.size() where the tokenizer knows no such place.
    size_t part_end(std::string_view text, size_t begin, size_t bytes) const;

private:
    friend class Encoder;
    enum class Cuts { nowhere, at_lines, at_spaces };

    void index_tokens();
    void check_bytes() const;
    // How many bytes before the end of a part of a word its tokens may depend on what follows; nothing: it is not known. If no
    // merge makes a token that an earlier merge takes, merges apply one after another, each from left to right, and each looks
    // at most one token to the right.
    std::optional<size_t> find_merge_reach() const;
    size_t symbol_bytes(int32_t id) const;  // of the text that it stands for; the unknown token stands for none
    bool merges_begin_words() const;
    Cuts find_cuts() const;

    TokenizerParts parts_;
    std::string json_;
    Normalizer normalizer_;
    AddedTokens raw_added_, normalized_added_;
    PairTable pairs_;
    std::array<int32_t, 256> byte_ids_;                      // byte_level: of the bytes; else of the tokens <0x00> to <0xFF>
    std::unordered_map<uint32_t, int32_t> character_ids_;    // where not byte_level
    std::unordered_map<std::string, int32_t> whole_pieces_;  // filled only for whole_pieces_first
    std::string word_mark_;                                  // no merge reaches across the beginning of one; empty: none known
    Cuts cuts_ = Cuts::nowhere;
    size_t longest_token_bytes_ = 0;
    std::optional<size_t> merge_reach_;
};

}  // namespace lockstep::data
