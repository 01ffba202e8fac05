// Context ranks, each of which has a slice of every sequence: how they are numbered, what a recipe may ask of them, and that
// each form trains as one rank does. Random layouts draw them, too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "kernels/kernel.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"

namespace lockstep::testing {
namespace {

using compile::Config;
using mesh::Axis;

Config with_context_ranks(const compile::Recipe& recipe, int64_t cp) {
    Config config = compile::config_of(recipe);
    config.parallelism.context_parallel_degree = cp;
    return config;
}

std::vector<std::string> sub_axes_of(const Config& config) {
    const mesh::Mesh mesh = compile::layout_of(config).mesh;
    std::vector<std::string> out;
    for (const mesh::SubAxis& s : mesh.sub_axes) {
        if (s.size > 1) out.push_back(fmt::format("{}:({}){}", mesh::name_of(s.axis), s.pre, s.size));
    }
    return out;
}

// The id of the refusal and its text; empty: there is none.
std::string refusal_of_layout(const Config& config) {
    const auto layout = compile::layout_of(config, compile::dims_of(config));
    const UserError* refusal = compile::refusal_of(layout);
    return refusal ? fmt::format("{}: {}", refusal->id(), refusal->what()) : "";
}

TEST(ContextRanks, AreTheInnermostOfTheRanksOverWhichParametersAreSplit) {
    Config config = with_context_ranks(small_recipe({}), 4);
    config.parallelism.data_parallel_shard_degree = 6, config.parallelism.data_parallel_replicate_degree = 2;
    config.training.local_batch_size = 1, config.training.global_batch_size = -1;
    const compile::Layout whole = compile::layout_of(config);
    EXPECT_EQ(whole.ranks, 48);
    EXPECT_EQ(whole.data_ranks, 12) << "context ranks share their sequences";
    EXPECT_EQ(whole.partition.weights, 24);
    EXPECT_EQ(sub_axes_of(config), (std::vector<std::string>{"dp_replicate:(1)2", "dp_shard:(1)6", "cp:(1)4"}));

    config.partition.weights = {compile::Split::Over::Number, 2};
    config.partition.gradients = {compile::Split::Over::Number, 8};
    config.partition.optimizer = {compile::Split::Over::World, 0};
    EXPECT_EQ(sub_axes_of(config),
              (std::vector<std::string>{"dp_replicate:(1)2", "dp_shard:(1)3", "dp_shard:(3)2", "cp:(1)2", "cp:(2)2"}));

    config.partition.gradients = {compile::Split::Over::Number, 6};  // 6 of 4 x 6 ranks are no sub-axes
    const auto refused = compile::layout_of(config, compile::dims_of(config));
    ASSERT_TRUE(compile::refusal_of(refused));
    EXPECT_EQ(compile::refusal_of(refused)->id(), "recipe.split_divides");
}

TEST(ContextRanks, TheInnermostAreOnHeads) {
    Config config = with_context_ranks(small_recipe({{"model.n_heads", "8"}, {"model.n_kv_heads", "2"}}), 8);
    config.training.seq_len = 16;
    config.parallelism.context_parallel_head_degree = 4;
    EXPECT_EQ(sub_axes_of(config), (std::vector<std::string>{"cp:(1)2", "cp:(2)2", "cp:(4)2"})) << "2 of 4 have key heads";
    EXPECT_EQ(compile::layout_of(config).head_tail, 2);
    config.parallelism.context_parallel_head_degree = 0;
    config.parallelism.context_parallel_rotate_method = compile::RotateMethod::Ulysses;
    EXPECT_EQ(compile::layout_of(config).head_tail, 1) << "all have whole sequences in attention";
    EXPECT_EQ(compile::layout_of(config).context.on_heads, 8);
}

TEST(ContextRanks, WhatDoesNotDivideIsRefusedByKey) {
    Config config = with_context_ranks(small_recipe({{"model.n_heads", "4"}, {"model.n_kv_heads", "2"}}), 2);
    const auto expect = [&](const std::string& id, const std::string& text) {
        EXPECT_TRUE(refusal_of_layout(config).starts_with(id + ": ")) << refusal_of_layout(config);
        EXPECT_NE(refusal_of_layout(config).find(text), std::string::npos) << refusal_of_layout(config);
    };
    config.training.seq_len = 12;
    EXPECT_EQ(refusal_of_layout(config), "");
    config.training.seq_len = 14;
    expect("recipe.divides", "training.seq_len = 14 is not divisible by 4, as each of 2 context ranks has two pieces of it");
    config.parallelism.context_parallel_load_balancer = compile::LoadBalancer::None;
    EXPECT_EQ(refusal_of_layout(config), "");
    config.parallelism.tensor_parallel_degree = 2;
    expect("recipe.divides",
           "14 is not divisible by parallelism.context_parallel_degree = 2 x parallelism.tensor_parallel_degree = 2 = 4");
    config.parallelism.sequence_parallel = false;
    EXPECT_EQ(refusal_of_layout(config), "");

    config.training.seq_len = 48;
    config.parallelism.context_parallel_degree = 6;
    config.parallelism.context_parallel_head_degree = 4;
    expect("recipe.context_parallel", "parallelism.context_parallel_head_degree = 4 does not divide");
    config.parallelism.context_parallel_head_degree = 3;
    expect("recipe.heads_divide",
           "parallelism.context_parallel_head_degree = 3: 4 heads cannot be split evenly over 6 ranks with");
    config.parallelism.context_parallel_head_degree = 2;
    EXPECT_EQ(refusal_of_layout(config), "");
    config.partition.weights = {compile::Split::Over::Number, 3};  // cp is cut at 3 for heads, and at 2 for weights
    expect("recipe.context_cuts", "parallelism.context_parallel_head_degree and [partition] cut the 6 context ranks");
    config.parallelism.context_parallel_rotate_method = compile::RotateMethod::Ulysses;
    expect("recipe.context_parallel",
           "parallelism.context_parallel_head_degree = 2 is not parallelism.context_parallel_degree = 6");
}

struct Form {
    int64_t cp, tp;
    const char *method, *heads, *balancer;
    bool llama = true, few_key_heads = false;
};
void PrintTo(const Form& f, std::ostream* out) {
    *out << fmt::format("cp {} tp {} {} {} {} {} {}", f.cp, f.tp, f.method, f.heads, f.balancer, f.llama, f.few_key_heads);
}

class ContextForms : public ::testing::TestWithParam<Form> {};

// Documents, a window, a padded batch, masked targets, and a forward that is computed again.
TEST_P(ContextForms, TrainAsOneRank) {
    const Form& f = GetParam();
    Settings settings = {{"training.dtype", "float64"},
                         {"training.seq_len", "24"},
                         {"training.local_batch_size", "2"},
                         {"training.global_batch_size", "3"},
                         {"training.document_mask", "true"},
                         {"debug.synthetic_masked", "0.3"},
                         {"validation.enable", "true"},
                         {"activation_checkpoint.mode", "full"},
                         {"model.n_heads", "4"},
                         {"parallelism.tensor_parallel_degree", std::to_string(f.tp)},
                         {"parallelism.data_parallel_shard_degree", "1"},
                         {"parallelism.context_parallel_degree", std::to_string(f.cp)},
                         {"parallelism.context_parallel_rotate_method", f.method},
                         {"parallelism.context_parallel_head_degree", f.heads},
                         {"parallelism.context_parallel_load_balancer", f.balancer}};
    if (f.llama) {
        settings.insert(settings.end(), {{"model.n_kv_heads", f.few_key_heads ? "1" : "2"}, {"model.sliding_window", "9"}});
    } else {
        settings.insert(settings.end(), {{"model.name", "gpt2"}, {"model.n_positions", "24"}, {"model.dropout", "0.2"}});
    }
    const compile::Recipe recipe = small_recipe(settings);
    const compile::Compiled compiled = compile_recipe(recipe, Backend::Reference);
    EXPECT_EQ(compiled.layout.mesh.degree(Axis::cp), f.cp);
    ASSERT_EQ(refusal(compiled), "");
    constexpr int kSteps = 3;
    std::string where;
    const double far = difference(run(one_rank(recipe), Backend::Reference, kSteps), run(recipe, compiled, kSteps), &where);
    EXPECT_LT(far, 1e-10) << where;
}

INSTANTIATE_TEST_SUITE_P(Gather, ContextForms,
                         ::testing::Values(Form{2, 1, "allgather", "0", "headtail"}, Form{3, 2, "allgather", "0", "none"},
                                           Form{4, 2, "allgather", "0", "headtail", true, true},
                                           Form{2, 2, "allgather", "0", "headtail", false}));
INSTANTIATE_TEST_SUITE_P(Ring, ContextForms,
                         ::testing::Values(Form{2, 1, "alltoall", "0", "headtail"}, Form{3, 2, "alltoall", "0", "none"},
                                           Form{4, 2, "alltoall", "0", "headtail", true, true},
                                           Form{2, 2, "alltoall", "0", "headtail", false}, Form{4, 1, "alltoall", "0", "none"},
                                           Form{4, 1, "alltoall", "2", "headtail"}, Form{4, 2, "alltoall", "2", "none"},
                                           Form{4, 1, "alltoall", "2", "none", false},
                                           Form{4, 2, "alltoall", "2", "headtail", true, true}));
INSTANTIATE_TEST_SUITE_P(Heads, ContextForms,
                         ::testing::Values(Form{2, 1, "ulysses", "0", "headtail"}, Form{2, 2, "ulysses", "0", "none"},
                                           Form{4, 1, "ulysses", "0", "headtail", true, true},
                                           Form{4, 1, "ulysses", "0", "headtail", false}));
INSTANTIATE_TEST_SUITE_P(Both, ContextForms,
                         ::testing::Values(Form{4, 1, "allgather", "2", "headtail"}, Form{4, 2, "allgather", "2", "none"},
                                           Form{4, 1, "allgather", "2", "headtail", false},
                                           Form{4, 2, "allgather", "2", "headtail", true, true}));

// What queries, keys and values give to the weights of their products, by one step of plain SGD: distances from float64, as
// shares of their size.
using Gradients = std::map<std::string, std::vector<double>>;

compile::Recipe recipe_of_one_layer(const Settings& more) {
    Settings settings = {{"training.seq_len", "128"},
                         {"model.dim", "32"},
                         {"model.n_layers", "1"},
                         {"model.n_heads", "16"},
                         {"model.n_kv_heads", "16"},
                         {"model.head_dim", "8"},
                         {"optimizer.name", "SGD"},
                         {"optimizer.lr", "1.0"},
                         {"optimizer.momentum", "0.0"},
                         {"optimizer.weight_decay", "0.0"},
                         {"lr_scheduler.warmup_steps", "0"},
                         {"training.max_norm", "0.0"},
                         {"parallelism.data_parallel_shard_degree", "1"}};
    settings.insert(settings.end(), more.begin(), more.end());
    return small_recipe(settings);
}

Gradients gradients_of(const compile::Recipe& recipe, const compile::Compiled& compiled) {
    const Outcome before = run(recipe, compiled, 0), after = run(recipe, compiled, 1);
    Gradients out;
    for (const char* of : {"q_proj", "k_proj", "v_proj"}) {
        const std::string name = fmt::format("model.layers.0.self_attn.{}.weight", of);
        const std::vector<double>&a = before.weights.at(name), &b = after.weights.at(name);
        for (size_t i = 0; i < a.size(); ++i) out[of].push_back(a[i] - b[i]);
    }
    return out;
}
Gradients gradients_of(const Settings& more, Backend backend) {
    const compile::Recipe recipe = recipe_of_one_layer(more);
    return gradients_of(recipe, compile_recipe(recipe, backend));
}

double distance(const std::vector<double>& got, const std::vector<double>& want) {
    double wrong = 0, all = 0;
    for (size_t i = 0; i < want.size(); ++i) wrong += (got[i] - want[i]) * (got[i] - want[i]), all += want[i] * want[i];
    return std::sqrt(wrong / all);
}

// How far gradients of values come from those of one rank if each rank's share of them is rounded to bfloat16. Those of keys come
// as far in a sound program: its kernel rounds slopes of scores in another place.
constexpr double kOneRounding = 1e-3;
const Settings kNarrow = {{"training.mixed_precision_param", "bfloat16"}};

Settings sixteen_ranks(const char* method, const char* heads) {
    Settings s = kNarrow;
    s.insert(s.end(), {{"parallelism.context_parallel_degree", "16"},
                       {"parallelism.context_parallel_rotate_method", method},
                       {"parallelism.context_parallel_head_degree", heads}});
    return s;
}

TEST(ContextPrecision, SixteenRanksAreAsCloseToFloat64AsOne) {
    const auto ranks = [&](const char* method, const char* heads) {
        return gradients_of(sixteen_ranks(method, heads), Backend::Cpu);
    };
    const Gradients exact = gradients_of({{"training.dtype", "float64"}}, Backend::Reference),
                    one = gradients_of(kNarrow, Backend::Cpu);
    const std::map<std::string, Gradients> forms = {{"gather", ranks("allgather", "0")},
                                                    {"ring", ranks("alltoall", "0")},
                                                    {"heads", ranks("ulysses", "0")},
                                                    {"heads and a gather", ranks("allgather", "4")},
                                                    {"heads and a ring", ranks("alltoall", "4")}};
    for (const auto& [name, form] : forms) {
        for (const auto& [of, want] : exact) {
            const double of_one = distance(one.at(of), want), of_many = distance(form.at(of), want);
            EXPECT_LT(of_one, 0.02) << of;
            EXPECT_LE(of_many, 1.1 * of_one) << name << ", " << of;
        }
        EXPECT_LE(distance(form.at("v_proj"), one.at("v_proj")), kOneRounding / 3) << name;
    }
}

// As if set_precision had not heard of context ranks: gradients of keys and values cross them as they are stored.
TEST(ContextPrecision, GradientsThatAreReducedInBfloat16Show) {
    compile::CompileOptions options;
    options.catalog = kernels::cpu_catalog(1);
    const compile::Recipe recipe = recipe_of_one_layer(sixteen_ranks("allgather", "0"));
    compile::Prefix of_one_rank = compile::compile_prefix(compile::config_of(recipe_of_one_layer(kNarrow)), options);
    ASSERT_FALSE(std::exchange(of_one_rank.answers.shares_keys, true));
    const auto defect = compile::compile(of_one_rank, compile::config_of(recipe), options);
    ASSERT_FALSE(compile::refusal_of(defect));
    const Gradients one = gradients_of(kNarrow, Backend::Cpu), many = gradients_of(recipe, std::get<compile::Compiled>(defect));
    EXPECT_GT(distance(many.at("v_proj"), one.at("v_proj")), kOneRounding);
}

}  // namespace
}  // namespace lockstep::testing
