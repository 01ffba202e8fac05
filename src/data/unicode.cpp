#include "data/unicode.h"

#include <algorithm>
#include <cstring>

namespace lockstep::data {

// Table 3-7 of the Unicode standard.
Character first_character(std::string_view text) {
    if (text.empty()) return {};
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    const uint8_t first = bytes[0];
    if (first < 0x80) return {first, 1};
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
    const uint8_t lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (bytes[1] < lowest || bytes[1] > highest) return {};
    for (size_t i = 2; i < length; ++i)
        if ((bytes[i] & 0xC0) != 0x80) return {};
    return first_valid_character(text.data());
}

Character last_character(std::string_view text) {
    for (size_t bytes = 1; bytes <= std::min<size_t>(4, text.size()); ++bytes) {
        const Character character = first_character(text.substr(text.size() - bytes));
        if (character.bytes == bytes) return character;
    }
    return {};
}

size_t valid_utf8_prefix_bytes(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        uint64_t eight;
        if (at + sizeof(eight) <= text.size()) {
            std::memcpy(&eight, text.data() + at, sizeof(eight));
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof(eight);
                continue;
            }
        }
        const uint32_t length = first_character(text.substr(at)).bytes;
        if (length == 0) break;
        at += length;
    }
    return at;
}

void append_utf8(std::string& text, uint32_t code_point) {
    const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
    if (code_point < 0x80) {
        add(code_point);
    } else if (code_point < 0x800) {
        add(0xC0 | code_point >> 6);
        add(0x80 | (code_point & 0x3F));
    } else if (code_point < 0x10000) {
        add(0xE0 | code_point >> 12);
        add(0x80 | (code_point >> 6 & 0x3F));
        add(0x80 | (code_point & 0x3F));
    } else {
        add(0xF0 | code_point >> 18);
        add(0x80 | (code_point >> 12 & 0x3F));
        add(0x80 | (code_point >> 6 & 0x3F));
        add(0x80 | (code_point & 0x3F));
    }
}

bool is_white_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace lockstep::data
