#include "interop/transformers.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/hugging_face_folder.h"

namespace lockstep::interop {

namespace fs = std::filesystem;

compile::Recipe recipe_of(const models::HuggingFaceModel& m) {
    compile::Recipe recipe;
    recipe.set("model.name", m.name);
    for (const auto& [key, value] : m.shape) {
        if (const auto* i = std::get_if<int64_t>(&value)) recipe.set("model." + key, std::to_string(*i));
        if (const auto* d = std::get_if<double>(&value)) recipe.set("model." + key, fmt::format("{}", *d));
    }
    recipe.set("training.seq_len", std::to_string(m.context));
    return recipe;
}

Reading read_transformers(const std::string& path) {
    const nlohmann::json json = checkpoint::read_config(path);
    const models::HuggingFaceModel model = checkpoint::model_of_config(path);
    Reading r;
    r.kind = "transformers";
    r.recipe = recipe_of(model);
    const std::string folder = fs::path(path).parent_path().string();
    r.recipe.set("checkpoint.enable", "true");
    r.recipe.set("checkpoint.initial_load_path", fs::absolute(folder.empty() ? "." : folder).lexically_normal().string());
    r.recipe.set("checkpoint.initial_load_in_hf", "true");
    r.mapped.push_back({fmt::format("model_type = {}", json.at("model_type").dump()), path,
                        fmt::format("model.name = \"{}\", with every key of [model]", model.name)});
    r.assumed.push_back(
        {"sequence length", "", fmt::format("training.seq_len = {}, the longest that the model was made for", model.context)});
    for (const char* key : {"training.local_batch_size", "training.mixed_precision_param", "activation_checkpoint.mode",
                            "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"})
        r.assumed.push_back({"a config.json does not say it", "",
                             fmt::format("{} = {}, Lockstep's default", key, compile::text_of(r.recipe.value(key)))});
    r.notes.push_back(fmt::format(
        "training.seq_len: {} is the longest that the model was made for; shorter ones need less memory", model.context));
    return r;
}

}  // namespace lockstep::interop
