#include "data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/output_file.h"
#include "data/encoder.h"
#include "data/file_io.h"
#include "data/tokenizer_json.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kMetaspace = "\u2581";

bool is_special(const TokenizerParts& parts, int32_t id) {
    return std::binary_search(parts.special.begin(), parts.special.end(), id);
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Does a newline between a character that is no white space and an ASCII letter end a piece, whatever is around them?
bool splits_at_lines(const std::vector<PreTokenizerStep>& steps) {
    bool splits = false;
    for (const PreTokenizerStep& step : steps) {
        const auto* split = std::get_if<SplitStep>(&step);
        if (split == nullptr || split->behavior != SplitStep::Behavior::isolated || split->invert) return false;
        const std::string& expression = split->pattern.expression();
        if (split->pattern.is_known() || expression == kDeepSeekWords) splits = true;
        else if (expression != kDeepSeekDigits && expression != kDeepSeekCharacters) return false;
    }
    return splits;
}

bool any_holds(const std::vector<AddedToken>& added, char c) {
    return std::any_of(added.begin(), added.end(), [&](const AddedToken& t) { return t.text.find(c) != std::string::npos; });
}

}  // namespace

int fallback_byte(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
    const int high = digit(token[3]), low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::move(parts)), normalizer_(parts_.normalizer), pairs_(parts_.merges.size()) {
    ensure(is_special(parts_, parts_.separator), "Tokenizer: the separator is a special token");
    index_tokens();
    check_bytes();
    for (size_t rank = 0; rank < parts_.merges.size(); ++rank) {
        const Merge& merge = parts_.merges[rank];
        if (!is_special(parts_, merge.result)) pairs_.insert(merge.left, merge.right, {static_cast<int32_t>(rank), merge.result});
    }
    for (const AddedToken& token : parts_.added) {
        std::string buffer;
        if (token.normalized) normalized_added_.add(token, std::string(normalizer_.apply(token.text, false, buffer)));
        else raw_added_.add(token, token.text);
    }
    if (merges_begin_words()) word_mark_ = kMetaspace;
    cuts_ = find_cuts();
    for (const std::string& token : parts_.tokens) longest_token_bytes_ = std::max(longest_token_bytes_, token.size());
    merge_reach_ = find_merge_reach();
}

size_t Tokenizer::symbol_bytes(int32_t id) const {
    const std::string& token = parts_.tokens[static_cast<size_t>(id)];
    return !parts_.byte_level && parts_.byte_fallback && fallback_byte(token) >= 0 ? 1 : token.size();
}

std::optional<size_t> Tokenizer::find_merge_reach() const {
    std::vector<int32_t> first_use(parts_.tokens.size(), INT32_MAX);
    const auto merges = static_cast<int32_t>(parts_.merges.size());
    for (int32_t rank = merges - 1; rank >= 0; --rank) {
        const Merge& merge = parts_.merges[static_cast<size_t>(rank)];
        first_use[static_cast<size_t>(merge.left)] = first_use[static_cast<size_t>(merge.right)] = rank;
    }
    size_t reach = longest_token_bytes_;
    for (int32_t rank = 0; rank < merges; ++rank) {
        const Merge& merge = parts_.merges[static_cast<size_t>(rank)];
        const bool makes_a_byte = parts_.byte_fallback && fallback_byte(parts_.tokens[static_cast<size_t>(merge.result)]) >= 0;
        if (first_use[static_cast<size_t>(merge.result)] <= rank || makes_a_byte) return std::nullopt;
        reach += symbol_bytes(merge.left);
    }
    // Between bytes of characters, unknown characters come late (Encoder::find_symbols), so their place is not known.
    const bool some_bytes = std::any_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id >= 0; });
    const bool all_bytes = std::all_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id >= 0; });
    if (parts_.byte_fallback && some_bytes && !all_bytes) return std::nullopt;
    return reach;
}

void Tokenizer::index_tokens() {
    byte_ids_.fill(-1);
    std::vector<bool> is_made(parts_.tokens.size(), true);  // by merges
    for (const int32_t id : parts_.special) is_made[id] = false;
    for (const AddedToken& token : parts_.added)
        if (!token.in_vocabulary) is_made[token.id] = false;
    for (int32_t id = 0; id < vocab_size(); ++id) {
        const std::string& token = parts_.tokens[id];
        if (token.empty() || !is_made[id]) continue;
        if (parts_.whole_pieces_first) whole_pieces_.emplace(token, id);
        if (parts_.byte_level) {
            if (token.size() == 1) byte_ids_[static_cast<uint8_t>(token[0])] = id;
            continue;
        }
        const Character character = first_character(token);
        if (character.bytes == token.size()) character_ids_.emplace(character.code_point, id);
        if (const int byte = fallback_byte(token); byte >= 0 && parts_.byte_fallback) byte_ids_[static_cast<size_t>(byte)] = id;
    }
}

void Tokenizer::check_bytes() const {
    const auto missing = std::find(byte_ids_.begin(), byte_ids_.end(), -1);
    if (missing == byte_ids_.end() || parts_.unknown >= 0) return;
    throw UserError("data.tokenizer_byte_missing", "vocab",
                    fmt::format("the tokenizer's vocabulary has no token for byte 0x{:02X}, and no unknown token: text could be "
                                "lost. Use a tokenizer whose vocabulary holds all 256 bytes.",
                                missing - byte_ids_.begin()));
}

