#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "models/model.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

struct ExplainArgs {
    std::string key;
    bool json = false;
};

struct Line {
    std::string key, default_value, status, help, values;
};

// What a value may be: its type, and what the table of keys allows of it.
std::string values_of(const compile::Value& type, const Allowed& allowed) {
    const std::string words = allowed.restricts_text() ? allowed.text_of_words() : "";
    constexpr const char* names[] = {"true or false", "an integer ", "a number ", "text", "a list of "};
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
                       k.status == compile::KeyStatus::Acts ? values_of(k.default_value, k.allowed) : ""});
        if (k.name != "model.flavor") continue;
        for (const models::ModelSpec& m : models::all_models()) {
            for (const models::ModelKey& mk : m.keys) {
                const std::string value = std::holds_alternative<int64_t>(mk.default_value)
                                              ? std::to_string(std::get<int64_t>(mk.default_value))
                                              : fmt::format("{}", std::get<double>(mk.default_value));
                const compile::Value type = std::holds_alternative<int64_t>(mk.default_value) ? compile::Value(int64_t{0}) : 0.0;
                out.push_back({"model." + mk.name, value, "acts", m.name + ": " + mk.help, values_of(type, mk.allowed)});
            }
        }
    }
    return out;
}

void print(const Line& l, int columns) {
    const std::string status = l.status == "acts" ? "" : fmt::format("  ({})", l.status);
    for (const std::string& text : {fmt::format("{} = {}{}", l.key, l.default_value, status), "    " + l.help,
                                   l.values.empty() ? "" : "    Value: " + l.values}) {
        if (text.empty()) continue;
        for (const std::string& line : telemetry::wrap(text, columns)) fmt::print("{}\n", line);
    }
}

int explain(const ExplainArgs& args) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    bool found = false;
    for (const Line& l : all_keys()) {
        if (!args.key.empty() && l.key != args.key && !l.key.starts_with(args.key + ".")) continue;
        found = true;
        if (args.json)
            list.push_back(
                {{"key", l.key}, {"default", l.default_value}, {"status", l.status}, {"values", l.values}, {"help", l.help}});
        else
            print(l, output_columns());
    }
    if (!found) compile::Recipe().set(args.key, "0");  // throws, naming the nearest key
    if (args.json) fmt::print("{}\n", list.dump());
    return kDone;
}

}  // namespace

Command add_recipe(CLI::App& app) {
    const auto args = std::make_shared<ExplainArgs>();
    CLI::App* command = app.add_subcommand("recipe", "explain recipe keys: default, whether they act, meaning");
    command->add_option("--explain,key", args->key, "a key or a section; all where left out");
    command->add_flag("--json", args->json, "one JSON array on standard output");
    command->footer("Example: lockstep recipe --explain training.global_batch_size");
    return {.app = command, .run = [args](comm::Crew&) { return explain(*args); }};
}

}  // namespace lockstep::cli
