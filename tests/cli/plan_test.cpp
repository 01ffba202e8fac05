// bench, plan, train --profile and --trace as a user types them: what docs/cli.md promises of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <sstream>

#include "base/text_file.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

const char* kSixSteps = R"([training]
dataset = "synthetic"
local_batch_size = 1
global_batch_size = 2
seq_len = 16
steps = 6
)";
const char* kToyCluster = R"(name = "toy"
description = "round numbers"
[machine]
cores = 2
memory_bytes = 1e9
[rates]
bytes_per_s = [1e10, 1e10]
[rates.flops_per_s]
f32 = [1e9, 2e9]
)";

// Names of the slices of a rank in order of their begin, by thread.
std::vector<std::vector<std::string>> slices(const nlohmann::json& trace, int rank) {
    std::vector<std::vector<std::string>> out(2);
    for (const auto& e : trace["traceEvents"]) {
        if (e["ph"] != "X" || e["pid"] != rank || e["cat"] == "data" || e["cat"] == "waiting") continue;
        EXPECT_GE(e["dur"].get<double>(), 0);
        out[e["tid"].get<size_t>()].push_back(e["name"]);
    }
    return out;
}

TEST(CliPlan, PrintsTheContractedObject) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSixSteps));
    s.write("c.toml", kToyCluster);
    const Finished f = s.lockstep("plan r.toml --cluster c.toml --runtime.threads_per_rank 1 --json");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json(), checked = s.lockstep("check r.toml --runtime.threads_per_rank 1 --json").json();
    const double step_s = j["step_time_s"];
    EXPECT_GT(step_s, 0);
    EXPECT_NEAR(j["tokens_per_s"].get<double>(), 32 / step_s, 1e-6 / step_s);
    EXPECT_NEAR(j["mfu"].get<double>(), checked["stages"][0]["flops_model"].get<double>() / step_s / 1e9, 1e-9);
    EXPECT_NEAR(j["hfu"].get<double>(), checked["stages"][0]["flops_executed"].get<double>() / step_s / 1e9, 1e-9);
    EXPECT_EQ(j["bubble_fraction"], 0);
    EXPECT_EQ(j["exposed_communication_s"], 0);
    EXPECT_EQ(j["stages"][0]["bytes"], checked["stages"][0]["bytes"]);
    EXPECT_EQ(j["stages"][0]["costliest"].size(), 10u);
    EXPECT_EQ(s.lockstep("plan r.toml --cluster c.toml --runtime.threads_per_rank 1 --json --costliest 3")
                  .json()["stages"][0]["costliest"]
                  .size(),
              3u);
    EXPECT_EQ(j["measured_share"], 0);
    EXPECT_NE(s.lockstep("plan r.toml --cluster c.toml").out.find("step time"), std::string::npos);
}

// The simulator's figure for a cluster of round numbers: plain loops in float32 on one core, nothing computed twice.
TEST(CliPlan, PricesAStep) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSixSteps));
    s.write("c.toml", kToyCluster);
    const Finished f = s.lockstep(
        "plan r.toml --cluster c.toml --json --runtime.kernels reference --runtime.threads_per_rank 1 "
        "--training.mixed_precision_param float32 --activation_checkpoint.mode none");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_NEAR(f.json()["step_time_s"].get<double>(), 0.00123064, 1e-8);
    // Twice the rates: half the time.
    std::string fast = kToyCluster;
    fast.replace(fast.find("[1e10, 1e10]"), 12, "[2e10, 2e10]");
    fast.replace(fast.find("[1e9, 2e9]"), 10, "[2e9, 4e9]");
    s.write("fast.toml", fast);
    const Finished half = s.lockstep(
        "plan r.toml --cluster fast.toml --json --runtime.kernels reference --runtime.threads_per_rank 1 "
        "--training.mixed_precision_param float32 --activation_checkpoint.mode none");
    EXPECT_NEAR(half.json()["step_time_s"].get<double>(), 0.00061532, 1e-8) << half.err;
}

// One line a slice: rank, thread, begin and length in microseconds, kind, name.
std::string timeline_text(const nlohmann::json& trace) {
    std::string text;
    for (const auto& e : trace["traceEvents"]) {
        if (e["ph"] != "X") continue;
        text += fmt::format("{} {} {:.3f} {:.3f} {} {}\n", e["pid"].get<int>(), e["tid"].get<int>(), e["ts"].get<double>(),
                            e["dur"].get<double>(), e["cat"].get<std::string>(), e["name"].get<std::string>());
    }
    return text;
}

