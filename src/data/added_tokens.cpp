#include "data/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "data/unicode.h"

namespace lockstep::data {
namespace {

// \w of Rust's regular expressions: letters, marks, decimal digits, connectors.
bool is_word(Character c) {
    if (c.bytes == 0) return false;
    if (c.code_point == 0x200C || c.code_point == 0x200D) return true;  // the joiners
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(c.code_point))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_PC: return true;
        default: return false;
    }
}

size_t white_space_before(std::string_view text, size_t at) {
    while (at > 0) {
        const Character c = last_character(text.substr(0, at));
        if (c.bytes == 0 || !is_white_space(c.code_point)) break;
        at -= c.bytes;
    }
    return at;
}

size_t white_space_behind(std::string_view text, size_t at) {
    while (at < text.size()) {
        const Character c = first_character(text.substr(at));
        if (c.bytes == 0 || !is_white_space(c.code_point)) break;
        at += c.bytes;
    }
    return at;
}

}  // namespace

void AddedTokens::add(const AddedToken& token, const std::string& text) {
    if (text.empty()) return;
    uint32_t node = 0;
    for (const char c : text) {
        const auto byte = static_cast<uint8_t>(c);
        uint32_t next = child(node, byte);
        if (next == 0) {
            next = static_cast<uint32_t>(nodes_.size());
            nodes_.emplace_back();
            nodes_[node].next.emplace_back(byte, next);
        }
        node = next;
    }
    if (nodes_[node].token >= 0) return;
    nodes_[node].token = static_cast<int32_t>(tokens_.size());
    tokens_.push_back(token);
    lengths_.push_back(text.size());
    if (first_bytes_.find(text[0]) == std::string::npos) first_bytes_ += text[0];
    any_ = any_ || !token.special;
}

uint32_t AddedTokens::child(uint32_t node, uint8_t byte) const {
    for (const auto& [with, next] : nodes_[node].next)
        if (with == byte) return next;
    return 0;
}

int32_t AddedTokens::longest_at(std::string_view text, size_t at) const {
    int32_t longest = -1;
    uint32_t node = 0;
    for (; at < text.size(); ++at) {
        node = child(node, static_cast<uint8_t>(text[at]));
        if (node == 0) break;
        if (nodes_[node].token >= 0) longest = nodes_[node].token;
    }
    return longest;
}

AddedTokens::Found AddedTokens::find(std::string_view text, size_t from, size_t taken) const {
    while (true) {
        const size_t at = first_bytes_.size() == 1 ? text.find(first_bytes_[0], from) : text.find_first_of(first_bytes_, from);
        if (at == std::string_view::npos) break;
        const int32_t found = longest_at(text, at);
        if (found < 0) {
            from = at + 1;
            continue;
        }
        const AddedToken& token = tokens_[static_cast<size_t>(found)];
        const size_t end = at + lengths_[static_cast<size_t>(found)];
        from = end;
        if (token.special) continue;
        if (token.single_word && (is_word(last_character(text.substr(0, at))) || is_word(first_character(text.substr(end)))))
            continue;
        const size_t begin = token.lstrip ? white_space_before(text, at) : at;
        return {std::max(begin, taken), token.rstrip ? white_space_behind(text, end) : end, token.id, end};
    }
    return {text.size(), text.size(), -1, text.size()};
}

}  // namespace lockstep::data
