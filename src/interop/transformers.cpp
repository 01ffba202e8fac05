#include "interop/transformers.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
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

void assume_fine_tuning(Reading& r) {
    const auto assume = [&](const std::string& said, const char* key, const compile::Value& value) {
        if (r.recipe.is_set(key)) return;
        r.recipe.set(key, value, "for training that goes on from weights");
        r.assumed.push_back({said, "", fmt::format("{} = {}", key, compile::text_of(value))});
    };
    constexpr double kRate = 2e-5;
    constexpr int64_t kWarmup = 100;
    assume("a learning rate for weights that are trained already", "optimizer.lr", kRate);
    assume("a short warm-up", "lr_scheduler.warmup_steps", kWarmup);
    assume("the last checkpoint is a folder of transformers", "checkpoint.last_save_in_hf", true);
}

namespace {

bool has_weights(const fs::path& folder) {
    std::error_code ignored;
    for (const auto& file : fs::directory_iterator(folder, ignored)) {
        if (file.path().extension() == ".safetensors") return true;
    }
    return false;
}

}  // namespace

Reading read_transformers(const std::string& path) {
    const nlohmann::json json = checkpoint::read_config(path);
    const models::HuggingFaceModel model = checkpoint::model_of_config(path);
    Reading r;
    r.kind = Reading::Kind::Transformers;
    r.recipe = recipe_of(model);
    const std::string folder = fs::path(path).parent_path().string();
    r.recipe.set("checkpoint.enable", "true");
    r.recipe.set("checkpoint.initial_load_path", fs::absolute(folder.empty() ? "." : folder).lexically_normal().string());
    r.recipe.set("checkpoint.initial_load_in_hf", "true");
    r.mapped.push_back({fmt::format("model_type = {}", json_text(json.at("model_type"))), path,
                        fmt::format("model.name = \"{}\", with every key of [model]", model.name)});
    constexpr int64_t kLongest = 8192;
    const int64_t seq = std::min<int64_t>(model.context, kLongest);
    r.recipe.set("training.seq_len", seq, path);
    r.recipe.set("training.local_batch_size", int64_t{1}, path);
    r.assumed.push_back({"sequence length", "",
                         seq < model.context
                             ? fmt::format("training.seq_len = {}, of the {} that the model was made for", seq, model.context)
                             : fmt::format("training.seq_len = {}, the longest that the model was made for", seq)});
    r.assumed.push_back({"a config.json does not say it", "", "training.local_batch_size = 1, the least"});
    if (has_weights(folder.empty() ? "." : folder)) assume_fine_tuning(r);
    for (const char* key : {"training.mixed_precision_param", "activation_checkpoint.mode", "parallelism.tensor_parallel_degree",
                            "parallelism.pipeline_parallel_degree"})
        r.assumed.push_back({"a config.json does not say it", "",
                             fmt::format("{} = {}, Lockstep's default", key, compile::text_of(r.recipe.value(key)))});
    r.notes.push_back(
        {"", "batch, layout and recompute: now `lockstep tune NAME.toml --cluster FILE --ranks N` finds the fastest that fits"});
    return r;
}

}  // namespace lockstep::interop
