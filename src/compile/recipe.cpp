#include "compile/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>
#include <algorithm>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text_file.h"
#include "models/model.h"

namespace lockstep::compile {
namespace {

const RecipeKey* find_key(std::string_view name) {
    for (const RecipeKey& k : recipe_keys()) {
        if (k.name == name) return &k;
    }
    return nullptr;
}

const models::ModelSpec* find_model(std::string_view name) {
    for (const models::ModelSpec& m : models::all_models()) {
        if (m.name == name) return &m;
    }
    return nullptr;
}

const char* type_name(const Value& v) {
    constexpr const char* names[] = {"true or false", "an integer", "a number", "a string", "a list of strings"};
    return names[v.index()];
}

// Widens an integer where a number is meant, and 0 or 1 from true and false where the model's key is an integer.
Value fit(const Value& wanted, Value given, const std::string& key, const std::string& origin) {
    if (given.index() == wanted.index()) return given;
    if (std::holds_alternative<double>(wanted) && std::holds_alternative<int64_t>(given))
        return static_cast<double>(std::get<int64_t>(given));
    if (std::holds_alternative<int64_t>(wanted) && std::holds_alternative<bool>(given) && key.starts_with("model."))
        return int64_t{std::get<bool>(given)};
    if (std::holds_alternative<std::string>(wanted) && std::holds_alternative<int64_t>(given)) return text_of(given);
    throw UserError("recipe.wrong_type", key,
                    fmt::format("{}: {} = {} must be {}", origin, key, text_of(given), type_name(wanted)));
}

std::string string_in_list(const toml::node& item, const std::string& key, const std::string& origin) {
    if (!item.is_string())
        throw UserError("recipe.wrong_type", key, fmt::format("{}: {} must be a list of strings", origin, key));
    return item.as_string()->get();
}

// A list inside a list (module_fqns_per_model_part) stands as one string.
std::string joined(const toml::array& list, const std::string& key, const std::string& origin) {
    std::vector<std::string> words;
    for (const toml::node& item : list) words.push_back(string_in_list(item, key, origin));
    return fmt::format("{}", fmt::join(words, ", "));
}

Value from_node(const toml::node& node, const std::string& key, const std::string& origin) {
    if (const auto* v = node.as_boolean()) return v->get();
    if (const auto* v = node.as_integer()) return v->get();
    if (const auto* v = node.as_floating_point()) return v->get();
    if (const auto* v = node.as_string()) return v->get();
    if (const auto* list = node.as_array()) {
        std::vector<std::string> out;
        for (const toml::node& item : *list)
            out.push_back(item.is_array() ? joined(*item.as_array(), key, origin) : string_in_list(item, key, origin));
        return out;
    }
    throw UserError("recipe.wrong_type", key,
                    fmt::format("{}: {} must be a boolean, a number, a string or a list of strings", origin, key));
}

// Refuses a value that is not allowed.
void require_allowed(const Allowed& allowed, const Value& value, const std::string& key, const std::string& origin) {
    const auto refuse = [&](const char* id, const std::string& objection) {
        if (!objection.empty()) throw UserError(id, key, fmt::format("{}: {} = {}: {}", origin, key, text_of(value), objection));
    };
    constexpr const char *kRange = "recipe.out_of_range", *kWord = "recipe.unknown_word";
    if (const auto* i = std::get_if<int64_t>(&value)) refuse(kRange, allowed.objection(static_cast<double>(*i)));
    if (const auto* d = std::get_if<double>(&value)) refuse(kRange, allowed.objection(*d));
    if (const auto* s = std::get_if<std::string>(&value)) refuse(kWord, allowed.objection(*s));
    if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
        for (const std::string& item : *list) refuse(kWord, allowed.objection(item));
    }
}

}  // namespace

std::vector<std::string> key_names() {
    std::vector<std::string> names;
    for (const models::ModelSpec& m : models::all_models()) {
        for (const models::ModelKey& k : m.keys) names.push_back("model." + k.name);
    }
    for (const RecipeKey& k : recipe_keys()) names.push_back(k.name);
    return names;
}

std::string text_of(const Value& value) {
    struct Visitor {
        std::string operator()(bool v) const { return v ? "true" : "false"; }
        std::string operator()(int64_t v) const { return fmt::format("{}", v); }
        std::string operator()(double v) const {
            const std::string s = fmt::format("{}", v);
            return s.find_first_of(".en") == std::string::npos ? s + ".0" : s;
        }
        std::string operator()(const std::string& v) const {
            std::string escaped;
            for (char c : v) {
                if (c == '"' || c == '\\') escaped += '\\';
                escaped += c;
            }
            return "\"" + escaped + "\"";
        }
        std::string operator()(const std::vector<std::string>& v) const {
            std::vector<std::string> items;
            for (const std::string& s : v) items.push_back((*this)(s));
            return fmt::format("[{}]", fmt::join(items, ", "));
        }
    };
    return std::visit(Visitor{}, value);
}

Recipe::Recipe() {
    for (const RecipeKey& k : recipe_keys()) values_[k.name] = k.default_value;
}

void Recipe::assign(const std::string& key, Value value, const std::string& origin) {
    if (const RecipeKey* known = find_key(key)) {
        values_[key] = fit(known->default_value, std::move(value), key, origin);
        if (known->status == KeyStatus::Only && values_[key] != known->default_value) {
            throw UserError("recipe.not_available", key,
                            fmt::format("{}: {} = {} asks for what this version does not have ({}); leave it at {}", origin, key,
                                        text_of(values_[key]), known->help, text_of(known->default_value)));
        }
        require_allowed(known->allowed, values_[key], key, origin);
        origins_[key] = origin;
        return;
    }
    for (const models::ModelSpec& m : models::all_models()) {
        for (const models::ModelKey& k : m.keys) {
            if ("model." + k.name != key) continue;
            const Value wanted = std::visit(
                [](const auto& v) -> Value {
                    if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::vector<int64_t>>) return int64_t{0};
                    else return v;
                },
                k.default_value);
            model_values_[k.name] = fit(wanted, std::move(value), key, origin);
            require_allowed(k.allowed, model_values_[k.name], key, origin);
            origins_[key] = origin;
            return;
        }
    }
    throw UserError("recipe.unknown_key", key,
                    fmt::format("{}: there is no key {}; the nearest is {}", origin, key, nearest_key(key, key_names())));
}

