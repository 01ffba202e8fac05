// `lockstep eval` as a user types it (docs/cli.md).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

std::string words(int n, int seed) {
    std::string text;
    for (int i = 0; i < n; ++i) text += std::string(1 + (i * 7 + seed) % 5, static_cast<char>('a' + (i * i + seed) % 26)) + " ";
    return text;
}

// A run on prepared text: `out` holds a checkpoint of step 3 and the last validation's loss is returned.
double trained(const Scratch& s) {
    s.prepare({words(400, 0), words(400, 1), words(400, 2), words(400, 3)});
    s.write("r.toml", prepared_recipe("local_batch_size = 2\nglobal_batch_size = 5\nseq_len = 16\nsteps = 3\n"
                                      "[checkpoint]\nenable = true\n[validation]\nenable = true\n"));
    const Finished f = s.lockstep("train r.toml --json");
    EXPECT_EQ(f.code, 0) << f.err;
    return f.json()["heldout_loss"];
}

TEST(CliEval, GivesTheLossOfTheLastValidationInAnyLayout) {
    Scratch s;
    const double validated = trained(s);
    for (const char* layout :
         {"", " --parallelism.tensor_parallel_degree 2 --parallelism.data_parallel_shard_degree 2",
          " --parallelism.data_parallel_shard_degree 4 --partition.preset none --training.local_batch_size 3"}) {
        const Finished f = s.lockstep(std::string("eval out --json") + layout);
        ASSERT_EQ(f.code, 0) << f.err;
        const nlohmann::json j = f.json();
        EXPECT_NEAR(j["loss"].get<double>(), validated, 1e-5) << layout;
        EXPECT_NEAR(j["perplexity"].get<double>(), std::exp(j["loss"].get<double>()), 1e-6);
        EXPECT_EQ(j["step"], 3);
        EXPECT_EQ(j["checkpoint"], "out/checkpoint/step-00000003");
        // Of the bytes tokenizer each target but the separators is a byte.
        const double tokens = j["tokens"], bytes = j["bytes"];
        EXPECT_LE(bytes, tokens);
        EXPECT_GT(bytes, tokens - 5);
        EXPECT_NEAR(j["bits_per_byte"].get<double>(), j["loss"].get<double>() / std::log(2.0) * tokens / bytes, 1e-9);
    }
}

TEST(CliEval, TakesOtherDataAndOnlySoManySteps) {
    Scratch s;
    trained(s);
    const Finished file = s.lockstep("eval out/checkpoint --tokens d/train.tokens --steps 2 --json"),
                   split = s.lockstep("eval out/checkpoint/step-00000003 --data d --split train --steps 2 --json");
    ASSERT_EQ(file.code, 0) << file.err;
    ASSERT_EQ(split.code, 0) << split.err;
    EXPECT_EQ(file.json()["tokens"], 2 * 2 * 16);
    EXPECT_EQ(file.json()["loss"], split.json()["loss"]);
    EXPECT_EQ(file.json()["bits_per_byte"], split.json()["bits_per_byte"]);
    const Finished text = s.lockstep("eval out");
    EXPECT_NE(text.out.find("nats a token, perplexity "), std::string::npos) << text.out;
    EXPECT_NE(text.out.find(" bits a byte"), std::string::npos) << text.out;
}

TEST(CliEval, SaysWhatIsWrong) {
    Scratch s;
    trained(s);
    s.write("r.toml",
            tiny_recipe("[training]\ndataset = \"synthetic\"\nlocal_batch_size = 1\nseq_len = 8\nsteps = 1\n[checkpoint]\n"
                        "enable = true\n[job]\n"));
    std::string recipe = s.read("r.toml");
    recipe.replace(recipe.find("\"out\""), 5, "\"synthetic\"");
    s.write("r.toml", recipe.substr(0, recipe.rfind("[job]")));
    ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    const struct {
        const char *arguments, *id, *message;
    } cases[] = {
        {"eval nowhere", "checkpoint.not_found", "nowhere holds no complete checkpoint: give a folder step-NNNNNNNN"},
        {"eval synthetic", "eval.no_data", "the checkpoint's recipe names no prepared data: give a prepared folder with"},
        {"eval synthetic --data d", "eval.vocabulary", "has 257 tokens, but that of the model has 61: prepare the text with"},
        {"eval out --model.dim 32", "checkpoint.other_architecture", "holds a model with model.dim = 16, but the recipe has 32"},
        {"eval out --cluster.memory_gib_per_rank 0.000001", "check.does_not_fit", "what would help most"}};
    for (const auto& c : cases) {
        const Finished f = s.lockstep(c.arguments);
        EXPECT_EQ(f.code, 1) << c.arguments;
        EXPECT_NE(f.err.find(c.message), std::string::npos) << f.err;
        EXPECT_NE(f.err.find(std::string("[") + c.id + "]"), std::string::npos) << f.err;
    }
    EXPECT_EQ(s.lockstep("eval out --data d --tokens d/train.tokens").code, 2);
    EXPECT_EQ(s.lockstep("eval").code, 2);
}

}  // namespace
}  // namespace lockstep::testing
