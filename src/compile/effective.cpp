#include "compile/effective.h"

namespace lockstep::compile {
namespace {

std::string attr_text(const ir::Attr& attr) {
    if (const auto* i = std::get_if<int64_t>(&attr)) return compile::text_of(Value(*i));
    return compile::text_of(Value(std::get<double>(attr)));
}

std::string value_text(const Recipe& recipe, const RecipeKey& key) {
    struct Visitor {
        const Recipe& recipe;
        const std::string& name;
        Value operator()(bool) const { return recipe.flag(name); }
        Value operator()(int64_t) const { return recipe.integer(name); }
        Value operator()(double) const { return recipe.number(name); }
        Value operator()(const std::string&) const { return recipe.text(name); }
        Value operator()(const std::vector<std::string>&) const { return recipe.list(name); }
        Value operator()(const std::vector<double>&) const { return recipe.numbers(name); }
    };
    return compile::text_of(std::visit(Visitor{recipe, key.name}, key.default_value));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> effective(const Recipe& recipe) {
    std::vector<std::pair<std::string, std::string>> out;
    for (const RecipeKey& k : recipe_keys()) {
        if (k.name == "model.flavor") {
            for (const auto& [name, value] : recipe.model_shape()) out.emplace_back("model." + name, attr_text(value));
        } else if (k.status == KeyStatus::Acts) {
            out.emplace_back(k.name, value_text(recipe, k));
        }
    }
    return out;
}

void state_model(Recipe& recipe) {
    for (const auto& [name, value] : recipe.model_shape()) recipe.set("model." + name, attr_text(value));
}

}  // namespace lockstep::compile
