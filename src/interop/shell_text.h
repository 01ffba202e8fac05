// The characters of a script and of its variables. Each knows the line that it is on, and whether it stands for something
// that only a run knows: "$NAME" of a variable that the script does not set.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace lockstep::interop {

// Why a value is not known.
struct Reason {
    std::string text;       // "TP is not set in the script"
    std::string asks = {};  // the flag that makes it known: "--script-env TP=VALUE"; empty: none does
    bool is_unset = false;  // nothing in the script sets the variable: it is empty unless the environment has it
    bool operator==(const Reason&) const = default;
};

struct Place {
    int line = 0;  // from 1
    int file = 0;  // 0: the script; others it reads by `source`
};

class Text {
public:
    using Why = std::shared_ptr<const Reason>;

    Text() = default;
    Text(const std::string& chars, Place place) { add(chars, place); }
    // `written` stands for what is not known.
    static Text unknown(const std::string& written, Place place, const Why& why);
    // The characters of a file.
    static Text of_file(const std::string& chars, int file);

    void add(char c, Place place) { chars_ += c, marks_.push_back({place, nullptr}); }
    void add(const std::string& text, Place place) {
        for (const char c : text) add(c, place);
    }
    void add(const Text& other) { add(other, 0, other.size()); }
    void add(const Text& other, size_t begin, size_t end);
    Text part(size_t begin, size_t end) const;

    const std::string& chars() const { return chars_; }
    size_t size() const { return chars_.size(); }
    bool empty() const { return chars_.empty(); }
    char operator[](size_t i) const { return chars_[i]; }
    // Of a character, or of the last one before `i`.
    Place place(size_t i = 0) const { return marks_.empty() ? Place() : marks_[i < marks_.size() ? i : marks_.size() - 1].place; }
    int line(size_t i = 0) const { return place(i).line; }
    // Of a character that is not known; else null.
    const Why& why(size_t i) const { return marks_[i].why; }
    // Of the first of them; null: all is known.
    Why why() const;
    bool is_known() const { return why() == nullptr; }
    // Is it nothing, or only variables that nothing in the script sets?
    bool is_unset_or_empty() const;

    // The same characters, known or unknown for the same reasons, wherever they are.
    bool operator==(const Text& other) const;

private:
    struct Mark {
        Place place;
        Why why;
    };
    std::string chars_;
    std::vector<Mark> marks_;
};

}  // namespace lockstep::interop
