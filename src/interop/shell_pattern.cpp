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

// What follows the last * is tried at each later place.
bool Pattern::matches(const std::string& text, size_t begin, size_t end) const {
    size_t p = 0, t = begin, star = std::string::npos, resume = begin;
    while (true) {
        if (p < text_.size() && text_[p] == '*') {
            star = ++p, resume = t;
            continue;
        }
        if (p == text_.size() && t == end) return true;
        bool holds = false;
        if (p < text_.size() && t < end) {
            size_t next = p;
            if (text_[p] == '?') holds = true, next = p + 1;
            else if (text_[p] == '[' && bracket(text_, next, text[t], holds)) {
            } else {
                if (text_[p] == '\\' && p + 1 < text_.size()) ++next;
                holds = text_[next] == text[t];
                ++next;
            }
            if (holds) p = next, ++t;
        }
        if (holds) continue;
        if (star == std::string::npos || resume >= end) return false;
        p = star, t = ++resume;
    }
}

std::optional<size_t> Pattern::prefix(const std::string& text, bool longest) const {
    for (size_t i = 0; i <= text.size(); ++i) {
        const size_t end = longest ? text.size() - i : i;
        if (matches(text, 0, end)) return end;
    }
    return std::nullopt;
}

std::optional<size_t> Pattern::suffix(const std::string& text, bool longest) const {
    for (size_t i = 0; i <= text.size(); ++i) {
        const size_t begin = longest ? i : text.size() - i;
        if (matches(text, begin, text.size())) return begin;
    }
    return std::nullopt;
}

std::optional<size_t> Pattern::longest_at(const std::string& text, size_t begin) const {
    for (size_t end = text.size(); end + 1 > begin; --end) {
        if (matches(text, begin, end)) return end;
        if (end == 0) break;
    }
    return std::nullopt;
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
