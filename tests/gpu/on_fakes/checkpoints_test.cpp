// Checkpoints that a GPU's training writes beside its steps, on the fakes: the files are those that training waits for, in every
// legal order of streams; copies of the states are asynchronous copies to pinned memory, and take none of the GPU's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/saver.h"
#include "tests/base/scratch_folder.h"
#include "tests/gpu/on_fakes/training.h"

namespace lockstep::testing {
namespace {

struct Saving {
    compile::Recipe recipe;
    compile::Compiled compiled;
};
Saving saving(const char* async, Settings settings = {}) {
    settings.emplace_back("checkpoint.enable", "true"), settings.emplace_back("checkpoint.async_mode", async);
    compile::Recipe recipe = small_recipe(settings);
    compile::Compiled compiled = compile_for_gpu(recipe);
    return {std::move(recipe), std::move(compiled)};
}

// Saves after the second and third of four steps, and trains on while files are written: what they hold.
std::vector<checkpoint::FileSums> files_saved(const Saving& s, runtime::Backend gpu, Outcome& out) {
    const ScratchFolder scratch;
    const data::SyntheticSource data = synthetic_data(s.recipe, s.compiled);
    runtime::Trainer trainer(compile::config_of(s.recipe), s.compiled, data, nullptr, std::move(gpu));
    start(trainer, s.recipe);
    runtime::Saver saver(trainer, s.recipe, scratch.path("c"));
    go_on(trainer, 1, out);
    for (int step = 0; step < 2; ++step) {
        go_on(trainer, 1, out);
        saver.save(runtime::SaveContents::All);
    }
    go_on(trainer, 1, out);
    saver.finish();
    std::vector<checkpoint::FileSums> files;
    for (int64_t step : {2, 3}) files.push_back(checkpoint::read_manifest(checkpoint::folder_of(scratch.path("c"), step)).files);
    return files;
}

TEST(GpuCheckpoints, WrittenBesideTrainingAreThoseThatTrainingWaitsFor) {
    const std::string shard = "parallelism.data_parallel_shard_degree", batch = "training.global_batch_size";
    for (const Settings& settings :
         {Settings{}, Settings{{"runtime.cuda_graph", "true"}}, Settings{{shard, "2"}, {batch, "4"}},
          Settings{{shard, "2"}, {batch, "4"}, {"partition.preset", "zero1"}, {"training.mixed_precision_param", "bfloat16"}}}) {
        Outcome waited;
        const auto files = files_saved(saving("disabled", settings), fake_gpu(1), waited);
        const Saving beside = saving("async", settings);
        for (uint64_t seed = 2; seed <= 9; ++seed) {
            Outcome out;
            EXPECT_EQ(files_saved(beside, fake_gpu(seed), out), files) << "seed " << seed;
            EXPECT_TRUE(waited == out) << "seed " << seed;
        }
    }
}

// The states that are copied, or the copies, as they stand.
std::string bytes_of(runtime::Executor& executor, Place place) {
    const ir::Program& p = executor.program();
    std::string out;
    for (size_t b = 0; b < p.buffers.size(); ++b) {
        const ir::Buffer& copy = p.buffers[b];
        if (copy.place != Place::Host) continue;
        const ir::StateId state = p.states[static_cast<size_t>(copy.state)].copy_of;
        const int buffer = place == Place::Host ? static_cast<int>(b) : p.buffer(state, copy.instance);
        executor.read(buffer, 0, copy.bytes, [&](const char* data) { out.append(data, static_cast<size_t>(copy.bytes)); });
    }
    return out;
}

// Steps with copies of the states beside each, which are then read.
class StepsBesideCopies {
public:
    StepsBesideCopies(const Saving& s, uint64_t seed)
        : data_(synthetic_data(s.recipe, s.compiled)),
          trainer_(compile::config_of(s.recipe), s.compiled, data_, nullptr, fake_gpu(seed)) {
        start(trainer_, s.recipe);
        trainer_.step();
    }

    // Are the copies what the states were? The n-th wait of a stream from the beginning of the copies on does nothing.
    bool copies_are_right(int64_t left_out_wait) {
        runtime::Executor& executor = trainer_.ranks().first();
        const std::string live = bytes_of(executor, Place::Device);
        const int64_t before = fakes::cuda::counts().stream_waits;
        fakes::cuda::leave_out_wait(left_out_wait);
        executor.begin_snapshot();
        trainer_.step();
        executor.snapshot();
        waits = fakes::cuda::counts().stream_waits - before;
        return bytes_of(executor, Place::Host) == live;
    }

