// Whole-number arithmetic, as a shell has it between $(( and )): + - * / % and brackets over numbers and names.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::interop {

// Nothing: it holds something else, a name without a number, a division by 0, or a number that no int64_t has.
std::optional<int64_t> evaluate(const std::string& text,
                                const std::function<std::optional<std::string>(const std::string& name)>& value_of);

}  // namespace lockstep::interop
