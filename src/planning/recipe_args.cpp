#include "planning/recipe_args.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/shipped.h"
#include "compile/layout.h"
#include "compile/rules.h"
#include "interop/read.h"
#include "planning/types.h"
#include "telemetry/console.h"

namespace lockstep::planning {

namespace {

// The keys that were given and do nothing; a section all of whose given keys do nothing is listed as one: "profiling.*".
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

// One line for each item; of what has no effect, one for each reason.
void announce_lists(const interop::Reading& r) {
    const auto count = [](const std::vector<interop::Item>& items) { return items.size(); };
    telemetry::info(fmt::format("read as {}: {} mapped, {} assumed, {} without a counterpart, {} without effect", name_of(r.kind),
                                count(r.mapped), count(r.assumed), count(r.unmapped), count(r.no_effect)));
    const auto print = [](const char* list, const std::vector<interop::Item>& items) {
        for (const interop::Item& item : items) telemetry::info(fmt::format("{}: {}", list, item.text()));
    };
    print("mapped", r.mapped);
    print("assumed", r.assumed);
    print("no counterpart", r.unmapped);
    for (const interop::Item& item : r.left_out) telemetry::warn(fmt::format("left out of the plan: {}", item.text()));
    std::map<std::string, std::vector<std::string>> by_reason;
    for (const interop::Item& item : r.no_effect) by_reason[item.becomes].push_back(item.said);
    for (const auto& [reason, items] : by_reason)
        telemetry::info(fmt::format("no effect: {} ({})", fmt::join(items, ", "), reason));
}

}  // namespace

interop::Reading read_recipe(const RecipeArgs& args) {
    const std::string path = file_or_shipped(Shipped::Recipes, args.path);
    std::error_code unknown;
    const std::string nearest = std::filesystem::exists(path, unknown) ? "" : nearest_shipped(Shipped::Recipes, path);
    if (!nearest.empty())
        throw UserError("recipe.unreadable", path,
                        fmt::format("recipe {0}: there is no such file, and no recipe of that name comes with Lockstep; the "
                                    "nearest is {1}",
                                    path, nearest));
    interop::Reading reading = interop::read(path);
    for (const auto& [key, value] : args.settings) reading.recipe.set(key, value);
    if (args.ranks > 0) reading.recipe.set("cluster.ranks", std::to_string(args.ranks));
    return reading;
}

void announce(const compile::Recipe& recipe) {
    const compile::Config config = compile::config_of(recipe);
    if (const std::string keys = ignored_keys(recipe); !keys.empty())
        telemetry::info(fmt::format("ignored: {} (`lockstep recipe KEY` says why)", keys));
    for (const std::string& line : compile::warnings(recipe)) telemetry::warn(line);
    telemetry::info(fmt::format("{}; recompute: {}", types_line(config), recompute_line(config)));
    const Float8Lines float8 = float8_lines(config);
    for (const std::string& line : float8.warnings) telemetry::warn(line);
    for (const std::string& line : {context_line(config), float8.line}) {
        if (!line.empty()) telemetry::info(line);
    }
    for (const std::string& line : float8.notes) telemetry::info(line);
}

namespace {

interop::Reading announced_reading(interop::Reading reading) {
    if (reading.recipe.flag("metrics.disable_color_printing")) telemetry::switch_colors_off();  // before anything is refused
    if (reading.kind != interop::Reading::Kind::Recipe) announce_lists(reading);
    reading.require_answers();
    announce(reading.recipe);
    return reading;
}

}  // namespace

interop::Reading announced(const RecipeArgs& args) {
    interop::Reading reading = read_recipe(args);
    reading.leave_out_training();
    return announced_reading(std::move(reading));
}

interop::Reading announced_for_training(const RecipeArgs& args) {
    interop::Reading reading = announced_reading(read_recipe(args));
    reading.require_whole(args.path);
    return reading;
}

void take_ranks(compile::Recipe& recipe, const comm::ProcessGroup& group) {
    if (group.is_alone()) return;
    const compile::Config config = compile::config_of(recipe);
    if (config.leaves_ranks_open() && compile::layout_of(config).ranks % group.processes() != 0)
        recipe.set("cluster.ranks", std::to_string(group.processes()));
}

}  // namespace lockstep::planning
