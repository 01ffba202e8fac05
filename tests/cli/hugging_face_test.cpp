// Training from and to folders of transformers, by the keys of [checkpoint].
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/safetensors.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

const char* kEveryTwoSteps = "[checkpoint]\nenable = true\ninterval = 2\n";

std::string recipe_of(const std::string& model) {
    std::string recipe = training_recipe(4, kEveryTwoSteps);
    const std::string grouped = "n_kv_heads = 2";
    if (model == "gpt2") recipe.replace(recipe.find(grouped), grouped.size(), "name = \"gpt2\"\nn_positions = 16\ndropout = 0.1");
    return recipe;
}

// A recipe of each kind of tensor names: Llama's are ours, GPT-2's queries, keys and values are one tensor there.
class TransformersRun : public ::testing::TestWithParam<const char*> {
protected:
    TransformersRun() { s.write("r.toml", recipe_of(GetParam())); }
    Finished train(const std::string& dump, const std::string& more) const {
        Finished f = s.lockstep("train r.toml --json --job.dump_folder " + dump + " " + more);
        EXPECT_EQ(f.code, 0) << f.err;
        return f;
    }
    std::string last(const std::string& dump, const std::string& file) const {
        return s.read(dump + "/checkpoint/step-00000004/" + file);
    }
    Scratch s;
};
INSTANTIATE_TEST_SUITE_P(Cli, TransformersRun, ::testing::Values("llama3", "gpt2"));

const std::string kTwoRanks = " --parallelism.tensor_parallel_degree 2";
const std::string kWhole = " --checkpoint.last_save_model_only false";

// What a run saves as its last checkpoint is what `convert` makes of the same run's own checkpoint.
TEST_P(TransformersRun, LastSaveInHfIsTheFolderThatConvertMakes) {
    train("own", kWhole);
    for (const char* how : {"disabled", "async"}) {
        const std::string dump = std::string("hf_") + how;
        train(dump, kTwoRanks +
                        " --checkpoint.last_save_model_only true --checkpoint.last_save_in_hf true --checkpoint.async_mode " +
                        how);
        EXPECT_FALSE(fs::exists(s.path(dump + "/checkpoint/step-00000004/optimizer.safetensors")));
        EXPECT_TRUE(fs::exists(s.path(dump + "/checkpoint/step-00000002/optimizer.safetensors")));
        ASSERT_EQ(s.lockstep("convert " + dump + "/checkpoint/step-00000004 " + dump + "_in").code, 0);
    }
    EXPECT_TRUE(last("hf_async", "model.safetensors") == last("hf_disabled", "model.safetensors"));
    train("two", kTwoRanks + kWhole);
    ASSERT_EQ(s.lockstep("convert two two_hf").code, 0);
    EXPECT_TRUE(last("hf_async", "model.safetensors") == s.read("two_hf/model.safetensors"));
    EXPECT_EQ(last("hf_async", "config.json"), s.read("two_hf/config.json"));
}

// It is a checkpoint as any other to the commands that take one.
TEST_P(TransformersRun, WhatItSavesIsReadEverywhere) {
    train("own", kWhole);
    train("hf", "--checkpoint.last_save_model_only true --checkpoint.last_save_in_hf true");
    const std::string ask = " --prompt-tokens 3,41,7 --temperature 0 --max-tokens 6 --json";
    const Finished a = s.lockstep("sample own" + ask), b = s.lockstep("sample hf" + ask);
    ASSERT_EQ(b.code, 0) << b.err;
    EXPECT_EQ(a.json()["sequences"], b.json()["sequences"]);
    ASSERT_EQ(s.lockstep("convert own own_hf").code, 0);
    ASSERT_EQ(s.lockstep("convert hf again").code, 0) << "a run's folder is exported";
    EXPECT_TRUE(s.read("again/model.safetensors") == s.read("own_hf/model.safetensors"));
    EXPECT_EQ(s.lockstep("train r.toml --job.dump_folder hf").code, 0) << "nothing is left to do";
    const Finished more = s.lockstep("train r.toml --job.dump_folder hf --training.steps 6");
    EXPECT_EQ(more.code, 0) << more.err;
    EXPECT_NE(more.err.find("step-00000004 is left aside"), std::string::npos) << more.err;
    EXPECT_NE(more.err.find("resumed from hf/checkpoint/step-00000002"), std::string::npos) << more.err;
}

