// A recipe, up to its layout: TOML, or JSON where it begins with a brace.
#include "compile/layout.h"
#include "compile/recipe.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    return fuzz::accepts_or_refuses([&] {
        const std::string text(fuzz::text_of(data, size));
        const compile::Recipe recipe =
            text.starts_with('{') ? compile::Recipe::from_json(text, "input") : compile::Recipe::from_text(text, "input");
        compile::layout_of(recipe);
    });
}
