#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/known_split.h"

#include <pcre2.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "data/unicode.h"

namespace lockstep::data {
namespace {

enum Class : uint8_t { kOther, kLetter, kNumber, kSpace, kNewline };  // kSpace: white space that is neither \r nor \n

// Letters and numbers lie below; planes 4 to 13 are empty, the last three hold tags and private use.
constexpr uint32_t kClassified = 0x40000;

// Marks in `classes` what `expression`, a class of characters, matches in `text`, which holds all classified characters.
void mark(std::vector<uint8_t>& classes, const std::string& text, const char* expression, Class mark_as) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset,
                      nullptr),
        pcre2_code_free);
    ensure(code != nullptr, "known_split: PCRE2 does not know a class of characters");
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                    pcre2_match_data_free);
    ensure(match != nullptr, "known_split: PCRE2 could not allocate its match data");
    size_t at = 0;
    while (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK, match.get(),
                       nullptr) > 0) {
        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
        for (at = range[0]; at < range[1];) {
            const Character character = first_valid_character(text.data() + at);
            classes[character.code_point] = mark_as;
            at += character.bytes;
        }
    }
}

std::vector<uint8_t> make_classes() {
    std::vector<uint8_t> classes(kCodePoints, kOther);
    std::string text;
    for (uint32_t code_point = 0; code_point < kClassified; ++code_point)
        if (code_point < 0xD800 || code_point > 0xDFFF) append_utf8(text, code_point);
    mark(classes, text, R"(\p{L}+)", kLetter);
    mark(classes, text, R"(\p{N}+)", kNumber);
    mark(classes, text, R"(\p{White_Space}+)", kSpace);
    classes['\r'] = classes['\n'] = kNewline;
    return classes;
}

const uint8_t* classes() {
    static const std::vector<uint8_t> kClasses = make_classes();
    return kClasses.data();
}

// A text and the classes of its characters.
struct Scan {
    const char* text;
    size_t end;
    const uint8_t* of = classes();

    struct At {
        uint8_t kind;
        uint8_t bytes;
    };
    At at(size_t i) const {
        const auto byte = static_cast<uint8_t>(text[i]);
        if (byte < 0x80) return {of[byte], 1};
        const Character character = first_valid_character(text + i);
        return {of[character.code_point], static_cast<uint8_t>(character.bytes)};
    }
    bool is(size_t i, Class kind) const { return i < end && at(i).kind == kind; }

    size_t run(size_t i, Class kind) const {
        while (i < end) {
            const At here = at(i);
            if (here.kind != kind) break;
            i += here.bytes;
        }
        return i;
    }
    size_t newlines(size_t i) const {
        while (i < end && (text[i] == '\n' || text[i] == '\r')) ++i;
        return i;
    }

    // \s+(?!\S)|\s+ at white space that begins at i: all of it but the last character, which the next piece may begin with.
    size_t spaces(size_t i) const {
        size_t last = i;
        size_t at_end = i;
        while (at_end < end) {
            const At here = at(at_end);
            if (here.kind < kSpace) break;
            last = at_end;
            at_end += here.bytes;
        }
        return at_end == end || last == i ? at_end : last;
    }

    // \s*[\r\n]+ at i: behind the last newline of the white space; i where it has none.
    size_t through_last_newline(size_t i) const {
        size_t found = i;
        while (i < end) {
            const At here = at(i);
            if (here.kind < kSpace) break;
            i += here.bytes;
            if (here.kind == kNewline) found = i;
        }
        return found;
    }

    // 's|'t|'re|'ve|'m|'ll|'d behind an apostrophe at i; i where there is none. Letters as `fold` makes them.
    template <class Fold>
    size_t contraction(size_t i, Fold fold) const {
        if (i + 1 >= end) return i;
        const char first = fold(text[i + 1]);
        if (first == 's' || first == 't' || first == 'm' || first == 'd') return i + 2;
        if (i + 2 >= end) return i;
        const char second = fold(text[i + 2]);
        const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
        return two ? i + 3 : i;
    }
};

size_t gpt2_piece(std::string_view text, size_t begin) {
    const Scan scan{text.data(), text.size()};
    if (text[begin] == '\'') {
        const size_t end = scan.contraction(begin, [](char c) { return c; });
        if (end > begin) return end;
    }
    const size_t word = text[begin] == ' ' && begin + 1 < text.size() ? begin + 1 : begin;
    const Scan::At first = scan.at(word);
    if (first.kind < kSpace) return scan.run(word + first.bytes, static_cast<Class>(first.kind));
    return scan.spaces(begin);
}

template <int kMostDigits>
size_t llama3_piece(std::string_view text, size_t begin) {
    const Scan scan{text.data(), text.size()};
    if (text[begin] == '\'') {
        const size_t end = scan.contraction(begin, [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
        if (end > begin) return end;
        if (text.substr(begin + 1, 2) == "\u017f") return begin + 3;  // the long s is an s when case does not count
    }
    const Scan::At first = scan.at(begin);
    const size_t second = begin + first.bytes;
    if (first.kind == kLetter) return scan.run(second, kLetter);
    if (first.kind == kNumber) {
        size_t end = second;
        for (int digits = 1; digits < kMostDigits && scan.is(end, kNumber); ++digits) end += scan.at(end).bytes;
        return end;
    }
    if (first.kind != kNewline && second < text.size()) {
        const Scan::At next = scan.at(second);
        if (next.kind == kLetter) return scan.run(second + next.bytes, kLetter);
        if (text[begin] == ' ' && next.kind == kOther) return scan.newlines(scan.run(second + next.bytes, kOther));
    }
    if (first.kind == kOther) return scan.newlines(scan.run(second, kOther));
    const size_t lines = scan.through_last_newline(begin);
    return lines > begin ? lines : scan.spaces(begin);
}

}  // namespace

std::optional<KnownSplit> known_split(std::string_view expression) {
    if (expression == kGpt2SplitPattern) return gpt2_piece;
    if (expression == kLlama3SplitPattern) return llama3_piece<3>;
    if (expression == kQwen2SplitPattern) return llama3_piece<1>;
    return std::nullopt;
}

}  // namespace lockstep::data
