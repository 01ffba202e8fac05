#include "compile/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/nearest.h"
#include "compile/conversion.h"
#include "models/model.h"

namespace lockstep::compile {
namespace {

const char* type_name(const Value& v) {
    constexpr const char* names[] = {"true or false", "an integer",        "a number",
                                     "a string",      "a list of strings", "a list of numbers"};
    return names[v.index()];
}

bool has_word(const Allowed& allowed, const char* word) {
    const std::vector<std::string> words = allowed.words();
    return std::find(words.begin(), words.end(), word) != words.end();
}

// Widens an integer where a number is meant, one string or number where a list is, 0 or 1 from true and false where the
// model's key is an integer, and reads true and false as words where a key has them. An empty string stands for an empty list.
Value fit(const Value& wanted, std::optional<Value> value, const std::string& key, const Allowed& allowed,
          const std::string& origin) {
    if (!value) throw UserError("recipe.wrong_type", key, fmt::format("{}: {} must be {}", origin, key, type_name(wanted)));
    Value& given = *value;
    if (given.index() == wanted.index()) return given;
    if (std::holds_alternative<double>(wanted) && std::holds_alternative<int64_t>(given))
        return static_cast<double>(std::get<int64_t>(given));
    if (std::holds_alternative<int64_t>(wanted) && std::holds_alternative<bool>(given) && key.starts_with("model."))
        return int64_t{std::get<bool>(given)};
    if (std::holds_alternative<std::string>(wanted) && std::holds_alternative<int64_t>(given)) {
        const std::string text = text_of(given), objection = allowed.objection(text);
        if (objection.empty()) return text;
        throw UserError("recipe.unknown_word", key, fmt::format("{}: {} = {}: {}", origin, key, text, objection));
    }
    if (std::holds_alternative<std::string>(wanted) && std::holds_alternative<bool>(given) && has_word(allowed, "true"))
        return text_of(given);
    const auto is_empty = [](const Value& v) {
        const auto* text = std::get_if<std::string>(&v);
        const auto* list = std::get_if<std::vector<std::string>>(&v);
        return (text && text->empty()) || (list && list->empty());
    };
    if (std::holds_alternative<std::vector<double>>(wanted)) {
        if (is_empty(given)) return std::vector<double>{};
        if (const auto* d = std::get_if<double>(&given)) return std::vector<double>{*d};
        if (const auto* i = std::get_if<int64_t>(&given)) return std::vector<double>{static_cast<double>(*i)};
    }
    if (std::holds_alternative<std::vector<std::string>>(wanted)) {
        if (is_empty(given)) return std::vector<std::string>{};
        if (const auto* text = std::get_if<std::string>(&given)) return std::vector<std::string>{*text};
    }
    throw UserError("recipe.wrong_type", key,
                    fmt::format("{}: {} = {} must be {}", origin, key, text_of(given), type_name(wanted)));
}

// Keys of torchtitan's extensions (job.custom_config_module), by how they begin, and the technique that each is a part of.
std::string technique_of_extension(std::string_view key) {
    constexpr std::pair<const char*, const char*> extensions[] = {
        {"encoder.", "image generation"},
        {"inference.", "image generation"},
        {"training.classifier_free_guidance_prob", "image generation"},
        {"training.img_size", "image generation"},
        {"training.test_mode", "image generation"},
        {"validation.enable_classifier_free_guidance", "image generation"},
        {"validation.classifier_free_guidance_scale", "image generation"},
        {"validation.denoising_steps", "image generation"},
        {"validation.eval_freq", "image generation"},
        {"validation.save_img_", "image generation"},
        {"validation.all_timesteps", "image generation"},
        {"data.max_images_per_batch", "images as input"},
        {"data.max_patches_per_image", "images as input"},
        {"data.patch_size", "images as input"},
        {"data.spatial_merge_size", "images as input"},
        {"data.packing_buffer_size", "images as input"},
        {"hf_transformers.", "model code of transformers"},
    };
    for (const auto& [begin, technique] : extensions) {
        if (key.starts_with(begin)) return technique;
    }
    return "";
}

// The present name of a key that was torchtitan's in 2024 and 2025; empty: it was none, or has no successor.
std::string present_name(std::string_view key) {
    constexpr std::pair<const char*, const char*> sections[] = {{"float8.", "quantize.linear.float8."},
                                                                {"mx.", "quantize.linear.mx."},
                                                                {"quantize.dense.", "quantize.linear."},
                                                                {"quantize.moe.", "quantize.grouped_mm."}};
    constexpr std::pair<const char*, const char*> keys[] = {
        {"float8.enable_float8_linear", "model.converters"},
        {"float8.moe_fqns_prototype", "quantize.grouped_mm.float8.fqns"},
        {"mx.moe_fqns_prototype", "quantize.grouped_mm.mx.fqns"},
        {"mx.use_fp8_dim1_cast_triton_kernel", "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice"}};
    for (const auto& [was, is] : keys) {
        if (key == was) return is;
    }
    for (const auto& [was, is] : sections) {
        if (!key.starts_with(was)) continue;
        const std::string name = is + std::string(key.substr(std::string_view(was).size()));
        return find_key(name) ? name : "";
    }
    return "";
}
// Was the key in one of those sections?
bool is_of_old_section(std::string_view key) {
    return key.starts_with("float8.") || key.starts_with("mx.") || key.starts_with("quantize.dense.") ||
           key.starts_with("quantize.moe.");
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
    if (const auto* numbers = std::get_if<std::vector<double>>(&value)) {
        for (const double number : *numbers) refuse(kRange, allowed.objection(number));
    }
}

}  // namespace

std::vector<std::string> key_names() {
    std::vector<std::string> names;
    for (const models::ModelSpec& m : models::all_models()) {
        if (!m.alias_of.empty()) continue;
        for (const models::ModelKey& k : m.keys) names.push_back("model." + k.name);
    }
    for (const RecipeKey& k : recipe_keys()) names.push_back(k.name);
    return names;
}

const RecipeKey* find_key(std::string_view name) {
    for (const RecipeKey& k : recipe_keys()) {
        if (k.name == name) return &k;
    }
    return nullptr;
}

std::string why_ignored(const RecipeKey& key) {
    return key.status == KeyStatus::Ignored ? key.help : "acts only with model.converters";
}

std::string Missing::text() const {
    constexpr size_t kNamed = 3;
    std::vector<std::string> keys;
    for (size_t i = 0; i < asked_by.size() && i < kNamed; ++i)
        keys.push_back(fmt::format("{} = {}", asked_by[i].first, asked_by[i].second));
    if (asked_by.size() > kNamed) keys.push_back(fmt::format("and {} more keys", asked_by.size() - kNamed));
    return fmt::format("{} ({})", technique, fmt::join(keys, ", "));
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
                if ((c >= 0 && c < ' ') || c == 0x7f) escaped += fmt::format("\\u{:04x}", c);  // as TOML asks
                else escaped += c;
            }
            return "\"" + escaped + "\"";
        }
        std::string operator()(const std::vector<std::string>& v) const {
            std::vector<std::string> items;
            for (const std::string& s : v) items.push_back((*this)(s));
            return fmt::format("[{}]", fmt::join(items, ", "));
        }
        std::string operator()(const std::vector<double>& v) const {
            std::vector<std::string> items;
            for (const double d : v) items.push_back((*this)(d));
            return fmt::format("[{}]", fmt::join(items, ", "));
        }
    };
    return std::visit(Visitor{}, value);
}

