// Patterns of a shell: * ? [a-z] [!a] [[:digit:]], and \ before a character that stands for itself.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::interop {

class Pattern {
public:
    explicit Pattern(std::string text) : text_(std::move(text)) {}

    // Is the pattern one of these? Not known here: @(a|b) and its like.
    bool is_known() const;
    bool is_empty() const { return text_.empty(); }
    // Of cutting or replacing it in a text of this size, in steps of the interpreter.
    size_t cost(size_t size) const;
    bool matches(const std::string& text) const { return longest_at(text, 0) == text.size(); }
    // Where the shortest or the longest part from the beginning ends that it matches; and of the part at the end, where it
    // begins.
    std::optional<size_t> prefix(const std::string& text, bool longest) const;
    std::optional<size_t> suffix(const std::string& text, bool longest) const;
    // The longest part from `begin` on that it matches: where it ends.
    std::optional<size_t> longest_at(const std::string& text, size_t begin) const;

    // `text` as a pattern that matches only it.
    static std::string quoted(const std::string& text);

private:
    // Ends of all parts from `begin` on that it matches, the shortest first.
    std::vector<size_t> ends(const std::string& text, size_t begin) const;
    std::pair<size_t, bool> step(size_t p, char c) const;
    std::string text_;
};

}  // namespace lockstep::interop
