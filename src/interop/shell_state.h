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
    bool is_integer = false, is_exported = false;
    Place place;  // where it was set

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
    std::map<std::string, std::shared_ptr<const Text>> files;
    Text folder;  // in which commands run
    Text output;  // what has been printed where it is kept
    std::optional<int> status = 0;
    Text::Why status_why;
    Flow flow = Flow::Runs;
    int levels = 0;                // loops that `break` or `continue` is of
    bool ends_at_failure = false;  // set -e

    const Variable* find(const std::string& name) const;
};

// `a` or `b`, which of them is not known: `why_of` says it of a variable that differs, by its name and where it was set.
State merge(const State& a, const State& b, const std::function<Text::Why(const std::string& name, Place place)>& why_of);

}  // namespace lockstep::interop
