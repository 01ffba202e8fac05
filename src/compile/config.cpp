#include "compile/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/commas.h"
#include "compile/key_field.h"
#include "compile/recipe.h"
#include "compile/rules.h"

namespace lockstep::compile {
namespace {

// Those that a recipe may name, by their long names.
constexpr Dtype kRecipeDtypes[] = {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F64};

constexpr auto kSplits = std::to_array<Word<Split::Over>>({{"", Split::Over::Preset},
                                                           {"none", Split::Over::One},
                                                           {"package", Split::Over::Package},
                                                           {"node", Split::Over::Node},
                                                           {"shard", Split::Over::Shard},
                                                           {"world", Split::Over::World}});

}  // namespace

std::string word_of(Dtype type) {
    for (const Dtype known : kRecipeDtypes) {
        if (type == known) return std::string(traits_of(known).long_name);
    }
    throw InternalError("a recipe has no word for this element type");
}

Value to_value(const Dtype& field) { return word_of(field); }

void read(Dtype& field, const Value& value) {
    for (const Dtype known : kRecipeDtypes) {
        if (traits_of(known).long_name == std::get<std::string>(value)) {
            field = known;
            return;
        }
    }
    throw InternalError("no such element type: " + std::get<std::string>(value));
}

Value to_value(const OptionalDtype& field) { return field ? to_value(*field) : std::string(); }

void read(OptionalDtype& field, const Value& value) {
    field.reset();
    if (!std::get<std::string>(value).empty()) read(field.emplace(), value);
}

Value to_value(const Dataset& field) { return std::string(field == Dataset::Synthetic ? "synthetic" : "prepared"); }

void read(Dataset& field, const Value& value) {
    field = std::get<std::string>(value) == "synthetic" ? Dataset::Synthetic : Dataset::Prepared;
}

Value to_value(const Split& field) {
    for (const auto& [word, over] : kSplits) {
        if (over == field.over) return std::string(word);
    }
    return std::to_string(field.ranks);
}

void read(Split& field, const Value& value) {
    const std::string& text = std::get<std::string>(value);
    for (const auto& [word, over] : kSplits) {
        if (word == text) {
            field = {over, 0};
            return;
        }
    }
    field = {Split::Over::Number, std::stoll(text)};
}

Value to_value(const Selective& field) { return field.every_nth == 0 ? std::string("op") : std::to_string(field.every_nth); }

void read(Selective& field, const Value& value) {
    const std::string& text = std::get<std::string>(value);
    field.every_nth = text == "op" ? 0 : std::stoll(text);
}

Value to_value(const Duration& field) { return field.seconds == 0 ? std::string() : fmt::format("{}", field.seconds); }

void read(Duration& field, const Value& value) { field.seconds = seconds_of(std::get<std::string>(value)).value_or(0); }

Value to_value(const Names& field) { return fmt::format("{}", fmt::join(field.names, ",")); }

void read(Names& field, const Value& value) { field.names = split_at_commas(std::get<std::string>(value)); }

Config values_of(const Recipe& recipe) {
    Config config;
    for (const RecipeKey& key : recipe_keys()) {
        if (key.put) key.put(config, recipe.value(key.name));
    }
    config.origins = recipe.origins();
    return config;
}

std::string Config::where(std::string_view key) const {
    const auto it = origins.find(key);
    return it == origins.end() ? "" : it->second.text + ": ";
}

Config config_of(const Recipe& recipe) {
    Config config = values_of(recipe);
    require_consistent(recipe, config);
    config.model.shape = recipe.model_shape();
    return config;
}

}  // namespace lockstep::compile
