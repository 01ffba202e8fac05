#include "planning/recipe_args.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "compile/layout.h"
#include "compile/rules.h"
#include "planning/types.h"
#include "telemetry/console.h"

namespace lockstep::planning {

namespace {

// The keys that were given and do nothing; a section all of whose given keys do nothing stands as one: "profiling.*".
std::string ignored_keys(const compile::Recipe& recipe) {
    const auto section_of = [](const std::string& key) { return key.substr(0, key.find('.')); };
    std::map<std::string, int> given;  // by section
    for (const compile::RecipeKey& k : compile::recipe_keys()) given[section_of(k.name)] += recipe.is_set(k.name);
    const std::vector<const compile::RecipeKey*> ignored = recipe.ignored();
    std::map<std::string, int> idle;
    for (const compile::RecipeKey* k : ignored) ++idle[section_of(k->name)];
    std::vector<std::string> names;
    for (const compile::RecipeKey* k : ignored) {
        const std::string section = section_of(k->name);
        const std::string name =
            section != "model" && idle[section] > 1 && idle[section] == given[section] ? section + ".*" : k->name;
        if (names.empty() || names.back() != name) names.push_back(name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

compile::Recipe read_recipe(const RecipeArgs& args) {
    compile::Recipe recipe = compile::Recipe::from_file(args.path);
    for (const auto& [key, value] : args.settings) recipe.set(key, value);
    if (args.ranks > 0) recipe.set("cluster.ranks", std::to_string(args.ranks));
    return recipe;
}

void announce(const compile::Recipe& recipe) {
    const compile::Config config = compile::config_of(recipe);
    if (const std::string keys = ignored_keys(recipe); !keys.empty())
        telemetry::info(fmt::format("ignored: {} (`lockstep recipe KEY` says why)", keys));
    for (const std::string& line : compile::warnings(recipe)) telemetry::warn(line);
    telemetry::info(fmt::format("{}; recompute: {}", types_line(config), recompute_line(config)));
}

compile::Recipe announced(const RecipeArgs& args) {
    compile::Recipe recipe = read_recipe(args);
    if (recipe.flag("metrics.disable_color_printing")) telemetry::switch_colors_off();  // before anything is refused
    announce(recipe);
    return recipe;
}

void take_ranks(compile::Recipe& recipe, const comm::ProcessGroup& group) {
    if (group.is_alone()) return;
    const compile::Config config = compile::config_of(recipe);
    if (config.leaves_ranks_open() && compile::layout_of(config).ranks % group.processes() != 0)
        recipe.set("cluster.ranks", std::to_string(group.processes()));
}

}  // namespace lockstep::planning
