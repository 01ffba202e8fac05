// Runs a program on one rank: an arena in the memory of a device and one in the host's, prepared kernels, and a player
// (player.h). On the host nothing on the step path allocates. Host code reaches the arenas only through read() and write().
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "runtime/player.h"

namespace lockstep::runtime {

struct ExecutorOptions {
    int threads = 1;                           // of this rank
    std::vector<int> cpus;                     // to pin them to; empty: not pinned
    bool comm_thread = false;                  // of the host device
    std::vector<int> comm_cpus;                // where the communication thread may run; empty: where the computing thread may
    bool debug_fill = false;                   // freed and scratch bytes are filled with NaN
    bool graphs = false;                       // see Playing
    int64_t flight_entries = 1;                // ops of each queue that flight() remembers
    comm::islands::Member* islands = nullptr;  // see Prepared; outlives the executor
    // If set, the compute queue sleeps for delay_s seconds in place of each op; communication stays real. For experiments on
    // schedules.
    Prepared::DelayOf delay_s;
};

class Executor {
public:
    // The program and the machine outlive the executor. Allocates and touches the arenas; they are zero. UserError
    // runtime.out_of_memory and runtime.out_of_host_memory: the system or the device refuses one.
    Executor(const ir::Program& program, int64_t rank, comm::Communicator& communicator, device::Machine& machine,
             const ExecutorOptions& options);
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    // A copy of the states as they are now, made during the next step: after begin_snapshot(), called between steps, that
    // step's updates wait until the entry `snapshot` has been played. snapshot() returns when it has; on the host it plays it,
    // on the caller's thread.
    void begin_snapshot();
    void snapshot();
    // For how long updates have waited on the host for snapshots so far, seconds.
    double snapshot_wait_s() const { return player_->snapshot_wait_s(); }

    // One step of an entry: all of it, or its start, behind which host code may write and start the next. Throw comm::Aborted
    // where another rank failed; any other failure aborts all ranks first and names rank, call and op.
    void run(ir::EntryKind entry, int64_t fragment = 0);
    void start(ir::EntryKind entry, int64_t fragment = 0);
    void finish() { player_->finish(); }

    const ir::Program& program() const { return program_; }
    int64_t rank() const { return rank_; }
    // The rank's threads on the host, for code between steps; the caller is one of them.
    std::unique_ptr<ThreadPool> host_threads() const { return std::make_unique<ThreadPool>(threads_, cpus_); }
    device::Device& device() { return *device_; }

    // Host code's access to bytes of a buffer, between two steps: f(memory that holds them), f(memory to fill). At most
    // device::kAccessBytes. Of what lies in the host's memory f gets the bytes themselves, as the last snapshot() left them;
    // they may also be read during a step, and are not written.
    void read(int buffer, int64_t offset_bytes, int64_t bytes, FunctionRef<void(const char*)> f);
    void write(int buffer, int64_t offset_bytes, int64_t bytes, FunctionRef<void(char*)> f);
    // A state of the whole program, in float64; of several values the first ones.
    // Throw InternalError where the program has none.
    void values(ir::StateId state, std::span<double> out);
    double value(ir::StateId state);
    double value(ir::StateRole role) { return value(program_.state(role)); }
    void set_value(ir::StateId state, double value);
    // Values of a state as what was started leaves them, which may be asked for while more is started: of each place in turn.
    // At most kNoted.
    static constexpr int64_t kNoted = 8, kNotes = 8;
    void note(ir::StateId state, int place);
    void noted(int place, std::span<double> out);

    // From now on every step writes when its ops ran into `timeline`, relative to `zero`; nullptr: none does. It must have room
    // for a step (ir::room_for): nothing is allocated.
    using Clock = Playing::Clock;
    void record(ir::Timeline* timeline, Clock::time_point zero) { playing_.timeline = timeline, playing_.zero = zero; }

    // The last ops that have begun, for other threads to read while the rank runs.
    const Flight& flight() const { return playing_.flight; }

    // Called after every op of a step: by the thread that has run it, or given it to its queue. Slow; for watch and diff.
    void set_watcher(std::function<void(const Produced&)> watcher) { playing_.watcher = std::move(watcher); }

private:
    // The device is made before the kernels: a vendor's library plans for the one that is current on the thread.
    Executor(const ir::Program& program, int64_t rank, comm::Communicator& communicator, std::unique_ptr<device::Device> device,
             const ExecutorOptions& options);
    char* new_arena(Place place);  // nullptr: the program has nothing there
    bool is_on_host(int buffer) const;
    int buffer_of(ir::StateId state) const;
    char* address(int buffer, int64_t offset_bytes) const { return prepared_.buffer(buffer) + offset_bytes; }

    const ir::Program& program_;
    const int64_t rank_;
    const int threads_;
    const std::vector<int> cpus_;
    Prepared prepared_;
    std::unique_ptr<device::Device> device_;
    Playing playing_;
    std::unique_ptr<Player> player_;
    std::atomic<bool> snapshot_begun_{false};
    struct Note {
        ir::StateId state = -1;
        std::optional<device::Event> made;
        void* memory = nullptr;
    };
    std::array<Note, kNotes> notes_;
    std::vector<double> notes_of_host_;
};

}  // namespace lockstep::runtime
