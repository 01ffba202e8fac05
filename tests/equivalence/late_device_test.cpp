// Layouts on the device that runs late (device/late.h) have the bits that they have on the host, whatever the order of its
// queues; what forgets a wait, a record or a copy has others. LOCKSTEP_DRAWS: how many layouts count.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "check/check.h"
#include "device/late.h"
#include "runtime/load_states.h"
#include "runtime/saver.h"
#include "tests/base/from_environment.h"
#include "tests/base/scratch_folder.h"
#include "tests/equivalence/draw.h"
#include "tests/equivalence/left_out_waits.h"

namespace lockstep::testing {
namespace {

compile::Recipe on_late_device(compile::Recipe recipe, uint64_t seed) {
    recipe.set("debug.device", "late");
    recipe.set("debug.device_seed", std::to_string(seed));
    return recipe;
}

void hold_to_the_host(Dtype dtype, bool mixed, int64_t wanted, bool (*of)(const compile::Recipe&) = nullptr) {
    constexpr int kSteps = 3;
    for (uint64_t seed = 1; wanted > 0; ++seed) {
        const std::optional<Draw> d = draw(seed, dtype, mixed, of);
        if (!d) continue;
        --wanted;
        const std::string again = fmt::format("seed {}\n{}", seed, d->recipe.toml());
        try {
            const Outcome host = run(d->recipe, d->compiled, kSteps);
            const Outcome late = run(on_late_device(d->recipe, seed), d->compiled, kSteps);
            std::string where;
            EXPECT_TRUE(host == late) << difference(host, late, &where) << " at " << where << ", " << again;
        } catch (const std::exception& e) {
            ADD_FAILURE() << e.what() << "\n" << again;
        }
    }
}

TEST(EquivalenceLateDevice, EveryLayoutHasTheBitsOfTheHostFloat64) {
    hold_to_the_host(Dtype::F64, false, from_environment("LOCKSTEP_DRAWS", 40));
}
TEST(EquivalenceLateDevice, EveryLayoutHasTheBitsOfTheHostFloat32) {
    hold_to_the_host(Dtype::F32, false, std::max<int64_t>(1, from_environment("LOCKSTEP_DRAWS", 40) / 4));
}
TEST(EquivalenceLateDevice, EveryLayoutHasTheBitsOfTheHostBfloat16) {
    hold_to_the_host(Dtype::F32, true, std::max<int64_t>(1, from_environment("LOCKSTEP_DRAWS", 40) / 4));
}

TEST(EquivalenceLateDevice, EveryRingHasTheBitsOfTheHostFloat64) {
    hold_to_the_host(Dtype::F64, false, std::max<int64_t>(1, from_environment("LOCKSTEP_DRAWS", 40) / 2), rings_beside_others);
}
TEST(EquivalenceLateDevice, EveryRingHasTheBitsOfTheHostBfloat16) {
    hold_to_the_host(Dtype::F32, true, std::max<int64_t>(1, from_environment("LOCKSTEP_DRAWS", 40) / 4), rings_beside_others);
}

// Two steps and a save in the middle of the third; three steps from there in a new trainer.
Outcome stop_and_go_on(const compile::Recipe& recipe, const compile::Compiled& compiled) {
    const ScratchFolder scratch;
    const std::string root = scratch.path("c");
    const data::SyntheticSource data = synthetic_data(recipe, compiled);
    Outcome out;
    {
        runtime::Trainer trainer(compile::config_of(recipe), compiled, data);
        start(trainer, recipe);
        go_on(trainer, 2, out);
        runtime::Saver saver(trainer, recipe, root);
        saver.save(runtime::SaveContents::All);
        go_on(trainer, 1, out);
        saver.finish();
    }
    runtime::Trainer trainer(compile::config_of(recipe), compiled, data);
    runtime::load(trainer, checkpoint::folder_of(root, 2));
    go_on(trainer, 3, out);
    return out;
}

TEST(EquivalenceLateDevice, SavesBesideAStepAndGoesOn) {
    int counted = 0;
    for (uint64_t seed = 1; counted < 6; ++seed) {
        std::optional<Draw> d = draw(seed, Dtype::F64);
        if (!d) continue;
        ++counted;
        d->recipe.set("checkpoint.enable", "true");
        d->recipe.set("checkpoint.async_mode", "async");
        d->compiled = compile_recipe(d->recipe, Backend::Reference);
        EXPECT_TRUE(stop_and_go_on(d->recipe, d->compiled) == stop_and_go_on(on_late_device(d->recipe, seed), d->compiled))
            << "seed " << seed << "\n"
            << d->recipe.toml();
    }
}

TEST(EquivalenceLateDevice, AWaitThatIsLeftOutShows) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "what it leaves out makes races, which the thread sanitizer reports";
#endif
    const auto in_order = [](const compile::Recipe& recipe, const compile::Compiled& compiled, uint64_t order) {
        return run(order == 0 ? recipe : on_late_device(recipe, order), compiled, 1);
    };
    const LeftOutWaits left = leave_out_waits({[](uint64_t seed) { return draw(seed, Dtype::F64); }, in_order});
    EXPECT_GE(left.needed, 10);
    EXPECT_GE(left.seen, left.needed * 0.95) << left.missed;
}

// Blocks are computed before their keys have come, or added to sums that have not, or what travels is written too early. Nothing
// shows where a window, documents or few targets leave nobody who sees keys of other ranks.
TEST(EquivalenceLateDevice, AWaitOfARingThatIsLeftOutShows) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "what it leaves out makes races, which the thread sanitizer reports";
#endif
    const auto draw_ring = [](uint64_t seed) {
        return draw(seed, Dtype::F64, false, [](const compile::Recipe& r) {
            const ir::Attrs shape = r.model_shape();
            const bool hides = r.flag("training.document_mask") || r.number("debug.synthetic_masked") > 0.5 ||
                               (shape.contains("sliding_window") && std::get<int64_t>(shape.at("sliding_window")) > 0);
            return !hides && r.integer("parallelism.context_parallel_degree") > 2 &&
                   r.text("parallelism.context_parallel_rotate_method") == "alltoall" &&
                   r.integer("parallelism.pipeline_parallel_degree") == 1;
        });
    };
    const auto in_order = [](const compile::Recipe& recipe, const compile::Compiled& compiled, uint64_t order) {
        return run(order == 0 ? recipe : on_late_device(recipe, order), compiled, 1);
    };
    const auto is_hop = [](const ir::Routine& r) {
        return std::any_of(r.ops.begin(), r.ops.end(),
                           [](const ir::Op& op) { return ir::is_collective(op, mesh::Collective::Permute); });
    };
    const auto of_ring = [is_hop](const ir::Routine& a, const ir::Routine& b) { return is_hop(a) || is_hop(b); };
    const LeftOutWaits left = leave_out_waits({.draw = draw_ring, .run = in_order, .between = of_ring});
    EXPECT_GE(left.needed, 10);
    EXPECT_GE(left.seen, left.needed * 0.95) << left.missed;
}

