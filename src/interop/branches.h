// Which commands of a script run: `if` with a test of known words takes one way. Loops, functions, `case` and every other test
// may run or not, which only a run tells.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::interop {

// What `[ words ]` says: = == != -eq -ne -gt -ge -lt -le of two words, -z -n of one, ! before them. Nothing: it says something
// else, or a word is not known.
std::optional<bool> evaluate_test(std::vector<std::string> words);

class Branches {
public:
    enum class State { Runs, Skipped, Unknown };

    // A word that begins a command: is it a keyword of blocks, and taken as one?
    bool takes(const std::string& word, int line);
    // Is the command that ends here the condition of an `if`?
    bool is_in_condition() const { return !blocks_.empty() && blocks_.back().in_condition; }
    void condition(std::optional<bool> holds);

    State state() const;
    // Of a state that is not known: "`if` on line 3".
    std::string where() const;

private:
    struct Block {
        std::string keyword;  // that opened it
        int line;
        State state;
        bool in_condition = false;
        int conditions = 0;                           // commands between `if` and `then`
        std::optional<bool> holds = {};               // of the last condition
        bool was_taken = false, was_unknown = false;  // an earlier branch of the same `if`
    };
    void then(Block& b);
    void other(Block& b);
    void open(const std::string& keyword, int line);
    void close(const std::vector<std::string>& keywords);

    std::vector<Block> blocks_;
};

}  // namespace lockstep::interop
