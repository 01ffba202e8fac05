// Training by processes of one rank each, which threads stand for, on the fakes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "comm/nccl/nccl_transport.h"
#include "comm/peer/peer_transport.h"
#include "tests/comm/process_groups.h"
#include "tests/gpu/on_fakes/training.h"

namespace lockstep::testing {

inline void another_schedule(int ranks) {
    static std::atomic<uint64_t> seed = 0;
    fakes::cuda::reset(++seed);
    fakes::cuda::allow_ranks_per_device(ranks);
}

// Of one host, whose GPUs write to each other's memory.
inline compile::Compiled compile_for_peers(const compile::Recipe& recipe) {
    compile::CompileOptions options;
    const int64_t ranks = compile::layout_of(compile::config_of(recipe)).ranks;
    options.route.topology = mesh::even_hosts(ranks, ranks, 1);
    options.route.topology.peers = true;
    return compile_for_gpu(recipe, {}, options);
}

// f(trainer) in each process, in another schedule each time; `settings`: of the fakes, before the processes begin. Throws what
// ended the first process that something ended.
inline void in_processes(
    const compile::Recipe& recipe, const compile::Compiled& compiled, const std::function<void(runtime::Trainer&)>& f,
    const std::function<void()>& settings = [] {}) {
    const auto ranks = static_cast<int>(compiled.layout.ranks);
    another_schedule(ranks);
    settings();
    const data::SyntheticSource data = synthetic_data(recipe, compiled);
    const auto errors =
        comm::test::in_process_groups(std::vector<int>(static_cast<size_t>(ranks), 0), [&](comm::ProcessGroup& group) {
            const auto across = [](comm::ProcessGroup& g, int n, bool by_peers) {
                std::unique_ptr<comm::Transport> all = comm::nccl::transport(g, n, comm::gpu::moves());
                return by_peers ? comm::peer::transport(g, std::move(all), comm::gpu::moves()) : std::move(all);
            };
            runtime::Backend backend = {device::gpu::machine(kernels::gpu::add_one), &comm::gpu::moves(), across};
            runtime::Trainer trainer(compile::config_of(recipe), compiled, data, &group, std::move(backend));
            start(trainer, recipe);
            try {
                f(trainer);
            } catch (const std::exception& e) {
                throw std::runtime_error(std::string(e.what()) + ". " + fakes::cuda::refusal());
            }
        });
    for (const std::exception_ptr& e : errors) {
        if (e) std::rethrow_exception(e);
    }
}

// By each process.
inline std::vector<Outcome> train_in_processes(
    const compile::Recipe& recipe, const compile::Compiled& compiled, int steps, const std::function<void()>& settings = [] {}) {
    std::vector<Outcome> of_process(static_cast<size_t>(compiled.layout.ranks));
    const auto train = [&](runtime::Trainer& trainer) {
        go_on(trainer, steps, of_process[static_cast<size_t>(trainer.ranks().group().process())]);
    };
    in_processes(recipe, compiled, train, settings);
    return of_process;
}

}  // namespace lockstep::testing
