#define PCRE2_CODE_UNIT_WIDTH 8
#include "interop/shell_regex.h"

#include <pcre2.h>

#include <iterator>

namespace lockstep::interop {
namespace {

// \< and \> match the two ends of a word; \d is the letter d.
std::string shell_escape_of(char c) {
    if (c == '<') return "\\b(?=\\w)";
    if (c == '>') return "\\b(?<=\\w)";
    return c == 'd' || c == 'D' ? std::string(1, c) : std::string("\\") + c;
}

std::string with_shell_escapes(const std::string& extended) {
    std::string out;
    for (size_t i = 0; i < extended.size(); ++i) {
        const size_t close = extended[i] == '[' ? extended.find(']', i + 2) : std::string::npos;
        if (close != std::string::npos) out += extended.substr(i, close - i), i = close;
        if (extended[i] == '\\' && i + 1 < extended.size()) out += shell_escape_of(extended[++i]);
        else out += extended[i];
    }
    return out;
}

// In a basic expression ( ) { } + ? | stand for themselves, and with \ before them for what they are in an extended one.
std::string shell_extended(const std::string& basic) {
    const std::string special = "(){}+?|";
    std::string out;
    bool begins = true;  // of the expression: there * is a character, and ^ the beginning of the text
    for (size_t i = 0; i < basic.size(); ++i) {
        if (basic[i] == '[') {
            size_t end = i + 1;
            if (end < basic.size() && basic[end] == '^') ++end;
            if (end < basic.size() && basic[end] == ']') ++end;
            while (end < basic.size() && basic[end] != ']') {
                const size_t close = basic.compare(end, 2, "[:") == 0 ? basic.find(":]", end) : std::string::npos;
                end = close == std::string::npos ? end + 1 : close + 2;
            }
            if (end >= basic.size()) return basic;  // PCRE2 says what is wrong
            out += basic.substr(i, end + 1 - i);
            i = end;
        } else if (basic[i] == '\\' && i + 1 < basic.size()) {
            ++i;
            out += special.find(basic[i]) == std::string::npos ? shell_escape_of(basic[i]) : std::string(1, basic[i]);
            begins = basic[i] == '(' || basic[i] == '|';
            continue;
        } else if (basic[i] == '^' && begins) {
            out += '^';
            continue;
        } else if (basic[i] == '$') {
            const bool ends = i + 1 == basic.size() || basic.compare(i + 1, 2, "\\)") == 0 || basic.compare(i + 1, 2, "\\|") == 0;
            out += ends ? "$" : "\\$";
        } else if (special.find(basic[i]) != std::string::npos || basic[i] == '^' || (basic[i] == '*' && begins)) {
            out += '\\', out += basic[i];
        } else {
            out += basic[i];
        }
        begins = false;
    }
    return out;
}

}  // namespace

std::optional<Regex> Regex::compile(const std::string& pattern, Kind kind, bool ignores_case) {
    constexpr size_t kMost = 1 << 12;
    if (pattern.size() > kMost) return std::nullopt;
    const std::string text = kind == Kind::Basic      ? shell_extended(pattern)
                             : kind == Kind::Extended ? with_shell_escapes(pattern)
                                                      : pattern;
    int error = 0;
    PCRE2_SIZE at = 0;
    const uint32_t posix = kind == Kind::Perl ? 0u : PCRE2_DOTALL | PCRE2_DOLLAR_ENDONLY;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                      PCRE2_NEVER_BACKSLASH_C | posix | (ignores_case ? PCRE2_CASELESS : 0u), &error, &at, nullptr);
    if (!code) return std::nullopt;
    Regex out;
    out.code_ = std::shared_ptr<void>(code, [](void* c) { pcre2_code_free(static_cast<pcre2_code*>(c)); });
    out.has_choices_ = kind != Kind::Perl && text.find('|') != std::string::npos;
    return out;
}

std::optional<Regex::Groups> Regex::find(const std::string& text, size_t begin) const {
    constexpr uint32_t kMostSteps = 100000, kDeepest = 1000;
    auto* code = static_cast<pcre2_code*>(code_.get());
    const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(pcre2_match_context_create(nullptr),
                                                                                       pcre2_match_context_free);
    pcre2_set_match_limit(context.get(), kMostSteps);
    pcre2_set_depth_limit(context.get(), kDeepest);
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create_from_pattern(code, nullptr),
                                                                              pcre2_match_data_free);
    const int count =
        pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin, 0, data.get(), context.get());
    if (count < 0) {
        failed_ |= count != PCRE2_ERROR_NOMATCH;
        return std::nullopt;
    }
    if (has_choices_) {
        // PCRE2 takes the first choice that matches; a shell's programs take the longest match.
        int room[256] = {};
        const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> longest(pcre2_match_data_create(1, nullptr),
                                                                                     pcre2_match_data_free);
        const PCRE2_SIZE from = pcre2_get_ovector_pointer(data.get())[0];
        const int found = pcre2_dfa_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_ANCHORED,
                                          longest.get(), context.get(), room, std::size(room));
        const PCRE2_SIZE end = pcre2_get_ovector_pointer(longest.get())[1];
        if (found < 0 || (end != pcre2_get_ovector_pointer(data.get())[1] &&
                          pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), end, from,
                                      PCRE2_ANCHORED | PCRE2_ENDANCHORED, data.get(), context.get()) < 0)) {
            failed_ = true;
            return std::nullopt;
        }
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    Groups out;
    for (uint32_t i = 0; i < pcre2_get_ovector_count(data.get()); ++i) out.emplace_back(ends[2 * i], ends[2 * i + 1]);
    if (out[0].first > out[0].second) return std::nullopt;
    return out;
}

}  // namespace lockstep::interop
