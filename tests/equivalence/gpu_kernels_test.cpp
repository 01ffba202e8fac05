// Random layouts whose ops run by the kernels of GPUs, on the emulator: near the kernels of the host, and with equal bits on the
// device that runs late and in any order of warps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/gpu/emulator.h"
#include "tests/equivalence/draw.h"

namespace lockstep::testing {
namespace {

using kernels::gpu::emulator::Order;

// The kernels that ops run by: those of GPUs, and others.
struct Served {
    std::set<std::string> kernels, others;

    void count(const compile::Compiled& compiled) {
        for (const ir::Program& p : compiled.programs) {
            for (const ir::Routine& r : p.routines) {
                for (const ir::Op& op : r.ops) {
                    if (op.kernel.empty() || op.kernel == "comm") continue;
                    (op.kernel.starts_with("gpu.") ? kernels : others).insert(op.kernel);
                }
            }
        }
    }
};

void hold_to_the_host(bool mixed, double tolerance, int wanted) {
    constexpr int kSteps = 3;
    Served served;
    for (uint64_t seed = 1; wanted > 0; ++seed) {
        const std::optional<Draw> d = draw(seed, Dtype::F32, mixed);
        if (!d) continue;
        --wanted;
        const std::string again = fmt::format("seed {}\n{}", seed, d->recipe.toml());
        try {
            const compile::Compiled compiled = compile_recipe(d->recipe, Backend::EmulatedGpu);
            served.count(compiled);
            const Outcome host = run(d->recipe, d->compiled, kSteps);
            kernels::gpu::emulator::set_order(Order::Ascending);
            const Outcome gpu = run(d->recipe, compiled, kSteps);
            std::string where;
            const double apart = difference(host, gpu, &where);
            EXPECT_LE(apart, tolerance) << "at " << where << ", " << again;

            kernels::gpu::emulator::set_order(Order::Shuffled, static_cast<uint32_t>(seed));
            compile::Recipe late = d->recipe;
            late.set("debug.device", "late");
            late.set("debug.device_seed", std::to_string(seed));
            const Outcome other = run(late, compiled, kSteps);
            EXPECT_TRUE(gpu == other) << difference(gpu, other, &where) << " at " << where << ", " << again;
        } catch (const std::exception& e) {
            ADD_FAILURE() << e.what() << "\n" << again;
        }
    }
    kernels::gpu::emulator::set_order(Order::Ascending);
    EXPECT_EQ(served.others, std::set<std::string>{});
    EXPECT_GE(served.kernels.size(), 30u);
    // Those of blocks of several ranks, too, which the table of op cases does not have.
    for (const char* kernel : {"gpu.slice", "gpu.block", "gpu.join_blocks", "gpu.sum_blocks"})
        EXPECT_TRUE(served.kernels.contains(kernel)) << kernel;
}

TEST(EquivalenceGpuKernels, LayoutsAreNearTheHostFloat32) { hold_to_the_host(false, 2e-4, 7); }
TEST(EquivalenceGpuKernels, LayoutsAreNearTheHostBfloat16) { hold_to_the_host(true, 3e-2, 7); }

}  // namespace
}  // namespace lockstep::testing
