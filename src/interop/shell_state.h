// What a script has set at one moment. A copy is cheap: both ways of a condition that is not known go on from one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "interop/shell_syntax.h"

namespace lockstep::interop {

struct Variable {
    enum class Shape { Scalar, List, Table };
    Shape shape = Shape::Scalar;
    std::map<int64_t, Text> items;  // of a scalar the item 0; none: the script has unset it
    std::map<std::string, Text> table;
    Text::Why why;  // none of it is known
    bool is_integer = false, is_exported = false, is_readonly = false;
    char letters = 0;       // u: upper case, l: lower case (declare -u, -l)
    std::string refers_to;  // the variable that it is another name of (declare -n)
    Place place;            // where it was set

    std::vector<Text> values() const;
    size_t size() const;
    bool operator==(const Variable& other) const;
};

enum class Flow { Runs, Exits, Returns, Breaks, Continues };

struct State {
    std::map<std::string, std::shared_ptr<const Variable>> variables;
    std::vector<Text> arguments;
    Text::Why arguments_why;                                       // of $1 and what follows where they are not known
    bool has_arguments = false;                                    // false: what the script is called with
    std::map<std::string, std::shared_ptr<const Node>> functions;  // null: which of two is not known
    std::set<std::string> exported_functions;
    std::map<std::string, std::shared_ptr<const Text>> files;  // null: it has been removed
    Text folder;                                               // in which commands run
    std::vector<Text> folders;                                 // that pushd left
    Text zero;                                                 // $0
    std::vector<Text> kept;                                    // printed into each $(...), pipe and file, the outermost first
    std::optional<int> status = 0;
    Text::Why status_why;
    Flow flow = Flow::Runs;
    int levels = 0;                // loops that `break` or `continue` is of
    bool ends_at_failure = false;  // set -e
    bool fails_in_pipes = false;   // set -o pipefail
    bool exports_all = false;      // set -a
    bool refuses_unset = false;    // set -u

    const Variable* find(const std::string& name) const;
    // Of a name that refers to another (declare -n) the last; else itself.
    std::string target_of(const std::string& name) const;
};

// `a` or `b`, which of them is not known: `why_of` says it of a variable that differs, by its name and where it was set.
State merge(const State& a, const State& b, const std::function<Text::Why(const std::string& name, Place place)>& why_of);

}  // namespace lockstep::interop
