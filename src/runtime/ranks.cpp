#include "runtime/ranks.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace lockstep::runtime {
namespace {

// CPUs' worth of time that the cgroup grants, or a large number.
double cgroup_quota() {
    std::ifstream v2("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (v2 >> quota >> period && quota != "max" && period > 0) return std::stod(quota) / period;
    std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    double q = 0;
    if (v1 >> q && v1_period >> period && q > 0 && period > 0) return q / period;
    return 1e9;
}

void pin(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpus[0]), &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace

std::vector<int> usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> cpus;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int i = 0; i < CPU_SETSIZE; ++i) {
            if (CPU_ISSET(static_cast<size_t>(i), &set)) cpus.push_back(i);
        }
    }
    const double quota = std::max(1.0, std::floor(cgroup_quota()));
    if (static_cast<double>(cpus.size()) > quota) cpus.resize(static_cast<size_t>(quota));
    return cpus;
}

Ranks::Ranks(const std::vector<ir::Program>& programs, const RanksOptions& options)
    : programs_(programs), world_(static_cast<int>(programs[0].mesh.world_ranks()), options.links) {
    const auto n = static_cast<size_t>(programs[0].mesh.world_ranks());
    communicators_.resize(n), executors_.resize(n), errors_.resize(n);
    for (size_t r = 0; r < n; ++r) communicators_[r] = world_.communicator(static_cast<int>(r));
    running_ = static_cast<int>(n);
    for (size_t r = 0; r < n; ++r) threads_.emplace_back([this, r, options] { work(static_cast<int>(r), options); });
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
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) {
        if (t.joinable()) t.join();
    }
}

void Ranks::work(int rank, const RanksOptions& options) {
    const mesh::Mesh& mesh = programs_[0].mesh;
    const ir::Program& program = programs_[static_cast<size_t>(rank / mesh.ranks())];
    const std::vector<int> cpus = usable_cpus();
    const int threads = options.threads_per_rank, wanted = threads * static_cast<int>(mesh.world_ranks());
    ExecutorOptions own;
    own.threads = threads, own.comm_thread = options.comm_thread, own.debug_fill = options.debug_fill;
    own.delay_s = options.delay_s;
    own.comm_cpus = cpus;  // any: what computing leaves over
    // Threads keep a processor: their own, or one that as many share as every other; all of them take equally long then, and the
    // system's scheduler, which does not know of barriers, would now and then leave one processor to one rank and the rest to
    // another.
    const auto count = static_cast<int>(cpus.size());
    if (wanted <= count || wanted % count == 0) {
        for (int t = 0; t < threads; ++t) own.cpus.push_back(cpus[(rank * threads + t) % count]);
        pin(own.cpus);
    }
    const auto attempt = [&](const auto& f) {
        try {
            f();
        } catch (const comm::Aborted&) {
            if (!errors_[rank]) errors_[rank] = std::current_exception();
        } catch (const std::exception& e) {
            errors_[rank] = std::current_exception();
            world_.abort("rank " + std::to_string(rank) + ": " + e.what());
        }
    };
    attempt([&] { executors_[rank] = std::make_unique<Executor>(program, rank, *communicators_[rank], own); });
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
        attempt([&] { (*task)(*executors_[rank]); });
    }
    executors_[rank].reset();
}

void Ranks::parallel(Task f) {
    std::unique_lock lock(mutex_);
    task_ = &f;
    running_ = count();
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