Recipe::Recipe() {
    for (const RecipeKey& k : recipe_keys()) values_[k.name] = k.default_value;
}

void Recipe::assign(const std::string& key, std::optional<Value> value, const Origin& origin) {
    if (const RecipeKey* known = find_key(key)) {
        values_[key] = fit(known->default_value, std::move(value), key, known->allowed, origin.text);
        require_allowed(known->allowed, values_[key], key, origin.text);
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
            model_values_[k.name] = fit(wanted, std::move(value), key, k.allowed, origin.text);
            require_allowed(k.allowed, model_values_[k.name], key, origin.text);
            origins_[key] = origin;
            return;
        }
    }
    if (!technique_of_extension(key).empty()) {
        extensions_[key] = value.value_or("");
        origins_[key] = origin;
        return;
    }
    if (const std::string now = present_name(key); !now.empty())
        throw UserError("recipe.unknown_key", key,
                        fmt::format("{}: there is no key {}: its name is now {}", origin.text, key, now));
    if (is_of_old_section(key))
        throw UserError("recipe.unknown_key", key,
                        fmt::format("{}: there is no key {}: leave it out; the keys of 8-bit products are model.converters and "
                                    "those of [quantize] (`lockstep recipe quantize`)",
                                    origin.text, key));
    const std::vector<std::string> names = key_names();
    const std::string parent = key.substr(0, key.rfind('.'));
    if (std::find(names.begin(), names.end(), parent) != names.end())
        throw UserError("recipe.unknown_key", key,
                        fmt::format("{}: there is no key {}: {} has a value and no keys below it", origin.text, key, parent));
    throw UserError("recipe.unknown_key", key,
                    fmt::format("{}: there is no key {}; the nearest is {}", origin.text, key, nearest_key(key, names)));
}

