// A checkpoint carries its model, its tokenizer and its recipe: what contradicts them is refused with both values, what else has
// changed is listed, and a run keeps every recipe that it has run under.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

const char* kCheckpoints = R"([checkpoint]
enable = true
interval = 2
last_save_model_only = false
)";

class CliCarried : public ::testing::Test {
protected:
    void SetUp() override { s.write("r.toml", training_recipe(4, kCheckpoints)); }

    void expect(const std::string& command, int code, const std::string& text) {
        const Finished f = s.lockstep(command);
        EXPECT_EQ(f.code, code) << command << "\n" << f.err;
        EXPECT_NE(f.err.find(text), std::string::npos) << command << "\n" << f.err;
    }
    // As many tokens for every text, of other bytes.
    void prepare(const std::string& folder, const std::string& word) {
        std::string text;
        for (int i = 0; i < 300; ++i) text += fmt::format("{} {} of a text\n", word, i * 7919 % 1000);
        s.write("text.txt", text);
        ASSERT_EQ(
            s.lockstep(fmt::format("data prepare text.txt --out {} --tokenizer bpe --vocab 262 --heldout 0.2", folder)).code, 0);
    }

    Scratch s;
};

// Values that no tensor's shape shows, and one that it does.
TEST_F(CliCarried, AModelThatTheRecipeContradictsIsRefused) {
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder own").code, 0);
    ASSERT_EQ(s.lockstep("convert own hf").code, 0);
    ASSERT_EQ(s.lockstep("convert hf ck").code, 0);
    const struct {
        const char *flags, *held, *given;
    } cases[] = {
        {"--model.norm_eps 0.1", "model.norm_eps = 1e-05", "the recipe has 0.1"},
        {"--model.rope_theta 10000", "model.rope_theta = 500000", "the recipe has 10000"},
        {"--model.sliding_window 4", "model.sliding_window = 0", "the recipe has 4"},
        {"--model.rope_scaling_factor 2", "model.rope_scaling_factor = 8", "the recipe has 2"},
        {"--model.rope_original_positions 16", "model.rope_original_positions = 8192", "the recipe has 16"},
        {"--model.tie_embeddings 1", "model.tie_embeddings = 0", "the recipe has 1"},
        {"--model.n_heads 8 --model.head_dim 4", "model.n_heads = 4", "the recipe has 8"},
        {"--model.ffn_dim 32", "model.ffn_dim = 24", "the recipe has 32"},
    };
    for (const auto& c : cases) {
        for (const char* from :
             {"--checkpoint.initial_load_path own", "--checkpoint.initial_load_path ck",
              "--checkpoint.initial_load_in_hf true --checkpoint.initial_load_path hf", "--job.dump_folder own"}) {
            const Finished f = s.lockstep(fmt::format("train r.toml {} {}", from, c.flags));
            EXPECT_EQ(f.code, 1) << from << c.flags << f.err;
            for (const std::string& part : {std::string("holds a model with ") + c.held, std::string(c.given),
                                            std::string("[checkpoint.other_architecture]")})
                EXPECT_NE(f.err.find(part), std::string::npos) << from << " " << c.flags << "\n" << f.err;
        }
    }
    for (const char* command : {"eval own", "sample own --prompt-tokens 3"})
        expect(fmt::format("{} --model.rope_theta 1e4", command), 1, "model.rope_theta = 500000, but the recipe has 10000");
    // The widths that a shape leaves to be worked out are the same ones.
    for (const char* same : {"--model.head_dim 4", "--model.head_dim 0"}) {
        EXPECT_EQ(
            s.lockstep(fmt::format("train r.toml --job.dump_folder new{} --checkpoint.initial_load_path ck {}", same[17], same))
                .code,
            0)
            << same;
    }
    std::string without = training_recipe(4, kCheckpoints);
    without.erase(without.find("ffn_dim = 24\n"), 13);
    s.write("without.toml", without);
    expect("train without.toml --job.dump_folder d --checkpoint.initial_load_path ck", 1, "but the recipe has the default 256");
}

