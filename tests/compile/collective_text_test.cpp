// Programs whose text was changed: collectives over sub-axes in the place of one over all of them, and the kinds that no pass
// writes. Text -> check -> run, on threads, over processes and on the device that runs late.
#include <gtest/gtest.h>

#include <functional>
#include <regex>

#include "check/check.h"
#include "compile/traffic.h"
#include "ir/text.h"
#include "ops/verify.h"
#include "passes/plan_memory.h"
#include "passes/route.h"
#include "tests/base/plain.h"
#include "tests/comm/process_groups.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 2;

compile::Recipe recipe(const std::string& parallelism) {
    return plain(
        compile::Recipe::from_text("[model]\ndim = 64\nn_layers = 2\nn_heads = 4\nffn_dim = 192\nvocab_size = 128\n"
                                   "[training]\nseq_len = 16\nlocal_batch_size = 2\nglobal_batch_size = 8\nsteps = 4\n"
                                   "dtype = \"float64\"\n[lr_scheduler]\nwarmup_steps = 0\n" +
                                       parallelism,
                                   "test"));
}

using Edit = std::function<std::string(std::string)>;

// The recipe's programs, whose text was changed before their algorithms were chosen and their memory planned.
compile::Compiled changed(const compile::Recipe& r, const Edit& edit, const passes::RouteOptions& route = {}) {
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    options.stop_after = "overlap";
    compile::Compiled out = compile::compile(r, options);
    for (ir::Program& p : out.programs) {
        p = passes::plan_memory(passes::route(ir::parse(edit(ir::print(p))), route));
        const auto violation = ops::verify(p);
        EXPECT_FALSE(violation) << violation->message;
    }
    const auto refused = check::prove(out.of_ranks());
    EXPECT_FALSE(refused) << refused->message;
    return out;
}

std::string same(std::string text) { return text; }

// Every line that matches gets other text; at least one does.
Edit replaced(const std::string& pattern, const std::string& by) {
    return [=](const std::string& text) {
        const std::regex line(pattern);
        EXPECT_TRUE(std::regex_search(text, line)) << pattern;
        return std::regex_replace(text, line, by);
    };
}

Outcome run_over(const std::vector<int>& host_of, const compile::Recipe& r, const compile::Compiled& compiled,
                 std::vector<int64_t>* left_host_bytes = nullptr) {
    comm::test::Networks networks;
    Outcome out;
    const auto errors = comm::test::in_process_groups(
        host_of,
        [&](comm::ProcessGroup& processes) {
            const data::SyntheticSource source = synthetic_data(r, compiled);
            runtime::Trainer trainer(compile::config_of(r), compiled, source, &processes);
            start(trainer, r);
            Outcome own;
            std::vector<int64_t> before;
            go_on(trainer, kSteps - 1, own);
            processes.exchange("");
            if (processes.is_first()) before = networks.at(1).left_host_bytes;
            processes.exchange("");
            own.losses.push_back(trainer.step().loss);
            processes.exchange("");
            if (!processes.is_first()) return;
            out = own;
            if (left_host_bytes) {
                *left_host_bytes = networks.at(1).left_host_bytes;
                for (size_t p = 0; p < before.size(); ++p) (*left_host_bytes)[p] -= before[p];
            }
        },
        &networks);
    for (const std::exception_ptr& e : errors) {
        try {
            if (e) std::rethrow_exception(e);
        } catch (const std::exception& error) {
            ADD_FAILURE() << error.what();
        }
    }
    return out;
}

compile::Recipe on_late_device(compile::Recipe r) {
    r.set("debug.device", "late");
    return r;
}

// ZeRO-3 over two hosts of two ranks: gathers and reductions run over dp_shard, within a host, and dp_replicate, between them.
const char* const kTwoLevels =
    "[parallelism]\ndata_parallel_shard_degree = 2\ndata_parallel_replicate_degree = 2\n"
    "[partition]\nweights = \"world\"\ngradients = \"world\"\noptimizer = \"world\"\n";

