// Configurations of other systems that are not read: each is named, with what can be read in its place.
#pragma once

#include <string>

namespace lockstep::interop {

bool is_python(const std::string& text);
bool is_yaml(const std::string& text);
bool is_neox(const std::string& text);  // a mixture of JSON and YAML
// UserError recipe.other_system, for a text that is one of them.
[[noreturn]] void refuse_other_system(const std::string& text, const std::string& path);

}  // namespace lockstep::interop
