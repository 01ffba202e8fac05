// A recipe, up to its layout: TOML, or JSON where it begins with a brace. What it sets prints as TOML that sets the same.
#include "compile/layout.h"
#include "compile/recipe.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_recipe("recipe", [](std::string_view bytes) {
    const std::string text(bytes);
    const compile::Recipe recipe =
        text.starts_with('{') ? compile::Recipe::from_json(text, "input") : compile::Recipe::from_text(text, "input");
    const std::string printed = recipe.toml();
    try {
        ensure(compile::Recipe::from_text(printed, "printed").toml() == printed, "it prints otherwise the second time");
    } catch (const UserError& e) {
        throw InternalError(e.what());
    }
    compile::layout_of(compile::config_of(recipe));
});

}  // namespace
