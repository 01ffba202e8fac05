// What `lockstep recipe --from` is given: a recipe, a config.json, the configuration that a torchtitan job prints or saves. What
// it makes of it is a recipe.
#include "job/recipe_from.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_recipe_from("recipe_from", [](std::string_view bytes) {
    static const fuzz::MemoryFolder folder;
    folder.write("input", bytes);
    const std::string made = job::recipe_from(folder.path("input")).toml("input");
    try {
        compile::Recipe::from_text(made, "made");
    } catch (const UserError& e) {
        throw InternalError(e.what());
    }
});

}  // namespace
