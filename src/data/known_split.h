// The split patterns of well-known tokenizers as plain loops, several times as fast as a regular expression.
// Guarantees: the pieces are those that PCRE2 finds with the expression (a test compares them on random text). Every character
// belongs to a match. The classes of characters are PCRE2's own, read from it once.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace lockstep::data {

// The split of Llama 3 (and, but for digits, GPT-4): contractions, words with one leading mark, up to three digits,
// punctuation with trailing newlines, white space.
inline constexpr std::string_view kLlama3SplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Qwen 2, 2.5 and 3: every digit by itself, else as Llama 3.
inline constexpr std::string_view kQwen2SplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// What Hugging Face's ByteLevel splits by when use_regex is set (GPT-2).
inline constexpr std::string_view kGpt2SplitPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The three splits of DeepSeek-V3, one after another. They run as regular expressions.
inline constexpr std::string_view kDeepSeekDigits = R"(\p{N}{1,3})";
inline constexpr std::string_view kDeepSeekCharacters = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
inline constexpr std::string_view kDeepSeekWords =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

// Where the piece ends that begins at `begin`. text[0, size) is valid UTF-8, begin < size.
using KnownSplit = size_t (*)(std::string_view text, size_t begin);

// Nothing for an expression that is not one of those above.
std::optional<KnownSplit> known_split(std::string_view expression);

}  // namespace lockstep::data