// Every op of a step on 2 x 2 x 2 ranks, when it begins and how long it takes: as stored in tests/cli/timeline.txt.
TEST(CliPlan, DrawsTheStoredTimeline) {
    Scratch s;
    s.write("r.toml",
            tiny_recipe(std::string(kSixSteps) + "[parallelism]\npipeline_parallel_degree = 2\ndata_parallel_shard_degree = 2\n"
                                                 "tensor_parallel_degree = 2\n"));
    s.write("c.toml", kToyCluster);
    const Finished f = s.lockstep(
        "plan r.toml --cluster c.toml --trace t.json --training.global_batch_size 4 --runtime.kernels reference "
        "--runtime.threads_per_rank 1 --training.mixed_precision_param float32");
    ASSERT_EQ(f.code, 0) << f.err;
    const std::string text = timeline_text(nlohmann::json::parse(s.read("t.json")));
    const std::string stored = read_text_file(LOCKSTEP_SOURCE_DIR "/tests/cli/timeline.txt").text;
    std::istringstream is(text), was(stored);
    const std::string now = ::testing::TempDir() + "timeline.txt";
    const auto advice = [&] {
        std::ofstream(now) << text;
        return "If the change is meant, copy " + now + " to tests/cli/timeline.txt.";
    };
    ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), std::count(stored.begin(), stored.end(), '\n')) << advice();
    for (std::string a, b; std::getline(is, a) && std::getline(was, b);) {
        std::istringstream ia(a), ib(b);
        for (std::string word, expected; ib >> expected;) {
            ASSERT_TRUE(ia >> word) << a;
            if (expected.find('.') == std::string::npos || !std::isdigit(expected[0])) ASSERT_EQ(word, expected) << a << advice();
            else ASSERT_NEAR(std::stod(word), std::stod(expected), 2e-3) << a << "\nstored: " << b << "\n" << advice();
        }
    }
}

// A stored table of measured rows, and steps that were measured on the same machine: the plan is pinned, and right within a
// tenth.
TEST(CliPlan, PricesAStoredMachine) {
    struct Case {
        const char* recipe;
        double planned_s, measured_s;
    };
    for (const Case& c :
         {Case{"one_rank", 0.264183, 0.2619}, {"fsdp", 0.978896, 0.9228}, {"tensor_parallel", 0.486211, 0.5100}}) {
        Scratch s;
        const Finished f =
            s.lockstep(fmt::format("plan '{0}/bench/plan/{1}.toml' --cluster '{0}/tests/cli/stored_machine.toml' --json",
                                   LOCKSTEP_SOURCE_DIR, c.recipe));
        ASSERT_EQ(f.code, 0) << f.err;
        const double planned_s = f.json()["step_time_s"];
        EXPECT_NEAR(planned_s / c.planned_s, 1, 1e-5) << c.recipe;
        EXPECT_NEAR(planned_s / c.measured_s, 1, 0.1) << c.recipe;
    }
}

TEST(CliPlan, SaysWhatIsDeclaredAndWhatDoesNotFit) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSixSteps));
    s.write("c.toml", "declared = true\n" + std::string(kToyCluster));
    const Finished f = s.lockstep("plan r.toml --cluster c.toml");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find("Estimate: this cluster file contains published rates"), std::string::npos);
    std::string small = kToyCluster;
    small.replace(small.find("1e9"), 3, "1e3");
    s.write("small.toml", small);
    const Finished refused = s.lockstep("plan r.toml --cluster small.toml --json");
    EXPECT_EQ(refused.code, 1);
    EXPECT_FALSE(refused.json()["fits"]);
    EXPECT_NE(refused.err.find("lockstep check"), std::string::npos) << refused.err;
    EXPECT_EQ(s.lockstep("plan r.toml").code, 1);
}

TEST(CliPlan, BigLayoutsNeedNoDevices) {
    Scratch s;
    const std::string recipes = std::string(LOCKSTEP_SOURCE_DIR) + "/recipes/",
                      clusters = std::string(LOCKSTEP_SOURCE_DIR) + "/clusters/";
    const Finished f = s.lockstep("plan " + recipes + "llama3_70b.toml --cluster " + clusters + "h100.toml --json");
    ASSERT_EQ(f.code, 0) << f.err;
    // As planned from the constants of clusters/h100.toml, which new runs may move a little. Parameters are gathered and
    // gradients scattered in each of 16 microbatches, over one port a rank.
    const nlohmann::json j = f.json();
    EXPECT_NEAR(j["step_time_s"].get<double>(), 34.5, 2);
    EXPECT_NEAR(j["mfu"].get<double>(), 0.23, 0.015);
    EXPECT_NEAR(j["exposed_communication_s"].get<double>(), 5.6, 1.5);
    EXPECT_LT(j["step_time_low_s"], j["step_time_s"]);
    EXPECT_GT(j["step_time_high_s"], j["step_time_s"]);
    EXPECT_TRUE(f.json()["declared"]);
}

