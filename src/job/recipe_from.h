// `lockstep recipe --from PATH`: the recipe of something that has a model. A checkpoint or a run gives the recipe that it ran
// under; every other file and folder is read as commands read it (interop/read.h).
#pragma once

#include <string>

#include "interop/read_options.h"
#include "interop/reading.h"

namespace lockstep::job {

// UserError recipe.from where the path is none of these, and of whatever reads it; recipe.not_available where Lockstep does not
// have the model.
interop::Reading recipe_from(const std::string& path, const interop::ReadOptions& options = {});

}  // namespace lockstep::job