// `full0; full1 = all_gather(a, b)` over both axes becomes a gather between the hosts, then one within each.
std::string gathers_in_levels(const std::string& text) {
    const Edit two = replaced(
        R"((\n  full0; full1 = )all_gather\((\w+), (\w+)\) \{dim=0\} over dp_shard,dp_replicate)",
        "\n  near0: f64[flat0/dp_shard]; near1: f64[flat1/dp_shard] = all_gather($2, $3) {dim=0} over dp_replicate kernel comm"
        "$1all_gather(near0, near1) {dim=0} over dp_shard");
    return two(text);
}
// The reductions have levels; here both are one op.
std::string reductions_in_one(const std::string& text) {
    const Edit one = replaced(
        R"(\n  near0[^\n]* = reduce_scatter\((\w+), (\w+)\)[^\n]*(\n  \+gradients0; \+gradients1 = )reduce_scatter\([^)]*\) \{dim=0\} over dp_replicate)",
        "$3reduce_scatter($1, $2) {dim=0} over dp_shard,dp_replicate");
    return one(text);
}

TEST(CollectiveText, AGatherOfTwoLevelsHasTheBitsOfOne) {
    const compile::Recipe r = recipe(kTwoLevels);
    const compile::Compiled one = changed(r, same), two = changed(r, gathers_in_levels);
    const Outcome expected = run(r, one, kSteps);
    const Outcome got = run(r, two, kSteps);
    EXPECT_EQ(got.losses, expected.losses);
    EXPECT_EQ(got.weights, expected.weights);
    EXPECT_EQ(run(on_late_device(r), two, kSteps).losses, expected.losses);
    for (const std::vector<int>& host_of : {std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}}) {
        const mesh::Topology topology = mesh::even_hosts(4, 2, 4 / static_cast<int64_t>(host_of.size()));
        const compile::Compiled over = changed(r, gathers_in_levels, {topology, 0});
        const std::vector<double> of_one = run(r, changed(r, same, {topology, 0}), kSteps).losses;
        EXPECT_EQ(run(r, over, kSteps).losses, of_one);
        EXPECT_EQ(run_over(host_of, r, over).losses, of_one);
    }
}

// Sums within a host, then between hosts: another order than the ascending one of a single op, and the same everywhere.
TEST(CollectiveText, AReductionOfTwoLevelsSumsWithinFirst) {
    const compile::Recipe r = recipe(kTwoLevels);
    const Outcome one = run(r, changed(r, reductions_in_one), kSteps);
    const compile::Compiled two = changed(r, same);
    const Outcome got = run(r, two, kSteps);
    std::string where;
    EXPECT_LT(difference(got, one, &where), 1e-12) << where;
    EXPECT_NE(got.weights, one.weights) << "the order of sums does not show: nothing was tested";
    EXPECT_EQ(run(on_late_device(r), two, kSteps).losses, got.losses);
    for (const std::vector<int>& host_of : {std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}}) {
        const mesh::Topology topology = mesh::even_hosts(4, 2, 4 / static_cast<int64_t>(host_of.size()));
        const compile::Compiled over = changed(r, same, {topology, 0});
        EXPECT_EQ(run_over(host_of, r, over).losses, run(r, over, kSteps).losses);
    }
}

TEST(CollectiveText, TwoLevelsSendWhatThePlanCounts) {
    const compile::Recipe r = recipe(kTwoLevels);
    const mesh::Topology topology = {{0, 0, 1, 1}, 1};
    const auto planned = [&](const Edit& edit) {
        return compile::bytes_by_host(changed(r, edit, {topology, 0}), topology).at(0);
    };
    const compile::Compiled two = changed(r, gathers_in_levels, {topology, 0});
    std::vector<int64_t> left;
    run_over({0, 0, 1, 1}, r, two, &left);
    ASSERT_EQ(left.size(), 4u);
    const std::vector<double> by_host = compile::bytes_by_host(two, topology);
    for (size_t host = 0; host < 2; ++host)
        EXPECT_NEAR(static_cast<double>(left[2 * host] + left[2 * host + 1]), by_host[host], 0.02 * by_host[host]);
    // In one op the ranks of a host do not follow each other in the group, so its reduction cannot have two levels.
    EXPECT_LT(planned(same), 0.99 * planned(reductions_in_one));
}