TEST_F(CliCarried, WhatChangedIsListed) {
    ASSERT_EQ(s.lockstep("train r.toml --lr_scheduler.total_steps 8").code, 0);
    Finished f = s.lockstep(
        "train r.toml --lr_scheduler.total_steps 8 --optimizer.lr 5e-4 --training.steps 6 --training.seq_len 8 "
        "--lr_scheduler.decay_type cosine");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.err.find("changed since step 4: "), std::string::npos) << f.err;
    const std::string line = f.err.substr(f.err.find("changed since step 4: "));
    for (const char* change : {"optimizer.lr 0.01 -> 0.0005", "training.steps 4 -> 6", "training.seq_len 16 -> 8",
                               "lr_scheduler.decay_type \"linear\" -> \"cosine\""})
        EXPECT_NE(line.substr(0, line.find('\n')).find(change), std::string::npos) << change << "\n" << f.err;
    f = s.lockstep(
        "train r.toml --lr_scheduler.total_steps 8 --optimizer.lr 5e-4 --training.steps 6 --training.seq_len 8 "
        "--lr_scheduler.decay_type cosine");
    EXPECT_EQ(f.err.find("changed since"), std::string::npos) << f.err;
}

TEST_F(CliCarried, EveryRecipeIsKept) {
    ASSERT_EQ(s.lockstep("train r.toml --lr_scheduler.total_steps 8").code, 0);
    const std::string first = s.read("out/recipe.toml");
    EXPECT_EQ(s.read("out/recipes/step-00000000.toml"), first);
    ASSERT_EQ(s.lockstep("train r.toml --lr_scheduler.total_steps 8").code, 0);
    ASSERT_EQ(s.lockstep("train r.toml --lr_scheduler.total_steps 8 --training.steps 6").code, 0);
    const std::string second = s.read("out/recipe.toml");
    EXPECT_NE(second, first);
    EXPECT_EQ(s.read("out/recipes/step-00000000.toml"), first);
    EXPECT_EQ(s.read("out/recipes/step-00000004.toml"), second);
    ASSERT_EQ(s.lockstep("train r.toml --lr_scheduler.total_steps 8 --training.steps 7 --checkpoint.load_step 4").code, 0);
    EXPECT_EQ(s.read("out/recipes/step-00000004.2.toml"), s.read("out/recipe.toml"));
    EXPECT_EQ(std::distance(fs::directory_iterator(s.path("out/recipes")), fs::directory_iterator()), 3);
    // A recipe that is refused is not one that the run has run under.
    EXPECT_EQ(s.lockstep("train r.toml --model.rope_theta 3").code, 1);
    EXPECT_NE(s.read("out/recipe.toml").find("steps = 7"), std::string::npos);
}

TEST_F(CliCarried, ARenamedCheckpointIsRefused) {
    ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    fs::rename(s.path("out/checkpoint/step-00000004"), s.path("out/checkpoint/step-00000006"));
    for (const char* command : {"train r.toml --training.steps 8", "train r.toml --checkpoint.load_step 6",
                                "sample out --prompt-tokens 3", "sample out/checkpoint/step-00000006/ --prompt-tokens 3"}) {
        expect(command, 1, "out/checkpoint/step-00000006");
        expect(command, 1, "holds the checkpoint of step 4: it was renamed. Give it its own name back (step-00000004)");
        expect(command, 1, "[checkpoint.other_step]");
    }
    fs::rename(s.path("out/checkpoint/step-00000006"), s.path("best"));
    EXPECT_EQ(s.lockstep("sample best --prompt-tokens 3 --max-tokens 2").code, 0) << "a copy of another name";
}

TEST_F(CliCarried, AnotherTokenizerIsRefused) {
    prepare("d", "line");
    prepare("other", "zebra");
    const std::string train = "train r.toml --training.dataset prepared --training.dataset_path d --model.vocab_size 262";
    ASSERT_EQ(s.lockstep(train).code, 0);
    const std::string refused = "other/tokenizer.json is not the tokenizer of out/checkpoint/step-00000004 (checksum ";
    for (const char* command : {"eval out --data other", "eval out --tokens other/heldout.tokens",
                                "sample out --prompt line --tokenizer other/tokenizer.json"}) {
        expect(command, 1, refused);
        expect(command, 1, "--other-tokenizer goes on all the same [checkpoint.other_tokenizer]");
        const Finished f = s.lockstep(std::string(command) + " --other-tokenizer");
        EXPECT_EQ(f.code, 0) << command << f.err;
    }
    for (const char* command : {"eval out", "eval out --data d", "eval out --tokens d/heldout.tokens",
                                "sample out --prompt line --max-tokens 2 --tokenizer d/tokenizer.json"})
        EXPECT_EQ(s.lockstep(command).code, 0) << command;
    // The same tokens written another way.
    s.write("same.json", nlohmann::json::parse(s.read("d/tokenizer.json")).dump());
    EXPECT_EQ(s.lockstep("sample out --prompt line --max-tokens 2 --tokenizer same.json").code, 0);
    const std::string on_other = "train r.toml --training.dataset prepared --training.dataset_path other --model.vocab_size 262";
    expect(on_other + " --training.steps 6", 1, refused);
    expect(on_other + " --job.dump_folder new --checkpoint.initial_load_path out", 1, "[checkpoint.other_tokenizer]");
}

