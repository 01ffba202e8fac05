// Recipes as text: TOML, and the JSON that torchtitan prints of its configuration.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/commas.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "base/toml.h"
#include "compile/file_kind.h"
#include "compile/recipe.h"

namespace lockstep::compile {
namespace {

// Of module_fqns_per_model_part and the like a list inside a list becomes one string. Nothing: not all are strings.
std::optional<std::string> string_in_list(const toml::node& item, std::string_view key) {
    if (item.is_string()) return item.as_string()->get();
    if (!item.is_array() || key.find(".module_fqns_per_model_") == std::string_view::npos) return std::nullopt;
    std::vector<std::string> words;
    for (const toml::node& word : *item.as_array()) {
        if (!word.is_string()) return std::nullopt;
        words.push_back(word.as_string()->get());
    }
    return fmt::format("{}", fmt::join(words, ", "));
}

// Nothing: no key has a value of this type.
std::optional<Value> from_node(const toml::node& node, std::string_view key) {
    if (const auto* v = node.as_boolean()) return v->get();
    if (const auto* v = node.as_integer()) return v->get();
    if (const auto* v = node.as_floating_point()) return v->get();
    if (const auto* v = node.as_string()) return v->get();
    if (const auto* list = node.as_array()) {
        const auto is_number = [](const toml::node& item) { return item.is_number(); };
        if (!list->empty() && std::all_of(list->begin(), list->end(), is_number)) {
            std::vector<double> numbers;
            for (const toml::node& item : *list) numbers.push_back(*item.value<double>());
            return numbers;
        }
        std::vector<std::string> out;
        for (const toml::node& item : *list) {
            const std::optional<std::string> text = string_in_list(item, key);
            if (!text) return std::nullopt;
            out.push_back(*text);
        }
        return out;
    }
    return std::nullopt;
}

using Problems = std::multimap<uint32_t, UserError>;  // by line

// One error of several: the first one's id and key, and every text.
[[noreturn]] void throw_all(const Problems& problems) {
    const UserError& first = problems.begin()->second;
    constexpr size_t kNamed = 20;
    std::vector<std::string> texts;
    for (const auto& [line, e] : problems) {
        if (texts.size() < kNamed) texts.emplace_back(e.what());
    }
    if (problems.size() > kNamed) texts.push_back("and more");
    throw UserError(first.id(), first.key(), fmt::format("{}", fmt::join(texts, "\n  ")));
}

constexpr int kDeepest = 16;  // objects and lists inside each other: no recipe has more than four

toml::table table_of(const nlohmann::json& object, int depth);

toml::array array_of(const nlohmann::json& list, int depth) {
    if (depth > kDeepest) throw UserError("recipe.syntax", "", "the JSON is nested more deeply than any recipe");
    toml::array out;
    for (const nlohmann::json& item : list) {
        if (item.is_array()) out.push_back(array_of(item, depth + 1));
        else if (item.is_object()) out.push_back(table_of(item, depth + 1));
        else if (item.is_string()) out.push_back(item.get<std::string>());
        else if (item.is_number()) out.push_back(item.get<double>());
    }
    return out;
}

// The same as TOML has it. What is null is left out: torchtitan's None, which is the default of each key that may be None.
toml::table table_of(const nlohmann::json& object, int depth) {
    if (depth > kDeepest) throw UserError("recipe.syntax", "", "the JSON is nested more deeply than any recipe");
    toml::table out;
    for (const auto& [key, value] : object.items()) {
        if (value.is_object()) out.insert(key, table_of(value, depth + 1));
        else if (value.is_array()) out.insert(key, array_of(value, depth + 1));
        else if (value.is_boolean()) out.insert(key, value.get<bool>());
        else if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) out.insert(key, value.get<double>());
        else if (value.is_number_integer()) out.insert(key, value.get<int64_t>());
        else if (value.is_number()) out.insert(key, value.get<double>());
        else if (value.is_string()) out.insert(key, value.get<std::string>());
    }
    return out;
}

bool is_utf8(const std::string& text) {
    const nlohmann::json json = text;
    return json == parse_json<nlohmann::json>(json_text(json));
}

struct Assignment {
    std::string key;
    const toml::node* node;
    uint32_t line;
};

// Every key of a table and of those inside it: [quantize.linear.float8].
void flatten(const toml::table& table, const std::string& section, std::vector<Assignment>& out) {
    for (const auto& [key, node] : table) {
        const std::string full = section + "." + std::string(key.str());
        if (const toml::table* inner = node.as_table()) flatten(*inner, full, out);
        else out.push_back({full, &node, node.source().begin.line});
    }
}

// Hands each key's value to `assign`; what that refuses is refused together at the end.
void assign_all(const toml::table& table, const std::string& origin,
                const std::function<void(const std::string& key, std::optional<Value> value, const std::string& where)>& assign) {
    Problems problems;
    std::vector<Assignment> assignments;
    const auto where = [&](uint32_t line) { return line == 0 ? origin : fmt::format("{}:{}", origin, line); };
    for (const auto& [section, content] : table) {
        const std::string name(section.str());
        const uint32_t line = content.source().begin.line;
        if (const toml::table* inner = content.as_table()) flatten(*inner, name, assignments);
        else
            problems.emplace(line,
                             UserError("recipe.no_section", name,
                                       content.is_array_of_tables()
                                           ? fmt::format("{}: [[{}]] is a list of sections: write [{}]", where(line), name, name)
                                           : fmt::format("{}: {} is outside any [section]", where(line), name)));
    }
    constexpr size_t kEnough = 50;  // a file with as many is no recipe
    for (const Assignment& a : assignments) {
        if (problems.size() > kEnough) break;
        try {
            assign(a.key, from_node(*a.node, a.key), where(a.line));
        } catch (const UserError& e) {
            problems.emplace(a.line, e);
        }
    }
    if (!problems.empty()) throw_all(problems);
}

// Keys that torchtitan has not: what names data and machines here, and shapes of models.
bool is_of_lockstep_alone(const Recipe& recipe, const std::string& key) {
    const auto begins = [&](std::string_view with) { return key.starts_with(with); };
    if (key == "training.dataset") return recipe.text(key) == "prepared" || recipe.text(key) == "synthetic";
    return begins("partition.") || begins("cluster.") || begins("quantize.scale_") || begins("runtime.") ||
           begins("training.dataset_path") || begins("validation.dataset_path") || (begins("model.") && !find_key(key));
}

constexpr const char* kLastIsModelOnly = "checkpoint.last_save_model_only";

// torchtitan's default, where a file that is torchtitan's leaves it out: it was written for that.
void take_their_default(Recipe& recipe, const std::string& origin) {
    if (!recipe.is_set(kLastIsModelOnly)) recipe.set(kLastIsModelOnly, true, fmt::format("{} (torchtitan's default)", origin));
}

}  // namespace

