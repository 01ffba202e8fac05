#include "data/utf8.h"

#include <cstring>

namespace lockstep::data {
namespace {

// Bytes of the well-formed character at `at`; 0: there is none.
size_t character_bytes(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
    const auto follows = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) { return byte(i) >= low && byte(i) <= high; };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    if (first < 0xE0) return follows(1) ? 2 : 0;
    if (first < 0xF0) {
        const unsigned low = first == 0xE0 ? 0xA0 : 0x80, high = first == 0xED ? 0x9F : 0xBF;  // overlong; surrogates
        return follows(1, low, high) && follows(2) ? 3 : 0;
    }
    const unsigned low = first == 0xF0 ? 0x90 : 0x80, high = first == 0xF4 ? 0x8F : 0xBF;  // overlong; above U+10FFFF
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
}

// Where the next byte above 0x7F stands, or the end.
size_t skip_ascii(std::string_view text, size_t at) {
    for (uint64_t eight = 0; at + sizeof(eight) <= text.size(); at += sizeof(eight)) {
        std::memcpy(&eight, text.data() + at, sizeof(eight));
        if ((eight & 0x8080808080808080u) != 0) break;
    }
    while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
    return at;
}

}  // namespace

InvalidUtf8 invalid_utf8(std::string_view text) {
    InvalidUtf8 found;
    for (size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
        if (const size_t bytes = character_bytes(text, at)) {
            at += bytes;
            continue;
        }
        if (found.bytes++ == 0) found.first_at = at;
        ++at;
    }
    return found;
}

std::string with_replacements(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 16);
    for (size_t at = 0; at < text.size();) {
        const size_t bytes = character_bytes(text, at);
        if (bytes == 0) out += "\xEF\xBF\xBD";
        else out += text.substr(at, bytes);
        at += bytes == 0 ? 1 : bytes;
    }
    return out;
}

}  // namespace lockstep::data