    int64_t waits = 0;  // of streams, in the last step and its copies

private:
    const data::SyntheticSource data_;
    runtime::Trainer trainer_;
};

// The first update of a step waits for the copies. It stands near the step's end.
TEST(GpuCheckpoints, AWaitThatIsLeftOutShows) {
    const Saving beside = saving("async");
    bool shown = false;  // rarely: most orders have copied before the step's end
    for (uint64_t seed = 1; seed <= 20 && !shown; ++seed) {
        StepsBesideCopies steps(beside, seed);
        for (int round = 0; round < 10; ++round) EXPECT_TRUE(steps.copies_are_right(-1)) << "seed " << seed;
        const int64_t waits = steps.waits;
        for (int64_t wait = std::max<int64_t>(waits - 10, 0); wait < waits; ++wait) {
            for (int round = 0; round < 10; ++round) shown |= !steps.copies_are_right(wait);
        }
    }
    EXPECT_TRUE(shown);
}

TEST(GpuCheckpoints, CopiesAreAsynchronousAndTakeNoMemoryOfTheGpu) {
    const auto used = [](const Saving& s, auto then) {
        runtime::Backend gpu = fake_gpu(3);
        const int64_t before = device::gpu::used_bytes();
        const data::SyntheticSource data = synthetic_data(s.recipe, s.compiled);
        runtime::Trainer trainer(compile::config_of(s.recipe), s.compiled, data, nullptr, std::move(gpu));
        start(trainer, s.recipe);
        trainer.step();
        then(trainer.ranks().first());
        return device::gpu::used_bytes() - before;
    };
    const int64_t without = used(saving("disabled"), [](runtime::Executor&) {});
    const Saving beside = saving("async");
    const int64_t with = used(beside, [](runtime::Executor& executor) {
        const ir::Program& p = executor.program();
        int64_t copies = 0;
        for (const ir::Call& c : p.entry(ir::EntryKind::Snapshot)->calls)
            copies += std::ssize(p.routines[static_cast<size_t>(c.routine)].ops);
        const fakes::cuda::Counts start = fakes::cuda::counts();
        executor.begin_snapshot();
        const fakes::cuda::Counts begun = fakes::cuda::counts();
        EXPECT_EQ(begun.copies - start.copies, copies);
        EXPECT_EQ(begun.launches, start.launches);
        EXPECT_EQ(begun.host_waits, start.host_waits);
        EXPECT_EQ(begun.pinned_allocations, start.pinned_allocations);
        executor.snapshot();
        // Host code reads the copies where they are.
        const fakes::cuda::Counts copied = fakes::cuda::counts();
        for (size_t b = 0; b < p.buffers.size(); ++b) {
            if (p.buffers[b].place == Place::Host) executor.read(static_cast<int>(b), 0, 64, [](const char*) {});
        }
        EXPECT_EQ(fakes::cuda::counts().copies, copied.copies);
        EXPECT_EQ(fakes::cuda::counts().host_waits, copied.host_waits);
    });
    EXPECT_EQ(with, without);
    EXPECT_GE(with, beside.compiled.programs[0].arena_bytes[Place::Device]);
    EXPECT_GT(beside.compiled.programs[0].arena_bytes[Place::Host], 0);
}

TEST(GpuCheckpoints, PinnedMemoryThatIsRefusedIsNamed) {
    const Saving beside = saving("async");
    const int64_t wanted = beside.compiled.programs[0].arena_bytes[Place::Host];
    const data::SyntheticSource data = synthetic_data(beside.recipe, beside.compiled);
    runtime::Backend gpu = fake_gpu(1);
    fakes::cuda::set_pinned_limit(wanted - 1);
    try {
        runtime::Trainer trainer(compile::config_of(beside.recipe), beside.compiled, data, nullptr, std::move(gpu));
        FAIL() << "it had memory";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "runtime.out_of_host_memory");
        EXPECT_EQ(e.key(), "checkpoint.async_mode");
        EXPECT_NE(std::string(e.what()).find(fmt::format("the system refused {} bytes of pinned memory for copies", wanted)),
                  std::string::npos)
            << e.what();
    }
}

}  // namespace
}  // namespace lockstep::testing
