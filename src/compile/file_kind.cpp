#include "compile/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"
#include "base/toml.h"
#include "compile/recipe.h"

namespace lockstep::compile {
namespace {

struct KnownKind {
    const char *kind, *key;
};
// The first that has the key.
constexpr KnownKind kJsonKinds[] = {
    {"a DeepSpeed configuration", "zero_optimization"}, {"a DeepSpeed configuration", "train_micro_batch_size_per_gpu"},
    {"a DeepSpeed configuration", "train_batch_size"},  {"a config.json of transformers", "model_type"},
    {"a config.json of transformers", "architectures"}, {"a tokenizer.json", "added_tokens"},
    {"an index of safetensors", "weight_map"},          {"a manifest of Lockstep", "xxh3"},
    {"a manifest of Lockstep", "tokenizer_xxh3"}};
constexpr KnownKind kTomlKinds[] = {{kStackKind, "stack"},   {kClusterKind, "machine"}, {kClusterKind, "links"},
                                    {kClusterKind, "rates"}, {kClusterKind, "chip"},    {kClusterKind, "catalog"}};

// The sections of a recipe, as TOML or as torchtitan's JSON.
template <class Has>
bool has_section(Has has) {
    const std::vector<RecipeKey>& keys = recipe_keys();
    return std::any_of(keys.begin(), keys.end(), [&](const RecipeKey& k) { return has(k.name.substr(0, k.name.find('.'))); });
}

}  // namespace

std::string kind_of_file(std::string_view text) {
    if (text.starts_with("#!")) return "a script";
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return "";
    if (text[first] == '{') {
        const auto json = json_or_discarded<nlohmann::json>(text);
        if (!json.is_object()) return "";
        for (const KnownKind& k : kJsonKinds) {
            if (json.contains(k.key)) return k.kind;
        }
        return has_section([&](const std::string& s) { return json.contains(s) && json[s].is_object(); }) ? kRecipeKind : "JSON";
    }
    try {
        const toml::table tables = parse_toml(text);
        for (const KnownKind& k : kTomlKinds) {
            if (tables.contains(k.key)) return k.kind;
        }
        return has_section([&](const std::string& s) { return tables[s].is_table(); }) ? kRecipeKind : "";
    } catch (const toml::parse_error&) {
        return "";
    }
}

UserError with_kind(const UserError& error, std::string_view text, const std::string& origin, const char* wanted) {
    const std::string kind = kind_of_file(text);
    if (kind.empty() || kind == wanted) return error;
    return UserError(error.id(), error.key(), fmt::format("{}. {} is {}, not {}", error.what(), origin, kind, wanted));
}

}  // namespace lockstep::compile
