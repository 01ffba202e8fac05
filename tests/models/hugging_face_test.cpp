// Shapes here and configs of transformers, without any file.
#include "models/hugging_face_config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::models {
namespace {

HuggingFaceModel llama() {
    HuggingFaceModel m{"llama3", {}, 64};
    for (const ModelKey& k : llama3().keys) m.shape[k.name] = k.default_value;
    return m;
}

TEST(HuggingFace, AShapeComesBackFromItsConfig) {
    HuggingFaceModel m = llama();
    m.shape["n_kv_heads"] = int64_t{4};
    m.shape["qk_norm"] = m.shape["tie_embeddings"] = int64_t{1};
    m.shape["rope_theta"] = 1234.5;
    const HuggingFaceModel back = from_hugging_face(to_hugging_face(m), "test");
    EXPECT_EQ(back.name, "llama3");
    EXPECT_EQ(back.context, 64);
    for (const char* key :
         {"dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "norm_eps", "qk_norm", "tie_embeddings", "rope_theta",
          "rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_positions"})
        EXPECT_EQ(back.shape.at(key), m.shape.at(key)) << key;
    EXPECT_EQ(to_hugging_face(back), to_hugging_face(m));  // widths left to be worked out are written out
}

nlohmann::json config_of_type(const char* type, const nlohmann::json& more = nlohmann::json::object()) {
    nlohmann::json config = {{"model_type", type}};
    config.update(more);
    return config;
}

int64_t shape_read(const nlohmann::json& config, const char* key) {
    return std::get<int64_t>(from_hugging_face(config, "test").shape.at(key));
}

std::string config_refusal(const nlohmann::json& config) {
    try {
        from_hugging_face(config, "test");
        return "accepted";
    } catch (const UserError& e) {
        return e.id() + ": " + e.what();
    }
}

// transformers 5.24: AutoConfig.from_pretrained of a config.json that says its model_type alone.
TEST(HuggingFace, WhatAConfigLeavesOutIsAsTransformersHasIt) {
    const struct {
        const char* type;
        int64_t vocab, dim, ffn, layers, heads, kv_heads, head_dim, window, context;
    } families[] = {{"llama", 32000, 4096, 11008, 32, 32, 32, 0, 0, 2048},
                    {"qwen2", 151936, 4096, 22016, 32, 32, 32, 0, 0, 32768},
                    {"qwen3", 151936, 4096, 22016, 32, 32, 32, 128, 0, 32768},
                    {"mistral", 32000, 4096, 14336, 32, 32, 8, 0, 4096, 131072}};
    for (const auto& f : families) {
        const nlohmann::json config = config_of_type(f.type);
        EXPECT_EQ(shape_read(config, "vocab_size"), f.vocab) << f.type;
        EXPECT_EQ(shape_read(config, "dim"), f.dim) << f.type;
        EXPECT_EQ(shape_read(config, "ffn_dim"), f.ffn) << f.type;
        EXPECT_EQ(shape_read(config, "n_layers"), f.layers) << f.type;
        EXPECT_EQ(shape_read(config, "n_heads"), f.heads) << f.type;
        EXPECT_EQ(shape_read(config, "n_kv_heads"), f.kv_heads) << f.type;
        EXPECT_EQ(shape_read(config, "head_dim"), f.head_dim) << f.type;
        EXPECT_EQ(shape_read(config, "sliding_window"), f.window) << f.type;
        EXPECT_EQ(shape_read(config, "tie_embeddings"), 0) << f.type;
        EXPECT_EQ(from_hugging_face(config, "test").context, f.context) << f.type;
        EXPECT_EQ(std::get<double>(from_hugging_face(config, "test").shape.at("rope_theta")), 10000) << f.type;
        EXPECT_EQ(std::get<double>(from_hugging_face(config, "test").shape.at("norm_eps")), 1e-6) << f.type;
    }
    const nlohmann::json gpt2 = config_of_type("gpt2");
    EXPECT_EQ(shape_read(gpt2, "dim"), 768);
    EXPECT_EQ(shape_read(gpt2, "n_layers"), 12);
    EXPECT_EQ(shape_read(gpt2, "n_heads"), 12);
    EXPECT_EQ(shape_read(gpt2, "vocab_size"), 50257);
    EXPECT_EQ(shape_read(gpt2, "tie_embeddings"), 1);
    EXPECT_EQ(shape_read(config_of_type("gpt2", {{"hidden_size", 24}}), "dim"), 24);
    EXPECT_EQ(shape_read(config_of_type("gpt2", {{"n_embd", 24}, {"n_inner", nullptr}}), "ffn_dim"), 0);
}

TEST(HuggingFace, NullIsNotAbsent) {
    EXPECT_EQ(shape_read(config_of_type("mistral", {{"sliding_window", nullptr}}), "sliding_window"), 0);
    EXPECT_EQ(shape_read(config_of_type("mistral", {{"num_key_value_heads", nullptr}}), "n_kv_heads"), 32);
    EXPECT_EQ(shape_read(config_of_type("llama", {{"head_dim", nullptr}}), "head_dim"), 0);
    EXPECT_EQ(shape_read(config_of_type("llama", {{"quantization_config", nullptr}, {"rope_scaling", nullptr}}), "dim"), 4096);
    EXPECT_EQ(config_refusal(config_of_type("llama", {{"hidden_size", nullptr}})),
              "convert.config: test: hidden_size is missing or of another type");
    EXPECT_EQ(config_refusal(config_of_type("qwen3", {{"head_dim", nullptr}})),
              "convert.config: test: head_dim is missing or of another type");
}

TEST(HuggingFace, WindowsThatNoLayerHasAreNone) {
    const nlohmann::json asks = {{"use_sliding_window", true}, {"sliding_window", 4096}, {"num_hidden_layers", 28}};
    EXPECT_EQ(shape_read(config_of_type("qwen2", asks), "sliding_window"), 0);  // max_window_layers is 28
    nlohmann::json more = asks;
    more["num_hidden_layers"] = 29;
    EXPECT_NE(config_refusal(config_of_type("qwen2", more)).find("use_sliding_window = true"), std::string::npos);
    more["sliding_window"] = nullptr;
    EXPECT_EQ(shape_read(config_of_type("qwen2", more), "sliding_window"), 0);
}

// MistralForCausalLM of transformers 5 gives every layer its window, whatever layer_types says.
TEST(HuggingFace, LayersOfAMistralAreAllAsItsWindow) {
    const auto mistral = [](const nlohmann::json& window, const char* type) {
        return config_of_type("mistral", {{"sliding_window", window}, {"layer_types", {type}}});
    };
    EXPECT_EQ(shape_read(mistral(8, "sliding_attention"), "sliding_window"), 8);
    EXPECT_EQ(shape_read(mistral(nullptr, "full_attention"), "sliding_window"), 0);
    EXPECT_NE(config_refusal(mistral(8, "full_attention"))
                  .find("transformers gives all layers of a mistral the sliding_window of 8: remove layer_types, or set "
                        "sliding_window to null"),
              std::string::npos);
    EXPECT_NE(config_refusal(mistral(nullptr, "sliding_attention")).find("layers are all alike here, with full attention"),
              std::string::npos);
}

TEST(HuggingFace, RotaryPositionsAreThoseOfTransformers) {
    const nlohmann::json scaling = {
        {"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
    nlohmann::json config = config_of_type("llama", {{"rope_scaling", scaling}, {"max_position_embeddings", 64}});
    const auto original = [&] { return shape_read(config, "rope_original_positions"); };
    EXPECT_EQ(original(), 64);  // the context, where it says nothing
    config["rope_scaling"]["original_max_position_embeddings"] = 32;
    EXPECT_EQ(original(), 32);
    config["original_max_position_embeddings"] = 16;  // beside the object
    EXPECT_EQ(original(), 16);
    const auto theta = [&] { return std::get<double>(from_hugging_face(config, "test").shape.at("rope_theta")); };
    config["rope_theta"] = 500.0;
    EXPECT_EQ(theta(), 500);
    config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 700.0}};
    EXPECT_EQ(theta(), 500);  // rope_scaling counts before rope_parameters
    config["rope_scaling"] = nlohmann::json::object();
    EXPECT_EQ(theta(), 700);
    EXPECT_EQ(std::get<double>(from_hugging_face(config, "test").shape.at("rope_scaling_factor")), 1);
    config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 900.0}}}};
    EXPECT_EQ(theta(), 900);
    for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
        nlohmann::json less = scaling;
        less.erase(key);
        EXPECT_EQ(config_refusal(config_of_type("llama", {{"rope_scaling", less}})),
                  std::string("convert.config: test: rope_scaling.") + key + " is missing or no number");
    }
}

