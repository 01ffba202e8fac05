#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <variant>

#include "base/error.h"
#include "base/nearest.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "job/recipe_from.h"
#include "models/model.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

struct ExplainArgs {
    std::string key, from, out, script_args;
    std::vector<std::string> script_env;
    interop::ReadOptions read;
    bool json = false, has_script_args = false;
};

struct Line {
    std::string key, default_value, status, help, values, torchtitan;
};

// What a value may be: its type, and what the table of keys allows of it.
std::string values_of(const compile::Value& type, const Allowed& allowed) {
    const std::string words = allowed.restricts_text() ? allowed.text_of_words() : "";
    constexpr const char* names[] = {"true or false", "an integer ", "a number ", "text", "a list of ", "a list of numbers "};
    static_assert(std::size(names) == std::variant_size_v<compile::Value>);
    const std::string name = names[type.index()];
    if (std::holds_alternative<bool>(type)) return name;
    if (std::holds_alternative<std::string>(type)) return words.empty() ? name : words;
    if (std::holds_alternative<std::vector<std::string>>(type)) return name + (words.empty() ? "strings" : words);
    return name + allowed.text_of_numbers();
}

std::vector<Line> all_keys() {
    std::vector<Line> out;
    for (const compile::RecipeKey& k : compile::recipe_keys()) {
        const char* status[] = {"acts", "ignored", "default only"};
        out.push_back({k.name, compile::text_of(k.default_value), status[static_cast<int>(k.status)], k.help,
                       k.status == compile::KeyStatus::Acts ? values_of(k.default_value, k.allowed) : "",
                       compile::default_difference(k.name)});
        if (k.name != "model.flavor") continue;
        for (const models::ModelSpec& m : models::all_models()) {
            if (!m.alias_of.empty()) continue;
            for (const models::ModelKey& mk : m.keys) {
                const std::string value = std::holds_alternative<int64_t>(mk.default_value)
                                              ? std::to_string(std::get<int64_t>(mk.default_value))
                                              : fmt::format("{}", std::get<double>(mk.default_value));
                const compile::Value type = std::holds_alternative<int64_t>(mk.default_value) ? compile::Value(int64_t{0}) : 0.0;
                out.push_back({"model." + mk.name, value, "acts", m.name + ": " + mk.help, values_of(type, mk.allowed), ""});
            }
        }
    }
    return out;
}

void print(const Line& l, int columns) {
    const std::string status = l.status == "acts" ? "" : fmt::format("  ({})", l.status);
    for (const std::string& text : {fmt::format("{} = {}{}", l.key, l.default_value, status), "    " + l.help,
                                    l.values.empty() ? "" : "    Value: " + l.values,
                                    l.torchtitan.empty() ? "" : "    torchtitan's default: " + l.torchtitan}) {
        if (text.empty()) continue;
        for (const std::string& line : telemetry::wrap(text, columns)) fmt::print("{}\n", line);
    }
}

int explain(ExplainArgs args) {
    if (args.key.ends_with(".*")) args.key.resize(args.key.size() - 2);  // as the line of ignored keys names a section
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    bool found = false;
    for (const Line& l : all_keys()) {
        if (!args.key.empty() && l.key != args.key && !l.key.starts_with(args.key + ".")) continue;
        found = true;
        if (args.json) {
            list.push_back(
                {{"key", l.key}, {"default", l.default_value}, {"status", l.status}, {"values", l.values}, {"help", l.help}});
            if (!l.torchtitan.empty()) list.back()["torchtitan"] = l.torchtitan;
        } else {
            print(l, output_columns());
        }
    }
    if (!found)
        throw UserError("recipe.unknown_key", args.key,
                        fmt::format("there is no key or section {}; the nearest key is {}", args.key,
                                    nearest_key(args.key, compile::key_names())));
    if (args.json) print_json(list);
    return kDone;
}

