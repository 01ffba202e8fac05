#include "data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "data/encoder.h"

namespace lockstep::data {
namespace {

bool is_special(const TokenizerParts& parts, int32_t id) {
    return std::binary_search(parts.special.begin(), parts.special.end(), id);
}

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::move(parts)), pattern_(parts_.split_pattern), pairs_(parts_.merges.size()) {
    ensure(is_special(parts_, parts_.separator), "Tokenizer: the separator is a special token");
    byte_ids_.fill(-1);
    for (int32_t id = 0; id < vocab_size(); ++id) {
        const std::string& token = parts_.tokens[id];
        if (token.empty() || is_special(parts_, id)) continue;
        if (token.size() == 1) byte_ids_[static_cast<uint8_t>(token[0])] = id;
        if (parts_.whole_pieces_first) whole_pieces_.emplace(token, id);
    }
    const auto missing = std::find(byte_ids_.begin(), byte_ids_.end(), -1);
    if (missing != byte_ids_.end()) {
        throw UserError("data.tokenizer_byte_missing", "vocab",
                        fmt::format("the tokenizer's vocabulary has no token for byte 0x{:02X}: text could be lost. "
                                    "Use a byte-level tokenizer whose vocabulary holds all 256 bytes.",
                                    missing - byte_ids_.begin()));
    }
    for (size_t rank = 0; rank < parts_.merges.size(); ++rank) {
        const Merge& merge = parts_.merges[rank];
        pairs_.insert(merge.left, merge.right, {static_cast<int32_t>(rank), merge.result});
    }
}

Tokenizer Tokenizer::bytes() {
    TokenizerParts parts;
    for (int byte = 0; byte < 256; ++byte) parts.tokens.emplace_back(1, static_cast<char>(byte));
    parts.separator = static_cast<int32_t>(parts.tokens.size());
    parts.tokens.emplace_back(kSeparatorText);
    parts.special = {parts.separator};
    return Tokenizer(std::move(parts));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
    std::vector<int32_t> tokens;
    encode(text, tokens);
    return tokens;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& tokens) const { Encoder(*this).encode(text, tokens); }

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
    std::string text;
    for (const int32_t id : tokens) {
        if (id < 0 || id >= vocab_size()) {
            throw UserError("data.token_out_of_range", "tokens",
                            fmt::format("token {} is outside the tokenizer's vocabulary of {}. "
                                        "Decode with the tokenizer that the tokens were made with.",
                                        id, vocab_size()));
        }
        text += parts_.tokens[id];
    }
    return text;
}

}  // namespace lockstep::data