Recipe Recipe::from_text(const std::string& text, const std::string& origin) {
    Recipe recipe;
    try {
        const toml::table table = toml::parse(text, origin);
        for (const auto& [section, content] : table) {
            const std::string name(section.str());
            if (!content.is_table()) {
                throw UserError("recipe.no_section", name,
                                fmt::format("{}:{}: {} stands outside any [section]", origin, content.source().begin.line, name));
            }
            for (const auto& [key, node] : *content.as_table()) {
                const std::string full = name + "." + std::string(key.str());
                const std::string where = fmt::format("{}:{}", origin, node.source().begin.line);
                if (const toml::table* inner = node.as_table()) {  // training.dataloader.*
                    for (const auto& [k, n] : *inner)
                        recipe.assign(full + "." + std::string(k.str()), from_node(n, full, where), where);
                } else {
                    recipe.assign(full, from_node(node, full, where), where);
                }
            }
        }
    } catch (const toml::parse_error& e) {
        throw UserError("recipe.syntax", "", fmt::format("{}:{}: not TOML: {}", origin, e.source().begin.line, e.description()));
    }
    return recipe;
}

Recipe Recipe::from_file(const std::string& path) {
    const TextFile file = read_text_file(path);
    if (!file.is_readable())
        throw UserError("recipe.unreadable", path, fmt::format("recipe {}: cannot be read; give the path of a TOML file", path));
    return from_text(file.text, path);
}

void Recipe::set(const std::string& key, const std::string& text) {
    const std::string origin = "flag --" + key;
    Value value = text;
    const RecipeKey* known = find_key(key);
    const bool wants_text = known && std::holds_alternative<std::string>(known->default_value);
    if (!wants_text || (!text.empty() && text[0] == '"')) {
        try {
            const toml::table table = toml::parse("x = " + text);
            value = from_node(*table.get("x"), key, origin);
        } catch (const toml::parse_error&) {
            value = text;
        }
    }
    assign(key, std::move(value), origin);
}

bool Recipe::flag(std::string_view key) const { return std::get<bool>(values_.find(key)->second); }
int64_t Recipe::integer(std::string_view key) const { return std::get<int64_t>(values_.find(key)->second); }
double Recipe::number(std::string_view key) const { return std::get<double>(values_.find(key)->second); }
const std::string& Recipe::text(std::string_view key) const { return std::get<std::string>(values_.find(key)->second); }
const std::vector<std::string>& Recipe::list(std::string_view key) const {
    return std::get<std::vector<std::string>>(values_.find(key)->second);
}
bool Recipe::is_set(std::string_view key) const { return origins_.find(key) != origins_.end(); }

std::string Recipe::where(std::string_view key) const {
    const auto it = origins_.find(key);
    return it == origins_.end() ? "" : it->second + ": ";
}

ir::Attrs Recipe::model_shape() const {
    const models::ModelSpec* model = find_model(text("model.name"));
    if (!model) {
        std::vector<std::string> names;
        for (const models::ModelSpec& m : models::all_models()) names.push_back(m.name);
        throw UserError("recipe.unknown_model", "model.name",
                        fmt::format("model.name = \"{}\": known models are {}", text("model.name"), fmt::join(names, ", ")));
    }
    ir::Attrs shape;
    for (const models::ModelKey& k : model->keys) shape[k.name] = k.default_value;
    const std::string& name = text("model.flavor");
    const auto flavor =
        std::find_if(model->flavors.begin(), model->flavors.end(), [&](const models::Flavor& f) { return f.name == name; });
    if (flavor == model->flavors.end()) {
        std::vector<std::string> names;
        for (const models::Flavor& f : model->flavors) names.push_back(f.name);
        throw UserError("recipe.unknown_flavor", "model.flavor",
                        fmt::format("model.flavor = \"{}\": {} has the flavors {}; any other shape is made by keys of [model]",
                                    name, model->name, fmt::join(names, ", ")));
    }
    for (const auto& [k, v] : flavor->values) shape[k] = v;
    for (const auto& [k, v] : model_values_) {
        if (!shape.contains(k)) {
            throw UserError("recipe.model_key", "model." + k,
                            fmt::format("{}: the model {} has no key {}; `lockstep recipe` lists what it has",
                                        origins_.find("model." + k)->second, model->name, k));
        }
        if (const auto* i = std::get_if<int64_t>(&v)) shape[k] = *i;
        if (const auto* d = std::get_if<double>(&v)) shape[k] = *d;
    }
    return shape;
}

std::vector<std::string> Recipe::ignored() const {
    std::vector<std::string> out;
    for (const RecipeKey& k : recipe_keys()) {
        const auto it = origins_.find(k.name);
        if (k.status == KeyStatus::Ignored && it != origins_.end())
            out.push_back(fmt::format("{}: {} is ignored: {}", it->second, k.name, k.help));
    }
    return out;
}

std::string Recipe::toml() const {
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
        if (is_set(k.name)) line(k.name, values_.find(k.name)->second);
        if (k.name == "model.flavor") {
            for (const auto& [name, value] : model_values_) line("model." + name, value);
        }
    }
    return text;
}

}  // namespace lockstep::compile
