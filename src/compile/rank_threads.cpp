#include "compile/rank_threads.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::compile {

RankThreads rank_threads_of(const Config& config, int64_t ranks, int cores) {
    RankThreads p;
    p.ranks = ranks, p.cores = cores;
    p.threads_per_rank = static_cast<int>(config.runtime.threads_per_rank);
    if (p.threads_per_rank == 0) p.threads_per_rank = static_cast<int>(std::max<int64_t>(1, cores / ranks));
    const CommThread comm = config.runtime.comm_thread;
    p.comm_thread = comm == CommThread::On || (comm == CommThread::Auto && cores > ranks * p.threads_per_rank);
    return p;
}

std::string hides_nothing(const Config& config, const RankThreads& p) {
    const Config::Parallelism& parallelism = config.parallelism;
    const bool cuts =
        parallelism.enable_async_tensor_parallel && parallelism.sequence_parallel && parallelism.tensor_parallel_degree > 1;
    const bool rings =
        parallelism.context_parallel_degree > 1 && parallelism.context_parallel_rotate_method == RotateMethod::Alltoall;
    if ((!cuts && !rings) || p.comm_thread) return "";
    const std::string why =
        config.runtime.comm_thread == CommThread::Off
            ? "runtime.comm_thread is \"off\""
            : fmt::format("no core is free for threads that communicate: {} cores for {} rank{} of {} thread{}", p.cores, p.ranks,
                          p.ranks == 1 ? "" : "s", p.threads_per_rank, p.threads_per_rank == 1 ? "" : "s");
    return std::string(cuts ? "parallelism.enable_async_tensor_parallel" : "a ring of context ranks") + " hides nothing, as " +
           why;
}

mesh::Link local_link(const Config& config) {
    return {config.runtime.local_link_bytes_per_s, config.runtime.local_link_latency_s};
}

}  // namespace lockstep::compile
