#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/nearest.h"
#include "check/check.h"
#include "cli/commands.h"
#include "cli/groups.h"
#include "cli/launched.h"
#include "cli/machine.h"
#include "cli/number_flags.h"
#include "cli/types.h"
#include "compile/placement.h"
#include "compile/report.h"
#include "compile/rules.h"
#include "kernels/cpu/isa.h"
#include "kernels/kernel.h"
#include "runtime/snapshot.h"
#include "sim/cluster.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"

namespace lockstep::cli {

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

void print_json(const nlohmann::ordered_json& value) {
    fmt::print("{}\n", value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

std::optional<Isa> isa_of(const compile::Config& config) {
    using compile::InstructionSet;
    switch (config.runtime.instruction_set) {
        case InstructionSet::Auto: return std::nullopt;
        case InstructionSet::Avx512: return Isa::avx512;
        case InstructionSet::Avx2: return Isa::avx2;
        case InstructionSet::Baseline: return Isa::baseline;
    }
    return std::nullopt;
}

void use_instruction_set(const compile::Config& config) {
    const std::optional<Isa> wanted = isa_of(config);
    const Isa best = kernels::cpu::detect_isa();
    if (wanted && *wanted > best)
        throw UserError("recipe.instruction_set", "runtime.instruction_set",
                        fmt::format("{}runtime.instruction_set = \"{}\": the best one of this processor is {}",
                                    config.where("runtime.instruction_set"), word_of(config.runtime.instruction_set),
                                    kernels::cpu::name(best)));
    kernels::cpu::use_isa(wanted.value_or(best));
}

compile::Recipe read_recipe(const RecipeArgs& args) {
    compile::Recipe recipe = compile::Recipe::from_file(args.path);
    for (const auto& [key, value] : args.settings) recipe.set(key, value);
    if (args.ranks > 0) recipe.set("cluster.ranks", std::to_string(args.ranks));
    if (recipe.flag("metrics.disable_color_printing")) telemetry::switch_colors_off();  // before anything is refused
    const compile::Config config = compile::config_of(recipe);
    if (const std::string keys = ignored_keys(recipe); !keys.empty())
        telemetry::info(fmt::format("ignored: {} (`lockstep recipe KEY` says why)", keys));
    for (const std::string& line : compile::warnings(recipe)) telemetry::warn(line);
    telemetry::info(fmt::format("{}; recompute: {}", types_line(config), recompute_line(config)));
    return recipe;
}

void take_ranks(compile::Recipe& recipe, const comm::Crew& crew) {
    if (crew.is_alone()) return;
    const compile::Config config = compile::config_of(recipe);
    if (config.leaves_ranks_open() && compile::layout_of(config).ranks % crew.processes() != 0)
        recipe.set("cluster.ranks", std::to_string(crew.processes()));
}

compile::CompileOptions compile_options(const compile::Config& config, const comm::Crew* crew) {
    const int64_t ranks = compile::layout_of(config).ranks;
    compile::CompileOptions options;
    options.catalog = catalog_here(config, runtime::placement_of(config, ranks, crew).threads_per_rank);
    options.route.topology = topology_of(config, ranks, crew);
    return options;
}

std::string gib(int64_t bytes) { return fmt::format("{:.3f} GiB", static_cast<double>(bytes) / (1 << 30)); }

std::string degrees_text(const mesh::Mesh& mesh) {
    std::string text;
    for (mesh::Axis a : mesh::kAxes) {
        const bool optional = a == mesh::Axis::pp || a == mesh::Axis::cp;
        if (!optional || mesh.degree(a) > 1)
            text += fmt::format("{}{} {}", text.empty() ? "" : " x ", mesh::name_of(a), mesh.degree(a));
    }
    return text;
}

void require_same_programs(const compile::Compiled& compiled, comm::Crew& crew) {
    const std::vector<std::string> hashes = crew.exchange(crew.is_alone() ? "" : runtime::program_hash(compiled.programs));
    const size_t other = dissenter(hashes);
    if (other == 0) return;
    const int64_t rank = static_cast<int64_t>(other) * std::max<int64_t>(1, compiled.layout.ranks / crew.processes());
    throw UserError(
        "job.other_program", "cluster.file",
        fmt::format("rank {} has compiled another program than rank 0 from the same recipe: a file that the recipe names "
                    "(cluster.file, parallelism.pipeline_parallel_schedule_csv) has other contents where it runs; "
                    "give all hosts the same files",
                    rank));
}

namespace {

// A word that is neither a flag of the command nor a key of a recipe.
[[noreturn]] void refuse_extra(const CLI::App& command, const std::string& word) {
    if (!word.starts_with("--")) throw CLI::ExtrasError({word});
    std::vector<std::string> known = compile::key_names();
    for (const CLI::Option* option : command.get_options()) {
        for (const std::string& name : option->get_lnames()) known.push_back(name);
    }
    const std::string name = word.substr(2, word.find('=') - 2);
    throw CLI::ValidationError(
        word, fmt::format("{} has no such flag; the nearest is --{}", command.get_name(), nearest_key(name, known)));
}

void add_path_and_ranks(CLI::App& command, RecipeArgs& args, const char* name, const char* help) {
    command.add_option(name, args.path, help)->required();
    command.add_option("--ranks", args.ranks, "number of ranks of the job; a degree of -1 takes the ranks that the others leave")
        ->check(positive_number());
    command.allow_extras();
}

}  // namespace

void add_recipe_flags(CLI::App& command, RecipeArgs& args) { add_path_and_ranks(command, args, "recipe", "recipe, a TOML file"); }

void add_checkpoint_flags(CLI::App& command, RecipeArgs& args) {
    add_path_and_ranks(command, args, "checkpoint",
                       "a checkpoint's folder, a folder of checkpoints (the latest is taken), or a run's folder");
}

void add_console_flags(CLI::App& command, telemetry::ConsoleOptions& options) {
    command.add_flag("--quiet", options.quiet, "warnings and errors only on standard error");
    const std::map<std::string, telemetry::LogFormat> formats = {{"text", telemetry::LogFormat::Text},
                                                                 {"json", telemetry::LogFormat::Json}};
    command
        .add_option_function<std::string>(
            "--log-format", [&options, formats](const std::string& name) { options.format = formats.at(name); },
            "of the lines on standard error: text, or json, one object a line")
        ->check(CLI::IsMember({"text", "json"}));
}

void take_settings(const CLI::App& command, RecipeArgs& args) {
    const std::vector<std::string> rest = command.remaining();
    for (size_t i = 0; i < rest.size(); ++i) {
        const bool is_key = rest[i].starts_with("--") && rest[i].find('.') != std::string::npos;
        if (!is_key) refuse_extra(command, rest[i]);
        const std::string key = rest[i].substr(2);
        if (const size_t equals = key.find('='); equals != std::string::npos)
            args.settings.emplace_back(key.substr(0, equals), key.substr(equals + 1));
        else if (i + 1 < rest.size()) args.settings.emplace_back(key, rest[++i]);
        else throw CLI::ArgumentMismatch(rest[i] + " needs a value");
    }
}

}  // namespace lockstep::cli
