// Plays the entries of a prepared program on a rank's device. There are two players: on the host threads do the work themselves
// and wait for each other (play_threads.cpp); elsewhere one thread gives the calls, in the order of the list, to queues, with
// events between them (play_queues.cpp). Both run what is in the program, and nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "device/device.h"
#include "ir/timeline.h"
#include "runtime/flight.h"
#include "runtime/prepared.h"

namespace lockstep::runtime {

// What a watcher sees after an op: where one of its results is, to be read on the op's queue.
struct Produced {
    const ir::Call* call;
    const ir::Routine* routine;
    const ir::Op* op;
    ir::TensorId tensor;
    const void* address;
    device::Queue* queue;
    void *const *in, *const *out;  // where all operands and results of the op are
};

// What is played: one rank of a program, and who looks on.
struct Playing {
    using Clock = std::chrono::steady_clock;

    const ir::Program& program;
    int64_t rank;
    comm::Communicator& comm;
    device::Device& device;
    Prepared& prepared;
    bool debug_fill;
    bool graphs;  // entries are recorded, and given again as they are, where device and transport can
    Flight flight;
    int64_t runs = 0;  // of entries, begun
    ir::Timeline* timeline = nullptr;
    Clock::time_point zero = {};
    std::function<void(const Produced&)> watcher = nullptr;

    // Other than compute, in which the program has calls.
    std::vector<QueueName> other_queues() const;
    double now_s() const { return std::chrono::duration<double>(Clock::now() - zero).count(); }
    void note(QueueName queue, int call, int op, double start_s, double end_s) {
        timeline->threads[queue].push_back({call, op, start_s, end_s, start_s});
    }
    // A queue begins an op, or none.
    void begin_op(QueueName queue, int64_t run, const ir::Entry* entry, int call, int op) {
        flight.begin(queue, {run, entry, call, op, std::chrono::duration<double>(Clock::now().time_since_epoch()).count()});
    }
    void watch(const Launch& launch, device::Queue& queue) const {
        for (size_t k = 0; watcher && k < launch.op->out.size(); ++k)
            watcher({launch.call, launch.routine, launch.op, launch.op->out[k], launch.out[k], &queue, launch.in, launch.out});
    }
    // Fills freed buffers, and scratch before its use, with NaN, so that a read of them shows.
    void fill_with_nan(const ir::Call& call, device::Queue& queue) const;
    // Stops all ranks, and says so.
    comm::Aborted failure(const Launch& launch, const std::exception& error) const;
};

class Player {
public:
    virtual ~Player() = default;
    // Returns when all of its calls have been given to the queues: on the host, when they have happened. What host code writes
    // from then on is written behind them, and what it reads is what they leave.
    virtual void start(const ir::Entry& entry) = 0;
    // Returns when all that was started has happened.
    virtual void finish() = 0;
    // See Executor.
    virtual void begin_snapshot(const ir::Entry& entry) = 0;
    virtual void snapshot(const ir::Entry& entry) = 0;
    virtual double snapshot_wait_s() const = 0;
};

struct ThreadsOptions {
    bool comm_thread = false;
    std::vector<int> comm_cpus;
};
std::unique_ptr<Player> play_by_threads(Playing& playing, const ThreadsOptions& options);
std::unique_ptr<Player> play_by_queues(Playing& playing);

}  // namespace lockstep::runtime