// Weights of such a folder, read on two ranks, train on bit by bit as those of the checkpoint that it was made from.
TEST_P(TransformersRun, InitialLoadInHfTrainsOnAsTheCheckpointDoes) {
    train("own", "");
    ASSERT_EQ(s.lockstep("convert own hf --shard-bytes 4000").code, 0);
    ASSERT_TRUE(fs::exists(s.path("hf/model.safetensors.index.json")));
    train("a", kTwoRanks + " --checkpoint.initial_load_path own");
    const Finished b = train("b", kTwoRanks + " --checkpoint.initial_load_in_hf true --checkpoint.initial_load_path hf");
    EXPECT_NE(b.err.find("weights from hf"), std::string::npos) << b.err;
    EXPECT_TRUE(last("a", "model.safetensors") == last("b", "model.safetensors"));
    EXPECT_TRUE(last("a", "optimizer.safetensors") == last("b", "optimizer.safetensors"));
    train("c", kTwoRanks + " --checkpoint.initial_load_in_hf true --model.hf_assets_path hf");
    EXPECT_TRUE(last("a", "model.safetensors") == last("c", "model.safetensors"));
    train("fresh", kTwoRanks);
    EXPECT_FALSE(last("a", "model.safetensors") == last("fresh", "model.safetensors"));
    // Once the run has a checkpoint of its own, that is what it goes on from.
    const Finished on = train("b", kTwoRanks + " --checkpoint.initial_load_in_hf true --checkpoint.initial_load_path gone");
    EXPECT_NE(on.err.find("resumed from b/checkpoint/step-00000004"), std::string::npos) << on.err;
}

TEST_P(TransformersRun, ExportDtypeIsThatOfTheLastModel) {
    const std::string name = GetParam() == std::string("gpt2") ? "transformer.wte.weight" : "model.embed_tokens.weight";
    train("own", kWhole);
    for (const auto& [dtype, file_type] :
         {std::pair{"float32", "F32"}, std::pair{"bfloat16", "BF16"}, std::pair{"float16", "F16"}}) {
        const std::string asked = std::string(" --checkpoint.export_dtype ") + dtype, hf = std::string("hf_") + dtype,
                          model = std::string("model_") + dtype, there = hf + "_there";
        train(model, "--checkpoint.last_save_model_only true" + asked);
        train(hf, "--checkpoint.last_save_model_only true --checkpoint.last_save_in_hf true" + asked);
        for (const std::string& dump : {model, hf}) {
            const checkpoint::SafetensorsReader reader(s.path(dump + "/checkpoint/step-00000004/model.safetensors"));
            EXPECT_EQ(reader.find(name).spec.dtype, file_type);
        }
        ASSERT_EQ(s.lockstep("convert own " + there + " --dtype " + dtype).code, 0);
        EXPECT_TRUE(last(hf, "model.safetensors") == s.read(there + "/model.safetensors")) << dtype;
        EXPECT_EQ(nlohmann::json::parse(last(hf, "config.json"))["torch_dtype"], dtype);
        EXPECT_EQ(s.lockstep("sample " + model + " --prompt-tokens 3 --max-tokens 2 --temperature 0").code, 0);
    }
    const checkpoint::SafetensorsReader whole(s.path("model_bfloat16/checkpoint/step-00000002/model.safetensors"));
    EXPECT_EQ(whole.find(name).spec.dtype, "F32") << "only the last";
    const Finished f = train("none", "--checkpoint.export_dtype bfloat16");
    EXPECT_NE(f.err.find("checkpoint.export_dtype = bfloat16 does nothing, as the last checkpoint is a whole one"),
              std::string::npos)
        << f.err;
}

