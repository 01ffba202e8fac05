// What the processes of a job tell each other apart from their launches: the number of a group, that the job stops, that a
// process is done. Process 0 decides: it numbers groups, and the first reason to stop that reaches it holds for all. A stop has
// two steps. A process that has received the reason begins no more receives, withdraws those that it has begun (enter and leave
// count them) and reports this. When all have reported, no process touches the buffers of another, and waiting threads throw.
// One thread per process does this. It also advances messages while every rank computes,
// because MPI does so only when it is called.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/processes/wire.h"

namespace lockstep::comm::processes {

class Control {
public:
    // `settings` must be those of process 0, else the job stops and says both. on_stop() is called once, when no launch may
    // begin any more, from any thread.
    Control(Wire& wire, std::string settings, std::function<void()> on_stop);
    // Waits until every process is there, so that nobody misses the last messages.
    ~Control();

    // From any thread.
    void abort(const std::string& reason);
    bool stopping() const { return phase_.load() != Phase::Running; }
    [[noreturn]] void throw_aborted();  // when the stop has gone through

    // The same on every process, different for different ranks. Waits for process 0. Throws Aborted.
    int number_of(const std::vector<int>& ranks);

    // Around whatever begins receives or lets others read a buffer: false, and not entered, once the job is stopping.
    bool enter();
    void leave() { inside_.fetch_sub(1); }

    // Registers sends that their rank advances only between its ops. While there are any, the thread polls more often.
    void add_unattended(int sends) { unattended_.fetch_add(sends); }

private:
    enum class Phase { Running, Stopping, Stopped };
    enum Kind : char { kSettings, kGroup, kNumber, kAbort, kStop, kQuiet, kStopped, kLeave, kLeft };

    void watch();
    bool step();  // whether anything happened
    void post(int to, Kind kind, const std::string& body);
    void handle(int from, const std::string& message);
    void handle_at_0(int from, Kind kind, const std::string& body);
    void post_all(Kind kind, const std::string& body);
    void begin_stop();
    void finish_stop(const std::string& reason);

    Wire& wire_;
    const std::string settings_;
    const std::function<void()> on_stop_;
    std::atomic<Phase> phase_{Phase::Running};
    std::atomic<int> inside_{0}, unattended_{0};

    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_, kicked_;
    std::vector<std::pair<int, std::string>> outbox_;
    std::map<std::string, int> numbers_;  // of groups, by their ranks' bytes
    std::string reason_;
    bool kick_ = false;

    // Used only by the watching thread:
    std::vector<std::pair<int, std::string>> sending_;
    std::string own_message_;
    bool told_ = false, quiet_ = false, left_ = false;
    // Of process 0's:
    std::map<std::string, int> given_numbers_;
    bool decided_ = false;
    int quiet_processes_ = 0, left_processes_ = 0;

    std::thread thread_;
};

}  // namespace lockstep::comm::processes
