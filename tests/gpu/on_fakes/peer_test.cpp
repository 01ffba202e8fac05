// GPUs of one host that write to each other's memory, on the fakes: what a missing wait or word does, and what a step does not.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "ops/algorithms.h"
#include "runtime/watchdog.h"
#include "tests/base/scratch_folder.h"
#include "tests/gpu/on_fakes/processes.h"

namespace lockstep::testing {
namespace {

const std::vector<Settings> kLayouts = {
    {{"parallelism.data_parallel_shard_degree", "2"}, {"training.global_batch_size", "4"}},
    {{"parallelism.tensor_parallel_degree", "4"}, {"parallelism.enable_async_tensor_parallel", "true"}},
    {{"parallelism.pipeline_parallel_degree", "2"}, {"training.global_batch_size", "4"}},
};

class GpuPeerLayouts : public ::testing::TestWithParam<NamedSettings> {};

// Of every layout of several ranks; some call by call, others from the second step on as a graph.
TEST_P(GpuPeerLayouts, HaveTheBitsOfRanksThatShareAGpu) {
    compile::Recipe recipe = small_recipe(GetParam().settings);
    const Outcome threads = train(recipe, compile_for_gpu(recipe), fake_gpu(1), 2);
    const compile::Compiled peers = compile_for_peers(recipe);
    EXPECT_TRUE(ops::any_by_peers(peers.programs[0]));
    recipe.set("runtime.cuda_graph", GetParam().name.size() % 2 == 0 ? "true" : "false");
    for (const Outcome& outcome : train_in_processes(recipe, peers, 2)) EXPECT_TRUE(threads == outcome);
}

std::vector<NamedSettings> settings_of_ranks() {
    std::vector<NamedSettings> some = settings_of_a_gpu();
    std::erase_if(
        some, [](const NamedSettings& s) { return compile::layout_of(compile::config_of(small_recipe(s.settings))).ranks == 1; });
    return some;
}
INSTANTIATE_TEST_SUITE_P(Settings, GpuPeerLayouts, ::testing::ValuesIn(settings_of_ranks()),
                         [](const auto& info) { return info.param.name; });

// Does a training go wrong, or end with an error, in some order of the queues?
struct Left {
    int out = 0, seen = 0;
    std::string missed;
};
void leave_out(const compile::Recipe& recipe, const compile::Compiled& compiled, const Outcome& right, int64_t all,
               void (*nth)(int64_t), const char* what, Left& left) {
    constexpr int kEach = 8, kOrders = 24, kSteps = 2;
    std::mt19937 random(7);
    for (int i = 0; i < kEach; ++i) {
        const int64_t n = std::uniform_int_distribution<int64_t>(0, all - 1)(random);
        bool seen = false;
        for (int order = 0; order < kOrders && !seen; ++order) {
            try {
                const std::vector<Outcome> outcomes = train_in_processes(recipe, compiled, kSteps, [&] {
                    nth(n);
                    fakes::cuda::set_patience(std::chrono::milliseconds(300));
                });
                for (const Outcome& outcome : outcomes) seen = seen || !(outcome == right);
            } catch (const std::exception&) {
                seen = true;
            }
        }
        ++left.out, left.seen += seen;
        if (!seen) left.missed += std::string(what) + " " + std::to_string(n) + " of " + std::to_string(all) + "\n";
    }
}

TEST(GpuPeers, AWaitOrAWordThatIsLeftOutShows) {
    Left waits, words;
    for (const Settings& settings : kLayouts) {
        const compile::Recipe recipe = small_recipe(settings);
        const compile::Compiled compiled = compile_for_peers(recipe);
        const Outcome right = train_in_processes(recipe, compiled, 2)[0];
        const fakes::cuda::Counts counts = fakes::cuda::counts();
        leave_out(recipe, compiled, right, counts.value_waits, fakes::cuda::leave_out_value_wait, "wait", waits);
        leave_out(recipe, compiled, right, counts.words, fakes::cuda::leave_out_word, "word", words);
    }
    EXPECT_GE(waits.out, 20);
    EXPECT_GE(waits.seen, waits.out * 0.95) << waits.missed;
    EXPECT_EQ(words.seen, words.out) << words.missed;
}

// A rank that hears no word of a peer, call by call and in a graph.
TEST(GpuPeers, AWordThatNeverComesEndsTheJobByTheWatchdog) {
    for (const char* graph : {"false", "true"}) {
        compile::Recipe recipe = small_recipe(kLayouts[0]);
        recipe.set("runtime.cuda_graph", graph);
        const compile::Compiled compiled = compile_for_peers(recipe);
        train_in_processes(recipe, compiled, 1);
        const int64_t in_second_step = fakes::cuda::counts().words + 3;
        std::mutex mutex;
        std::vector<std::string> said;
        const ScratchFolder s;
        const auto watched = [&](runtime::Trainer& trainer) {
            const runtime::WatchdogOptions options = {0.5, s.path("records"), "rank_", [&](const std::string& message) {
                                                          const std::lock_guard lock(mutex);
                                                          said.push_back(message);
                                                          fakes::cuda::set_patience(std::chrono::milliseconds(1));  // it ends
                                                      }};
            const runtime::Watchdog watchdog(trainer.ranks(), options);
            for (int step = 0; step < 4; ++step) trainer.step();
        };
        EXPECT_THROW(in_processes(recipe, compiled, watched, [&] { fakes::cuda::leave_out_word(in_second_step); }),
                     std::exception);
        const std::string all = fmt::format("{}", fmt::join(said, "\n"));
        EXPECT_NE(all.find("in step 2 of this run"), std::string::npos) << all;
        EXPECT_NE(all.find("with ranks 0 1"), std::string::npos) << all;
        for (const char* rank : {"0", "1"}) {
            const auto record = nlohmann::json::parse(s.read(fmt::format("records/rank_{}.json", rank)));
            EXPECT_GT(record["streams"]["compute"].size(), 5u);
        }
    }
}

// A rank that fails comes to its end, although a peer never comes to what it waits for; and the peer takes none of its words.
TEST(GpuPeers, ARankThatFailsEndsAndMisleadsNobody) {
    const compile::Recipe recipe = small_recipe(kLayouts[0]);
    const compile::Compiled compiled = compile_for_peers(recipe);
    std::atomic<int> steps_of_the_other = 0;
    const auto run = [&](runtime::Trainer& trainer) {
        const bool fails = trainer.ranks().group().process() == 1;
        trainer.step_and_begin_next();
        if (fails) throw std::runtime_error("it failed");
        for (;; ++steps_of_the_other) trainer.step();
    };
    EXPECT_THROW(in_processes(recipe, compiled, run, [] { fakes::cuda::set_patience(std::chrono::milliseconds(500)); }),
                 std::exception);
    EXPECT_LE(steps_of_the_other, 1);  // the step that both had begun
}

// Behind the first steps.
TEST(GpuPeers, AStepAllocatesNothingAndTheHostDoesNotWait) {
    const compile::Recipe recipe = small_recipe(kLayouts[0]);
    const compile::Compiled compiled = compile_for_peers(recipe);
    ASSERT_TRUE(ops::any_by_peers(compiled.programs[0]));
    const auto counted = [&](int steps) {
        train_in_processes(recipe, compiled, steps);
        return fakes::cuda::counts();
    };
    const fakes::cuda::Counts few = counted(3), many = counted(7);
    EXPECT_EQ(few.device_allocations, many.device_allocations);
    EXPECT_EQ(few.streams, many.streams);
    EXPECT_EQ(few.events, many.events);
    // A step is read by its two processes. Each asks for a step's losses and its norm.
    const int64_t each = (many.host_waits - few.host_waits) / 4;
    EXPECT_EQ(many.host_waits - few.host_waits, 4 * each);
    EXPECT_LE(each, 2 * 2);
    EXPECT_GT(many.value_waits, few.value_waits);
}

}  // namespace
}  // namespace lockstep::testing
