// A recipe, up to its layout.
#include "compile/layout.h"
#include "compile/recipe.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    return fuzz::accepts_or_refuses([&] {
        const compile::Recipe recipe = compile::Recipe::from_text(std::string(fuzz::text_of(data, size)), "input");
        compile::layout_of(recipe);
    });
}
