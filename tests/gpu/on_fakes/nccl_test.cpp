// Ranks that have a process and a GPU each, on the fakes: NCCL, and GPUs that write to each other's memory, give the bits of every
// other transport, alone and in training.
#include <gtest/gtest.h>

#include "comm/peer/memory.h"
#include "ir/text.h"
#include "tests/comm/queued_job.h"
#include "tests/gpu/on_fakes/processes.h"

namespace lockstep::comm::test {
namespace {

Job job_of_processes(const std::string& name, int ranks, Staged::By by, const ExchangeOptions& options = {}) {
    const mesh::Topology topology = {std::vector<int>(static_cast<size_t>(ranks), 0), 1};
    return {name + std::to_string(ranks), topology, [ranks, by, options](const Body& body) {
                testing::another_schedule(ranks);
                Errors errors;
                std::mutex mutex;
                in_process_groups(std::vector<int>(static_cast<size_t>(ranks), 0), [&](ProcessGroup& group) {
                    const std::unique_ptr<device::Machine> machine = device::gpu::machine(kernels::gpu::add_one);
                    std::unique_ptr<Transport> world = nccl::transport(group, ranks, gpu::moves(), options);
                    if (by != Staged::By::Any) world = peer::transport(group, std::move(world), gpu::moves(), options);
                    std::string error;
                    {
                        Staged communicator(world->communicator(group.process()), *machine, by);
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

using By = Staged::By;
INSTANTIATE_TEST_SUITE_P(Nccl, CommBits,
                         ::testing::Values(job_of_processes("Nccl", 2, By::Any), job_of_processes("Nccl", 3, By::Any),
                                           job_of_processes("NcclInChunks", 3, By::Any, {16 << 10, 0})),
                         name_of_job);
// To buffers at equal offsets, and by room.
INSTANTIATE_TEST_SUITE_P(Peers, CommBits,
                         ::testing::Values(job_of_processes("Peers", 2, By::PeersAlike),
                                           job_of_processes("Peers", 3, By::PeersAlike),
                                           job_of_processes("PeersInChunks", 3, By::PeersAlike, {16 << 10, 0}),
                                           job_of_processes("PeersByRoom", 2, By::Peers),
                                           job_of_processes("PeersByRoomInChunks", 3, By::Peers, {16 << 10, 0})),
                         name_of_job);

TEST(Peers, SayAlikeWhyTheyCannotReachEachOther) {
    for (const bool works : {true, false}) {
        testing::another_schedule(4);
        fakes::cuda::set_ipc(works);
        std::mutex mutex;
        std::set<std::string> said;
        in_process_groups({0, 0, 1, 1}, [&](ProcessGroup& group) {
            const std::string why = peer::why_not(group);
            const std::lock_guard lock(mutex);
            said.insert(why);
        });
        EXPECT_EQ(said, std::set<std::string>{works ? "" : "process 0: cudaIpcGetMemHandle: operation not supported"});
    }
}

// Sums of whole numbers, which no order changes. A block has one row or several; a reduction may write over its own block.
TEST(NcclSums, ByTheLibrary) {
    constexpr int kRanks = 3;
    std::atomic<int> wrong = 0;
    const Errors errors = job_of_processes("Library", kRanks, By::Any).run([&](Communicator& comm) {
        const GroupId all = comm.add_group({0, 1, 2});
        comm.connect();
        const int me = comm.position(all);
        const auto value = [](int rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 7)); };
        for (Collective kind : {Collective::ReduceScatter, Collective::AllReduce}) {
            for (int64_t outer : {1, 4}) {
                for (bool in_place : {false, true}) {
                    if (kind == Collective::ReduceScatter && in_place && outer > 1) continue;
                    Request r;
                    r.kind = kind, r.outer = outer, r.dim = 5, r.inner = 3;
                    r.algorithm = mesh::CollectiveAlgorithm{mesh::GatherBy::Ring, mesh::ReduceBy::Library};
                    const int64_t run = r.dim * r.inner, parts = kind == Collective::ReduceScatter ? kRanks : 1;
                    std::vector<float> in(static_cast<size_t>(outer * parts * run)), out(static_cast<size_t>(outer * run), -1);
                    for (size_t i = 0; i < in.size(); ++i) in[i] = value(me, static_cast<int64_t>(i));
                    r.in = in.data(), r.out = out.data();
                    if (in_place) r.out = in.data() + (parts > 1 ? me * run : 0);
                    comm.run(0, all, r);
                    const auto* got = static_cast<const float*>(r.out);
                    for (int64_t i = 0; i < outer * run; ++i) {
                        const int64_t from = parts == 1 ? i : (i / run * parts + me) * run + i % run;
                        wrong += got[i] != value(0, from) + value(1, from) + value(2, from);
                    }
                }
            }
        }
    });
    expect_all(errors, "");
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace lockstep::comm::test

namespace lockstep::testing {
namespace {

class GpuProcesses : public ::testing::TestWithParam<NamedSettings> {};

// Call by call, and from the second step on as a graph.
TEST_P(GpuProcesses, HaveTheBitsOfRanksThatShareAGpu) {
    constexpr int kSteps = 3;
    compile::Recipe recipe = small_recipe(GetParam().settings);
    const compile::Compiled compiled = compile_for_gpu(recipe);
    const Outcome threads = train(recipe, compiled, fake_gpu(1), kSteps);
    const auto ranks = static_cast<int>(compiled.layout.ranks);
    const compile::Compiled peers = compile_for_peers(recipe);
    for (const compile::Compiled* by : {&compiled, &peers}) {
        for (const char* graph : {"false", "true"}) {
            recipe.set("runtime.cuda_graph", graph);
            for (int schedule = 0; schedule < 2; ++schedule) {
                const std::vector<Outcome> of_process = train_in_processes(recipe, *by, kSteps);
                EXPECT_EQ(fakes::cuda::counts().graph_launches, *graph == 't' ? (kSteps - 1) * ranks : 0);
                EXPECT_EQ(fakes::cuda::counts().value_waits > 0, by == &peers);
                for (const Outcome& outcome : of_process)
                    EXPECT_TRUE(threads == outcome) << "graph: " << graph << ", by peers: " << (by == &peers);
            }
        }
    }
}

// Sums by NCCL: other bits than those of ranks in their order, or the same, and the same in every schedule.
TEST(GpuProcessesByNccl, TrainNearExactSums) {
    Settings settings = {{"parallelism.data_parallel_shard_degree", "2"},
                         {"parallelism.tensor_parallel_degree", "2"},
                         {"partition.preset", "zero2"},
                         {"training.global_batch_size", "8"},
                         {"training.local_batch_size", "2"}};
    const Outcome exact = train(small_recipe(settings), compile_for_gpu(small_recipe(settings)), fake_gpu(1), 4);
    settings.emplace_back("comm.reductions", "nccl");
    const compile::Recipe recipe = small_recipe(settings);
    compile::CompileOptions options;
    options.route = {mesh::even_hosts(4, 4, 1), mesh::kSmallBytes, true};
    const compile::Compiled compiled = compile_for_gpu(recipe, {}, options);
    const std::string text = ir::print(compiled.programs[0]);
    EXPECT_NE(text.find("reduce='library'"), std::string::npos);
    EXPECT_EQ(text.find("reduce='direct'"), std::string::npos);
    std::optional<Outcome> first;
    for (int schedule = 0; schedule < 3; ++schedule) {
        const std::vector<Outcome> outcomes = train_in_processes(recipe, compiled, 4);
        for (const Outcome& outcome : outcomes) {
            EXPECT_LE(difference(exact, outcome), 1e-5);
            if (!first) first = outcome;
            EXPECT_TRUE(*first == outcome);
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
