// What a command line gives to keys: a line "section.key=value" each, and for the key "--hosts" the list of `lockstep launch`.
// The first that is refused ends it.
#include "compile/layout.h"
#include "compile/recipe.h"
#include "job/hosts.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_flags("flags", [](std::string_view bytes) {
    compile::Recipe recipe;
    while (!bytes.empty()) {
        const std::string_view line = bytes.substr(0, bytes.find('\n'));
        bytes.remove_prefix(std::min(line.size() + 1, bytes.size()));
        const size_t equals = line.find('=');
        const std::string key(line.substr(0, equals)), value(equals == line.npos ? "" : line.substr(equals + 1));
        key == "--hosts" ? void(job::hosts_of(value)) : recipe.set(key, value);
    }
    recipe.where("model.name");
    recipe.missing();
    recipe.model_shape();
    compile::seconds_of(recipe.text("training.max_time"));
    compile::layout_of(compile::config_of(recipe));
});

}  // namespace
