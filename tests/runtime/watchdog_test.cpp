// Ranks that do not go on are noticed, named, and leave a record.
#include "runtime/watchdog.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "tests/base/plain.h"
#include "tests/base/scratch_folder.h"
#include "tests/comm/process_groups.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

compile::Recipe two_ranks() {
    return plain(compile::Recipe::from_text(
        "[model]\ndim = 16\nn_layers = 2\nn_heads = 4\nffn_dim = 24\nvocab_size = 61\n[training]\nseq_len = 16\nsteps = 9\n"
        "[lr_scheduler]\nwarmup_steps = 0\n[parallelism]\ndata_parallel_shard_degree = 2\n[comm]\ntrace_buf_size = 50\n",
        "test"));
}

struct Ended {
    std::mutex mutex;
    std::vector<std::string> messages;
    std::atomic<int> count{0};
    std::function<void(const std::string&)> end() {
        return [this](const std::string& message) {
            const std::lock_guard lock(mutex);
            messages.push_back(message);
            ++count;
        };
    }
    void wait(int wanted) const {
        while (count < wanted) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
};

TEST(Watchdog, RanksThatNoLongerGoOnAreNamedWithWhomTheyWaitFor) {
    const compile::Recipe r = two_ranks();
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const data::SyntheticSource source = synthetic_data(r, compiled);
    runtime::Trainer trainer(compile::config_of(r), compiled, source);
    trainer.step();
    const ScratchFolder s;
    Ended ended;
    runtime::Watchdog watchdog(trainer.ranks(), {0.3, s.path("records"), "rank_", ended.end()});
    EXPECT_THROW(trainer.ranks().parallel([&](runtime::Executor& e) {
        if (e.rank() == 0) return e.run(ir::EntryKind::Train);
        ended.wait(1);  // this rank is lost in thought
        throw std::runtime_error("over");
    }),
                 std::runtime_error);
    ASSERT_EQ(ended.messages.size(), 1u);
    EXPECT_EQ(ended.messages[0].find("no rank made progress for 0."), 0u) << ended.messages[0];
    EXPECT_NE(ended.messages[0].find("in step 2 of this run, "), std::string::npos) << ended.messages[0];
    EXPECT_NE(ended.messages[0].find("all_reduce with ranks 0 1"), std::string::npos) << ended.messages[0];
    EXPECT_NE(ended.messages[0].find("rank 1: "), std::string::npos) << ended.messages[0];
    EXPECT_NE(ended.messages[0].find("between two steps"), std::string::npos) << ended.messages[0];
    const nlohmann::json record = nlohmann::json::parse(s.read("records/rank_0.json")), ops = record["streams"]["compute"];
    EXPECT_EQ(record["ranks"], 2);
    EXPECT_GT(ops.size(), 10u);
    EXPECT_LE(ops.size(), 50u);
    EXPECT_EQ(ops.back()["op"], "all_reduce");
    EXPECT_EQ(ops.back()["ranks"], (std::vector<int>{0, 1}));
    EXPECT_GT(ops.back()["began_s_ago"], 0.25);
    EXPECT_FALSE(ops.back().contains("time_s"));
    EXPECT_EQ(nlohmann::json::parse(s.read("records/rank_1.json"))["streams"]["compute"].back()["op"], "rest");
}

TEST(Watchdog, StepsThatGoOnAreLeftAlone) {
    const compile::Recipe r = two_ranks();
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const data::SyntheticSource source = synthetic_data(r, compiled);
    Ended ended;
    const ScratchFolder s;
    const auto errors = comm::test::in_process_groups({0, 1}, [&](comm::ProcessGroup& group) {
        runtime::Trainer trainer(compile::config_of(r), compiled, source, &group);
        runtime::Watchdog watchdog(trainer.ranks(), {0.2, s.path("records"), "rank_", ended.end()});
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
        bool more = true;
        while (more) {
            trainer.step();
            more = group.exchange(std::chrono::steady_clock::now() < until ? "more" : "")[0] == "more";
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(400));  // between steps a process may take its time
    });
    for (const auto& e : errors) EXPECT_EQ(e, nullptr);
    EXPECT_EQ(ended.count, 0);
    EXPECT_FALSE(std::filesystem::exists(s.path("records")));
}

// Process 2 of three has a wire but no thread that tells that it lives; then the first one.
TEST(Watchdog, AProcessThatFallsSilentEndsAllWithItsName) {
    const compile::Recipe r = [] {
        compile::Recipe recipe = two_ranks();
        recipe.set("parallelism.data_parallel_shard_degree", "3");
        return recipe;
    }();
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const data::SyntheticSource source = synthetic_data(r, compiled);
    for (const int lost : {2, 0}) {
        Ended ended;
        const ScratchFolder s;
        const auto errors = comm::test::in_process_groups({0, 1, 2}, [&](comm::ProcessGroup& group) {
            runtime::Trainer trainer(compile::config_of(r), compiled, source, &group);
            if (group.process() == lost) {
                const auto wire = group.wire();
                ended.wait(2);
                return;
            }
            runtime::Watchdog watchdog(trainer.ranks(), {0.4, s.path("records"), "rank_", ended.end()});
            ended.wait(2);
        });
        for (const auto& e : errors) EXPECT_EQ(e, nullptr);
        ASSERT_EQ(ended.messages.size(), 2u);
        int spoke = 0;
        for (const std::string& message : ended.messages) {
            if (message.empty()) continue;
            ++spoke;
            EXPECT_EQ(message.find(fmt::format("process {0} (rank {0}) has not been heard of for 0.3 s", lost)), 0u) << message;
        }
        EXPECT_EQ(spoke, lost == 0 ? 2 : 1);
        for (int rank = 0; rank < 3; ++rank)
            EXPECT_EQ(std::filesystem::exists(s.path(fmt::format("records/rank_{}.json", rank))), rank != lost);
    }
}

TEST(Flight, KeepsTheLastWhileOthersRead) {
    runtime::Flight flight(64);
    EXPECT_TRUE(flight.last(QueueName::Compute, 10).empty());
    std::atomic<bool> stop{false};
    const ir::Entry entry;
    std::thread reader([&] {
        while (!stop) {
            const std::vector<runtime::FlightEntry> last = flight.last(QueueName::Compute, 64);
            for (size_t i = 1; i < last.size(); ++i) {
                EXPECT_EQ(last[i].run, last[i - 1].run + 1);
                EXPECT_EQ(last[i].call, static_cast<int>(last[i].run));
            }
        }
    });
    for (int i = 1; i <= 200000; ++i) flight.begin(QueueName::Compute, {i, &entry, i, 0, 0.5 * i});
    stop = true;
    reader.join();
    const std::vector<runtime::FlightEntry> last = flight.last(QueueName::Compute, 3);
    ASSERT_EQ(last.size(), 3u);
    EXPECT_EQ(last.back().run, 200000);
    EXPECT_EQ(last.back().begin_s, 100000);
    EXPECT_EQ(flight.begun(QueueName::Compute), 200000u);
    EXPECT_EQ(flight.begun(QueueName::Comm), 0u);
}

}  // namespace
}  // namespace lockstep::testing
