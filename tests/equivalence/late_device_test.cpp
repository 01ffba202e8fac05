// Layouts on the device that runs late (device/late.h) have the bits that they have on the host, whatever the order of its
// queues; what forgets a wait, a record or a copy has others. LOCKSTEP_DRAWS: how many layouts count.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "check/check.h"
#include "device/late.h"
#include "runtime/load_states.h"
#include "runtime/saver.h"
#include "tests/base/scratch_folder.h"
#include "tests/equivalence/draw.h"
#include "tests/equivalence/left_out_waits.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 3;

int64_t draws(int64_t otherwise) {
    const char* text = std::getenv("LOCKSTEP_DRAWS");
    return text ? std::atoll(text) : otherwise;
}

bool same(const Outcome& a, const Outcome& b) {
    return a.losses == b.losses && a.grad_norms == b.grad_norms && a.weights == b.weights;
}

compile::Recipe on_late_device(compile::Recipe recipe, uint64_t seed) {
    recipe.set("debug.device", "late");
    recipe.set("debug.device_seed", std::to_string(seed));
    return recipe;
}

void hold_to_the_host(Dtype dtype, bool mixed, int64_t wanted) {
    for (uint64_t seed = 1; wanted > 0; ++seed) {
        const std::optional<Draw> d = draw(seed, dtype, mixed);
        if (!d) continue;
        --wanted;
        const std::string again = fmt::format("seed {}\n{}", seed, d->recipe.toml());
        try {
            const Outcome host = run(d->recipe, d->compiled, kSteps);
            const Outcome late = run(on_late_device(d->recipe, seed), d->compiled, kSteps);
            std::string where;
            EXPECT_TRUE(same(host, late)) << difference(host, late, &where) << " at " << where << ", " << again;
        } catch (const std::exception& e) {
            ADD_FAILURE() << e.what() << "\n" << again;
        }
    }
}

TEST(EquivalenceLateDevice, EveryLayoutHasTheBitsOfTheHostFloat64) { hold_to_the_host(Dtype::F64, false, draws(40)); }
TEST(EquivalenceLateDevice, EveryLayoutHasTheBitsOfTheHostFloat32) {
    hold_to_the_host(Dtype::F32, false, std::max<int64_t>(1, draws(40) / 4));
}
TEST(EquivalenceLateDevice, EveryLayoutHasTheBitsOfTheHostBfloat16) {
    hold_to_the_host(Dtype::F32, true, std::max<int64_t>(1, draws(40) / 4));
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
        EXPECT_TRUE(same(stop_and_go_on(d->recipe, d->compiled), stop_and_go_on(on_late_device(d->recipe, seed), d->compiled)))
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
    fmt::print("{} of {} waits that are needed and were left out showed\n{}", left.seen, left.needed, left.missed);
    EXPECT_GE(left.needed, 10);
    EXPECT_GE(left.seen, left.needed * 0.95) << left.missed;
}

enum class Forgets { Wait, Record, CopyIn, CopyOut };

// Does the device's work, but for one kind of it.
class ForgetfulDevice final : public device::LateDevice {
public:
    ForgetfulDevice(device::LateMachine& machine, const device::DeviceOptions& options, Forgets what)
        : LateDevice(machine, options), what_(what) {}

    void wait(device::Queue& queue, device::Event event) override {
        if (what_ != Forgets::Wait) LateDevice::wait(queue, event);
    }
    void record(device::Queue& queue, device::Event event) override {
        if (what_ != Forgets::Record) LateDevice::record(queue, event);
    }
    char* allocate(int64_t bytes, device::MemorySpace place) override {
        char* memory = LateDevice::allocate(bytes, place);
        if (place == device::MemorySpace::Host) host_.emplace_back(memory, bytes);
        return memory;
    }
    void copy(device::Queue& queue, void* to, const void* from, int64_t bytes) override {
        if (what_ == Forgets::CopyIn && is_staging(from)) return;
        if (what_ == Forgets::CopyOut && is_staging(to)) return;
        LateDevice::copy(queue, to, from, bytes);
    }

private:
    bool is_staging(const void* address) const {
        const auto* at = static_cast<const char*>(address);
        return std::any_of(host_.begin(), host_.end(), [&](const auto& h) { return h.first <= at && at < h.first + h.second; });
    }
    const Forgets what_;
    std::vector<std::pair<char*, int64_t>> host_;
};

class ForgetfulMachine final : public device::LateMachine {
public:
    ForgetfulMachine(uint64_t seed, Forgets what) : LateMachine(seed), what_(what) {}
    std::unique_ptr<device::Device> device(const device::DeviceOptions& options) override {
        return std::make_unique<ForgetfulDevice>(*this, options, what_);
    }

private:
    const Forgets what_;
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
    EXPECT_TRUE(same(host, outcome(device::late_machine(1))));
    for (const Forgets what : {Forgets::Wait, Forgets::Record, Forgets::CopyIn, Forgets::CopyOut}) {
        bool shows = false;
        for (uint64_t order = 0; order < 5 && !shows; ++order) {
            try {
                shows = !same(host, outcome(std::make_shared<ForgetfulMachine>(order, what)));
            } catch (const std::exception&) {
                shows = true;
            }
        }
        EXPECT_TRUE(shows) << "forgotten: " << static_cast<int>(what);
    }
}

}  // namespace
}  // namespace lockstep::testing
