// Arguments of a command line as Python's argparse takes them:
// "--name value", "--name=value", "--name" without a value, several values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/shell.h"

namespace lockstep::interop {

// Is it "--name" or "--name=value"?
bool begins_argument(const std::string& word);

struct Argument {
    std::string name;  // without "--"
    std::vector<std::string> values;
    std::string where;            // "pretrain.sh:12"
    std::string why, id, asks;    // as of a Word, of a value that is not known; empty: all are known
    bool may_be_nothing = false;  // its value is such a Word
    std::string text() const;     // "--num-layers 96"
};

// The arguments among the words of a command; of one that is repeated, the last. Words before the first argument are left out.
class Arguments {
public:
    Arguments(const std::vector<Word>& words, const std::string& origin);

    const std::vector<Argument>& all() const { return all_; }
    // Takes out the arguments of these names, and returns them.
    std::vector<Argument> leave_out(const std::vector<std::string>& names);
    // Words that would be more arguments, if anybody knew what a run puts there: "$@", "$EXTRA_ARGS".
    const std::vector<Argument>& unread() const { return unread_; }
    // "$EXTRA_ARGS: EXTRA_ARGS is not set in the script", of each; empty: there are none.
    std::string why_unread() const;
    // What to do about a value that is not known: `asks` is that of a word.
    std::string remedy(const std::string& asks) const;
    const std::string& origin() const { return origin_; }

    // The one that was given of several names of the same; null: none was.
    const Argument* find(const std::vector<std::string>& names) const;
    bool has(const std::string& name) const { return find({name}) != nullptr; }
    // Its only value. UserError recipe.argument_value where it has none, several, or one that only a run knows.
    std::string text(const Argument& a) const;
    // UserError recipe.argument_value also where it is none of these.
    std::string word(const Argument& a, const std::vector<std::string>& words) const;
    // UserError recipe.argument_value also where it is no such number.
    int64_t integer(const Argument& a) const;
    double number(const Argument& a) const;
    // UserError recipe.argument_value where it has one, but for a word that may be nothing.
    void require_no_value(const Argument& a) const;

private:
    std::string origin_;
    std::vector<Argument> all_, unread_;
};

}  // namespace lockstep::interop
