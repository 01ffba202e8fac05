// Every layout of small spaces, planned: no bound exceeds it, and the pruned search finds what the exhaustive one finds.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "compile/recipe.h"
#include "sim/cluster.h"
#include "tests/tune/small_problem.h"
#include "tune/devices.h"
#include "tune/report.h"
#include "tune/search.h"

namespace lockstep::testing {
namespace {

using compile::Microbatches;
using compile::PartitionPreset;
using tune::Choice;
using tune::Found;
using tune::Planned;
using tune::Problem;

std::vector<Choice> choices_of(const Problem& p) {
    std::vector<Choice> out;
    for (const Choice& family : p.space.families) {
        for (const Choice& member : p.space.members(family)) out.push_back(member);
    }
    return out;
}

void expect_bounds_hold(const Problem& p) {
    tune::Bounds bounds(p);
    size_t planned = 0;
    for (const Choice& c : choices_of(p)) {
        const auto result = tune::plan_of(p, c);
        if (compile::refusal_of(result)) continue;
        const auto& plan = std::get<Planned>(result);
        EXPECT_LE(bounds.bytes(c), plan.bytes) << text_of(c);
        EXPECT_LE(bounds.least_bytes(c), plan.bytes) << text_of(c);
        ++planned;
        if (!plan.fits) continue;
        const double coarse_s = bounds.coarse(c).step_s, family_s = bounds.of_family(c).step_s,
                     member_s = bounds.of_member(c).step_s;
        EXPECT_LE(coarse_s, plan.step_s) << text_of(c);
        EXPECT_LE(family_s, plan.step_s) << text_of(c);
        EXPECT_LE(member_s, plan.step_s) << text_of(c);
        EXPECT_GT(member_s, 0.2 * plan.step_s) << text_of(c);
    }
    EXPECT_GT(planned, 20u);
}

TEST(TuneBounds, NeverExceedThePlanWithoutAPipeline) {
    expect_bounds_hold(small_problem(8, {{"parallelism.pipeline_parallel_degree", "1"}}));
}

// Copies of the states, from which checkpoints are written beside training, lie outside the devices' memory.
TEST(TuneBounds, NeverExceedThePlanThatCopiesStates) {
    expect_bounds_hold(small_problem(2, {{"checkpoint.enable", "true"}, {"checkpoint.async_mode", "async"}}));
}

TEST(TuneBounds, NeverExceedThePlanOfAPipeline) { expect_bounds_hold(small_problem(4)); }

// How long parameters stay gathered, and how often gradients are reduced, are keys of their own.
TEST(TuneBounds, NeverExceedThePlanOfOtherWindows) {
    for (const char* reshard : {"always", "never"}) {
        for (const char* reduce : {"step", "microbatch"}) {
            for (const char* pipeline : {"1", "2"}) {
                expect_bounds_hold(small_problem(4, {{"parallelism.fsdp_reshard_after_forward", reshard},
                                                     {"partition.reduce_gradients", reduce},
                                                     {"parallelism.pipeline_parallel_degree", pipeline},
                                                     {"parallelism.tensor_parallel_degree", "1"},
                                                     {"activation_checkpoint.mode", "none"}}));
            }
        }
    }
}

// Of more than three stages a rank, weights that are split are gathered again and again.
TEST(TuneBounds, NeverExceedThePlanOfManyStages) {
    expect_bounds_hold(small_problem(
        4, {{"model.n_layers", "8"}, {"parallelism.pipeline_parallel_degree", "2"}, {"parallelism.tensor_parallel_degree", "1"}},
        16));
}

// What a layer computes again may run before its gradient arrives. It takes the computing thread all the same.
TEST(TuneBounds, CountRecomputationThatRunsAhead) {
    const Problem p = small_problem(4);
    tune::Bounds bounds(p);
    int64_t families = 0;
    for (const Choice& f : p.space.families) {
        if (!f.async_tensor_parallel || f.recompute != compile::RecomputeMode::Full || f.schedule != "1F1B") continue;
        if (!bounds.refusal(f).empty()) continue;
        EXPECT_GE(bounds.of_family(f).step_s, 0.999 * bounds.coarse(f).step_s) << text_of(f);
        ++families;
    }
    EXPECT_GT(families, 0);
}

// The program of one pipeline rank alone has the bytes that it has among the others.
TEST(TuneSearch, BytesOfARankAreThoseOfThePlan) {
    const Problem p = small_problem(4);
    for (const Choice& c : p.space.families) {
        const auto plan = tune::plan_of(p, c);
        if (compile::refusal_of(plan) || c.stages_per_rank > 1) continue;
        int64_t most = 0;
        for (int64_t rank = 0; rank < c.pipeline(); ++rank)
            most = std::max(most, compile::or_throw(tune::bytes_of(p, c, tune::Bytes::Placed, rank)));
        EXPECT_EQ(most, std::get<Planned>(plan).bytes) << text_of(c);
        // Without offsets the time is the same, and the bytes are no more.
        const auto least = tune::plan_of(p, c, tune::Bytes::Least);
        EXPECT_FALSE(std::get<Planned>(least).is_placed);
        EXPECT_EQ(std::get<Planned>(least).step_s, std::get<Planned>(plan).step_s) << text_of(c);
        EXPECT_LE(std::get<Planned>(least).bytes, std::get<Planned>(plan).bytes) << text_of(c);
        EXPECT_GE(static_cast<double>(std::get<Planned>(least).bytes), 0.9 * static_cast<double>(std::get<Planned>(plan).bytes));
        // Offsets of the ranks that may be the fullest tell the bytes of all.
        compile::CompileOptions options = p.machine.options;
        options.place_buffers = false;
        compile::Compiled fullest = compile::or_throw(p.compiled(p.config(c), options));
        compile::place_fullest(fullest);
        EXPECT_EQ(fullest.arena_bytes(), std::get<Planned>(plan).bytes) << text_of(c);
    }
}

// A plan plays few microbatches of a long step. Its seconds are those of the step played whole, and what must hold of
// Planned::is_least holds.
TEST(TuneSearch, FewMicrobatchesStandForWholeSteps) {
    const std::map<std::string, double> bar_of = {
        {"1F1B", 1e-3}, {"Interleaved1F1B", 1e-3}, {"ZB-H1", 5e-3}, {"ZBVZeroBubble", 1e-9}, {"InterleavedZeroBubble", 1e-9}};
    const Problem p = small_problem(8, {{"model.n_layers", "16"}}, 96);
    std::map<std::string, std::vector<Choice>> long_ones;
    for (const Choice& f : p.space.families) {
        if (f.pipeline() > 1 && f.microbatches >= 6 * f.pipeline()) long_ones[f.schedule].push_back(f);
    }
    std::mt19937 random(7);
    for (const auto& [schedule, bar] : bar_of) {
        double most = 0, sum = 0;
        int count = 0;
        for (int tried = 0; tried < 200 && count < 40; ++tried) {
            const std::vector<Choice>& families = long_ones.at(schedule);
            const std::vector<Choice> members = p.space.members(families[random() % families.size()]);
            const Choice c = members[random() % members.size()];
            const auto few = tune::plan_of(p, c, tune::Bytes::Least),
                       all = tune::plan_of(p, c, tune::Bytes::Least, Microbatches::All),
                       least = tune::plan_of(p, c, tune::Bytes::Least, Microbatches::Fullest);
            if (compile::refusal_of(all) || !std::get<Planned>(all).fits) continue;
            const double whole_s = std::get<Planned>(all).step_s, off = std::get<Planned>(few).step_s / whole_s - 1;
            EXPECT_LE(std::abs(off), bar) << text_of(c);
            EXPECT_LE(std::get<Planned>(least).step_s, (1 + bar) * whole_s) << text_of(c);
            EXPECT_EQ(std::get<Planned>(few).bytes, std::get<Planned>(all).bytes) << text_of(c);
            EXPECT_LE(std::get<Planned>(least).bytes, std::get<Planned>(all).bytes) << text_of(c);
            most = std::max(most, std::abs(off)), sum += std::abs(off), ++count;
        }
        EXPECT_EQ(count, 40) << schedule;
        fmt::print("{}: off by {:.2g} in the mean of {} layouts, by {:.2g} at most\n", schedule, sum / count, count, most);
    }
}

TEST(TuneBounds, AreNothingOnProcessors) {
    const sim::Cluster cluster = sim::parse_cluster(
        "name = \"cpu\"\n[machine]\ncores = 2\nmemory_bytes = 1e9\n[rates]\nbytes_per_s = [1e10, 1e10]\n[rates.flops_per_s]\nf32 "
        "= [1e9, 2e9]\n",
        "cpu.toml");
    const Problem p = tune::problem_of(small_config({}), cluster, "cpu.toml", 2, 8);
    tune::Bounds bounds(p);
    for (const Choice& c : p.space.families) {
        EXPECT_EQ(bounds.coarse(c).step_s, 0);
        EXPECT_EQ(bounds.of_family(c).step_s, 0);
    }
}

void expect_same_best(const Problem& p) {
    tune::Options options;
    options.top = 3, options.solve_recompute = false;
    const Found pruned = tune::search(p, options);
    options.prune = false;
    const Found all = tune::search(p, options);
    ASSERT_EQ(pruned.best.size(), all.best.size());
    for (size_t i = 0; i < all.best.size(); ++i)
        EXPECT_EQ(pruned.best[i].step_s, all.best[i].step_s) << text_of(all.best[i].choice);
    if (!all.best.empty()) {
        EXPECT_EQ(pruned.best.front().choice, all.best.front().choice);
    }
    EXPECT_LT(pruned.all.size(), all.all.size());
    int64_t cut = 0;
    for (const tune::Cut& c : pruned.cuts) cut += c.layouts;
    EXPECT_EQ(cut + std::ssize(pruned.all) + pruned.refused, pruned.layouts);
    EXPECT_EQ(std::ssize(all.all) + all.refused, all.layouts);
}

TEST(TuneSearch, PrunedFindsWhatAllFindWithoutAPipeline) {
    expect_same_best(small_problem(8, {{"parallelism.pipeline_parallel_degree", "1"}}));
}

TEST(TuneSearch, PrunedFindsWhatAllFindInPipelines) { expect_same_best(small_problem(4, {{"partition.preset", "zero1"}})); }

// Steps long enough to be extended from shorter ones.
TEST(TuneSearch, PrunedFindsWhatAllFindInLongSteps) {
    expect_same_best(
        small_problem(2, {{"parallelism.pipeline_parallel_degree", "2"}, {"activation_checkpoint.mode", "none"}}, 32));
}

// Models, machines and held keys, drawn.
TEST(TuneSearch, PrunedFindsWhatAllFindInDrawnSpaces) {
    std::mt19937 random(11);
    const auto one_of = [&](const std::vector<std::string>& values) { return values[random() % values.size()]; };
    for (int drawn = 0; drawn < 20; ++drawn) {
        std::vector<std::pair<std::string, std::string>> keys = {
            {"model.n_layers", one_of({"2", "3", "4", "6"})},
            {"model.dim", one_of({"128", "256", "512"})},
            {"training.seq_len", one_of({"64", "128"})},
            {"activation_checkpoint.mode", one_of({"none", "selective", "full"})},
            {"parallelism.fsdp_reshard_after_forward", one_of({"default", "default", "always", "never"})},
            {"partition.reduce_gradients", one_of({"default", "default", "step", "microbatch"})}};
        const std::string degree = one_of({"tensor", "pipeline"});
        keys.emplace_back("parallelism." + degree + "_parallel_degree", one_of({"1", "2"}));
        sim::Cluster cluster = small_devices();
        cluster.memory_bytes *= std::pow(2.0, static_cast<double>(random() % 5) - 3);
        for (sim::LinkLevel& level : cluster.links)
            level.link.bandwidth_bytes_per_s *= std::pow(2.0, static_cast<double>(random() % 5) - 2);
        const int64_t ranks = random() % 3 == 0 ? 4 : 2;
        SCOPED_TRACE(fmt::format("space {}: {} ranks", drawn, ranks));
        expect_same_best(tune::problem_of(small_config(keys), cluster, "small.toml", ranks, 8));
    }
}

TEST(TuneSearch, GivesTheSameEveryTime) {
    const Problem p = small_problem(4);
    const Found a = tune::search(p, {}), b = tune::search(p, {});
    ASSERT_EQ(a.best.size(), b.best.size());
    for (size_t i = 0; i < a.best.size(); ++i) {
        EXPECT_EQ(a.best[i].choice, b.best[i].choice);
        EXPECT_EQ(a.best[i].step_s, b.best[i].step_s);
    }
}

TEST(TuneSearch, SolvesRecomputeToWhatFits) {
    Problem p = small_problem(1, {{"parallelism.tensor_parallel_degree", "1"}});
    const Found roomy = tune::search(p, {});
    ASSERT_FALSE(roomy.best.empty());
    const Planned none = *std::max_element(roomy.all.begin(), roomy.all.end(),
                                           [](const Planned& a, const Planned& b) { return a.bytes < b.bytes; });
    *p.machine.capacity.bytes = roomy.best.front().bytes - 1;  // the fastest does not fit any more
    const Found tight = tune::search(p, {});
    ASSERT_FALSE(tight.best.empty());
    EXPECT_LE(tight.best.front().bytes, *p.machine.capacity.bytes);
    EXPECT_GE(none.bytes, roomy.best.front().bytes);
}

TEST(TuneSearch, NamesTheClosestWhereNothingFits) {
    Problem p = small_problem(4);
    p.machine.capacity.bytes = 1000;
    const Found found = tune::search(p, {});
    EXPECT_TRUE(found.best.empty());
    ASSERT_TRUE(found.closest.has_value() || !found.cuts.empty());
}

// By hand: 2 ranks, 8 sequences, 4 layers, no key held.
TEST(TuneSpace, CountsByHand) {
    const Problem p = small_problem(2, {{"activation_checkpoint.mode", "none"}, {"parallelism.pipeline_parallel_degree", "1"}});
    // tp 1 dp 2: 4 sequences a data rank, microbatches of 1, 2, 4. tp 2 dp 1: of 1, 2, 4, 8, each with sequence parallelism,
    // without it, and asynchronous.
    EXPECT_EQ(p.space.families.size(), 3u + 4u * 3u);
    // dp 2: replicated, or over two ranks zero1, zero2, and zero3 with three prefetches.
    EXPECT_EQ(p.space.members(p.space.families.front()).size(), 1u + 1u + 1u + 3u);
    EXPECT_EQ(p.space.size(), 3 * 6 + 12);
}

// Why the members of a pipeline leave ZeRO-1 out: ZeRO-2 takes the same time, and no more bytes.
TEST(TuneSpace, LeavesOutZero1InPipelines) {
    const std::pair<std::string, std::string> pipeline = {"parallelism.pipeline_parallel_degree", "2"};
    const Problem p = small_problem(4, {pipeline});
    size_t compared = 0;
    for (const Choice& family : p.space.families) {
        for (Choice c : p.space.members(family)) {
            EXPECT_FALSE(c.partition == PartitionPreset::Zero1 && c.microbatches > 1) << text_of(c);
            if (c.partition != PartitionPreset::Zero2 || c.microbatches == 1) continue;
            const auto zero2 = tune::plan_of(p, c);
            c.partition = PartitionPreset::Zero1;
            const auto zero1 = tune::plan_of(p, c);
            if (compile::refusal_of(zero2)) continue;
            ++compared;
            EXPECT_DOUBLE_EQ(std::get<Planned>(zero2).step_s, std::get<Planned>(zero1).step_s) << text_of(c);
            EXPECT_LE(std::get<Planned>(zero2).bytes, std::get<Planned>(zero1).bytes) << text_of(c);
        }
    }
    EXPECT_GT(compared, 10u);
    compile::Config config = small_config({pipeline, {"partition.preset", "zero1"}});
    config.origins["partition.preset"] = compile::Origin::flag("partition.preset");
    const Problem held = tune::problem_of(config, small_devices(), "small.toml", 4, 8);
    size_t zero1 = 0;
    for (const Choice& c : choices_of(held)) zero1 += c.partition == PartitionPreset::Zero1;
    EXPECT_GT(zero1, 0u);
}

TEST(TuneSpace, AFileHoldsNothingWhateverItsName) {
    const auto held = [](compile::Recipe recipe) { return tune::is_held(compile::values_of(recipe), "partition.preset"); };
    const std::string text = "[partition]\npreset = \"zero1\"\n";
    EXPECT_FALSE(held(compile::Recipe::from_text(text, "flagship.toml")));
    compile::Recipe recipe;
    recipe.set("partition.preset", "zero1");
    EXPECT_TRUE(held(recipe));
}

TEST(TuneSpace, HasEachLayoutOnce) {
    const Problem p = small_problem(4);
    std::set<std::string> seen;
    for (const Choice& c : choices_of(p)) {
        EXPECT_EQ(c.ranks(), 4);
        EXPECT_EQ(c.data() * c.microbatch * c.microbatches, 8);
        EXPECT_TRUE(seen.insert(text_of(c)).second) << text_of(c);
    }
}

TEST(TuneSpace, ALayoutIsReadBackFromItsConfiguration) {
    const Problem p = small_problem(4, {{"parallelism.pipeline_parallel_degree", "1"}});
    for (const Choice& c : choices_of(p)) {
        const compile::Config config = p.config(c);
        EXPECT_EQ(text_of(tune::choice_of(config, compile::layout_of(config))), text_of(c));
    }
}

// With packages of 2 ranks and nodes of 4, on two nodes.
std::vector<std::pair<std::string, std::string>> on_nodes(std::vector<std::pair<std::string, std::string>> more = {}) {
    more.insert(more.end(), {{"parallelism.pipeline_parallel_degree", "1"},
                             {"parallelism.tensor_parallel_degree", "1"},
                             {"cluster.ranks_per_package", "2"},
                             {"cluster.ranks_per_node", "4"}});
    return more;
}

TEST(TuneSpace, HasTheLevelsOfTheMachine) {
    const Problem p = small_problem(8, on_nodes());
    std::map<PartitionPreset, int> found;
    for (const Choice& c : choices_of(p)) {
        ++found[c.partition];
        EXPECT_FALSE(compile::refusal_of(tune::plan_of(p, c))) << text_of(c);
    }
    for (const PartitionPreset preset : {PartitionPreset::Mics, PartitionPreset::Hpz, PartitionPreset::ThreeLevel})
        EXPECT_GT(found[preset], 0) << compile::word_of(preset);
    EXPECT_EQ(found[PartitionPreset::ZeroPp], 0) << "it is other arithmetic";
}

// What a recipe says of levels and of quantized communication stays, in the search and in the recipe that it writes.
TEST(TuneSpace, KeepsWhatTheRecipeSaysOfPartitions) {
    const Problem levels = small_problem(8, on_nodes({{"partition.weights", "2"}, {"partition.optimizer", "world"}}));
    ASSERT_FALSE(choices_of(levels).empty());
    for (const Choice& c : choices_of(levels)) {
        EXPECT_EQ(compile::layout_of(levels.config(c)).partition.weights, 2) << text_of(c);
        EXPECT_EQ(compile::layout_of(levels.config(c)).partition.states, 8) << text_of(c);
    }
    for (const auto& keys : {on_nodes({{"partition.preset", "zeropp"}}), on_nodes({{"partition.quantized_weights", "int8"}})}) {
        const Problem quantized = small_problem(8, keys);
        ASSERT_FALSE(choices_of(quantized).empty());
        for (const Choice& c : choices_of(quantized)) {
            EXPECT_EQ(compile::layout_of(quantized.config(c)).partition.quantized_weights, 8) << text_of(c);
            const auto settings = tune::settings_of(quantized.config(c));
            EXPECT_NE(std::find(settings.begin(), settings.end(),
                                std::pair<std::string, std::string>("partition.quantized_weights", "int8")),
                      settings.end());
        }
    }
}

TEST(TuneSpace, RefusesABatchThatNoLayoutDivides) {
    try {
        small_problem(
            3,
            {{"model.n_heads", "8"}, {"parallelism.pipeline_parallel_degree", "1"}, {"parallelism.tensor_parallel_degree", "1"}});
        FAIL();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "tune.held");
    }
}

TEST(TuneDevices, PricesByHand) {
    tune::OfDevices row;
    row.devices = 8, row.tokens_per_s = 1000;
    tune::add_cost(row, {.tokens = 3.6e9, .price_per_device_hour = 2.5, .budget_hours = 900});
    EXPECT_DOUBLE_EQ(row.hours, 1000);
    EXPECT_DOUBLE_EQ(row.price, 20000);
    EXPECT_FALSE(row.in_budget);
}

TEST(TuneReport, FrontHasNoLayoutThatAnotherBeats) {
    const Found found = tune::search(small_problem(4), {});
    const std::vector<Planned> front = tune::pareto_front(found.all);
    ASSERT_FALSE(front.empty());
    for (size_t i = 1; i < front.size(); ++i) {
        EXPECT_GT(front[i].bytes, front[i - 1].bytes);
        EXPECT_LT(front[i].step_s, front[i - 1].step_s);
    }
    EXPECT_EQ(front.back().step_s, found.best.front().step_s);
}

TEST(TuneExplain, CausesAddUpToTheStep) {
    const Problem p = small_problem(4);
    const Found found = tune::search(p, {});
    for (const Planned& best : found.best) {
        const planning::Plan plan = tune::full_plan(p, p.config(best.choice));
        const tune::Causes causes = tune::causes_of(plan);
        double sum = 0;
        for (const tune::Cause c : tune::kCauses) sum += causes[c];
        EXPECT_NEAR(sum, plan.step_s(), 1e-9);
        // What follows from inputs alone is computed again without being asked for.
        const double again = causes[tune::Cause::Recompute] / plan.step_s();
        if (best.choice.recompute == compile::RecomputeMode::None) {
            EXPECT_LT(again, 0.02) << text_of(best.choice);
        }
        if (best.choice.recompute == compile::RecomputeMode::Full) {
            EXPECT_GT(again, 0.1) << text_of(best.choice);
        }
    }
}

// What comes within the margin of a rank's memory does not win, pruned or not.
TEST(TuneSearch, LeavesTheMarginOfMemoryFree) {
    sim::Cluster cluster = small_devices();
    const auto best = [&](double margin, bool prune) {
        tune::Options options;
        options.top = 1, options.prune = prune;
        return tune::search(tune::problem_of(small_config({}), cluster, "small.toml", 4, 8, margin), options).best.at(0);
    };
    const Planned roomy = best(0, true);
    cluster.memory_bytes = 1.01 * static_cast<double>(roomy.bytes);
    EXPECT_EQ(best(0, true).choice, roomy.choice);
    EXPECT_EQ(best(0.005, true).choice, roomy.choice);
    const Planned small = best(0.02, true);
    EXPECT_LE(static_cast<double>(small.bytes), 0.98 * cluster.memory_bytes);
    EXPECT_GE(small.step_s, roomy.step_s);
    EXPECT_EQ(best(0.02, false).step_s, small.step_s);
}

// The memory of the software that a stack describes decides what fits, and pruning still changes nothing.
TEST(TuneSearch, TakesTheMemoryOfADescribedStack) {
    sim::Cluster cluster = small_devices();
    cluster.stack.name = "other";
    cluster.stack.memory.gradient_bytes = 4, cluster.stack.memory.logit_bytes = 10, cluster.stack.memory.reserve = 0.1;
    cluster.memory_bytes = 6e7;
    const Problem p = tune::problem_of(small_config({}), cluster, "small.toml", 2, 8);
    tune::Options all;
    all.prune = false, all.top = 3;
    tune::Options pruned = all;
    pruned.prune = true;
    const Found every = tune::search(p, all), few = tune::search(p, pruned);
    ASSERT_FALSE(few.best.empty());
    EXPECT_EQ(few.best.front().step_s, every.best.front().step_s);
    const auto unfit = std::count_if(every.all.begin(), every.all.end(), [](const Planned& x) { return !x.fits; });
    EXPECT_GT(unfit, 0);
    EXPECT_LT(unfit, std::ssize(every.all));
    for (const Planned& x : few.best) {
        const planning::Plan plan = tune::full_plan(p, p.config(x.choice));
        EXPECT_EQ(x.bytes, plan.needed.bytes) << tune::text_of(x.choice);
        EXPECT_NE(x.bytes, plan.compiled.arena_bytes());
        EXPECT_NE(x.choice.recompute, compile::RecomputeMode::Budget);
    }
}

}  // namespace
}  // namespace lockstep::testing
