#include "interop/shell_pattern.h"

#include <cctype>

namespace lockstep::interop {
namespace {

bool is_of_class(const std::string& name, unsigned char c) {
    if (name == "digit") return std::isdigit(c);
    if (name == "alpha") return std::isalpha(c);
    if (name == "alnum") return std::isalnum(c);
    if (name == "space") return std::isspace(c);
    if (name == "upper") return std::isupper(c);
    if (name == "lower") return std::islower(c);
    if (name == "punct") return std::ispunct(c);
    return false;
}

// Does the "[...]" at `at` have c? `at` moves behind it; false and not moved: no bracket closes it.
bool bracket(const std::string& pattern, size_t& at, char c, bool& holds) {
    size_t i = at + 1;
    const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
    if (negated) ++i;
    holds = false;
    for (const size_t first = i; i < pattern.size() && (pattern[i] != ']' || i == first); ++i) {
        if (pattern.compare(i, 2, "[:") == 0) {
            const size_t end = pattern.find(":]", i);
            if (end == std::string::npos) return false;
            holds |= is_of_class(pattern.substr(i + 2, end - i - 2), static_cast<unsigned char>(c));
            i = end + 1;
            continue;
        }
        if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
        const char low = pattern[i];
        if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
            i += 2;
            holds |= low <= c && c <= pattern[i];
        } else {
            holds |= low == c;
        }
    }
    if (i >= pattern.size()) return false;
    holds ^= negated;
    at = i + 1;
    return true;
}

}  // namespace

bool Pattern::is_known() const {
    for (size_t i = 0; i + 1 < text_.size(); ++i) {
        if (text_[i] == '\\') ++i;
        else if (text_[i + 1] == '(' && std::string("?*+@!").find(text_[i]) != std::string::npos) return false;
    }
    return true;
}

size_t Pattern::cost(size_t size) const {
    const bool may_be_long = text_.find('*') != std::string::npos;  // a match is tried from each place to the end
    return may_be_long ? size * size / 128 * (1 + text_.size() / 16) : size * (1 + text_.size()) / 64;
}

// Does the character match the pattern's part at p, and where does the pattern go on?
std::pair<size_t, bool> Pattern::step(size_t p, char c) const {
    if (text_[p] == '*') return {p, true};
    if (text_[p] == '?') return {p + 1, true};
    bool holds = false;
    size_t behind = p;
    if (text_[p] == '[' && bracket(text_, behind, c, holds)) return {behind, holds};
    if (text_[p] == '\\' && p + 1 < text_.size()) ++behind;
    return {behind + 1, text_[behind] == c};
}

// Follows every position of the pattern that the text so far can reach, a character at a time.
std::vector<size_t> Pattern::ends(const std::string& text, size_t begin) const {
    std::vector<size_t> out;
    std::vector<char> here(text_.size() + 1, 0), next;
    here[0] = 1;
    for (size_t t = begin;; ++t) {
        bool any = false;
        for (size_t p = 0; p < text_.size(); ++p) {
            if (here[p] && text_[p] == '*') here[p + 1] = 1;
        }
        if (here[text_.size()]) out.push_back(t);
        if (t == text.size()) return out;
        next.assign(text_.size() + 1, 0);
        for (size_t p = 0; p < text_.size(); ++p) {
            if (!here[p]) continue;
            const auto [behind, holds] = step(p, text[t]);
            if (holds) next[behind] = 1, any = true;
        }
        if (!any) return out;
        std::swap(here, next);
    }
}

std::optional<size_t> Pattern::prefix(const std::string& text, bool longest) const {
    const std::vector<size_t> all = ends(text, 0);
    if (all.empty()) return std::nullopt;
    return longest ? all.back() : all.front();
}

std::optional<size_t> Pattern::suffix(const std::string& text, bool longest) const {
    for (size_t i = 0; i <= text.size(); ++i) {
        const size_t begin = longest ? i : text.size() - i;
        if (longest_at(text, begin) == text.size()) return begin;
    }
    return std::nullopt;
}

std::optional<size_t> Pattern::longest_at(const std::string& text, size_t begin) const {
    const std::vector<size_t> all = ends(text, begin);
    return all.empty() ? std::nullopt : std::optional(all.back());
}

std::string Pattern::quoted(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (std::string("*?[]\\!^-@+(").find(c) != std::string::npos) out += '\\';
        out += c;
    }
    return out;
}

}  // namespace lockstep::interop