bool Recipe::is_torchtitans() const {
    bool has_theirs = false;
    for (const auto& [key, origin] : origins()) {
        if (origin.is_flag()) continue;
        if (is_of_lockstep_alone(*this, key)) return false;
        const RecipeKey* known = find_key(key);
        has_theirs |= !known || known->status != KeyStatus::Acts || key == "training.dataset";
    }
    return has_theirs;
}

Recipe Recipe::from_text(const std::string& text, const std::string& origin) {
    Recipe recipe;
    try {
        assign_all(parse_toml(text, origin), origin,
                   [&](const std::string& key, std::optional<Value> value, const std::string& where) {
                       recipe.assign(key, std::move(value), Origin::file(where));
                   });
        if (recipe.is_torchtitans()) take_their_default(recipe, origin);
    } catch (const TomlExcess& e) {
        throw UserError("recipe.syntax", "", fmt::format("{}:{}: {}", origin, e.source().begin.line, e.description()));
    } catch (const toml::parse_error& e) {
        const UserError error("recipe.syntax", "",
                              fmt::format("{}:{}: not TOML: {}", origin, e.source().begin.line, e.description()));
        throw with_kind(error, text, origin, kRecipeKind);
    } catch (const UserError& e) {
        throw with_kind(e, text, origin, kRecipeKind);
    }
    return recipe;
}

