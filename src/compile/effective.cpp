#include "compile/effective.h"

namespace lockstep::compile {
namespace {

std::string attr_text(const ir::Attr& attr) {
    if (const auto* i = std::get_if<int64_t>(&attr)) return compile::text_of(Value(*i));
    return compile::text_of(Value(std::get<double>(attr)));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> effective(const Recipe& recipe) {
    std::vector<std::pair<std::string, std::string>> out;
    for (const RecipeKey& k : recipe_keys()) {
        if (k.name == "model.flavor") {
            for (const auto& [name, value] : recipe.model_shape()) out.emplace_back("model." + name, attr_text(value));
        } else if (k.status == KeyStatus::Acts) {
            out.emplace_back(k.name, compile::text_of(recipe.value(k.name)));
        }
    }
    return out;
}

void state_model(Recipe& recipe) {
    for (const auto& [name, value] : recipe.model_shape()) recipe.set("model." + name, attr_text(value));
}

}  // namespace lockstep::compile
