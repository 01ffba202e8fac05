// The numbers of the optimizers' ops, over the programs of all pipeline ranks.
#pragma once

#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::check {

// Ops of one kind that end a step have the same attributes in the whole job; so have bias corrections and the moments that they
// correct. Segments with decay have one weight decay, those without 0. Segments of one rule have one kind of update. Empty, or the
// first op that differs. Requires updates of which step_end.h has nothing to say.
std::string wrong_hyperparameters(const std::vector<const ir::Program*>& programs);

}  // namespace lockstep::check