TEST(TransformersTokenizer, StandsBesideTheLastWeights) {
    Scratch s;
    s.prepare({std::string(300, 'a'), std::string(300, 'b'), std::string(300, 'c')});
    s.write("r.toml", prepared_recipe("local_batch_size = 2\nseq_len = 16\nsteps = 2\n") +
                          "[checkpoint]\nenable = true\nlast_save_model_only = true\nlast_save_in_hf = true\n");
    const Finished f = s.lockstep("train r.toml");
    ASSERT_EQ(f.code, 0) << f.err;
    const std::string last = "out/checkpoint/step-00000002/";
    EXPECT_EQ(s.read(last + "tokenizer.json"), s.read("d/tokenizer.json"));
    EXPECT_EQ(nlohmann::json::parse(s.read(last + "tokenizer_config.json"))["eos_token"], "<|end_of_text|>");
    EXPECT_EQ(nlohmann::json::parse(s.read(last + "config.json"))["vocab_size"], 257);
    EXPECT_EQ(s.lockstep("sample out --prompt aa --temperature 0 --max-tokens 4").code, 0);
}

TEST(TransformersRefusals, SayWhatToChange) {
    Scratch s;
    s.write("r.toml", recipe_of("llama3"));
    s.write("gpt2.toml", recipe_of("gpt2"));
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder own").code, 0);
    ASSERT_EQ(s.lockstep("convert own hf").code, 0);
    const auto expect = [&](const std::string& arguments, const std::string& text, const std::string& id) {
        const Finished f = s.lockstep("train " + arguments);
        EXPECT_EQ(f.code, 1) << arguments;
        EXPECT_NE(f.err.find(text), std::string::npos) << f.err;
        EXPECT_NE(f.err.find("[" + id + "]"), std::string::npos) << f.err;
    };
    const std::string in_hf = " --checkpoint.initial_load_in_hf true --checkpoint.initial_load_path ";
    expect("r.toml" + in_hf + "nowhere", "checkpoint.initial_load_in_hf = true, but nowhere holds no config.json",
           "checkpoint.no_hugging_face");
    expect("r.toml --checkpoint.initial_load_in_hf true", "neither checkpoint.initial_load_path nor model.hf_assets_path is set",
           "checkpoint.no_hugging_face");
    expect("r.toml --checkpoint.initial_load_path hf", "hf is a folder of transformers: set checkpoint.initial_load_in_hf = true",
           "checkpoint.is_hugging_face");
    expect("gpt2.toml" + in_hf + "hf", "hf holds a model with model.name = llama3, but the recipe has gpt2",
           "checkpoint.other_architecture");
    expect("r.toml --model.rope_theta 1e4" + in_hf + "hf",
           "hf holds a model with model.rope_theta = 500000, but the recipe has 10000", "checkpoint.other_architecture");
    expect("r.toml --model.n_layers 3" + in_hf + "hf", "hf holds a model with model.n_layers = 2, but the recipe has 3",
           "checkpoint.other_architecture");
    expect("r.toml --checkpoint.initial_load_model_only false" + in_hf + "hf", "a folder of transformers holds only weights",
           "recipe.initial_load_in_hf");
    expect("r.toml --checkpoint.enable false --checkpoint.initial_load_in_hf true --model.hf_assets_path hf",
           "checkpoint.initial_load_in_hf is set, but checkpoints are off: set checkpoint.enable = true",
           "recipe.checkpoint_off");
    expect("r.toml --checkpoint.load_only true --checkpoint.last_save_model_only true --checkpoint.last_save_in_hf true",
           "checkpoint.last_save_in_hf is set, but checkpoints are off: set checkpoint.enable = true and checkpoint.load_only = "
           "false",
           "recipe.checkpoint_off");
    expect("r.toml --checkpoint.export_dtype int8",
           "checkpoint.export_dtype = \"int8\": must be empty, float32, bfloat16 or float16", "recipe.unknown_word");
    expect("r.toml --checkpoint.last_save_in_hf true --checkpoint.last_save_model_only false",
           "a folder of transformers has no place for optimizer states", "recipe.last_save_in_hf");
    expect("r.toml --checkpoint.last_save_model_only true --checkpoint.last_save_in_hf true --model.qk_norm 1 --model.qkv_bias 1",
           "such a model cannot be exported", "convert.no_architecture");
    fs::resize_file(s.path("hf/model.safetensors"), 900);
    expect("r.toml" + in_hf + "hf", "hf/model.safetensors", "checkpoint.truncated");
}

}  // namespace
}  // namespace lockstep::testing
