// Training on the device of a GPU, on the fakes, in this process.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/gpu/moves.h"
#include "compile/compile.h"
#include "device/gpu/gpu.h"
#include "kernels/cuda/products.h"
#include "kernels/gpu/any_type.h"
#include "kernels/gpu/catalog.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"
#include "tests/fakes/cuda/fake.h"

namespace lockstep::testing {

// With the kernels of the module, but for those of these ops; without cuDNN's, which have a test of their own. What GPUs of 9.0
// and of 10.0 have by one name and types is made as for 9.0: of 10.0 there are MX formats alone.
inline compile::Compiled compile_for_gpu(const compile::Recipe& recipe, const std::set<std::string>& without = {},
                                         compile::CompileOptions options = {}, int compute_capability = 90) {
    using kernels::cuda::product_kernels;
    [[maybe_unused]] static const bool once = [] {
        for (const auto* list : {&product_kernels(90), &product_kernels(100), &kernels::gpu::all_kernels()})
            kernels::add_backend(*list);
        return true;
    }();
    options.catalog.name = "gpu", options.catalog.origin = "a test", options.catalog.key = "runtime.kernels";
    for (const auto* list : {&product_kernels(compute_capability), &kernels::gpu::all_kernels()})
        kernels::add_to(options.catalog, *list);
    std::erase_if(options.catalog.entries, [&](const ops::KernelEntry& e) { return without.contains(e.op); });
    return compile::compile(recipe, options);
}

// A GPU has no kernels in float64.
inline std::vector<NamedSettings> settings_of_a_gpu() {
    std::vector<NamedSettings> all = sample_settings();
    std::erase_if(all, [](const NamedSettings& s) {
        return std::find(s.settings.begin(), s.settings.end(),
                         std::pair<std::string, std::string>("training.dtype", "float64")) != s.settings.end();
    });
    return all;
}

// A GPU whose queues run as the seed has it.
inline runtime::Backend fake_gpu(uint64_t seed) {
    fakes::cuda::reset(seed);
    return {device::gpu::machine(kernels::gpu::add_one), &comm::gpu::moves()};
}

// A few steps: losses, norms and weights.
inline Outcome train(const compile::Recipe& recipe, const compile::Compiled& compiled, runtime::Backend backend, int steps,
                     comm::ProcessGroup* group = nullptr) {
    const data::SyntheticSource data = synthetic_data(recipe, compiled);
    runtime::Trainer trainer(compile::config_of(recipe), compiled, data, group, std::move(backend));
    start(trainer, recipe);
    Outcome out;
    try {
        go_on(trainer, steps, out);
    } catch (const std::exception& e) {
        throw std::runtime_error(std::string(e.what()) + ". " + fakes::cuda::refusal());
    }
    return out;
}

}  // namespace lockstep::testing