// Of the waits alone: those for copies of states, by updates and by who reads the copies.
enum class Forgets { Nothing, Wait, Record, CopyIn, CopyOut, UpdatesWait, ReadersWait };

// When copies of states are made: in any order, or when somebody waits for them.
enum class Copies { InAnyOrder, WhenWaitedFor };

// What devices were asked for.
struct Asked {
    std::atomic<int64_t> device_bytes = 0, host_bytes = 0;    // of memory
    std::atomic<int64_t> bytes_copied_out = 0, launches = 0;  // of the queue Snapshots
    std::atomic<bool> readers_are_late = false;               // who waits for that queue begins to when this is over
};

// Does the device's work, but for one kind of it.
class ForgetfulDevice final : public device::LateDevice {
public:
    ForgetfulDevice(device::LateMachine& machine, const device::DeviceOptions& options, Forgets what, Copies copies, Asked& asked)
        : LateDevice(machine, options), what_(what), copies_(copies), asked_(asked) {}

    using LateDevice::finish;
    void finish(device::Queue& queue) override {
        if (queue.name() == QueueName::Snapshots) {
            asked_.readers_are_late.wait(true);
            if (what_ == Forgets::ReadersWait) return;
            give_held();
        }
        LateDevice::finish(queue);
    }
    void wait(device::Queue& queue, device::Event event) override {
        const bool is_forgotten = what_ == Forgets::Wait || (what_ == Forgets::UpdatesWait && event == copied_);
        if (is_forgotten) return;
        if (event == copied_) give_held();
        LateDevice::wait(queue, event);
    }
    void record(device::Queue& queue, device::Event event) override {
        if (what_ == Forgets::Record) return;
        if (queue.name() != QueueName::Snapshots) return LateDevice::record(queue, event);
        copied_ = event;
        give_or_hold([this, &queue, event] { LateDevice::record(queue, event); });
    }
    char* allocate(int64_t bytes, Place place) override {
        char* memory = LateDevice::allocate(bytes, place);
        if (place == Place::Host) host_.emplace_back(memory, bytes);
        (place == Place::Host ? asked_.host_bytes : asked_.device_bytes) += bytes;
        return memory;
    }
    void copy(device::Queue& queue, void* to, const void* from, int64_t bytes) override {
        if (queue.name() == QueueName::Snapshots && is_of_host(to)) asked_.bytes_copied_out += bytes;
        if (what_ == Forgets::CopyIn && is_of_host(from)) return;
        if (what_ == Forgets::CopyOut && is_of_host(to)) return;
        if (queue.name() != QueueName::Snapshots) return LateDevice::copy(queue, to, from, bytes);
        give_or_hold([this, &queue, to, from, bytes] { LateDevice::copy(queue, to, from, bytes); });
    }
    void launch(device::Queue& queue, std::span<void* const> addresses, Work work) override {
        if (queue.name() == QueueName::Snapshots) ++asked_.launches;
        LateDevice::launch(queue, addresses, std::move(work));
    }

private:
    // Of the queue Snapshots.
    void give_or_hold(std::function<void()> give) {
        if (copies_ == Copies::InAnyOrder) return give();
        const std::lock_guard lock(mutex_);
        held_.push_back(std::move(give));
    }
    void give_held() {
        const std::lock_guard lock(mutex_);
        for (const std::function<void()>& give : std::exchange(held_, {})) give();
    }
    bool is_of_host(const void* address) const {
        const auto* at = static_cast<const char*>(address);
        return std::any_of(host_.begin(), host_.end(), [&](const auto& h) { return h.first <= at && at < h.first + h.second; });
    }
    const Forgets what_;
    const Copies copies_;
    Asked& asked_;
    std::mutex mutex_;
    std::vector<std::function<void()>> held_;
    std::optional<device::Event> copied_;
    std::vector<std::pair<char*, int64_t>> host_;
};

