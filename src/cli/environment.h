// The environment of this process. Commands read it here and pass the values down as options: no code below cli asks for one.
#pragma once

#include <optional>
#include <string>

namespace lockstep::cli {

// The value of a variable; none: it is not set.
std::optional<std::string> variable(const char* name);
// For libraries in this process and for the processes that it starts. A value that the variable has stays.
void set_unless_set(const char* name, const char* value);

// NO_COLOR is set and not empty.
bool refuses_colors();

}  // namespace lockstep::cli
