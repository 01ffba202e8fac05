#include "cli/environment.h"

#include <cstdlib>

namespace lockstep::cli {

std::optional<std::string> variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
}

void set_unless_set(const char* name, const char* value) { setenv(name, value, 0); }

bool refuses_colors() { return !variable("NO_COLOR").value_or("").empty(); }

}  // namespace lockstep::cli
