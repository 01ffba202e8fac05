// The text form of programs. parse(print(p)) == p for every program, and print(parse(t)) == t for every text that print made.
// Pass tests, `lockstep show` and bug reports all speak it.
#pragma once

#include <string>
#include <string_view>

#include "ir/program.h"

namespace lockstep::ir {

std::string print(const Program& program);
std::string print(const mesh::Mesh& mesh, const Routine& routine);

// Throws UserError "ir.syntax" naming the line and what was expected there.
Program parse(std::string_view text);

}  // namespace lockstep::ir
