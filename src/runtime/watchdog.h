// Notices ranks without progress: a process that has died, was stopped or is cut off, and ranks that all wait for each other.
// Then every process that still runs writes a flight record of each of its ranks, says where each rank is, and ends. It cannot
// unwind, because threads wait for a lost rank.
#pragma once

#include <condition_variable>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/heartbeat.h"
#include "runtime/ranks.h"

namespace lockstep::runtime {

struct WatchdogOptions {
    // comm.train_timeout_seconds. A process is silent after three quarters: it is the better reason, where a rank waits for its
    // ranks as well.
    double timeout_s = 100;
    double silence_s() const { return 0.75 * timeout_s; }
    std::string folder;            // of the records, made when there are some
    std::string prefix = "rank_";  // of their names
    // Ends the process; prints what is the matter, where it is not empty: one process speaks for all.
    std::function<void(const std::string& message)> end;
};

class Watchdog {
public:
    // `ranks` outlive this. Every process of their process group makes one at about the same time.
    Watchdog(Ranks& ranks, WatchdogOptions options);
    // Says goodbye to the other processes; the first one waits for the others' until the timeout.
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

private:
    // How far a queue of a rank has come, and for how long it has been there while this process ran.
    struct Progress {
        uint64_t begun = 0;
        double stood_s = 0;
    };
    struct Position {  // what a queue does now
        FlightEntry entry;
        const ir::Routine* routine = nullptr;
        const ir::Call* call = nullptr;
        const ir::Op* op = nullptr;  // null: nothing
        bool waits() const;          // for other ranks
    };

    void watch();
    void look(double passed_s);
    double interval_s() const;  // between two looks
    static Position place_of(const Executor& e, const FlightEntry& entry);
    static Position now_at(const Executor& e, QueueName queue);
    static std::string text_of(const Executor& e, const Position& place, double stood_s);
    std::string state() const;
    bool any_waits() const;  // in a collective
    void end(const std::string& reason);
    void write_records(const std::string& reason) const;

    Ranks& ranks_;
    const WatchdogOptions options_;
    comm::Heartbeat heartbeat_;
    std::vector<ByStepQueue<Progress>> progress_;  // by rank of this process
    std::mutex mutex_;
    std::condition_variable changed_;
    bool leaving_ = false, ended_ = false;
    uint64_t count_ = 0;  // of the whole job, and for how long it has not changed
    double stood_s_ = 0;
    double awake_s_ = std::numeric_limits<double>::infinity();  // since this process was stopped
    std::thread thread_;
};

}  // namespace lockstep::runtime
