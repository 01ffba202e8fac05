// Ranks that have a process and a GPU each, on the fakes: NCCL gives the bits of every other transport, alone and in training.
#include <gtest/gtest.h>

#include "comm/nccl/nccl_transport.h"
#include "tests/comm/process_groups.h"
#include "tests/comm/queued_job.h"
#include "tests/gpu/on_fakes/training.h"

namespace lockstep::comm::test {
namespace {

void another_schedule(int ranks) {
    static std::atomic<uint64_t> seed = 0;
    fakes::cuda::reset(++seed);
    fakes::cuda::allow_ranks_per_device(ranks);
}

Job nccl_job(const std::string& name, int ranks, const nccl::Options& options = {}) {
    const mesh::Topology topology = {std::vector<int>(static_cast<size_t>(ranks), 0), 1};
    return {name + std::to_string(ranks), topology, [ranks, options](const Body& body) {
                another_schedule(ranks);
                Errors errors;
                std::mutex mutex;
                in_process_groups(std::vector<int>(static_cast<size_t>(ranks), 0), [&](ProcessGroup& group) {
                    const std::unique_ptr<device::Machine> machine = device::gpu::machine(kernels::gpu::add_one);
                    const std::unique_ptr<Transport> world = nccl::transport(group, ranks, gpu::moves(), options);
                    std::string error;
                    {
                        Staged communicator(world->communicator(group.process()), *machine);
                        try {
                            body(communicator);
                        } catch (const std::exception& e) {
                            error = e.what() + (". " + fakes::cuda::refusal());
                        }
                    }
                    const std::lock_guard lock(mutex);
                    errors[group.process()] = error;
                });
                return errors;
            }};
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommBits,
                         ::testing::Values(nccl_job("Nccl", 2), nccl_job("Nccl", 3), nccl_job("NcclInChunks", 3, {16 << 10, 0})),
                         name_of_job);

}  // namespace
}  // namespace lockstep::comm::test

namespace lockstep::testing {
namespace {

class GpuProcesses : public ::testing::TestWithParam<NamedSettings> {};

// Call by call, and from the second step on as a graph.
TEST_P(GpuProcesses, HaveTheBitsOfRanksThatShareAGpu) {
    constexpr int kSteps = 4;
    compile::Recipe recipe = small_recipe(GetParam().settings);
    const compile::Compiled compiled = compile_for_gpu(recipe);
    const Outcome threads = train(recipe, compiled, fake_gpu(1), kSteps);
    const auto ranks = static_cast<int>(compiled.layout.ranks);
    for (const char* graph : {"false", "true"}) {
        recipe.set("runtime.cuda_graph", graph);
        for (int schedule = 0; schedule < 3; ++schedule) {
            comm::test::another_schedule(ranks);
            std::vector<Outcome> of_process(static_cast<size_t>(ranks));
            const auto errors =
                comm::test::in_process_groups(std::vector<int>(static_cast<size_t>(ranks), 0), [&](comm::ProcessGroup& group) {
                    const auto across = [](comm::ProcessGroup& g, int n) {
                        return comm::nccl::transport(g, n, comm::gpu::moves());
                    };
                    const runtime::Backend backend = {device::gpu::machine(kernels::gpu::add_one), &comm::gpu::moves(), across};
                    of_process[static_cast<size_t>(group.process())] = train(recipe, compiled, backend, kSteps, &group);
                });
            for (const std::exception_ptr& e : errors) {
                if (e) std::rethrow_exception(e);
            }
            EXPECT_EQ(fakes::cuda::counts().graph_launches, *graph == 't' ? (kSteps - 1) * ranks : 0);
            for (const Outcome& outcome : of_process) EXPECT_TRUE(same_bits(threads, outcome)) << "graph: " << graph;
        }
    }
}

std::vector<NamedSettings> settings_of_processes() {
    std::vector<NamedSettings> some = sample_settings();
    std::erase_if(some, [](const NamedSettings& s) {
        const std::set<std::string> names = {"four_way_tp_with_cut_heads",
                                             "zero3_recompute",
                                             "hybrid_states_over_world",
                                             "tied_padded_vocab_qk_norm",
                                             "bfloat16_zero3_tp_recompute",
                                             "gpt2_with_dropout",
                                             "pipeline",
                                             "pipeline_tied_interleaved"};
        return !names.contains(s.name);
    });
    return some;
}
INSTANTIATE_TEST_SUITE_P(Settings, GpuProcesses, ::testing::ValuesIn(settings_of_processes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