Recipe Recipe::from_json(const std::string& text, const std::string& origin) {
    const auto refuse = [&](const std::string& why) {
        throw UserError("recipe.syntax", "", fmt::format("{}: not JSON with the sections of a recipe as objects{}", origin, why));
    };
    nlohmann::json json;
    try {
        json = parse_json<nlohmann::json>(text);
    } catch (const JsonError& e) {
        refuse(fmt::format(": {}", e.what()));
    }
    if (!json.is_object()) refuse("");
    Recipe recipe;
    try {
        assign_all(table_of(json, 0), origin, [&](const std::string& key, std::optional<Value> value, const std::string& where) {
            recipe.assign(key, std::move(value), Origin::file(where));
        });
    } catch (const UserError& e) {
        throw with_kind(e, text, origin, kRecipeKind);
    }
    take_their_default(recipe, origin);
    return recipe;
}

Recipe Recipe::from_file(const std::string& path) {
    const TextFile file = read_text_file(path);
    if (!file.is_readable())
        throw UserError("recipe.unreadable", path,
                        fmt::format("recipe {}: cannot be read ({}); give the path of a TOML file", path, file.reason));
    return from_text_of(path, file.text);
}

Recipe Recipe::from_text_of(const std::string& path, const std::string& toml) {
    Recipe recipe = from_text(toml, path);
    // A shipped recipe names a file next to its own folder, from wherever it is read.
    for (const char* key : {"cluster.file", "cluster.stack", "runtime.products"}) {
        const std::string& named = recipe.text(key);
        std::error_code ignored;
        if (named.empty() || std::filesystem::exists(named, ignored)) continue;
        const std::filesystem::path shipped = (std::filesystem::path(path).parent_path() / named).lexically_normal();
        const bool is_file = std::filesystem::exists(shipped, ignored) && !std::filesystem::is_directory(shipped, ignored);
        if (is_file) recipe.values_[key] = shipped.string();
    }
    return recipe;
}

void Recipe::set(const std::string& key, const std::string& text) {
    const Origin origin = Origin::flag(key);
    if (!is_utf8(text)) throw UserError("recipe.syntax", key, fmt::format("{}: the value is not UTF-8", origin.text));
    std::optional<Value> value = text;
    const RecipeKey* known = find_key(key);
    const auto wants = [&](auto of_type) { return known && std::holds_alternative<decltype(of_type)>(known->default_value); };
    const bool is_toml = !text.empty() && (text[0] == '"' || text[0] == '[');
    if (wants(std::vector<std::string>{}) && !is_toml) {
        value = split_at_commas(text);  // as in torchtitan: --model.converters a,b
    } else if (!wants(std::string{}) || (!text.empty() && text[0] == '"')) {
        const bool bare_list = wants(std::vector<double>{}) && !is_toml;
        try {
            const toml::table table = parse_toml(fmt::format(fmt::runtime(bare_list ? "x = [{}]" : "x = {}"), text));
            value = from_node(*table.get("x"), key);
        } catch (const toml::parse_error&) {
            value = text;
        }
    }
    assign(key, std::move(value), origin);
}

std::string Recipe::toml() const {
    return toml([](const RecipeKey&) { return true; });
}

std::string Recipe::toml(const std::function<bool(const RecipeKey&)>& wanted) const {
    std::string text, section;
    const auto line = [&](const std::string& key, const Value& value) {
        const size_t dot = key.find('.');
        if (key.substr(0, dot) != section) {
            section = key.substr(0, dot);
            text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
        }
        text += fmt::format("{} = {}\n", key.substr(dot + 1), text_of(value));
    };
    for (const RecipeKey& k : recipe_keys()) {
        if (is_set(k.name) && wanted(k)) line(k.name, values_.find(k.name)->second);
        if (k.name == "model.flavor") {
            for (const auto& [name, value] : model_values_) line("model." + name, value);
        }
    }
    return text;
}

}  // namespace lockstep::compile