void Recipe::set(const std::string& key, Value value, const std::string& origin) {
    assign(key, std::move(value), Origin::file(origin));
}

void Recipe::leave_out(const std::string& key) {
    values_[key] = find_key(key)->default_value;
    origins_.erase(key);
}

const Value& Recipe::value(std::string_view key) const {
    const auto it = values_.find(key);
    ensure(it != values_.end(), key);
    return it->second;
}
bool Recipe::flag(std::string_view key) const { return std::get<bool>(value(key)); }
int64_t Recipe::integer(std::string_view key) const { return std::get<int64_t>(value(key)); }
double Recipe::number(std::string_view key) const { return std::get<double>(value(key)); }
const std::string& Recipe::text(std::string_view key) const { return std::get<std::string>(value(key)); }
const std::vector<std::string>& Recipe::list(std::string_view key) const {
    return std::get<std::vector<std::string>>(value(key));
}
const std::vector<double>& Recipe::numbers(std::string_view key) const { return std::get<std::vector<double>>(value(key)); }
bool Recipe::is_set(std::string_view key) const { return origins_.find(key) != origins_.end(); }

std::string Recipe::where(std::string_view key) const {
    const auto it = origins_.find(key);
    return it == origins_.end() ? "" : it->second.text + ": ";
}

ir::Attrs Recipe::model_shape() const {
    const models::ModelSpec* model = models::find_model(text("model.name"));
    if (!model) {
        require_available();
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
        require_available();
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
                                        origins_.find("model." + k)->second.text, model->name, k));
        }
        if (const auto* i = std::get_if<int64_t>(&v)) shape[k] = *i;
        if (const auto* d = std::get_if<double>(&v)) shape[k] = *d;
    }
    return shape;
}

std::vector<Missing> Recipe::missing() const {
    std::vector<Missing> out;
    const auto add = [&](const std::string& technique, const std::string& key, const std::string& value) {
        auto known = std::find_if(out.begin(), out.end(), [&](const Missing& m) { return m.technique == technique; });
        if (known == out.end()) known = out.insert(known, {technique, {}});
        known->asked_by.emplace_back(key, value);
    };
    const auto value_of = [&](const std::string& key) { return values_.find(key)->second; };
    for (const models::AbsentModel& m : models::absent_models()) {
        if (m.name != text("model.name") || (!m.flavor.empty() && m.flavor != text("model.flavor"))) continue;
        const std::string key = m.flavor.empty() ? "model.name" : "model.flavor";
        add(m.technique, key, text_of(value_of(key)));
    }
    const std::vector<Unavailable> converters = unavailable(values_of(*this));
    for (const RecipeKey& k : recipe_keys()) {
        const Value value = value_of(k.name);
        if (k.status == KeyStatus::Only && value != k.default_value) add(k.help, k.name, text_of(value));
        for (const Unavailable& u : converters) {
            if (k.name == u.key) add(u.technique, k.name, text_of(value));
        }
    }
    for (const auto& [key, value] : extensions_) add(technique_of_extension(key), key, text_of(value));
    return out;
}

void Recipe::require_available() const {
    const std::vector<Missing> all = missing();
    if (all.empty()) return;
    std::string list;
    for (const Missing& m : all) list += "\n  " + m.text();
    const std::string& first_key = all.front().asked_by.front().first;
    const auto origin = origins_.find(first_key);
    throw UserError(
        "recipe.not_available", first_key,
        fmt::format("{}: asks for what this version of Lockstep does not have:{}\nLeave these keys out, or set them to "
                    "their defaults (`lockstep recipe KEY` prints a default)",
                    origin == origins_.end() ? first_key : origin->second.text, list));
}

std::vector<const RecipeKey*> Recipe::ignored() const {
    std::vector<const RecipeKey*> out;
    const Config config = values_of(*this);
    for (const RecipeKey& k : recipe_keys()) {
        if (is_set(k.name) && (k.status == KeyStatus::Ignored || !has_converter(config, k.name))) out.push_back(&k);
    }
    return out;
}

}  // namespace lockstep::compile