// Does every merge stay within a word, a word being all up to the next mark that does not follow another mark?
bool Tokenizer::merges_begin_words() const {
    if (parts_.byte_level || parts_.whole_pieces_first || !character_ids_.contains(first_character(kMetaspace).code_point))
        return false;
    return std::all_of(parts_.merges.begin(), parts_.merges.end(), [&](const Merge& merge) {
        if (fallback_byte(parts_.tokens[merge.left]) >= 0 || fallback_byte(parts_.tokens[merge.right]) >= 0) return false;
        const std::string_view text = parts_.tokens[merge.result];
        size_t marks = 0;
        while (text.substr(marks).starts_with(kMetaspace)) marks += kMetaspace.size();
        return text.find(kMetaspace, marks) == std::string_view::npos;
    });
}

Tokenizer::Cuts Tokenizer::find_cuts() const {
    if (!normalizer_.is_local()) return Cuts::nowhere;
    if (splits_at_lines(parts_.pre_tokenizer)) {
        const bool takes_lines = std::any_of(parts_.added.begin(), parts_.added.end(),
                                             [](const AddedToken& t) { return t.lstrip && is_letter(t.text.front()); });
        return takes_lines || any_holds(parts_.added, '\n') ? Cuts::nowhere : Cuts::at_lines;
    }
    if (word_mark_.empty() || any_holds(parts_.added, ' ')) return Cuts::nowhere;
    bool marks = false;
    for (const NormalizerStep& step : parts_.normalizer) {
        if (step.kind != NormalizerStep::Kind::replace) continue;
        if (step.replacement != word_mark_) return Cuts::nowhere;
        marks = true;
    }
    if (parts_.pre_tokenizer.empty()) return marks ? Cuts::at_spaces : Cuts::nowhere;
    const auto* metaspace = std::get_if<MetaspaceStep>(&parts_.pre_tokenizer.front());
    const bool step_marks = metaspace != nullptr && metaspace->mark == word_mark_ && parts_.pre_tokenizer.size() == 1;
    return step_marks ? Cuts::at_spaces : Cuts::nowhere;
}

Tokenizer Tokenizer::bytes() {
    TokenizerParts parts;
    for (int byte = 0; byte < 256; ++byte) parts.tokens.emplace_back(1, static_cast<char>(byte));
    parts.separator = static_cast<int32_t>(parts.tokens.size());
    parts.tokens.emplace_back(kSeparatorText);
    parts.special = {parts.separator};
    return Tokenizer(std::move(parts));
}

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
    return from_json(MappedFile::open(file).text(), file.string(), DocumentTokens::beside(file));
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& origin, const DocumentTokens& documents) {
    Tokenizer tokenizer(parse_tokenizer_json(json, origin, documents));
    tokenizer.json_ = json;
    return tokenizer;
}

std::vector<int32_t> Tokenizer::known_separators() const { return data::known_separators(parts_); }

std::string Tokenizer::to_json() const { return json_.empty() ? tokenizer_to_json(parts_) : json_; }

void Tokenizer::save(const std::filesystem::path& file) const { write_whole_file(file, to_json()); }

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
    std::vector<int32_t> tokens;
    encode(text, tokens);
    return tokens;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& tokens) const { Encoder(*this).encode(text, tokens); }

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) text += decode_one(tokens[i], i == 0);
    return text;
}

std::string Tokenizer::decode_one(int32_t id, bool first) const {
    if (id < 0 || id >= vocab_size()) {
        throw UserError("data.token_out_of_range", "tokens",
                        fmt::format("token {} is outside the tokenizer's vocabulary of {}. "
                                    "Decode with the tokenizer that the tokens were made with.",
                                    id, vocab_size()));
    }
    using Start = DecoderParts::Start;
    const DecoderParts& decoder = parts_.decoder;
    std::string text = parts_.tokens[id];
    if (parts_.byte_level || is_special(parts_, id)) return text;
    if (const int byte = fallback_byte(text); byte >= 0 && decoder.byte_fallback) return {static_cast<char>(byte)};
    const auto replace = [&](std::string_view what, std::string_view by) {
        for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
            text.replace(at, what.size(), by);
    };
    if (first && decoder.start == Start::without_marks) replace(decoder.mark, "");
    for (const auto& [what, by] : decoder.replace) replace(what, by);
    if (first && decoder.start == Start::without_space && text.starts_with(' ')) text.erase(0, 1);
    return text;
}

std::vector<int64_t> Tokenizer::text_bytes() const {
    std::vector<int64_t> bytes;
    for (int32_t id = 0; id < vocab_size(); ++id) bytes.push_back(static_cast<int64_t>(decode_one(id, false).size()));
    for (const int32_t id : parts_.special) bytes[static_cast<size_t>(id)] = 0;
    return bytes;
}

size_t Tokenizer::part_end(std::string_view text, size_t begin, size_t bytes) const {
    if (cuts_ == Cuts::nowhere || text.size() - begin <= bytes) return text.size();
    const char border = cuts_ == Cuts::at_lines ? '\n' : ' ';
    for (size_t at = text.find(border, begin + bytes); at != std::string_view::npos; at = text.find(border, at + 1)) {
        if (at + 1 == text.size()) break;
        const char before = text[at - 1];
        if (!is_letter(text[at + 1])) continue;
        // In ASCII it is plain which character is white space; a line that ends otherwise is not cut.
        if (cuts_ == Cuts::at_lines && before > ' ' && before < 0x7F) return at + 1;
        if (cuts_ == Cuts::at_spaces && is_letter(before)) return at;
    }
    return text.size();
}

}  // namespace lockstep::data
