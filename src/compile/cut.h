// The cut of a program into the stages of a plan, without the order in which they run: for who compares many layouts.
#pragma once

#include "compile/stages.h"

namespace lockstep::compile {

// The same as the cut of stages_of().
passes::Cut cut_of(const StagePlan& plan, const ir::Program& whole);

}  // namespace lockstep::compile
