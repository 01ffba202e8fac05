#include "interop/hjson.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/json.h"

namespace lockstep::interop {
namespace {

using Json = nlohmann::json;

class Hjson {
public:
    explicit Hjson(const std::string& text) : s_(text) {}

    Json whole() {
        skip();
        const bool has_brackets = comes("{") || comes("[");
        if (!has_brackets) return members("");
        Json out = value();
        skip();
        if (at_ < s_.size()) fail("something follows the last bracket");
        return out;
    }

    std::string behind_comments() {
        skip();
        return s_.substr(at_);
    }

private:
    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error(fmt::format(
            "line {}: {}", 1 + std::count(s_.begin(), s_.begin() + static_cast<long>(std::min(at_, s_.size())), '\n'), what));
    }
    bool comes(const char* text) const { return s_.compare(at_, std::char_traits<char>::length(text), text) == 0; }
    // Blanks and comments.
    void skip() {
        while (at_ < s_.size()) {
            if (std::string(" \t\r\n").find(s_[at_]) != std::string::npos) ++at_;
            else if (s_[at_] == '#' || comes("//")) at_ = std::min(s_.find('\n', at_), s_.size());
            else if (comes("/*")) {
                const size_t end = s_.find("*/", at_ + 2);
                if (end == std::string::npos) fail("the comment /* is never closed");
                at_ = end + 2;
            } else break;
        }
    }
    Json value() {
        if (at_ >= s_.size()) fail("a value is missing");
        if (++depth_ > kDeepestJson) fail("brackets are nested too deeply");
        Json out = s_[at_] == '{'                      ? object()
                   : s_[at_] == '['                    ? array()
                   : s_[at_] == '"' || s_[at_] == '\'' ? Json(quoted())
                                                       : plain();
        --depth_;
        return out;
    }
    Json object() {
        ++at_;
        Json out = members("}");
        ++at_;
        return out;
    }
    // Up to `end`; empty: the end of the text.
    Json members(const std::string& end) {
        Json out = Json::object();
        for (;;) {
            separators();
            if (at_ >= s_.size() && end.empty()) return out;
            if (at_ >= s_.size()) fail("the bracket { is never closed");
            if (comes("}") && !end.empty()) return out;
            const std::string key = s_[at_] == '"' || s_[at_] == '\'' ? quoted() : name();
            skip();
            if (!comes(":")) fail(fmt::format("a : is missing behind {}", key));
            ++at_;
            skip();
            if (out.contains(key)) fail(fmt::format("{} is twice in one object", key));
            out[key] = value();
        }
    }
    Json array() {
        Json out = Json::array();
        for (++at_;;) {
            separators();
            if (at_ >= s_.size()) fail("the bracket [ is never closed");
            if (s_[at_] == ']') break;
            out.push_back(value());
        }
        ++at_;
        return out;
    }
    void separators() {
        for (skip(); at_ < s_.size() && s_[at_] == ','; skip()) ++at_;
    }
    std::string name() {
        const size_t begin = at_;
        while (at_ < s_.size() && std::string(" \t\r\n:{}[],\"").find(s_[at_]) == std::string::npos) ++at_;
        if (at_ == begin) fail("a name is missing");
        return s_.substr(begin, at_ - begin);
    }
    std::string quoted() {
        const size_t begin = at_;
        const char quote = s_[at_];
        for (++at_; at_ < s_.size() && s_[at_] != quote; ++at_) {
            if (s_[at_] == '\n') break;
            if (s_[at_] == '\\') ++at_;
        }
        if (at_ >= s_.size() || s_[at_] != quote) at_ = begin, fail("the quote is never closed");
        ++at_;
        std::string text = s_.substr(begin, at_ - begin);
        if (quote == '\'') text.front() = text.back() = '"';
        const Json parsed = json_or_discarded<Json>(text);
        if (!parsed.is_string()) at_ = begin, fail("is no text in quotes");
        return parsed.get<std::string>();
    }
    // A number, a word, or text up to the end of the line.
    Json plain() {
        const size_t word_end = std::min(s_.find_first_of(" \t\r\n,:{}[]#", at_), s_.size());
        const Json number = json_or_discarded<Json>(s_.substr(at_, word_end - at_));
        size_t after = std::min(s_.find_first_not_of(" \t\r", word_end), s_.size());
        const bool ends = after == s_.size() || std::string("\n,}]#").find(s_[after]) != std::string::npos ||
                          s_.compare(after, 2, "//") == 0 || s_.compare(after, 2, "/*") == 0;
        if (ends && (number.is_number() || number.is_boolean() || number.is_null())) {
            at_ = word_end;
            return number;
        }
        if (std::string("{}[]:,").find(s_[at_]) != std::string::npos) fail("a value is missing");
        const size_t line = std::min(s_.find('\n', at_), s_.size());
        std::string text = s_.substr(at_, line - at_);
        while (!text.empty() && std::string(" \t\r").find(text.back()) != std::string::npos) text.pop_back();
        at_ = line;
        return text;
    }

    const std::string& s_;
    size_t at_ = 0;
    int depth_ = 0;
};

}  // namespace

nlohmann::json parse_hjson(const std::string& text) { return Hjson(text).whole(); }

std::string without_comments_before(const std::string& text) {
    try {
        return Hjson(text).behind_comments();
    } catch (const std::runtime_error&) {
        return text;  // a comment that never ends
    }
}

}  // namespace lockstep::interop