class ForgetfulMachine final : public device::LateMachine {
public:
    ForgetfulMachine(uint64_t seed, Forgets what, Copies copies = Copies::InAnyOrder)
        : LateMachine(seed), what_(what), copies_(copies) {}
    std::unique_ptr<device::Device> device(const device::DeviceOptions& options) override {
        return std::make_unique<ForgetfulDevice>(*this, options, what_, copies_, asked);
    }

    Asked asked;

private:
    const Forgets what_;
    const Copies copies_;
};

TEST(EquivalenceLateDevice, APlayerOrTransportThatForgetsShows) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "what it leaves out makes races, which the thread sanitizer reports";
#endif
    std::optional<Draw> d;
    for (uint64_t seed = 1; !d || d->compiled.layout.data_ranks == 1; ++seed) d = draw(seed, Dtype::F64);
    const data::SyntheticSource data = synthetic_data(d->recipe, d->compiled);
    const auto outcome = [&](std::shared_ptr<device::Machine> machine) {
        runtime::Trainer trainer(compile::config_of(d->recipe), d->compiled, data, nullptr, {std::move(machine)});
        start(trainer, d->recipe);
        Outcome out;
        go_on(trainer, 2, out);
        return out;
    };
    const Outcome host = outcome(nullptr);
    EXPECT_TRUE(host == outcome(device::late_machine(1)));
    for (const Forgets what : {Forgets::Wait, Forgets::Record, Forgets::CopyIn, Forgets::CopyOut}) {
        bool shows = false;
        for (uint64_t order = 0; order < 5 && !shows; ++order) {
            try {
                shows = host != outcome(std::make_shared<ForgetfulMachine>(order, what));
            } catch (const std::exception&) {
                shows = true;
            }
        }
        EXPECT_TRUE(shows) << "forgotten: " << static_cast<int>(what);
    }
}