// A folder that goes in and out keeps its config; what the model has become is changed in it.
TEST(HuggingFace, AConfigComesBackWithWhatHasChanged) {
    const nlohmann::json came = config_of_type("llama", {{"hidden_size", 64},
                                                         {"intermediate_size", 96},
                                                         {"num_hidden_layers", 2},
                                                         {"num_attention_heads", 4},
                                                         {"vocab_size", 100},
                                                         {"eos_token_id", {1, 2}},
                                                         {"use_cache", true},
                                                         {"auto_map", {{"a", "b.c"}}},
                                                         {"transformers_weights", "other.safetensors"},
                                                         {"quantization_config", nullptr}});
    HuggingFaceModel model = from_hugging_face(came, "test");
    nlohmann::json out = to_hugging_face(model, came);
    nlohmann::json wanted = came;
    for (const char* key : {"auto_map", "transformers_weights", "quantization_config"}) wanted.erase(key);
    wanted["architectures"] = {"LlamaForCausalLM"}, wanted["tie_word_embeddings"] = false;
    EXPECT_EQ(out, wanted);
    model.shape["vocab_size"] = int64_t{128}, model.context = 4096;
    out = to_hugging_face(model, came);
    EXPECT_EQ(out["vocab_size"], 128);
    EXPECT_EQ(out["max_position_embeddings"], 4096);
    EXPECT_EQ(out["use_cache"], true);
    model.shape["rope_theta"] = 5e5;  // another model: its own config, with the ids
    out = to_hugging_face(model, came);
    EXPECT_EQ(out["rope_theta"], 5e5);
    EXPECT_EQ(out["eos_token_id"], came["eos_token_id"]);
    EXPECT_FALSE(out.contains("use_cache"));
}

TEST(HuggingFace, HeadsAreOneDimOfAStoredTensor) {
    const HuggingFaceModel m = llama();
    const std::vector<StoredTensor> tensors = stored_tensors(m);
    EXPECT_EQ(tensors.size(), 1u + 6 * 9 + 2);
    for (const StoredTensor& t : tensors) {
        if (t.name != "model.layers.5.self_attn.o_proj.weight") continue;
        EXPECT_EQ(t.shape, (std::vector<int64_t>{256, 256}));
        EXPECT_EQ(t.parts[0].shape, (std::vector<int64_t>{256, 16, 1, 16}));
        return;
    }
    FAIL() << "no o_proj in the last layer";
}

TEST(HuggingFace, TwoArchitecturesInOneCannotBeExported) {
    HuggingFaceModel m = llama();
    m.shape["qk_norm"] = m.shape["qkv_bias"] = int64_t{1};
    try {
        to_hugging_face(m);
        FAIL();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "convert.no_architecture");
        EXPECT_NE(std::string(e.what()).find("none has two of them: such a model cannot be exported"), std::string::npos);
    }
}

}  // namespace
}  // namespace lockstep::models
