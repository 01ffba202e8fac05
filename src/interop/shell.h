// The commands that a shell script would start, without starting any. The script is interpreted: its grammar is bash's, its
// variables, conditions, loops, functions and here-documents do what bash does, and programs that only rewrite text (echo, cut,
// sed, seq, ...) are computed here. What only a run could tell (a variable that nothing sets, the output of another program)
// stays in a word as the script has it, "$NAME", with the reason; both ways of a condition that is not known are followed, and
// a variable that they leave different is not known after it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::interop {

struct Word {
    std::string text;
    std::string where;            // "pretrain.sh:12"
    std::string why;              // its value is not known; empty: it is known
    std::string id;               // tells apart values that are not known and are written alike
    std::string asks;             // the flag of `lockstep recipe --from` that makes it known: "--script-env TP=VALUE"
    bool may_be_nothing = false;  // only variables that nothing sets: no word at all unless the environment has them
};

struct ScriptInputs {
    std::vector<std::string> arguments;  // $1, $2, ...
    bool has_arguments = false;          // false: the script's arguments are not known
    std::vector<std::pair<std::string, std::string>> environment;
};

struct Script {
    struct Command {
        std::vector<Word> words;
        std::string maybe;   // why a run may not start it; empty: it does
        std::string asks;    // as of a word, that it is known whether it starts
        std::string folder;  // in which it starts; / where that is not known
    };
    std::vector<Command> commands;      // programs that are not computed here, in the order in which they start
    std::map<std::string, Word> files;  // what the script writes, by the whole name of the file, or by text + id of its word
    std::vector<Word> unread;           // commands that may change variables and are not known: `source FILE` without that file
    std::string ended;                  // the line that ends the script before its last; empty: it runs to its end
};

// UserError recipe.script where bash's grammar has no such text, where the script would never end, and where it needs more
// memory than a script that starts a run.
Script read_script(const std::string& text, const std::string& path, const ScriptInputs& inputs = {});

}  // namespace lockstep::interop