// A layout with its checkpoints written beside training, and with training waiting for them.
struct Saving {
    compile::Recipe recipe;
    compile::Compiled compiled;
};
Saving saving(const Draw& d, const char* async) {
    Saving out{d.recipe, {}};
    out.recipe.set("checkpoint.enable", "true"), out.recipe.set("checkpoint.async_mode", async);
    out.compiled = compile_recipe(out.recipe, Backend::Reference);
    return out;
}
std::vector<Draw> draws_that_save(int count) {
    std::vector<Draw> out;
    for (uint64_t seed = 1; std::ssize(out) < count; ++seed) {
        if (std::optional<Draw> d = draw(seed, Dtype::F64)) out.push_back(std::move(*d));
    }
    return out;
}

constexpr int kSaves = 3;

// As long as it lives the saver's thread does not come to the copies.
class Late {
public:
    explicit Late(Asked* asked) : asked_(asked) { set(true); }
    ~Late() { set(false); }
    Late(const Late&) = delete;
    Late& operator=(const Late&) = delete;

private:
    void set(bool is_late) {
        if (!asked_) return;
        asked_->readers_are_late = is_late;
        asked_->readers_are_late.notify_all();
    }
    Asked* const asked_;
};

// Saves after each of three steps, and goes on with the next while the files are written: what those of each save hold. `late`:
// the saver's thread comes to the copies when that step is over.
std::vector<checkpoint::FileSums> files_saved(const Saving& s, std::shared_ptr<device::Machine> machine, Outcome& out,
                                              Asked* late = nullptr) {
    const ScratchFolder scratch;
    const data::SyntheticSource data = synthetic_data(s.recipe, s.compiled);
    runtime::Trainer trainer(compile::config_of(s.recipe), s.compiled, data, nullptr, {std::move(machine)});
    start(trainer, s.recipe);
    runtime::Saver saver(trainer, s.recipe, scratch.path("c"));
    go_on(trainer, 1, out);
    for (int save = 0; save < kSaves; ++save) {
        saver.finish();
        const Late comes_late(late);
        saver.save(runtime::SaveContents::All);
        go_on(trainer, 1, out);
    }
    saver.finish();
    std::vector<checkpoint::FileSums> files;
    for (int step = 1; step <= kSaves; ++step)
        files.push_back(checkpoint::read_manifest(checkpoint::folder_of(scratch.path("c"), step)).files);
    return files;
}

TEST(EquivalenceLateDevice, CheckpointsWrittenBesideTrainingAreThoseThatTrainingWaitsFor) {
    for (const Draw& d : draws_that_save(4)) {
        Outcome waited;
        const auto files = files_saved(saving(d, "disabled"), nullptr, waited);
        const Saving beside = saving(d, "async");
        for (uint64_t order = 0; order < 12; ++order) {
            Outcome out;
            const Copies copies = order % 4 < 2 ? Copies::InAnyOrder : Copies::WhenWaitedFor;
            const auto machine = std::make_shared<ForgetfulMachine>(order, Forgets::Nothing, copies);
            EXPECT_EQ(files_saved(beside, machine, out, order % 2 == 0 ? &machine->asked : nullptr), files)
                << "order " << order << "\n"
                << d.recipe.toml();
            EXPECT_TRUE(waited == out) << "order " << order << "\n" << d.recipe.toml();
        }
    }
}

