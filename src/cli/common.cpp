#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/nearest.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "compile/recipe.h"
#include "telemetry/console.h"

namespace lockstep::cli {

void print_json(const nlohmann::ordered_json& value) { fmt::print("{}\n", json_text(value)); }

nlohmann::ordered_json with_source(nlohmann::ordered_json value, const interop::Reading& reading) {
    if (reading.kind != interop::Reading::Kind::Recipe) value["from"] = reading.json();
    return value;
}

namespace {

// What was meant by a word that is no flag: a key without its dashes ("training.steps=5", "-training.steps", "steps=5"). Empty:
// nothing that is known.
std::string key_meant_by(const std::string& word, bool needs_sign) {
    const size_t begin = std::min(word.find_first_not_of('-'), word.size());
    const std::string name = word.substr(begin, word.find('=') - begin);
    const bool has_dot = name.find('.') != name.npos, has_value = word.find('=') != word.npos;
    std::error_code unknown;
    if (name.empty() || std::filesystem::exists(word, unknown) || (needs_sign && !has_value)) return "";
    const bool is_known = has_dot && compile::find_key(name);
    if (!is_known && !has_value) return "";
    return fmt::format("--{}{}", is_known ? name : nearest_key(name, compile::key_names()),
                       has_value ? word.substr(word.find('=')) : "");
}

CLI::ExtrasError unexpected(const std::string& text) { return {text, CLI::ExitCodes::ExtrasError}; }

// A word that is neither a flag of the command nor a key of a recipe. `next`: the word behind it, or empty.
[[noreturn]] void refuse_extra(const CLI::App& command, const std::string& word, const std::string& next) {
    if (!word.starts_with("--")) {
        const std::string meant = key_meant_by(word, false);
        if (meant.empty()) throw CLI::ExtrasError({word});
        const bool has_value = meant.find('=') != meant.npos;
        throw unexpected(fmt::format("The following argument was not expected: {}. Keys are flags: write {}{}", word, meant,
                                     has_value || next.empty() ? "" : " " + next));
    }
    std::vector<std::string> known = compile::key_names();
    for (const CLI::Option* option : command.get_options()) {
        for (const std::string& name : option->get_lnames()) known.push_back(name);
    }
    const std::string name = word.substr(2, word.find('=') - 2);
    throw CLI::ValidationError(
        word, fmt::format("{} has no such flag; the nearest is --{}", command.get_name(), nearest_key(name, known)));
}

void add_path_and_ranks(CLI::App& command, planning::RecipeArgs& args, const char* name, const char* help) {
    command.add_option(name, args.path, help)->required();
    command.add_option("--ranks", args.ranks, "number of ranks of the job; a degree of -1 takes the ranks that the others leave")
        ->check(positive_number());
    command.allow_extras();
}

}  // namespace

void add_recipe_flags(CLI::App& command, planning::RecipeArgs& args) {
    add_path_and_ranks(command, args, "recipe",
                       "recipe: a TOML file, or what another system runs: a script of Megatron-LM, a DeepSpeed configuration, a "
                       "config.json of transformers");
}

void add_checkpoint_flags(CLI::App& command, planning::RecipeArgs& args) {
    add_path_and_ranks(
        command, args, "checkpoint",
        "a checkpoint's folder, a folder of checkpoints (the latest is taken), a run's folder, or one of Hugging Face "
        "transformers");
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

void take_settings(const CLI::App& command, planning::RecipeArgs& args) {
    const std::vector<std::string> rest = command.remaining();
    if (const std::string meant = key_meant_by(args.path, true); !meant.empty())
        throw unexpected(fmt::format("{} is where the recipe is expected. Keys are flags: write {}", args.path, meant));
    for (size_t i = 0; i < rest.size(); ++i) {
        const bool is_key = rest[i].starts_with("--") && rest[i].find('.') != std::string::npos;
        if (!is_key) refuse_extra(command, rest[i], i + 1 < rest.size() ? rest[i + 1] : "");
        const std::string key = rest[i].substr(2);
        if (const size_t equals = key.find('='); equals != std::string::npos)
            args.settings.emplace_back(key.substr(0, equals), key.substr(equals + 1));
        else if (i + 1 < rest.size()) args.settings.emplace_back(key, rest[++i]);
        else throw CLI::ArgumentMismatch(rest[i] + " needs a value");
    }
}

}  // namespace lockstep::cli
