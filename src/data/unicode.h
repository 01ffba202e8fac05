// UTF-8, strictly: no overlong forms, no surrogates, at most U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

inline constexpr uint32_t kCodePoints = 0x110000;

// The character at the start of a text. bytes is 0 where the text is empty or does not begin with valid UTF-8.
struct Character {
    uint32_t code_point = 0;
    uint32_t bytes = 0;
};
Character first_character(std::string_view text);

// As first_character, for text that is known to be valid UTF-8 and not empty.
inline Character first_valid_character(const char* text) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(text);
    const uint32_t first = bytes[0];
    if (first < 0x80) return {first, 1};
    if (first < 0xE0) return {(first & 0x1F) << 6 | (bytes[1] & 0x3Fu), 2};
    if (first < 0xF0) return {(first & 0x0F) << 12 | (bytes[1] & 0x3Fu) << 6 | (bytes[2] & 0x3Fu), 3};
    return {(first & 0x07) << 18 | (bytes[1] & 0x3Fu) << 12 | (bytes[2] & 0x3Fu) << 6 | (bytes[3] & 0x3Fu), 4};
}

// The last character of a text; bytes is 0 where the text is empty or ends with bytes that are not UTF-8.
Character last_character(std::string_view text);

// Bytes at the start of `text` that are valid UTF-8.
size_t valid_utf8_prefix_bytes(std::string_view text);

// Appends a character. `code_point` is below kCodePoints and not a surrogate.
void append_utf8(std::string& text, uint32_t code_point);

// White_Space of Unicode.
bool is_white_space(uint32_t code_point);

}  // namespace lockstep::data