// A value goes to another rank and back, or comes from one that has the same: the bits of every step stay.
struct Detour {
    const char *name, *pattern, *by;
};
void PrintTo(const Detour& d, std::ostream* stream) { *stream << d.name; }

class CollectiveTextDetour : public ::testing::TestWithParam<Detour> {};

TEST_P(CollectiveTextDetour, KeepsTheBits) {
    const compile::Recipe r = recipe("[parallelism]\ntensor_parallel_degree = 4\n");
    const Edit edit = replaced(GetParam().pattern, GetParam().by);
    const Outcome expected = run(r, changed(r, same), kSteps);
    const compile::Compiled detour = changed(r, edit);
    const Outcome got = run(r, detour, kSteps);
    EXPECT_EQ(got.losses, expected.losses);
    EXPECT_EQ(got.weights, expected.weights);
    EXPECT_EQ(run(on_late_device(r), detour, kSteps).losses, expected.losses);
    const mesh::Topology topology = {{0, 0, 1, 1}, 1};
    const compile::Compiled over = changed(r, edit, {topology, 0});
    std::vector<int64_t> left;
    EXPECT_EQ(run_over({0, 0, 1, 1}, r, over, &left).losses, run(r, changed(r, same, {topology, 0}), kSteps).losses);
    const std::vector<double> planned = compile::bytes_by_host(over, topology);
    for (size_t host = 0; host < 2; ++host)
        EXPECT_NEAR(static_cast<double>(left[2 * host] + left[2 * host + 1]), planned[host], 0.02 * planned[host]);
}

const Detour kDetours[] = {
    {"AllToAll", R"(\n  (v_all: f64\[[^\]]*\]|v_all) = rename\(v\))",
     "\n  v.there: f64[batch, seq/tp, kv_heads, head_dim] = all_to_all(v) {from=2, to=1} over tp kernel comm"
     "\n  v.back: f64[batch, seq, kv_heads/tp, head_dim] = all_to_all(v.there) {from=1, to=2} over tp kernel comm"
     "\n  $1 = rename(v.back)"},
    {"Broadcast", R"(\n  (gate_up: f64\[[^\]]*\]|gate_up) = einsum\(n2.ag, w1.w3\))",
     "\n  n2.root: f64[batch, seq, hidden] = broadcast(n2.ag) {root=2} over tp kernel comm"
     "\n  $1 = einsum(n2.root, w1.w3)"},
    {"Permute", R"(\n  (y: f64\[[^\]]*\]|y) = add\(x1, mlp.rs\))",
     "\n  mlp.next: f64[batch, seq/tp, hidden] = permute(mlp.rs) {by=1} over tp kernel comm"
     "\n  mlp.back: f64[batch, seq/tp, hidden] = permute(mlp.next) {by=3} over tp kernel comm"
     "\n  $1 = add(x1, mlp.back)"},
};
INSTANTIATE_TEST_SUITE_P(Kinds, CollectiveTextDetour, ::testing::ValuesIn(kDetours),
                         [](const auto& info) { return std::string(info.param.name); });

// A broadcast reads the root's operand alone: others may differ, as a permuted one does.
TEST(CollectiveText, ABroadcastTakesTheRootsValue) {
    const compile::Recipe r = recipe("[parallelism]\ntensor_parallel_degree = 2\nsequence_parallel = false\n");
    const auto from = [&](const char* root) {
        return run(r,
                   changed(r, replaced(R"(\n  (ao.ar: f64\[[^\]]*\]|ao.ar) = all_reduce\(ao\) over tp)",
                                       std::string("\n  ao.sum: f64[batch, seq, hidden] = all_reduce(ao) over tp kernel comm"
                                                   "\n  $1 = broadcast(ao.sum) {root=") +
                                           root + "} over tp")),
                   kSteps)
            .losses;
    };
    EXPECT_EQ(from("0"), run(r, changed(r, same), kSteps).losses);
    EXPECT_EQ(from("1"), from("0"));
}

}  // namespace
}  // namespace lockstep::testing
