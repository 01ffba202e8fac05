// A recipe: what to train, on which layout, as keys with TorchTitan's names (v0.2.2) where TorchTitan has them, read from TOML
// and from --section.key flags. One table says of every key its default, its meaning, its values and whether it acts; `lockstep
// recipe` prints it. An unknown key, a value of another type and a value that is not allowed are refused as they are assigned,
// so that every command refuses the same.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/allowed.h"
#include "ir/program.h"

namespace lockstep::compile {

using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

enum class KeyStatus {
    Acts,
    Ignored,  // makes no sense in a compiled C++ system: accepted, reported in one line
    Only      // accepted with its default only: what it asks for beyond that is not here
};

struct RecipeKey {
    std::string name;  // "training.steps"
    Value default_value;
    KeyStatus status;
    std::string help;      // with its unit
    Allowed allowed = {};  // of a list: each item
};

const std::vector<RecipeKey>& recipe_keys();
// Of the table and of [model], whatever the model: "training.steps".
std::vector<std::string> key_names();
std::string text_of(const Value& value);
// "90", "1:30:00" -> seconds; nothing where the text is neither. The form of training.max_time.
std::optional<double> seconds_of(const std::string& text);

class Recipe {
public:
    // All defaults.
    Recipe();
    // Throws UserError recipe.* naming file, line and key.
    static Recipe from_file(const std::string& path);
    static Recipe from_text(const std::string& toml, const std::string& origin);

    // `text` as it would stand in TOML, quotes optional. Throws UserError as above; origin "flag".
    void set(const std::string& key, const std::string& text);

    bool flag(std::string_view key) const;
    int64_t integer(std::string_view key) const;
    double number(std::string_view key) const;
    const std::string& text(std::string_view key) const;
    const std::vector<std::string>& list(std::string_view key) const;
    bool is_set(std::string_view key) const;  // by file or flag
    // "run.toml:3: " or "flag --training.steps: ", to begin a message with; empty where the key has its default.
    std::string where(std::string_view key) const;

    // The model's shape: its defaults, then its flavor's values, then keys of [model]. Throws UserError for an unknown model,
    // flavor.
    ir::Attrs model_shape() const;
    // Keys that were given but do nothing, with why; one line each.
    std::vector<std::string> ignored() const;
    // TOML with every key that was set, in the order of the table.
    std::string toml() const;

private:
    void assign(const std::string& key, Value value, const std::string& origin);

    std::map<std::string, Value, std::less<>> values_;
    std::map<std::string, std::string, std::less<>> origins_;  // of keys that were set
    std::map<std::string, Value, std::less<>> model_values_;   // keys of [model] that belong to the model
};

}  // namespace lockstep::compile