// Copies of states go straight to the host's memory, by the device's own copies, and take none of the device's.
TEST(EquivalenceLateDevice, CopiesOfStatesTakeNoneOfItsMemory) {
    for (const Draw& d : draws_that_save(4)) {
        const Saving beside = saving(d, "async"), waits = saving(d, "disabled");
        Outcome ignored;
        const auto with = std::make_shared<ForgetfulMachine>(1, Forgets::Nothing),
                   without = std::make_shared<ForgetfulMachine>(1, Forgets::Nothing);
        files_saved(beside, with, ignored), files_saved(waits, without, ignored);
        int64_t planned = 0, copied = 0;
        for (const ir::Program* p : beside.compiled.of_ranks()) {
            planned += p->arena_bytes[Place::Host];
            for (const ir::Call& c : p->entry(ir::EntryKind::Snapshot)->calls) {
                const ir::Routine& r = p->routines[static_cast<size_t>(c.routine)];
                for (const ir::Op& op : r.ops) copied += ir::local_bytes(p->mesh, r, r.tensors[static_cast<size_t>(op.out[0])]);
            }
        }
        EXPECT_EQ(with->asked.device_bytes, without->asked.device_bytes);
        EXPECT_GE(with->asked.host_bytes, planned);
        EXPECT_GT(planned, 0);
        EXPECT_EQ(with->asked.bytes_copied_out, kSaves * copied);
        EXPECT_EQ(with->asked.launches, 0);
        EXPECT_EQ(without->asked.bytes_copied_out, 0) << "of live states host code has copies made on another queue";
    }
}

// The states that are copied, or the copies, as they stand on all ranks.
std::string bytes_of(runtime::Trainer& trainer, Place place) {
    std::string out;
    for (const auto& e : trainer.ranks().here()) {
        const ir::Program& p = e->program();
        for (size_t b = 0; b < p.buffers.size(); ++b) {
            const ir::Buffer& copy = p.buffers[b];
            if (copy.place != Place::Host) continue;
            const ir::StateId state = p.states[static_cast<size_t>(copy.state)].copy_of;
            const int buffer = place == Place::Host ? static_cast<int>(b) : p.buffer(state, copy.instance);
            e->read(buffer, 0, copy.bytes, [&](const char* data) { out.append(data, static_cast<size_t>(copy.bytes)); });
        }
    }
    return out;
}

// How many of some rounds leave other copies than the states were: copies are begun, a step is taken beside them, and they are
// read, after the step or before it.
int wrong_copies(const Saving& s, uint64_t order, Forgets what) {
    const data::SyntheticSource data = synthetic_data(s.recipe, s.compiled);
    runtime::Trainer trainer(compile::config_of(s.recipe), s.compiled, data, nullptr,
                             {std::make_shared<ForgetfulMachine>(order, what, Copies::WhenWaitedFor)});
    start(trainer, s.recipe);
    trainer.step();
    int wrong = 0;
    for (int round = 0; round < 5; ++round) {
        const std::string live = bytes_of(trainer, Place::Device);
        for (const auto& e : trainer.ranks().here()) e->begin_snapshot();
        if (what != Forgets::ReadersWait) trainer.step();
        for (const auto& e : trainer.ranks().here()) e->snapshot();
        wrong += bytes_of(trainer, Place::Host) != live ? 1 : 0;
        if (what == Forgets::ReadersWait) trainer.step();
    }
    return wrong;
}

TEST(EquivalenceLateDevice, AWaitForCopiesOfStatesThatIsLeftOutShows) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "what it leaves out makes races, which the thread sanitizer reports";
#endif
    const Saving beside = saving(draws_that_save(1)[0], "async");
    for (const Forgets what : {Forgets::Nothing, Forgets::UpdatesWait, Forgets::ReadersWait}) {
        for (uint64_t order = 0; order < 8; ++order)
            EXPECT_EQ(wrong_copies(beside, order, what) > 0, what != Forgets::Nothing)
                << "forgotten: " << static_cast<int>(what) << ", order " << order;
    }
}

}  // namespace
}  // namespace lockstep::testing
