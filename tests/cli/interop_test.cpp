// Runs of other systems as recipes: Megatron-LM's scripts, DeepSpeed's configurations, transformers' config.json. Each statement
// of a file is in one of four lists.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

using json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kRuns = fs::path(LOCKSTEP_SOURCE_DIR) / "tests/cli/runs";
const std::string kCluster = " --json --cluster " LOCKSTEP_SOURCE_DIR "/clusters/h100.toml";

// The items of a list as "said: becomes".
std::vector<std::string> items(const json& from, const char* list) {
    std::vector<std::string> out;
    for (const json& item : from.at(list))
        out.push_back(item.at("said").get<std::string>() + ": " + item.at("becomes").get<std::string>());
    return out;
}

void expect_items(const json& from, const char* list, const std::vector<std::string>& wanted) {
    const std::vector<std::string> all = items(from, list);
    for (const std::string& item : wanted)
        EXPECT_NE(std::find(all.begin(), all.end(), item), all.end()) << list << " lacks " << item << "\n" << from.dump(1);
}

// Copies of a sample's files, so that the lines that it writes are its own.
void copy_runs(const Scratch& s) {
    for (const auto& file : fs::directory_iterator(kRuns)) fs::copy(file, s.path(file.path().filename().string()));
}

struct Sample {
    const char *file, *flags;
    int ranks, stages;
    std::vector<std::string> mapped, assumed, unmapped, no_effect;
};

const std::vector<Sample>& runs() {
    static const std::vector<Sample> all = {
        {"gpt3_175b.sh",
         "",
         1024,
         16,
         {"--num-layers 96: model.n_layers = 96", "--micro-batch-size 1: training.local_batch_size = 1",
          "--fp16: training.mixed_precision_param = \"float16\"", "--lr-warmup-fraction .001: lr_scheduler.warmup_steps = 430",
          "--min-lr 6.0e-6: lr_scheduler.min_lr_factor = 0.1", "1024 ranks are started: cluster.ranks = 1024"},
         {"--hidden-dropout 0.1: model.resid_pdrop = 0.1", "no recompute: activation_checkpoint.mode = \"none\"",
          "vocabulary of GPT-2, 50257 (padded to a multiple of 128 x 8): model.vocab_size = 51200",
          "no --sequence-parallel: parallelism.sequence_parallel = false",
          "no --use-distributed-optimizer: partition.preset = \"none\""},
         {"--init-method-std 0.006: initial values are those of the model here",
          "--rampup-batch-size 16 16 5859375: the recipe has the full batch from the first step"},
         {"--save $1: checkpoints: see the keys of [checkpoint]", "--data-path $2: data: see `lockstep data prepare`"}},
        {"llama_8b.sh",
         "",
         32,
         1,
         {"--num-query-groups 8: model.n_kv_heads = 8", "--ffn-hidden-size 14336: model.ffn_dim = 14336",
          "--seq-length 8192: training.seq_len = 8192", "--use-rope-scaling: model.rope_scaling_factor = 8.0",
          "--train-samples 1280000: training.steps = 10000", "--lr-wsd-decay-samples 128000: lr_scheduler.decay_ratio = 0.1",
          "--tp-comm-overlap: parallelism.enable_async_tensor_parallel = true",
          "--use-distributed-optimizer: partition.preset = \"zero1\"", "--mock-data: training.dataset = \"synthetic\""},
         {"--adam-beta2 0.999: optimizer.beta2 = 0.999"},
         {"--overlap-grad-reduce: collectives overlap with computation wherever the program allows it"},
         {"--hidden-dropout 0.0: the model has no dropout",
          "--max-position-embeddings 8192: positions are rotary, of any length"}},
        {"interleaved.sh",
         " --ranks 32",
         32,
         4,
         {"--num-layers-per-virtual-pipeline-stage 5: parallelism.pipeline_parallel_schedule = \"Interleaved1F1B\"",
          "--num-layers-per-virtual-pipeline-stage 5: parallelism.pipeline_parallel_layers_per_stage = 5",
          "--recompute-granularity full: activation_checkpoint.mode = \"full\"",
          "--vocab-size 50257 (padded to a multiple of 128 x 4): model.vocab_size = 50688"},
         {"number of ranks: 16: one replica, unless --ranks says more"},
         {},
         {"--recompute-method uniform: follows from --recompute-granularity full"}},
        {"frontier_22b.sh",
         "",
         64,
         8,
         {"train_micro_batch_size_per_gpu = 1: training.local_batch_size = 1",
          "zero_optimization.stage = 1: partition.preset = \"zero1\"", "--zero-stage 1: partition.preset = \"zero1\"",
          "--checkpoint-activations: activation_checkpoint.mode = \"full\"",
          "fp16.initial_scale_power = 12: training.initial_loss_scale = 4096.0"},
         {"--ffn-hidden-size 24576: model.ffn_dim = 24576"},
         {"$@: the arguments that a run puts there are not read"},
         {"steps_per_print = 10: logging"}},
        {"ds_config.json",
         " --ranks 64 --model.flavor 8B",
         64,
         1,
         {"zero_optimization.stage = 3: partition.preset = \"zero3\"",
          "optimizer.params.betas = [0.9,0.95]: optimizer.beta2 = 0.95",
          "scheduler.type = \"WarmupLR\": lr_scheduler.decay_ratio = 0.0"},
         {"no communication_data_type: training.mixed_precision_reduce = \"bfloat16\""},
         {"scheduler.params.warmup_type = \"log\", DeepSpeed's default: the warm-up is linear here; DeepSpeed's logarithmic one "
          "rises "
          "faster at first"},
         {"wall_clock_breakdown = false: logging", "scheduler.params.warmup_min_lr = 0: the warm-up begins at 0 here, too"}},
    };
    return all;
}

