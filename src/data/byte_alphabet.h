// The byte-level alphabet of GPT-2 and of Hugging Face's ByteLevel: every byte is one printable Unicode character, so that
// tokens of arbitrary bytes can be in JSON. Printable Latin-1 bytes stand for themselves, the 68 others for U+0100 on.
// Source: encoder.py of openai/gpt-2, bytes_to_unicode().
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

// Bytes as UTF-8 text of the alphabet: " a\n" becomes "ĠaĊ".
std::string to_alphabet(std::string_view bytes);

// The inverse; nothing where `text` holds a character outside the alphabet.
std::optional<std::string> from_alphabet(std::string_view text);

}  // namespace lockstep::data
