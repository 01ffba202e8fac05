#include "runtime/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <random>
#include <string>

#include "base/error.h"
#include "base/processors.h"
#include "comm/queued.h"
#include "ops/algorithms.h"

namespace lockstep::runtime {
namespace {

void pin_this_thread(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpu), &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Processes that say the same share these processors: also those of several containers on one machine, which are hosts to MPI.
std::string own_processors(const comm::ProcessGroup& group) {
    const std::string kernel = running_kernel();
    return fmt::format("{} of {}", usable_cpus(),
                       kernel.empty() ? fmt::format("host {}", group.host_of(group.process())) : kernel);
}

std::unique_ptr<comm::Transport> transport_of(const device::Machine& machine, const RanksOptions& options,
                                              comm::ProcessGroup& group, const std::vector<ir::Program>& programs) {
    const auto ranks = static_cast<int>(programs[0].mesh.world_ranks());
    if (machine.is_host()) return group.transport(ranks, options.links);
    if (!group.is_alone() && options.backend.across_processes)
        return options.backend.across_processes(group, ranks, std::ranges::any_of(programs, ops::any_by_peers));
    if (!group.is_alone())
        throw UserError(
            "job.device", "runtime.kernels",
            fmt::format("the ranks of a GPU (runtime.kernels = \"cuda\") and of debug.device = \"late\" are threads of one "
                        "process, and the job has {}: run it in one process, or with the host's kernels and device",
                        group.processes()));
    return std::make_unique<comm::QueuedTransport>(ranks, options.links, *options.backend.moves);
}

}  // namespace

Ranks::Ranks(const std::vector<ir::Program>& programs, const RanksOptions& options)
    : programs_(programs),
      group_(options.group ? *options.group : alone_),
      exceptions_(std::uncaught_exceptions()),
      machine_(options.backend.machine ? options.backend.machine : device::host_machine()),
      transport_(transport_of(*machine_, options, group_, programs)),
      processors_of_(group_.exchange(own_processors(group_))) {
    const auto n = static_cast<size_t>(transport_->ranks_here());
    communicators_.resize(n), members_.resize(n), executors_.resize(n), errors_.resize(n);
    for (size_t r = 0; r < n; ++r) communicators_[r] = transport_->communicator(transport_->first_rank() + static_cast<int>(r));
    if (options.islands) meet_islands(options);
    running_ = static_cast<int>(n);
    for (size_t r = 0; r < n; ++r) threads_.emplace_back([this, r, options] { work(r, options); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_ == 0; });
    for (const std::exception_ptr& e : errors_) {
        if (!e) continue;
        stop_ = true;
        changed_.notify_all();
        lock.unlock();
        for (std::thread& t : threads_) t.join();
        std::rethrow_exception(e);
    }
}

Ranks::~Ranks() {
    // Before the queues are waited for, which may wait for other ranks, and before the transport waits for the other processes,
    // which may wait for the process group.
    if (std::uncaught_exceptions() > exceptions_) {
        const std::string reason = fmt::format("process {} ended early", group_.process());
        group_.abort(reason);
        transport_->abort(reason);
    }
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) {
        if (t.joinable()) t.join();
    }
}

void Ranks::meet_islands(const RanksOptions& options) {
    std::random_device random;
    const uint64_t own = (uint64_t{random()} << 32 | random()) | 1;
    const uint64_t session = std::stoull(group_.exchange(std::to_string(own))[0]);
    for (size_t r = 0; r < members_.size(); ++r) {
        comm::Communicator& c = *communicators_[r];
        // Throws where the job has been aborted.
        const auto attend = [&c, itself = c.add_group({c.rank()})] { c.barrier(0, itself); };
        members_[r] = std::make_unique<comm::islands::Member>(*options.islands,
                                                              comm::islands::Place{options.island, c.rank(), c.ranks(), session},
                                                              options.island_timeout_s, attend);
    }
}

// Pins each thread to a processor: its own, or one of several that equal numbers of threads share. All threads then take
// equally long. The system's scheduler does not know of barriers: without pinning it sometimes gives one rank a whole processor
// while the others share another.
void Ranks::pin(size_t place, ExecutorOptions& own) const {
    const std::vector<int> cpus = usable_cpus();
    own.comm_cpus = cpus;  // any: what computing leaves over
    // Ranks of processes that share them, in the order of their numbers.
    const auto self = processors_of_.begin() + group_.process();
    const int64_t each = transport_->ranks_here(),
                  before = each * std::count(processors_of_.begin(), self, *self) + static_cast<int64_t>(place),
                  all = each * std::count(processors_of_.begin(), processors_of_.end(), *self);
    const auto count = static_cast<int64_t>(cpus.size()), wanted = own.threads * all;
    if (wanted > count && wanted % count != 0) return;
    for (int t = 0; t < own.threads; ++t) own.cpus.push_back(cpus[static_cast<size_t>((before * own.threads + t) % count)]);
    pin_this_thread(own.cpus[0]);
}

void Ranks::work(size_t place, const RanksOptions& options) {
    const int rank = transport_->first_rank() + static_cast<int>(place);
    const ir::Program& program = programs_[static_cast<size_t>(programs_[0].mesh.pipeline_rank_of(rank))];
    ExecutorOptions own;
    own.threads = options.threads_per_rank, own.comm_thread = options.comm_thread, own.debug_fill = options.debug_fill,
    own.graphs = options.graphs && !options.delay_s;
    own.flight_entries = options.flight_entries, own.delay_s = options.delay_s, own.islands = members_[place].get();
    if (options.pin_threads) pin(place, own);
    const auto attempt = [&](const auto& f) {
        try {
            f();
        } catch (const comm::Aborted&) {
            if (!errors_[place]) errors_[place] = std::current_exception();
        } catch (const std::exception& e) {
            errors_[place] = std::current_exception();
            const std::string reason = fmt::format("rank {}: {}", rank, e.what());
            group_.abort(reason);
            transport_->abort(reason);
        }
    };
    attempt([&] {
        executors_[place] = std::make_unique<Executor>(program, rank, *communicators_[place], *machine_, own);
        communicators_[place]->connect();
    });
    for (int64_t seen = 0;;) {
        const Task* task = nullptr;
        {
            std::unique_lock lock(mutex_);
            if (--running_ == 0) changed_.notify_all();
            changed_.wait(lock, [&] { return stop_ || generation_ != seen; });
            if (stop_) break;
            seen = generation_;
            task = task_;
        }
        attempt([&] { (*task)(*executors_[place]); });
    }
    executors_[place].reset();
}

void Ranks::parallel(Task f) {
    std::unique_lock lock(mutex_);
    task_ = &f;
    running_ = static_cast<int>(threads_.size());
    ++generation_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return running_ == 0; });
    std::exception_ptr first;
    for (const std::exception_ptr& e : errors_) {
        if (!e) continue;
        try {
            std::rethrow_exception(e);
        } catch (const comm::Aborted&) {  // an echo of another rank's error, unless it is the only one
            if (!first) first = e;
        } catch (...) {
            std::rethrow_exception(e);
        }
    }
    if (first) std::rethrow_exception(first);
}

}  // namespace lockstep::runtime
