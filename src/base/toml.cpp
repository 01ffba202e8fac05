#include "base/toml.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr size_t kMostTomlBytes = size_t{2} << 20;
constexpr int kMostTomlParts = 16, kMostTomlDepth = 32;

// Walks over a text as far as toml++ would, and further:
// where the text is no TOML any more, toml++ stops at an error of its own.
class TomlDepth {
public:
    explicit TomlDepth(std::string_view text) : text_(text) {}

    // What is too much, and line_; null: nothing.
    const char* excess() {
        while (at_ < text_.size()) {
            const char c = text_[at_++];
            if (c == '#') at_ = std::min(text_.find('\n', at_), text_.size());
            else if (c == '"' || c == '\'') skip_string(c);
            else if (c == '.' && ++parts_ > kMostTomlParts)
                return "a key has more than 16 parts, which no file of Lockstep needs";
            else if (c == '[' || c == '{') ++depth_;
            else if (c == ']' || c == '}') depth_ = std::max(0, depth_ - 1);
            if (c == '\n') ++line_;
            if (c == '\n' || c == '=' || c == ',' || c == '[' || c == '{') parts_ = 1;
            if (depth_ > kMostTomlDepth) return "lists and tables are nested more than 32 deep, which no file of Lockstep needs";
        }
        return nullptr;
    }
    uint32_t line() const { return line_; }

private:
    // Behind the quotation mark that opens it. One that is not closed ends with its line.
    void skip_string(char quote) {
        const bool escapes = quote == '"', is_long = text_.substr(at_, 2) == std::string_view(quote == '"' ? "\"\"" : "''");
        if (is_long) at_ += 2;
        while (at_ < text_.size()) {
            const char c = text_[at_];
            if (c == '\n' && !is_long) return;
            if (c == '\\' && escapes) {
                at_ += text_.substr(at_ + 1, 1) == "\n" ? 1 : 2;
            } else if (c != quote) {
                line_ += c == '\n';
                ++at_;
            } else if (!is_long) {
                ++at_;
                return;
            } else {
                const size_t marks = std::min(text_.find_first_not_of(quote, at_), text_.size()) - at_;
                at_ += std::min<size_t>(marks, 5);  // two of its own may come before the three that close it
                if (marks >= 3) return;
            }
        }
    }

    std::string_view text_;
    size_t at_ = 0;
    uint32_t line_ = 1;
    int parts_ = 1, depth_ = 0;
};

}  // namespace

toml::table parse_toml(std::string_view text, std::string_view origin) {
    const auto refuse = [](const char* what, uint32_t line) { throw TomlExcess(what, toml::source_position{line, 1}); };
    if (text.size() > kMostTomlBytes) refuse("the text is longer than 2 MiB, which no file of Lockstep needs", 1);
    TomlDepth depth(text);
    if (const char* what = depth.excess()) refuse(what, depth.line());
    return toml::parse(text, origin);
}

}  // namespace lockstep