TEST(CliPlan, TracesLieOverEachOther) {
    Scratch s;
    s.write("r.toml",
            tiny_recipe(kSixSteps) + "[parallelism]\ndata_parallel_shard_degree = 2\n[runtime]\ncomm_thread = \"on\"\n");
    s.write("c.toml", kToyCluster);
    Finished f = s.lockstep("train r.toml --trace real.json");
    ASSERT_EQ(f.code, 0) << f.err;
    f = s.lockstep("plan r.toml --cluster c.toml --trace planned.json");
    ASSERT_EQ(f.code, 0) << f.err;
    const auto real = nlohmann::json::parse(s.read("real.json")), planned = nlohmann::json::parse(s.read("planned.json"));
    const auto mine = slices(real, 0);
    EXPECT_EQ(mine, slices(planned, 0));
    EXPECT_EQ(mine, slices(real, 1));
    EXPECT_GT(mine[0].size(), 50u);
    EXPECT_GT(mine[1].size(), 5u);
    f = s.lockstep("plan r.toml --cluster c.toml --trace /nowhere/x.json");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.err.find("--trace /nowhere/x.json: cannot be written; choose a file"), std::string::npos) << f.err;
}

// Names of the block routines that a rank's process ran.
std::set<std::string> blocks_of(const nlohmann::json& trace, int rank) {
    std::set<std::string> out;
    for (const auto& e : trace["traceEvents"]) {
        if (e["ph"] != "X" || e["pid"] != rank) continue;
        if (e["cat"] == "forward" || e["cat"] == "backward")
            out.insert(e["name"].get<std::string>() + " " + std::to_string(e["args"]["instance"].get<int>()));
    }
    return out;
}

TEST(CliPlan, EveryPipelineRankIsInTheTraces) {
    Scratch s;
    s.write("r.toml",
            tiny_recipe(kSixSteps) +
                "[parallelism]\npipeline_parallel_degree = 2\ntensor_parallel_degree = 2\n"
                "module_fqns_per_model_part = [\"tok_embeddings,layers.0\", \"layers.1,layers.2,layers.3,norm,output\"]\n");
    s.write("c.toml", kToyCluster);
    const std::string layers = " --model.n_layers 4";
    Finished f = s.lockstep("train r.toml --trace real.json --json" + layers);
    ASSERT_EQ(f.code, 0) << f.err;
    f = s.lockstep("plan r.toml --cluster c.toml --trace planned.json --json" + layers);
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json();
    EXPECT_GT(j["bubble_fraction"].get<double>(), 0);
    EXPECT_LT(j["bubble_fraction"].get<double>(), 1);
    ASSERT_EQ(j["stages"].size(), 2u);
    EXPECT_EQ(j["stages"][1]["stages"], std::vector<int>{1});
    EXPECT_EQ(j["stages"][1]["layers"], 3);
    const auto real = nlohmann::json::parse(s.read("real.json")), planned = nlohmann::json::parse(s.read("planned.json"));
    EXPECT_TRUE(blocks_of(real, 0).contains("layer.forward 0"));
    EXPECT_FALSE(blocks_of(real, 0).contains("layer.forward 1"));
    for (int i = 1; i < 4; ++i) EXPECT_TRUE(blocks_of(real, 2).contains("layer.backward " + std::to_string(i))) << i;
    for (int first : {0, 2}) {  // the first rank of each pipeline rank
        EXPECT_EQ(blocks_of(real, first), blocks_of(planned, first));
        EXPECT_EQ(slices(real, first), slices(planned, first));
        EXPECT_EQ(slices(real, first), slices(real, first + 1));
    }
}

