// Which bytes of a text are not UTF-8. Text is taken as it is; what is not UTF-8 is counted, so that a person hears of Latin-1.
// Pure functions of their bytes. Source: the Unicode Standard, table 3-7 (well-formed UTF-8 byte sequences).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

// Bytes of the byte-order mark that some editors write before the first character; 0: there is none. It is no text.
constexpr size_t byte_order_mark_bytes(std::string_view text) { return text.starts_with("\xEF\xBB\xBF") ? 3 : 0; }

struct InvalidUtf8 {
    int64_t bytes = 0;    // that belong to no well-formed character
    size_t first_at = 0;  // where the first is; meaningless where there is none
};

InvalidUtf8 invalid_utf8(std::string_view text);

// The text with U+FFFD in place of each byte that belongs to no well-formed character.
std::string with_replacements(std::string_view text);

}  // namespace lockstep::data
