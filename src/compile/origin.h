// Where the value of a recipe's key came from.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

namespace lockstep::compile {

struct Origin {
    enum class Kind { File, Flag };
    Kind kind = Kind::File;  // File: also what is found, such as the hosts, and what another system's file leaves out
    std::string text;        // "run.toml:3", "flag --training.steps", for messages

    static Origin flag(const std::string& key) { return {Kind::Flag, "flag --" + key}; }
    static Origin file(std::string text) { return {Kind::File, std::move(text)}; }
    bool is_flag() const { return kind == Kind::Flag; }
    bool operator==(const Origin&) const = default;
};

using Origins = std::map<std::string, Origin, std::less<>>;  // of keys that were set

}  // namespace lockstep::compile