TEST(CliBench, WritesWhatPlanReads) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSixSteps));
    const Finished f = s.lockstep("bench --quick --seconds 1 --out c.toml --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_GT(f.json()["kernels"].get<int>(), 50);
    EXPECT_GT(f.json()["flops_per_s"][0].get<double>(), 1e8);
    EXPECT_GT(f.json()["bf16_flops_per_s"][0].get<double>(), 1e8);
    const std::string file = s.read("c.toml");
    for (const char* op : {"einsum", "attention_backward", "adamw", "rmsnorm", "cross_entropy", "cross_entropy_gradient", "rope",
                           "join_qkv", "swiglu"})
        EXPECT_NE(file.find(std::string("op = \"") + op + "\""), std::string::npos) << op;
    const Finished planned = s.lockstep("plan r.toml --cluster c.toml --json");
    ASSERT_EQ(planned.code, 0) << planned.err;
    EXPECT_GT(planned.json()["measured_share"].get<double>(), 0.99);
    EXPECT_FALSE(planned.json()["declared"]);
    EXPECT_NE(file.find("instruction_sets = ["), std::string::npos);
    EXPECT_FALSE(planned.json()["machine"]["this_machine"]);  // any other machine plans the same
    // The same table may choose the kernels: the program then says which.
    const Finished shown = s.lockstep("show r.toml --cluster.file c.toml");
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_NE(shown.out.find("kernel cpu.matmul"), std::string::npos);
    EXPECT_EQ(s.lockstep("show r.toml --cluster.file nowhere.toml").code, 1);
    const Finished refused = s.lockstep("bench --quick --out /nowhere/c.toml");
    EXPECT_EQ(refused.code, 1);
    EXPECT_NE(refused.err.find("--out /nowhere/c.toml: cannot be written [bench.cannot_write]"), std::string::npos)
        << refused.err;
}

TEST(CliBench, OverProcessesMeasuresWhatGoesBetweenThem) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSixSteps) + "[parallelism]\ndata_parallel_shard_degree = 2\n");
    s.write("one.toml", kToyCluster);
    const Finished f = s.in_processes(2, "bench --machine one.toml --out two.toml --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["hosts"], 1);
    const std::string file = s.read("two.toml");
    EXPECT_NE(file.find("[hosts]\nranks = 2\nranks_per_process = 1\nshare_cores = true"), std::string::npos)
        << file.substr(0, 900);
    EXPECT_EQ(s.lockstep("plan r.toml --cluster two.toml --json").code, 0);
    s.write("eight.toml", tiny_recipe(kSixSteps) + "[parallelism]\ndata_parallel_shard_degree = 4\n");
    const Finished linkless = s.lockstep("plan eight.toml --cluster two.toml");
    EXPECT_EQ(linkless.code, 1);
    EXPECT_NE(linkless.err.find("4 ranks need 2 hosts of 2, and the file says nothing of their links"), std::string::npos);
    EXPECT_NE(linkless.err.find("[plan.no_link]"), std::string::npos) << linkless.err;
    // The recipe's hosts come before the file's.
    const std::string larger = "plan eight.toml --cluster two.toml --cluster.ranks_per_host 4 --cluster.ranks_per_process ";
    EXPECT_EQ(s.lockstep(larger + "2").code, 0);
    EXPECT_NE(s.lockstep(larger + "3").err.find("[recipe.divides]"), std::string::npos);
    s.write("devices.toml", s.read("two.toml").substr(0, s.read("two.toml").find("[hosts]")) +
                                "[[links]]\nranks = 0\nbandwidth_bytes_per_s = 1e9\nlatency_s = 0.0\n");
    s.shell("sed -i 's/devices = false/devices = true/' devices.toml");
    EXPECT_NE(s.lockstep("bench --machine devices.toml --out two.toml").err.find("[bench.machine]"), std::string::npos);
    s.write("apart.toml", s.read("devices.toml").substr(0, s.read("devices.toml").find("[[links]]")));
    EXPECT_EQ(s.lockstep("plan eight.toml --cluster apart.toml --parallelism.data_parallel_shard_degree 1").code, 0);
    for (const char* command : {"plan", "tune"}) {
        const Finished unjoined = s.lockstep(fmt::format("{} eight.toml --cluster apart.toml", command));
        EXPECT_EQ(unjoined.code, 1);
        EXPECT_NE(unjoined.err.find("apart.toml: the file says nothing of links between devices, and 4 ranks use some"),
                  std::string::npos)
            << unjoined.err;
        EXPECT_NE(unjoined.err.find("[plan.no_link]"), std::string::npos) << unjoined.err;
    }
    const Finished of_gpu = s.in_processes(2, "bench --kernels cuda --out gpu.toml");
    EXPECT_EQ(of_gpu.code, 1);
    EXPECT_NE(of_gpu.err.find("--kernels cuda measures the GPU of one process"), std::string::npos) << of_gpu.err;
    EXPECT_NE(of_gpu.err.find("[bench.one_gpu]"), std::string::npos) << of_gpu.err;
    EXPECT_NE(s.lockstep("bench --kernels tpu").err.find("--kernels"), std::string::npos);
    const Finished missing = s.lockstep("bench --machine nowhere.toml --out two.toml");
    EXPECT_EQ(missing.code, 1);
    EXPECT_EQ(s.read("two.toml"), file);
}

