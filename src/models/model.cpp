#include "models/model.h"

namespace lockstep::models {

const std::vector<ModelSpec>& all_models() {
    static const std::vector<ModelSpec> models = {llama3(), qwen3(), gpt2()};
    return models;
}

const ModelSpec* find_model(std::string_view name) {
    for (const ModelSpec& m : all_models()) {
        if (m.name == name) return &m;
    }
    return nullptr;
}

const std::vector<AbsentModel>& absent_models() {
    static const std::vector<AbsentModel> models = {
        {"deepseek_v3", "", "experts"},
        {"deepseek_v3", "", "multi-head latent attention"},
        {"flux", "", "image generation"},
        {"gpt_oss", "", "experts"},
        {"llama3", "8B_flex", "flex attention (flavor 8B with training.document_mask = true does the same)"},
        {"llama3", "8B_varlen", "varlen attention (flavor 8B with training.document_mask = true does the same)"},
        {"llama3", "debugmodel_flex_attn", "flex attention (flavor debugmodel with training.document_mask = true does the same)"},
        {"llama3", "debugmodel_varlen_attn",
         "varlen attention (flavor debugmodel with training.document_mask = true does the same)"},
        {"llama4", "", "experts"},
        {"qwen3", "debugmodel_moe", "experts"},
        {"qwen3", "30B-A3B", "experts"},
        {"qwen3", "235B-A22B", "experts"},
        {"transformers_modeling_backend", "", "model code of transformers"},
        {"vlm", "", "images as input"},
    };
    return models;
}

}  // namespace lockstep::models
