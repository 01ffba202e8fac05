// `lockstep recipe --from`: a recipe of a model, of a checkpoint, of a run and of a torchtitan job, and what training does with
// it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

using json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kTitan = fs::path(LOCKSTEP_SOURCE_DIR) / "tests/compile";

// What such a recipe does not say, as flags.
const std::string kTrain =
    " --json --training.dataset synthetic --training.seq_len 16 --training.local_batch_size 1 --training.global_batch_size 4 "
    "--training.steps 1 --lr_scheduler.warmup_steps 0 --training.mixed_precision_param float32 --activation_checkpoint.mode none "
    "--job.dump_folder ";

class RecipeFrom : public ::testing::Test {
protected:
    // A trained model, a folder of transformers and a checkpoint that is converted from that.
    RecipeFrom() {
        s.write("r.toml", training_recipe(3, "[checkpoint]\nenable = true\n"));
        EXPECT_EQ(s.lockstep("train r.toml").code, 0);
        EXPECT_EQ(s.lockstep("convert out hf").code, 0);
        EXPECT_EQ(s.lockstep("convert hf converted").code, 0);
    }
    void write(const std::string& from, const std::string& to) const {
        const Finished f = s.lockstep("recipe --from " + from + " --out " + to);
        EXPECT_EQ(f.code, 0) << f.err;
    }
    double first_loss(const std::string& recipe, const std::string& dump) const {
        const Finished f = s.lockstep("train " + recipe + kTrain + dump);
        EXPECT_EQ(f.code, 0) << f.err;
        return f.json()["final_loss"];
    }
    Scratch s;
};

TEST_F(RecipeFrom, AModelTrainsWithItsWeights) {
    const Finished wanted = s.lockstep("train r.toml" + kTrain + "wanted --checkpoint.initial_load_path out");
    ASSERT_EQ(wanted.code, 0) << wanted.err;
    const double loss = wanted.json()["final_loss"];
    for (const std::string from : {"hf", "hf/config.json", "converted", "converted/step-00000000"}) {
        std::string name = from;
        std::replace(name.begin(), name.end(), '/', '_');
        write(from, name + ".toml");
        EXPECT_EQ(first_loss(name + ".toml", "run_" + name), loss) << from;
    }
}

// What training goes on from weights with is said.
TEST_F(RecipeFrom, AModelIsTunedGently) {
    for (const std::string from : {"hf", "converted"}) {
        const json j = s.lockstep("recipe --json --from " + from).json();
        const std::string toml = j["toml"];
        for (const char* line : {"\nlr = 2e-05\n", "\nwarmup_steps = 100\n", "\nlast_save_in_hf = true\n",
                                 "#   a learning rate for weights that are trained already: optimizer.lr = 2e-05\n",
                                 "#   the last checkpoint is a folder of transformers: checkpoint.last_save_in_hf = true\n"})
            EXPECT_NE(toml.find(line), std::string::npos) << from << line << toml;
    }
    // A config.json alone has no weights to tune.
    fs::create_directories(s.path("shape"));
    fs::copy(fs::path(LOCKSTEP_SOURCE_DIR) / "tests/fuzz/seeds/recipe_from/config_llama.json", s.path("shape/config.json"));
    const std::string toml = s.lockstep("recipe --from shape/config.json").out;
    EXPECT_EQ(toml.find("\nlr = "), std::string::npos) << toml;
    for (const char* line :
         {"\nlocal_batch_size = 1\n", "now `lockstep tune NAME.toml --cluster FILE --ranks N` finds the fastest that fits"})
        EXPECT_NE(toml.find(line), std::string::npos) << toml;
    // At most 8192 of the tokens that the model was made for.
    json config = json::parse(std::ifstream(s.path("shape/config.json")));
    config["max_position_embeddings"] = 131072;
    s.write("shape/config.json", config.dump());
    EXPECT_NE(s.lockstep("recipe --from shape").out.find("\nseq_len = 8192\n"), std::string::npos);
}

TEST_F(RecipeFrom, ARunsRecipeGoesOnFromItsCheckpoint) {
    for (const std::string from : {"out", "out/checkpoint/step-00000003", "out/recipe.toml"}) {
        const json j = s.lockstep("recipe --json --from " + from).json();
        s.write("again.toml", j["toml"]);
        EXPECT_EQ(j["missing"], json::array());
        const Finished f = s.lockstep("train again.toml");
        EXPECT_EQ(f.code, 0) << f.err;
        EXPECT_NE(f.err.find("resumed from out/checkpoint/step-00000003"), std::string::npos) << f.err;
    }
    // A run without checkpoints left its recipe.
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder bare --checkpoint.enable false").code, 0);
    EXPECT_EQ(s.lockstep("recipe --json --from bare").json()["kind"], "run");
}

