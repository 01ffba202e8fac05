// The ranks of a job that are threads of this process: all of them, or this process's part of a process group's. Each rank's
// thread makes its own executor (so that its arena lies near it) and then runs what it is given, all ranks at once.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/function_ref.h"
#include "comm/islands/member.h"
#include "comm/moves.h"
#include "comm/process_group.h"
#include "runtime/executor.h"

namespace lockstep::runtime {

// Where ranks run; nothing: on the host.
struct Backend {
    std::shared_ptr<device::Machine> machine;        // whose devices they have
    const comm::Moves* moves = &comm::host_moves();  // of collectives on devices that are not the host
    // Between processes with one rank each; nothing: ranks are threads of one process.
    std::unique_ptr<comm::Transport> (*across_processes)(comm::ProcessGroup& group, int ranks, bool by_peers) = nullptr;
};

struct RanksOptions {
    int threads_per_rank = 1;
    bool pin_threads = false;  // each to a processor
    bool comm_thread = false;
    bool debug_fill = false;
    bool graphs = false;
    int64_t flight_entries = 1;
    comm::LocalOptions links;
    comm::ProcessGroup* group = nullptr;  // that has the other ranks, and outlives these; none: all ranks are here
    std::function<double(const ir::Routine&, const ir::Op&)> delay_s;  // see ExecutorOptions
    Backend backend;
    std::optional<comm::islands::Invitation> islands;  // where this job meets others; none: it meets nobody,
    int64_t island = 0;                                // which of them it is,
    double island_timeout_s = 100;                     // and how long they may say nothing; 0: for ever
};

class Ranks {
public:
    // The programs, one a pipeline rank, outlive the ranks. UserError job.processes.
    Ranks(const std::vector<ir::Program>& programs, const RanksOptions& options);
    ~Ranks();
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    int count() const { return transport_->ranks(); }  // of the job
    // Those of this process, by place().
    std::span<const std::unique_ptr<Executor>> here() const { return executors_; }
    size_t place(int64_t rank) const { return static_cast<size_t>(rank - transport_->first_rank()); }
    // Through which the rank at a place meets other islands; null: it meets none.
    comm::islands::Member* member(size_t place) { return members_[place].get(); }
    Executor& executor(int rank) { return *executors_.at(place(rank)); }
    Executor& first() { return *executors_.front(); }
    const std::vector<ir::Program>& programs() const { return programs_; }
    comm::ProcessGroup& group() const { return group_; }
    const std::vector<int>& host_of() const { return transport_->topology().host_of_rank; }  // by rank of the job

    // f(executor) on the thread of every rank here; returns when all have. Where one fails all stop, and its error is thrown
    // here; the job is then over.
    using Task = FunctionRef<void(Executor&)>;
    void parallel(Task f);

private:
    void work(size_t place, const RanksOptions& options);
    void meet_islands(const RanksOptions& options);
    void pin(size_t place, ExecutorOptions& own) const;

    const std::vector<ir::Program>& programs_;
    comm::ProcessGroup alone_;
    comm::ProcessGroup& group_;
    const int exceptions_;  // under way when this was made
    const std::shared_ptr<device::Machine> machine_;
    std::unique_ptr<comm::Transport> transport_;
    const std::vector<std::string> processors_of_;  // by process: which ones it may use
    // By place:
    std::vector<std::unique_ptr<comm::Communicator>> communicators_;
    std::vector<std::unique_ptr<comm::islands::Member>> members_;
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
