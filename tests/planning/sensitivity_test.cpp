// Keys that a recipe leaves at their defaults: which of them the table marks as a step's, and what other values are found to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "planning/sensitivity.h"
#include "tests/cli/command.h"
#include "tests/tune/small_problem.h"

namespace lockstep::testing {
namespace {

using compile::Recipe;
using compile::RecipeKey;
using compile::Tried;
using compile::Value;

// FSDP over two hosts, as a publication states it.
constexpr const char* kFsdp = R"([model]
name = "llama3"
dim = 256
n_layers = 4
n_heads = 8
n_kv_heads = 4
vocab_size = 512
ffn_dim = 512
[training]
dataset = "synthetic"
seq_len = 128
local_batch_size = 4
global_batch_size = 32
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "none"
[runtime]
kernels = "reference"
)";

struct PlannedRecipe {
    Scratch s;
    Recipe recipe;
    planning::Plan plan;
    std::string cluster;

    explicit PlannedRecipe(const std::string& text, const std::string& cluster_text = kSmallDevices) {
        cluster = s.write("c.toml", cluster_text);
        recipe = planning::opened_for_plan(Recipe::from_text(text, "r.toml"), cluster);
        plan = planning::plan_of_opened(recipe, cluster);
    }
};

// Of a number that the table does not double or name: any other that it allows.
std::vector<Value> any_other_values(const RecipeKey& k) {
    if (const bool* on = std::get_if<bool>(&k.default_value)) return {!*on};
    std::vector<Value> out;
    if (std::holds_alternative<std::string>(k.default_value)) {
        for (const std::string& word : k.allowed.words()) out.emplace_back(word);
        return out;
    }
    const auto* integer = std::get_if<int64_t>(&k.default_value);
    const auto* number = std::get_if<double>(&k.default_value);
    if (!integer && !number) return out;
    const double now = integer ? static_cast<double>(*integer) : *number;
    for (const double other : {now + 1, now / 2, k.allowed.least}) {
        if (other == now || !k.allowed.objection(other).empty()) continue;
        if (integer && other != std::floor(other)) continue;
        if (integer) out.emplace_back(static_cast<int64_t>(other));
        else out.emplace_back(other);
    }
    return out;
}

TEST(PlanningSensitivity, TriedValuesAreAllowedAndOthers) {
    size_t tried = 0;
    for (const RecipeKey& k : compile::recipe_keys()) {
        if (k.tried.what == Tried::What::None) continue;
        EXPECT_EQ(k.status, compile::KeyStatus::Acts) << k.name;
        const bool is_open = k.name == "training.global_batch_size";  // -1, which nobody doubles
        EXPECT_EQ(compile::tried_values(k, k.default_value).empty(), is_open) << k.name;
        for (const Value& v : compile::tried_values(k, k.default_value)) {
            ++tried;
            EXPECT_NE(v, k.default_value) << k.name;
            EXPECT_NO_THROW(Recipe().set(k.name, v, "test")) << k.name;
        }
    }
    EXPECT_GT(tried, 60u);
}

// A key without the mark changes neither time nor memory, or says here why it is not tried.
TEST(PlanningSensitivity, KeysWithoutTheMarkChangeNoStep) {
    const std::set<std::string> not_tried = {
        "parallelism.data_parallel_shard_degree",  // what the other degrees leave of the ranks
        "partition.weights",
        "partition.secondary_weights",
        "partition.gradients",
        "partition.optimizer",  // the presets name them
        "runtime.local_link_bytes_per_s",
        "runtime.local_link_latency_s",  // an experiment's, of any size
        "cluster.ranks",
        "cluster.ranks_per_host",
        "cluster.ranks_per_process",  // the machine's
        "cluster.ranks_per_package",
        "cluster.ranks_per_node",
        "fault_tolerance.enable",
        "fault_tolerance.group_size",  // another job
    };
    const PlannedRecipe base(kFsdp);
    const compile::Config config = compile::config_of(base.recipe);
    size_t planned = 0;
    for (const RecipeKey& k : compile::recipe_keys()) {
        if (k.status != compile::KeyStatus::Acts || k.tried.what != Tried::What::None || not_tried.contains(k.name)) continue;
        if (base.recipe.is_set(k.name)) continue;
        for (const Value& v : any_other_values(k)) {
            try {
                Recipe recipe = base.recipe;
                recipe.set(k.name, v, "test");
                const compile::Config other = compile::config_of(recipe);
                const planning::Step step =
                    planning::step_of(other, planning::machine_of(other, base.cluster), config, base.plan);
                ++planned;
                EXPECT_NEAR(step.step_s, base.plan.step_s(), 1e-9 * step.step_s) << k.name << " = " << compile::text_of(v);
                EXPECT_EQ(step.bytes, base.plan.needed.bytes) << k.name << " = " << compile::text_of(v);
            } catch (const UserError&) {
            }
        }
    }
    EXPECT_GT(planned, 60u);
}

// An input that no publication states: gradients cross a slow network in float32.
TEST(PlanningSensitivity, TheTypeOfReducedGradientsIsAmongTheFirstOnASlowNetwork) {
    std::string slow = kSmallDevices;
    slow.replace(slow.find("bandwidth_bytes_per_s = 1e9"), 27, "bandwidth_bytes_per_s = 1e8");
    const PlannedRecipe base(kFsdp, slow);
    const planning::Sensitivity s = planning::sensitivity_of(base.recipe, base.cluster, base.plan);
    const auto at = std::find_if(s.changes.begin(), s.changes.end(), [](const planning::Change& c) {
        return c.key == "training.mixed_precision_reduce" && c.instead == std::vector<std::string>{"bfloat16"};
    });
    ASSERT_NE(at, s.changes.end());
    EXPECT_LT(at - s.changes.begin(), 10);
    EXPECT_EQ(at->by_default, "float32");
    EXPECT_LT(at->time, -0.05);
    // It is what a plan with the key says.
    Recipe stated = base.recipe;
    stated.set("training.mixed_precision_reduce", "bfloat16");
    const planning::Plan other = planning::plan_of_opened(stated, base.cluster);
    EXPECT_NEAR(at->step_s, other.step_s(), 1e-9 * other.step_s());
    EXPECT_EQ(at->bytes, other.needed.bytes);
    EXPECT_EQ(at->more_bytes, other.needed.bytes - base.plan.needed.bytes);
}

TEST(PlanningSensitivity, IsOrderedAndLeavesOutWhatIsStated) {
    const PlannedRecipe base(kFsdp);
    const planning::Sensitivity s = planning::sensitivity_of(base.recipe, base.cluster, base.plan);
    ASSERT_GT(s.changes.size(), 10u);
    EXPECT_GT(s.without_effect, 0);
    EXPECT_FALSE(s.refused.empty());
    for (size_t i = 1; i < s.changes.size(); ++i)
        EXPECT_GE(std::abs(std::log1p(s.changes[i - 1].time)) + 2e-3, std::abs(std::log1p(s.changes[i].time)));
    for (const planning::Change& c : s.changes) {
        EXPECT_FALSE(base.recipe.is_set(c.key)) << c.key;
        EXPECT_NE(c.key, "training.seq_len");
        EXPECT_TRUE(c.same_tokens) << c.key;
    }
}

// The job keeps its ranks and its sequences; a size of the job that is left out is tried, too, and its time is that of a token.
TEST(PlanningSensitivity, KeepsTheJobUnlessTheKeyIsItsSize) {
    std::string text = kFsdp;
    for (const std::string line : {"seq_len = 128\n", "local_batch_size = 4\n", "global_batch_size = 32\n",
                                   "tensor_parallel_degree = 1\n", "data_parallel_shard_degree = 8\n"})
        text.erase(text.find(line), line.size());
    const PlannedRecipe base(text + "[cluster]\nranks = 8\n");
    const planning::Sensitivity s = planning::sensitivity_of(base.recipe, base.cluster, base.plan);
    const auto find = [&](const char* key) {
        return std::find_if(s.changes.begin(), s.changes.end(), [&](const planning::Change& c) { return c.key == key; });
    };
    for (const char* size : {"training.seq_len", "training.global_batch_size"}) {
        ASSERT_NE(find(size), s.changes.end()) << size;
        EXPECT_FALSE(find(size)->same_tokens) << size;
        EXPECT_LT(std::abs(find(size)->time), 0.9) << size << ": of a token";
    }
    for (const char* degree : {"parallelism.tensor_parallel_degree"}) {
        ASSERT_NE(find(degree), s.changes.end()) << degree;
        EXPECT_TRUE(find(degree)->same_tokens) << degree;
    }
}

}  // namespace
}  // namespace lockstep::testing
