// `lockstep recipe --from PATH`: the recipe of something that has a model. A folder of transformers (or its config.json) gives
// the keys of [model] and where its weights lie; a checkpoint or a run the recipe that it ran under; a torchtitan job, as TOML or
// as the JSON that it prints, the keys that act here.
#pragma once

#include <string>
#include <vector>

#include "compile/recipe.h"

namespace lockstep::job {

struct RecipeFrom {
    std::string kind;  // "transformers", "checkpoint", "run", "recipe"
    compile::Recipe recipe;
    std::vector<std::string> notes;  // what is still to be set
    // A TOML file: comments that say where it comes from, what is ignored, missing and still to be set; then what acts.
    std::string toml(const std::string& path) const;
};

// UserError recipe.from where the path is none of these, and of whatever reads it; recipe.not_available where Lockstep does not
// have the model.
RecipeFrom recipe_from(const std::string& path);

}  // namespace lockstep::job
