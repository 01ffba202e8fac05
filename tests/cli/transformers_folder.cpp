#include "tests/cli/transformers_folder.h"

#include <cmath>
#include <filesystem>

namespace lockstep::testing {

std::vector<float> SmallTensor::values() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    std::vector<float> out;
    for (int64_t i = 0; i < n; ++i) {
        const float x = std::sin(first + static_cast<float>(i));
        out.push_back(shape.size() == 1 ? 1 + 0.2f * x : x);
    }
    return out;
}

nlohmann::json small_config(int64_t vocab) {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_act", "silu"},
            {"hidden_size", 8},
            {"intermediate_size", 12},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"vocab_size", vocab},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"max_position_embeddings", 64},
            {"tie_word_embeddings", false}};
}

SmallTensors small_tensors(int64_t vocab) {
    const std::string layer = "model.layers.0.";
    return {{"model.embed_tokens.weight", {{vocab, 8}, 1}},
            {"lm_head.weight", {{vocab, 8}, 2}},
            {"model.norm.weight", {{8}, 3}},
            {layer + "input_layernorm.weight", {{8}, 4}},
            {layer + "post_attention_layernorm.weight", {{8}, 5}},
            {layer + "self_attn.q_proj.weight", {{8, 8}, 6}},
            {layer + "self_attn.k_proj.weight", {{4, 8}, 7}},
            {layer + "self_attn.v_proj.weight", {{4, 8}, 8}},
            {layer + "self_attn.o_proj.weight", {{8, 8}, 9}},
            {layer + "mlp.gate_proj.weight", {{12, 8}, 10}},
            {layer + "mlp.up_proj.weight", {{12, 8}, 11}},
            {layer + "mlp.down_proj.weight", {{8, 12}, 12}}};
}

void write_tensors(const Scratch& s, const std::string& file, const SmallTensors& tensors) {
    std::filesystem::create_directories(std::filesystem::path(s.path(file)).parent_path());
    std::vector<checkpoint::TensorSpec> specs;
    for (const auto& [name, tensor] : tensors) specs.push_back({name, "F32", tensor.shape});
    checkpoint::SafetensorsWriter writer(s.path(file), checkpoint::SafetensorsLayout(specs, {{"format", "pt"}}));
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor.values().data());
    writer.finish();
}

void write_small_folder(const Scratch& s, const std::string& folder, const nlohmann::json& config, const SmallTensors& tensors) {
    write_tensors(s, folder + "/model.safetensors", tensors);
    s.write(folder + "/config.json", config.dump());
}

void write_small_shards(const Scratch& s, const std::string& folder, const SmallTensors& tensors, const nlohmann::json& more) {
    nlohmann::json map = more;
    int number = 0;
    for (const auto& [name, tensor] : tensors) {
        const std::string file = "shard-" + std::to_string(++number) + ".safetensors";
        write_tensors(s, folder + "/" + file, {{name, tensor}});
        map[name] = file;
    }
    s.write(folder + "/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
}

std::vector<float> tensor_of(const Scratch& s, const std::string& file, const std::string& name) {
    const checkpoint::SafetensorsReader reader(s.path(file));
    std::vector<float> out(static_cast<size_t>(reader.find(name).elements));
    reader.read(name, 0, reader.find(name).elements, out.data());
    return out;
}

}  // namespace lockstep::testing
