// Runs a program on one rank: one arena, prepared kernels, two streams. Nothing on the step path allocates.
// The compute stream runs on the thread that calls run(). With a communication thread the comm stream has its own; without
// one both run inline, in the order of the list: the same sums in the same order.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "comm/communicator.h"
#include "ir/timeline.h"
#include "kernels/kernel.h"
#include "runtime/flight.h"

namespace lockstep::runtime {

struct ExecutorOptions {
    int threads = 1;        // of this rank
    std::vector<int> cpus;  // to pin them to; empty: not pinned
    bool comm_thread = false;
    std::vector<int> comm_cpus;  // where the communication thread may run; empty: where the computing thread may
    bool debug_fill = false;     // freed and scratch bytes are filled with NaN
    int64_t flight_entries = 1;  // ops of each stream that flight() remembers
    // Where set the compute stream sleeps for so many seconds in place of each op; communication stays real. For experiments
    // on schedules.
    std::function<double(const ir::Routine&, const ir::Op&)> delay_s;
};

// What a watcher sees after an op: where one of its results stands.
struct Produced {
    const ir::Call* call;
    const ir::Routine* routine;
    const ir::Op* op;
    ir::TensorId tensor;
    const void* data;
};

class Executor {
public:
    // The program outlives the executor. Allocates and touches the arena; it is zero.
    Executor(const ir::Program& program, int64_t rank, comm::Communicator& communicator, const ExecutorOptions& options);
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    // A copy of the states as they are now, made beside the next step: after begin_snapshot(), called between steps, that step's
    // updates wait until snapshot(), which plays the entry of that name on the caller's thread, has ended.
    void begin_snapshot();
    void snapshot();
    // For how long updates have waited for snapshots so far, seconds.
    double snapshot_wait_s() const { return snapshot_wait_s_; }

    // One step of an entry. Throws comm::Aborted where another rank failed; any other failure aborts all ranks first and names
    // rank, call and op.
    void run(ir::EntryKind entry);

    const ir::Program& program() const { return program_; }
    int64_t rank() const { return rank_; }
    char* buffer(int index) { return arena_ + program_.buffers[index].offset_bytes; }
    // A state of the whole program, in float64. Throws InternalError where the program has none.
    double* value(ir::StateId state);
    double* value(ir::StateRole role) { return value(program_.state(role)); }

    // From now on every step writes when its ops ran into `timeline`, relative to `zero`; nullptr: none does. It must have room
    // for a step (ir::room_for): nothing is allocated.
    using Clock = std::chrono::steady_clock;
    void record(ir::Timeline* timeline, Clock::time_point zero) { timeline_ = timeline, zero_ = zero; }

    // The last ops that have begun, for other threads to read while the rank runs.
    const Flight& flight() const { return flight_; }

    // Called on the compute thread after every op that it has run. Slow; for watch and diff.
    void set_watcher(std::function<void(const Produced&)> watcher) { watcher_ = std::move(watcher); }

private:
    struct Address {  // of a tensor of a routine: a port's base or scratch, plus an offset
        int port = -1;
        int64_t offset = 0;
    };
    struct Prepared {                             // an op
        std::unique_ptr<kernels::Kernel> kernel;  // or a collective:
        comm::GroupId group{};
        std::vector<comm::Request> requests;  // without addresses
        int fresh_port = -1;                  // the port whose binding says whether an accumulating result overwrites
        bool is_view = false;
        double delay_s = 0;
    };
    struct Code {
        std::vector<Address> addresses;  // by tensor
        std::vector<Prepared> ops;
    };

    void prepare(const ir::Routine& routine, Code& code);
    void run_stream(const ir::Entry& entry, int stream);
    void run_call(const ir::Entry& entry, size_t index, int channel);
    void run_collective(const ir::Op& op, const Prepared& prepared, void* const* in, void* const* out, bool fresh, int channel);
    void comm_loop();
    void wait_for(int stream, int call);
    void wait_for_snapshot();
    void fill_with_nan(const ir::Call& call);
    void sleep_off(double least_s);
    double now_s() const { return std::chrono::duration<double>(Clock::now() - zero_).count(); }
    void note(int thread, int call, int op, double start_s);
    void begin_op(int channel, const ir::Entry* entry, int call, int op);

    const ir::Program& program_;
    const int64_t rank_;
    comm::Communicator& comm_;
    const ExecutorOptions options_;
    ThreadPool pool_;
    ThreadPool comm_pool_;      // of one thread: kernels of the comm stream run where it runs
    ThreadPool snapshot_pool_;  // alike
    std::vector<Code> code_;
    char* arena_ = nullptr;
    int64_t arena_bytes_ = 0;
    std::function<void(const Produced&)> watcher_;
    ir::Timeline* timeline_ = nullptr;
    Clock::time_point zero_;
    Flight flight_;
    int64_t runs_ = 0;  // of entries, begun

    std::atomic<int> ended_[2];           // calls of each stream: index of the last that has ended, of the current step
    std::atomic<uint32_t> step_{0};       // steps begun; the comm thread sleeps on it
    std::atomic<uint32_t> comm_step_{0};  // steps that the comm thread has finished
    std::atomic<const ir::Entry*> entry_{nullptr};
    std::atomic<bool> stop_{false};
    std::atomic<bool> failed_{false};
    std::atomic<bool> copying_{false};  // a snapshot has begun and has not ended
    double snapshot_wait_s_ = 0;
    double owed_s_ = 0;  // of delays: not slept yet, or too long
    std::thread comm_thread_;
};

}  // namespace lockstep::runtime