TEST(CliProfile, SumsToTheStep) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSixSteps) + "[parallelism]\ndata_parallel_shard_degree = 2\n");
    s.write("c.toml", kToyCluster);
    for (const char* comm : {"on", "off"}) {
        const Finished f =
            s.lockstep(std::string("train r.toml --profile --cluster c.toml --json --runtime.comm_thread ") + comm);
        ASSERT_EQ(f.code, 0) << f.err;
        const nlohmann::json p = f.json()["profile"];
        double sum = p["waiting_s"].get<double>() + p["data_s"].get<double>() + p["executor_s"].get<double>();
        bool gathers = false;
        for (const auto& op : p["ops"]) {
            if (op["thread"] == "compute") sum += op["time_s"].get<double>();
            gathers |= op["op"] == "all_gather" && op["thread"] == (std::string(comm) == "on" ? "communication" : "compute");
            EXPECT_GE(op["time_s"].get<double>(), 0) << op;
        }
        EXPECT_TRUE(gathers) << comm;
        EXPECT_NEAR(sum, p["step_time_s"].get<double>(), 1e-9);
        EXPECT_GE(p["executor_s"].get<double>(), 0);
        EXPECT_EQ(p["steps"], 4);
        EXPECT_EQ(p["roof_flops_per_s"], 1e9);
    }
    // Products of bfloat16 have a roof of their own.
    s.write("d.toml", std::string(kToyCluster) + "bf16 = [4e9, 8e9]\n");
    const Finished half = s.lockstep("train r.toml --profile --cluster d.toml --json --training.mixed_precision_param bfloat16");
    ASSERT_EQ(half.code, 0) << half.err;
    EXPECT_EQ(half.json()["profile"]["roof_flops_per_s"], 4e9);
    const Finished table = s.lockstep("train r.toml --profile --cluster c.toml");
    EXPECT_NE(table.out.find("einsum"), std::string::npos) << table.out;
    EXPECT_NE(table.out.find("waiting"), std::string::npos);
}

// With a stack that is described, memory is that of its software, and so is what fits.
TEST(CliPlan, JudgesTheMemoryOfTheSoftwareThatRan) {
    Scratch s;
    const std::string source = LOCKSTEP_SOURCE_DIR, recipe = "plan " + source + "/recipes/gpt_22b_frontier.toml",
                      stack = " --cluster.stack " + source + "/clusters/stacks/megatron_deepspeed.toml";
    const nlohmann::json own = s.lockstep(recipe + " --json").json();
    EXPECT_TRUE(own["stack_bytes"].empty());
    EXPECT_EQ(own["needed_bytes"], own["stages"][0]["bytes"]["total"]);
    const Finished f = s.lockstep(recipe + stack + " --json");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json();
    ASSERT_EQ(j["stack_bytes"].size(), 8u);
    double most = 0;
    for (const auto& b : j["stack_bytes"]) {
        EXPECT_NEAR(
            b["allocated"].get<double>(),
            b["states"].get<double>() + b["gathered"].get<double>() + b["activations"].get<double>() + b["working"].get<double>(),
            1);
        EXPECT_NEAR(b["reserved"].get<double>(), 1.12 * b["allocated"].get<double>(), 1);
        most = std::max(most, b["reserved"].get<double>());
    }
    EXPECT_NEAR(j["needed_bytes"].get<double>(), most, 1);
    EXPECT_NE(j["needed_bytes"], own["needed_bytes"]);
    EXPECT_NE(s.lockstep(recipe + stack).out.find("bytes of the stack's fullest rank (pipeline rank 0): "), std::string::npos);
    const Finished small = s.lockstep(recipe + stack + " --cluster.memory_gib_per_rank 20");
    EXPECT_EQ(small.code, 1);
    EXPECT_NE(small.err.find("with megatron_deepspeed and has 16.000 GiB"), std::string::npos) << small.err;
    EXPECT_NE(small.err.find("`lockstep tune` with the same stack"), std::string::npos) << small.err;
}

