// The ranks of a job as threads of this process: the embedded engine, without launcher or ports. Each rank's thread makes its
// own executor (so that its arena lies near it) and then runs what it is told, all ranks at once.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/function_ref.h"
#include "comm/local.h"
#include "runtime/executor.h"

namespace lockstep::runtime {

struct RanksOptions {
    int threads_per_rank = 1;
    bool comm_thread = false;
    bool debug_fill = false;
    comm::LocalOptions links;
    std::function<double(const ir::Routine&, const ir::Op&)> delay_s;  // see ExecutorOptions
};

// Processors that this process may use, after affinity and the cgroup's quota.
std::vector<int> usable_cpus();

class Ranks {
public:
    // The programs, one a pipeline rank, outlive the ranks.
    Ranks(const std::vector<ir::Program>& programs, const RanksOptions& options);
    ~Ranks();
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    int count() const { return static_cast<int>(threads_.size()); }
    Executor& executor(int rank) { return *executors_[rank]; }
    const std::vector<ir::Program>& programs() const { return programs_; }

    // f(executor) on every rank's thread; returns when all have. Where one fails all stop, and its error is thrown here; the
    // job is then over.
    using Task = FunctionRef<void(Executor&)>;
    void parallel(Task f);

private:
    void work(int rank, const RanksOptions& options);

    const std::vector<ir::Program>& programs_;
    comm::World world_;
    std::vector<std::unique_ptr<comm::Communicator>> communicators_;
    std::vector<std::unique_ptr<Executor>> executors_;
    std::vector<std::exception_ptr> errors_;
    std::vector<std::thread> threads_;

    std::mutex mutex_;
    std::condition_variable changed_;
    const Task* task_ = nullptr;
    int64_t generation_ = 0;
    int running_ = 0;
    bool stop_ = false;
};

}  // namespace lockstep::runtime
