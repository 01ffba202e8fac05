// A recipe: what to train, on which layout, as keys with TorchTitan's names (v0.2.2) where TorchTitan has them, read from TOML
// and from --section.key flags. One table says of every key its default, its meaning, its values and whether it acts; `lockstep
// recipe` prints it. An unknown key, a value of another type and a value that is not allowed are refused as they are assigned,
// so that every command refuses the same.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/allowed.h"
#include "compile/origin.h"
#include "ir/program.h"

namespace lockstep::compile {

using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<double>>;

enum class KeyStatus {
    Acts,
    Ignored,  // makes no sense in a compiled C++ system: accepted, reported in one line
    Only      // works with its default only; `help` names the technique that any other value asks for
};

struct Config;

// Which other values of a key may change what a step takes or needs: `plan --sensitivity` tries them where a recipe leaves the
// key out.
struct Tried {
    enum class What { None, Others, Number, Twice } what = What::None;  // None: no step depends on the key
    double value = 0;                                                   // of What::Number
};
constexpr Tried kOthers{Tried::What::Others};  // each other word that is allowed; true for false
constexpr Tried kTwice{Tried::What::Twice};    // twice the number
constexpr Tried to(double value) { return {Tried::What::Number, value}; }

struct RecipeKey {
    std::string name;  // "training.steps"
    Value default_value;
    KeyStatus status;
    std::string help;      // with its unit
    Allowed allowed = {};  // of a list: each item
    // Puts a value that is allowed into the key's field; null where the key does not act.
    void (*put)(Config&, const Value&) = nullptr;
    Value (*of)(const Config&) = nullptr;  // the field's value; null where the key does not act
    Tried tried = {};
};
// The values that are tried in place of `value`; none where no step depends on the key, or it has no number to double.
std::vector<Value> tried_values(const RecipeKey& key, const Value& value);

// A technique that a recipe asks for and that this version does not have.
struct Missing {
    std::string technique;
    std::vector<std::pair<std::string, std::string>> asked_by;  // keys and their values
    std::string text() const;                                   // "experts (model.name = "llama4")"
};

const std::vector<RecipeKey>& recipe_keys();
// Of the table and of [model], whatever the model: "training.steps".
std::vector<std::string> key_names();
const RecipeKey* find_key(std::string_view name);  // null: there is none
std::string why_ignored(const RecipeKey& key);     // of Recipe::ignored()
// torchtitan's default (v0.2.2) of a key that has another one here, and why; empty: it is the same.
std::string default_difference(std::string_view key);
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
    // The text of this file, whose folder may hold what the recipe names.
    static Recipe from_text_of(const std::string& path, const std::string& toml);
    // Sections as objects: what torchtitan writes to job.save_config_file and prints with job.print_config.
    static Recipe from_json(const std::string& json, const std::string& origin);

    // `text` as it would be in TOML, quotes optional. Throws UserError as above. Its origin is the flag.
    void set(const std::string& key, const std::string& text);
    // As if neither file nor flag said the key, which is of the table.
    void leave_out(const std::string& key);
    // As a file of another system says it. Throws UserError as above.
    void set(const std::string& key, Value value, const std::string& origin);

    const Value& value(std::string_view key) const;  // of the table
    bool flag(std::string_view key) const;
    int64_t integer(std::string_view key) const;
    double number(std::string_view key) const;
    const std::string& text(std::string_view key) const;
    const std::vector<std::string>& list(std::string_view key) const;
    const std::vector<double>& numbers(std::string_view key) const;
    bool is_set(std::string_view key) const;  // by file or flag
    const Origins& origins() const { return origins_; }
    // "run.toml:3: " or "flag --training.steps: ", to begin a message with; empty where the key has its default.
    std::string where(std::string_view key) const;

    // Is what was read torchtitan's own? It then has keys that mean something only there, such as [profiling], or data that
    // torchtitan downloads, and none of Lockstep's own. What flags set does not count.
    bool is_torchtitans() const;

    // The model's shape: its defaults, then its flavor's values, then keys of [model]. Throws UserError for an unknown model,
    // flavor.
    ir::Attrs model_shape() const;
    std::vector<Missing> missing() const;
    // UserError recipe.not_available with all that is missing. Flags may take back what the file asks for, so this is called
    // after them.
    void require_available() const;
    // Keys that were given but do nothing; why_ignored() says why.
    std::vector<const RecipeKey*> ignored() const;
    // TOML with every key that was set, in the order of the table; with `wanted`, those of them that it says.
    std::string toml() const;
    std::string toml(const std::function<bool(const RecipeKey&)>& wanted) const;

private:
    // No value: one of a type that no key has.
    void assign(const std::string& key, std::optional<Value> value, const Origin& origin);

    std::map<std::string, Value, std::less<>> values_;
    Origins origins_;
    std::map<std::string, Value, std::less<>> model_values_;  // keys of [model] that belong to the model
    std::map<std::string, Value, std::less<>> extensions_;  // keys of torchtitan's extensions, which belong to missing techniques
};

}  // namespace lockstep::compile