// Long sequences and masks take attention from cuDNN: the plan says which kernel serves instead, and why.
TEST(CliPlan, KernelsInPlaceOfFasterOnesAreNamed) {
    Scratch s;
    const std::string plan = "plan llama3_8b_torchtitan --cluster h100 ";
    EXPECT_EQ(s.lockstep(plan + "--json").json()["slower_kernels"].size(), 0U);
    const std::string longer =
        "--training.seq_len 32768 --training.local_batch_size 1 --training.global_batch_size 8 --activation_checkpoint.mode full ";
    const nlohmann::json of_long = s.lockstep(plan + longer + "--json").json()["slower_kernels"];
    ASSERT_EQ(of_long.size(), 1U) << of_long;
    EXPECT_EQ(of_long[0]["kernel"], "gpu.attention_backward");
    EXPECT_EQ(of_long[0]["faster"], "cudnn.attention_backward");
    EXPECT_TRUE(has(of_long[0]["why"],
                    "cuDNN would need 8.1 GiB of workspace for one key head and 32768 tokens, and its limit is 5 GiB"));
    EXPECT_TRUE(
        has(s.lockstep(plan + longer).out, "slower kernel gpu.attention_backward serves in place of cudnn.attention_backward"));
    const std::string ring =
        "--training.seq_len 65536 --training.local_batch_size 1 --activation_checkpoint.mode full "
        "--parallelism.context_parallel_degree 8 --parallelism.context_parallel_rotate_method alltoall --json ";
    EXPECT_EQ(s.lockstep(plan + ring).json()["slower_kernels"].size(), 0U);
    const nlohmann::json of_window = s.lockstep(plan + ring + "--model.sliding_window 4096").json()["slower_kernels"];
    ASSERT_EQ(of_window.size(), 2U) << of_window;
    for (const auto& kernel : of_window) EXPECT_TRUE(has(kernel["why"], "context ranks divide attention in a window")) << kernel;
    const std::string masked = "--training.document_mask true --json";
    const nlohmann::json of_masked = s.lockstep(plan + masked).json()["slower_kernels"];
    EXPECT_EQ(of_masked.size(), 2U) << of_masked;
    for (const auto& kernel : of_masked) EXPECT_TRUE(has(kernel["why"], "a sequence has several documents")) << kernel;
}

// A file of another system is planned in Lockstep and in the software that it was written for.
TEST(CliPlan, AFileOfAnotherSystemIsPlannedInItsSoftwareToo) {
    Scratch s;
    const std::string job =
        "[job]\ndump_folder = \"o\"\n[profiling]\nenable_profiling = false\n[model]\nname = \"llama3\"\nflavor = \"8B\"\n"
        "[training]\nlocal_batch_size = 1\nseq_len = 8192\ndataset = \"c4\"\n[parallelism]\ndata_parallel_shard_degree = 8\n";
    s.ScratchFolder::write("eager.toml", job);
    s.ScratchFolder::write("compiled.toml", job + "[compile]\nenable = true\n");
    s.ScratchFolder::write("ds_config.json", R"({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1})");
    const std::string model = " --ranks 8 --model.name llama3 --model.flavor 8B --training.seq_len 2048";
    const std::pair<std::string, std::string> files[] = {{"eager.toml", "torchtitan_eager"},
                                                         {"compiled.toml", "torchtitan_compiled"},
                                                         {"ds_config.json" + model, "deepspeed_zero3"}};
    for (const auto& [file, stack] : files) {
        const nlohmann::json j = s.lockstep("plan " + file + " --cluster h100 --json").json();
        ASSERT_TRUE(j.contains("in_their_stack")) << file;
        EXPECT_EQ(j["in_their_stack"]["stack"], stack);
        const Finished whole = s.lockstep("plan " + file + " --cluster h100 --json --cluster.stack " + stack);
        EXPECT_EQ(whole.json()["step_time_s"], j["in_their_stack"]["step_time_s"]) << whole.err;
        EXPECT_FALSE(whole.json().contains("in_their_stack"));
    }
    const Finished text = s.lockstep("plan compiled.toml --cluster h100");
    EXPECT_TRUE(has(text.out, "\nas Lockstep ")) << text.out;
    EXPECT_TRUE(has(text.out, "\nas torchtitan_compiled ")) << text.out;
    EXPECT_EQ(text.err.find("Lockstep downloads no data set"), text.err.rfind("Lockstep downloads no data set")) << "said once";
}

}  // namespace
}  // namespace lockstep::testing