// For CLI11: what is wrong with it; empty: nothing.
std::string objection_to_setting(const std::string& setting) {
    const size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const auto is_of_name = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
    const bool is_name =
        !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) && std::all_of(name.begin(), name.end(), is_of_name);
    return equals == std::string::npos || !is_name ? fmt::format("{}: must be NAME=VALUE", setting) : "";
}

// What is given besides the file: a script's arguments, split as a shell splits them, and variables.
interop::ReadOptions read_options(const ExplainArgs& args) {
    interop::ReadOptions out = args.read;
    out.script.has_arguments = args.has_script_args;
    if (args.has_script_args && !args.script_args.empty()) out.script.arguments = CLI::detail::split_up(args.script_args);
    for (const std::string& setting : args.script_env) {
        const size_t equals = setting.find('=');
        out.script.environment.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
    }
    return out;
}

int write_from(const ExplainArgs& args) {
    const interop::Reading from = job::recipe_from(args.from, read_options(args));
    const std::string toml = from.toml(args.from);
    if (!args.out.empty()) {
        if (std::filesystem::exists(args.out))
            throw UserError("recipe.out_exists", args.out,
                            fmt::format("{}: is there already; choose another name, or remove it", args.out));
        write_whole_file(args.out, toml);
    }
    if (args.json) {
        nlohmann::ordered_json missing = nlohmann::ordered_json::array(), ignored = nlohmann::ordered_json::array();
        for (const compile::Missing& m : from.recipe.missing()) missing.push_back(m.technique);
        for (const compile::RecipeKey* k : from.recipe.ignored()) ignored.push_back(k->name);
        nlohmann::ordered_json out = {{"kind", interop::name_of(from.kind)},
                                      {"toml", toml},
                                      {"to_be_set", from.to_be_set()},
                                      {"missing", missing},
                                      {"ignored", ignored}};
        print_json(with_source(out, from));
    } else if (args.out.empty()) {
        fmt::print("{}", toml);
    } else {
        fmt::print("{}\n", args.out);
    }
    return kDone;
}

}  // namespace

Command add_recipe(CLI::App& app) {
    const auto args = std::make_shared<ExplainArgs>();
    CLI::App* command =
        app.add_subcommand("recipe", "explain recipe keys, or write a recipe from a model, a checkpoint or a torchtitan job");
    CLI::Option* key = command->add_option("--explain,key", args->key, "a key or a section (default: all)");
    CLI::Option* from =
        command
            ->add_option(
                "--from", args->from,
                "write the recipe of this: a folder of Hugging Face transformers, a checkpoint, a run's folder, a "
                "torchtitan job (TOML, or the JSON that it prints), a script of Megatron-LM, or a DeepSpeed configuration")
            ->excludes(key);
    command
        ->add_option("--script-args", args->script_args,
                     "with --from: what the script is called with, as one word: its $1, $2 and $@")
        ->needs(from)
        ->each([args = args.get()](const std::string&) { args->has_script_args = true; });
    command
        ->add_option("--script-env", args->script_env,
                     "with --from: NAME=VALUE, a variable of the script's environment; repeatable")
        ->needs(from)
        ->check(objection_to_setting)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command
        ->add_option("--deepspeed-config", args->read.deepspeed_config,
                     "with --from: the file in the place of the one that the script's --deepspeed_config names")
        ->needs(from);
    command
        ->add_option("--leave-out", args->read.leave_out,
                     "with --from: arguments of the script (or keys of ds_config.json) to leave out, as num-experts,fp8-format")
        ->needs(from)
        ->delimiter(',')
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command->add_option("--out", args->out, "with --from: the file to write; standard output where left out")->needs(from);
    command->add_flag("--json", args->json, "one JSON array on standard output");
    command->footer(
        "Example: lockstep recipe --explain training.global_batch_size\n"
        "         lockstep recipe --from pretrain.sh --script-args \"8b 4\" --script-env NNODES=2 --out mine.toml");
    return {.app = command,
            .run = [args](comm::ProcessGroup&) { return args->from.empty() ? explain(*args) : write_from(*args); }};
}

}  // namespace lockstep::cli
