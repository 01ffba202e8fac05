// The command lines of a shell script, without running it. Variables, arrays, arithmetic, quotes, continued lines and
// here-documents are followed. What only a run could tell (a variable that nothing sets, the output of a command, a branch) stays
// in a word as the script has it, "$NAME", so that a reader that needs the word can say why it has no value.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::interop {

struct Word {
    std::string text;
    int line = 0;  // of the file, from 1
};

struct Script {
    std::vector<std::vector<Word>> commands;   // in the order of the file; a command line within a quoted word is one of its own
    std::map<std::string, std::string> files;  // what here-documents write, by the name of the file
    std::map<std::string, std::string> unknown;  // variables that a run sets: where, and why their value is not known

    // Is a part of `text` left as the script has it?
    static bool is_unknown(const std::string& text);
    // Why: "LAYERS is not set in the script". `text` is unknown.
    std::string why(const std::string& text) const;
};

// UserError recipe.script where a quote or a bracket is never closed.
Script read_script(const std::string& text, const std::string& origin);

}  // namespace lockstep::interop