TEST_F(RecipeFrom, ATorchtitanJobKeepsWhatActs) {
    const std::string job = (kTitan / "torchtitan_recipes/llama3_405b.toml").string();
    const json j = s.lockstep("recipe --json --from " + job).json();
    EXPECT_EQ(j["missing"], json::array());
    const std::string toml = j["toml"];
    for (const char* line : {"\nflavor = \"405B\"\n", "\nlr = 8e-05\n", "\ntensor_parallel_degree = 8\n",
                             "\nconverters = [\"float8\"]\n", "\nlinear.float8.enable_fsdp_float8_all_gather = true\n",
                             "#   profiling.enable_profiling: `lockstep train --trace FILE`",
                             "#   training.dataset_path: the folder that `lockstep data prepare` makes"})
        EXPECT_NE(toml.find(line), std::string::npos) << line << toml;
    EXPECT_EQ(toml.find("[profiling]"), std::string::npos) << toml;
    s.write("r405.toml", toml);
    const Finished f = s.lockstep("check r405.toml --ranks 512");
    EXPECT_EQ(f.err.find("ignored"), std::string::npos) << f.err;
    // A model that is not there has no recipe.
    const Finished refused =
        s.lockstep("recipe --from " + (kTitan / "torchtitan_recipes/deepseek_v3_16b.toml").string() + " --out no.toml");
    EXPECT_EQ(refused.code, 1);
    EXPECT_NE(refused.err.find("multi-head latent attention"), std::string::npos) << refused.err;
    EXPECT_FALSE(fs::exists(s.path("no.toml")));
}

// The whole configuration as torchtitan prints and saves it: every key, None as null.
TEST_F(RecipeFrom, JsonThatTorchtitanPrints) {
    json config;
    std::ifstream keys(kTitan / "torchtitan_keys.txt");
    for (std::string line; std::getline(keys, line);) {
        const size_t equals = line.find(" = ");
        std::string pointer = "/" + line.substr(0, equals);
        std::replace(pointer.begin(), pointer.end(), '.', '/');
        const std::string value = line.substr(equals + 3);
        config[json::json_pointer(pointer)] = value == "None" ? json(nullptr) : json::parse(value);
    }
    config["model"]["flavor"] = "8B";
    config["training"]["max_norm"] = 1;
    config["parallelism"]["module_fqns_per_model_part"] = nullptr;
    s.write("job.json", config.dump(2));
    s.write("job.log", "[titan] 2026-01-02 03:04:05,678 - root - INFO - Running with configs: " + config.dump(2) +
                           "\n[titan] 2026-01-02 03:04:06,000 - root - INFO - Starting {job}\n");
    // torchrun puts the rank before each line.
    std::istringstream lines(s.read("job.log"));
    std::string with_ranks;
    for (std::string line; std::getline(lines, line);) with_ranks += "[rank0]:" + line + "\n";
    s.write("torchrun.log", with_ranks);
    for (const char* file : {"job.json", "job.log", "torchrun.log"}) {
        const Finished f = s.lockstep(std::string("recipe --json --from ") + file);
        ASSERT_EQ(f.code, 0) << f.err;
        EXPECT_EQ(f.json()["missing"], json::array());
        s.write("r8.toml", f.json()["toml"]);
        const json plan =
            s.lockstep("plan r8.toml --json --ranks 64 --cluster " LOCKSTEP_SOURCE_DIR "/clusters/h100.toml").json();
        EXPECT_EQ(plan["ranks"], 64) << plan;
    }
}

TEST_F(RecipeFrom, RefusesWhatHasNoModel) {
    fs::create_directories(s.path("empty"));
    s.write("list.json", "[1, 2]");
    const auto refused = [&](const std::string& from, const std::string& id, const std::string& text) {
        const Finished f = s.lockstep("recipe --from " + from);
        EXPECT_EQ(f.code, 1);
        EXPECT_NE(f.err.find("[" + id + "]"), std::string::npos) << f.err;
        EXPECT_NE(f.err.find(text), std::string::npos) << f.err;
    };
    refused("nowhere", "recipe.from", "nowhere: there is no such file or folder");
    refused("empty", "recipe.from", "empty: holds no config.json of transformers, no complete checkpoint and no recipe.toml");
    refused("list.json", "recipe.syntax", "list.json:1: not TOML");
    s.write("broken.json", "{\"model\": {");
    refused("broken.json", "recipe.syntax", "broken.json: not JSON with the sections of a recipe as objects");
    refused("r.toml --out r.toml", "recipe.out_exists", "r.toml: is there already");
    EXPECT_EQ(s.lockstep("recipe --from r.toml training.steps").code, 2);
    EXPECT_EQ(s.lockstep("recipe --out r2.toml").code, 2);
}

}  // namespace
}  // namespace lockstep::testing
