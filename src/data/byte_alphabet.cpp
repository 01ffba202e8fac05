#include "data/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace lockstep::data {
namespace {

constexpr int kAlphabetEnd = 256 + 68;  // the largest code point used is U+0143

struct Alphabet {
    std::array<uint16_t, 256> code_points{};
    std::array<int16_t, kAlphabetEnd> bytes{};  // -1: not in the alphabet
};

bool stands_for_itself(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

Alphabet make_alphabet() {
    Alphabet alphabet;
    alphabet.bytes.fill(-1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
        const int code_point = stands_for_itself(byte) ? byte : next++;
        alphabet.code_points[byte] = static_cast<uint16_t>(code_point);
        alphabet.bytes[code_point] = static_cast<int16_t>(byte);
    }
    return alphabet;
}

const Alphabet& alphabet() {
    static const Alphabet kAlphabet = make_alphabet();
    return kAlphabet;
}

}  // namespace

std::string to_alphabet(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size() * 2);
    for (const char c : bytes) {
        const int code_point = alphabet().code_points[static_cast<uint8_t>(c)];
        if (code_point < 0x80) {
            text += static_cast<char>(code_point);
        } else {  // all others are below U+0800: two bytes
            text += static_cast<char>(0xC0 | (code_point >> 6));
            text += static_cast<char>(0x80 | (code_point & 0x3F));
        }
    }
    return text;
}

std::optional<std::string> from_alphabet(std::string_view text) {
    std::string bytes;
    bytes.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        int code_point = static_cast<uint8_t>(text[i]);
        if (code_point >= 0x80) {
            if ((code_point & 0xE0) != 0xC0 || i + 1 == text.size()) return std::nullopt;
            code_point = ((code_point & 0x1F) << 6) | (static_cast<uint8_t>(text[++i]) & 0x3F);
        }
        if (code_point >= kAlphabetEnd || alphabet().bytes[code_point] < 0) return std::nullopt;
        bytes += static_cast<char>(alphabet().bytes[code_point]);
    }
    return bytes;
}

}  // namespace lockstep::data
