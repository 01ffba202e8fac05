// What bash's grammar makes of a script: commands, and how they are nested. Words are as they are written;
// shell_expand.* says what becomes of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "interop/shell_text.h"

namespace lockstep::interop {

struct Redirection {
    std::string op;       // < > >> <<< << &> >& ...
    int descriptor;       // in front of it; -1: none
    Text target;          // a file or a here-string; of a here-document its body
    bool expands = true;  // a here-document whose end is not quoted
};

struct Node;
using Nodes = std::vector<std::shared_ptr<const Node>>;

struct Node {
    enum class Kind {
        Simple,      // words
        Test,        // [[ words ]]
        Arithmetic,  // (( words[0] ))
        Pipeline,    // parts, one or more; `is_negated`
        AndOr,       // parts, each of which but the first runs by `operators`
        List,        // parts, one after the other
        Subshell,    // ( parts[0] )
        Group,       // { parts[0] }
        If,          // condition, branch, condition, branch, ... and perhaps the branch of `else`
        While,       // parts[0] is the condition, parts[1] the body; `is_negated`: until
        For,         // words[0] is the name, the others its values; parts[0] the body. `in_arguments`: no `in`
        ForCount,    // for ((words[0]; words[1]; words[2]))
        Case,        // words[0]; parts[i] runs for patterns[i]
        Function,    // words[0] is its name, parts[0] its body
    };
    Kind kind = Kind::Simple;
    Place place;
    std::vector<Text> words;
    Nodes parts;
    std::vector<Redirection> redirections;
    std::vector<std::string> operators;       // of AndOr: && and ||; of Case: ;; ;& ;;&
    std::vector<std::vector<Text>> patterns;  // of Case
    bool is_negated = false, in_background = false, in_arguments = false;
};

// UserError recipe.script where bash's grammar has no such thing, with `origin` and the line.
std::shared_ptr<const Node> parse_script(const Text& text, const std::string& origin);

// Where the word that begins at `begin` ends: at a blank or an operator outside of quotes and brackets. UserError as above.
size_t end_of_word(const Text& text, size_t begin, const std::string& origin);
// Behind the quote, "${...}", "$(...)" or "`...`" that begins at `begin`.
size_t end_of_quoted(const Text& text, size_t begin, const std::string& origin);

// What the "<<" at a place of the text begins. Its lines begin at `after`, or where that is 0 behind the line of "<<".
struct HereDocument {
    std::string end_line;
    Text body;
    size_t behind_word = 0, behind_body = 0;
    bool is_quoted = false, strips_tabs = false, is_closed = false;
};
HereDocument here_document(const Text& text, size_t at, size_t after);
size_t end_of_document(const Text& text, size_t at, size_t after);

bool is_shell_blank(char c);
bool is_shell_space(char c);
bool begins_shell_name(char c);
bool is_of_shell_name(char c);
bool is_special_parameter(char c);  // $@ $* $# $? $$ $! $- $0 ... $9 $_
std::string without_shell_blanks(const std::string& text);
// Up to here a name goes on.
size_t end_of_name(const std::string& text, size_t begin);
[[noreturn]] void refuse_script(const std::string& origin, int line, const std::string& what);

}  // namespace lockstep::interop
