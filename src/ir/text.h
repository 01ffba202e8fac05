// The text form of programs. parse(print(p)) == p for every program, and print(parse(t)) == t for every text that print made.
// Pass tests, `lockstep show` and bug reports all speak it.
#pragma once

#include <string>
#include <string_view>

#include "ir/program.h"

namespace lockstep::ir {

std::string print(const Program& program);
std::string print(const Program& program, const Routine& routine);

// Throws UserError "ir.syntax" naming the line and what was expected there.
Program parse(std::string_view text);

// The roles of dims and ports are mostly called as these are: the text then says the name alone. Another role follows the name,
// as in "flat0@flat=64" and "port ids@tp input read role ids".
DimRole dim_role_called(std::string_view name);
PortRole port_role_called(std::string_view name, PortKind kind);

}  // namespace lockstep::ir
