// Whole-number arithmetic, as a shell has it between $(( and )).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::interop {

struct Names {
    std::function<std::optional<std::string>(const std::string& name)> value;  // of a variable or an element, "A[1]"
    std::function<void(const std::string& name, int64_t value)> assign;        // null: none can be set
};

// Nothing: it holds something else, a name without a number, a division by 0, or a number that no int64_t has.
std::optional<int64_t> evaluate(const std::string& text, const Names& names);

}  // namespace lockstep::interop