TEST_F(CliCarried, AFolderOfTransformersIsACheckpointToEvalAndSample) {
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder own").code, 0);
    ASSERT_EQ(s.lockstep("convert own hf").code, 0);
    expect("sample hf --prompt-tokens 3 --max-tokens 2", 0, "2 tokens, ");
    expect("eval hf", 1, "[eval.no_data]");
}

// A tokenizer that is not known here: its ids still work.
TEST_F(CliCarried, ATokenizerThatCannotBeReadIsSaidAndNotMissed) {
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder own").code, 0);
    ASSERT_EQ(s.lockstep("convert own hf").code, 0);
    s.write("hf/tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})");
    expect("convert hf ck", 0, "is copied, but it cannot be used here");
    EXPECT_EQ(s.lockstep("sample ck --prompt-tokens '1, 2' --max-tokens 2").code, 0);
    EXPECT_EQ(s.lockstep("sample ck --prompt a --max-tokens 2").code, 1);
}

// A weight is NaN from the beginning on.
TEST_F(CliCarried, ARunOfWhichNoStepCountedHasFailed) {
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder own").code, 0);
    ASSERT_EQ(s.lockstep("convert own hf").code, 0);
    std::string weights = s.read("hf/model.safetensors");
    weights.replace(weights.size() - 4, 4, "\xff\xff\xff\xff");
    s.write("hf/model.safetensors", weights);
    const Finished f = s.lockstep("train r.toml --json --checkpoint.initial_load_in_hf true --checkpoint.initial_load_path hf");
    EXPECT_EQ(f.code, 3) << f.err;
    EXPECT_NE(f.err.find("none of the 4 steps of this run counted"), std::string::npos) << f.err;
    EXPECT_TRUE(f.json()["final_loss"].is_null()) << f.out;
    EXPECT_FALSE(fs::exists(s.path("out/checkpoint/step-00000004")));
    const std::vector<nlohmann::json> steps = s.objects("out/metrics.jsonl");
    EXPECT_EQ(steps.size(), 4u);
    for (const nlohmann::json& step : steps) EXPECT_TRUE(step["loss_metrics/global_avg_loss"].is_null()) << step;
    // Of a run that takes no step at all the memory is not negative.
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder done").code, 0);
    const Finished none = s.lockstep("train r.toml --job.dump_folder done");
    EXPECT_EQ(none.code, 0);
    EXPECT_EQ(none.err.find("resident -"), std::string::npos) << none.err;
}

// What is no file must not be waited for.
TEST_F(CliCarried, PipesAndDevicesAreNoCheckpoints) {
    ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    const std::string folder = "out/checkpoint/step-00000004/";
    for (const char* file : {"model.safetensors", "manifest.json"}) {
        fs::remove(s.path(folder + file));
        ASSERT_EQ(s.shell("mkfifo " + folder + file).code, 0);
        const Finished f = s.shell("timeout 20 $LOCKSTEP sample out --prompt-tokens 3 --max-tokens 1 >out.txt 2>err.txt");
        EXPECT_EQ(f.code, 1) << f.err;
        EXPECT_NE(f.err.find("it is no regular file"), std::string::npos) << f.err;
        const Finished on =
            s.shell("timeout 60 $LOCKSTEP train r.toml --training.steps 5 --lr_scheduler.total_steps 9 >out.txt 2>err.txt");
        EXPECT_EQ(on.code, 0) << on.err;
        EXPECT_NE(on.err.find("is left aside"), std::string::npos) << on.err;
        fs::remove_all(s.path("out/checkpoint/step-00000005"));
    }
}

}  // namespace
}  // namespace lockstep::testing