class Interop : public ::testing::TestWithParam<Sample> {};

TEST_P(Interop, EachStatementIsInAList) {
    const Sample& run = GetParam();
    Scratch s;
    copy_runs(s);
    for (const std::string command : {"check ", "plan "}) {
        const Finished f = s.lockstep(command + run.file + kCluster + run.flags);
        ASSERT_EQ(f.code, 0) << f.out << f.err;
        const json j = f.json();
        EXPECT_EQ(j["ranks"], run.ranks);
        EXPECT_EQ(j["stages"].size(), run.stages);
        EXPECT_NE(f.err.find("read as "), std::string::npos) << f.err;
        expect_items(j["from"], "mapped", run.mapped);
        expect_items(j["from"], "assumed", run.assumed);
        expect_items(j["from"], "unmapped", run.unmapped);
        expect_items(j["from"], "no_effect", run.no_effect);
    }
}

TEST(InteropDeepSpeed, ZeroPlusPlus) {
    Scratch s;
    s.write("ds.json",
            R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
                "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": true,
                                      "zero_quantized_gradients": true}})");
    const Finished f = s.lockstep("check ds.json --ranks 16 --model.flavor debugmodel" + kCluster);
    ASSERT_EQ(f.code, 0) << f.out << f.err;
    expect_items(f.json()["from"], "mapped",
                 {"zero_optimization.zero_hpz_partition_size = 8: partition.secondary_weights = \"8\"",
                  "zero_optimization.zero_quantized_weights = true: partition.quantized_weights = \"int8\"",
                  "zero_optimization.zero_quantized_gradients = true: partition.quantized_gradients = \"int4\""});
}

// The recipe that is written says the same as the run that it is made of.
TEST_P(Interop, ItsRecipeIsThatOfTheRun) {
    const Sample& run = GetParam();
    Scratch s;
    copy_runs(s);
    const Finished made = s.lockstep(std::string("recipe --out made.toml --from ") + run.file);
    ASSERT_EQ(made.code, 0) << made.err;
    const std::string toml = s.read("made.toml");
    for (const char* title : {"# Mapped:", "# Assumed", "# Without effect here:"}) EXPECT_TRUE(has(toml, title)) << toml;
    const auto check = [&](const std::string& file) {
        json j = s.lockstep("check " + file + kCluster + run.flags).json();
        j.erase("from");
        return j;
    };
    EXPECT_EQ(check("made.toml"), check(run.file));
}

INSTANTIATE_TEST_SUITE_P(Cli, Interop, ::testing::ValuesIn(runs()), [](const auto& info) {
    std::string name = info.param.file;
    std::replace(name.begin(), name.end(), '.', '_');
    return name;
});

// The lists that speak of an argument.
std::set<std::string> lists_with(const json& from, const std::string& argument) {
    std::set<std::string> out;
    for (const char* list : {"mapped", "unmapped", "no_effect"}) {
        for (const json& item : from[list]) {
            std::istringstream words(item["said"].get<std::string>());
            for (std::string word; words >> word;) {
                if (word == argument || word == argument + ",") out.insert(list);
            }
        }
    }
    return out;
}

TEST(CliInterop, EveryArgumentIsInOneList) {
    Scratch s;
    copy_runs(s);
    const json from = s.lockstep("check llama_8b.sh" + kCluster).json()["from"];
    const std::string script = s.read("llama_8b.sh");
    std::istringstream words(script.substr(script.find("ARGS=")));
    for (std::string word; words >> word;) {
        const size_t begin = word.find("--");
        if (begin == std::string::npos || has(word.substr(begin), "=")) continue;  // no argument, or one of torchrun's
        word = word.substr(begin, word.find('"', begin) - begin);
        EXPECT_EQ(lists_with(from, word).size(), 1u) << word << from.dump(1);
    }
}

TEST(CliInterop, TheScriptAndItsConfigurationContradictEachOther) {
    Scratch s;
    copy_runs(s);
    const Finished sed = s.shell(
        "sed 's/\"train_micro_batch_size_per_gpu\": $MICRO/\"train_micro_batch_size_per_gpu\": 4/' frontier_22b.sh > other.sh");
    ASSERT_EQ(sed.code, 0);
    const Finished f = s.lockstep("plan other.sh" + kCluster);
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err,
                    "other.sh:26: --micro-batch-size 1: makes training.local_batch_size = 1, but ds_config.json: "
                    "train_micro_batch_size_per_gpu = 4: makes it 4: give both the same value [recipe.contradiction]"))
        << f.err;
}

TEST(CliInterop, AModelOfTransformersIsPlanned) {
    Scratch s;
    fs::copy(fs::path(LOCKSTEP_SOURCE_DIR) / "tests/fuzz/seeds/recipe_from/config_llama.json", s.path("config.json"));
    for (const std::string from : {"config.json", "."}) {
        const Finished f = s.lockstep("plan " + from + kCluster);
        ASSERT_EQ(f.code, 0) << f.err;
        const json j = f.json()["from"];
        EXPECT_EQ(j["kind"], "transformers");
        expect_items(j, "mapped", {"model_type = \"llama\": model.name = \"llama3\", with every key of [model]"});
        expect_items(j, "assumed", {"a config.json does not say it: training.local_batch_size = 1, the least"});
    }
}

}  // namespace
}  // namespace lockstep::testing
