// Why a run ends before its last step: a signal, the time limit, too many steps in a row that did not count.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "compile/config.h"
#include "runtime/trainer.h"

namespace lockstep::job {

class Stopping {
public:
    using Clock = std::chrono::steady_clock;
    // `begun`: when the time limit began to run.
    Stopping(const compile::Config& config, Clock::time_point begun);

    // After each step; `save_s`: how long a save would take.
    void after_step(const runtime::StepResult& r, double save_s);

    enum class Reason { None, Signal, Time, NonFinite, Caller };
    // The caller of the run wants it to end.
    void ask() {
        if (reason_ == Reason::None) reason_ = Reason::Caller;
    }
    // Looks for a signal; of several processes that ask, at the same time, all get the same answer.
    // From then on it is reason().
    bool asked(comm::ProcessGroup& group);
    Reason reason() const { return reason_; }
    std::string text() const;  // "stopped by SIGTERM"

private:
    Clock::time_point begun_, last_step_;
    double limit_s_ = 0, longest_step_s_ = 0;  // limit 0: none
    int64_t max_nonfinite_ = 0, nonfinite_ = 0;
    Reason reason_ = Reason::None;
    int signal_ = 0;  // if it was one
};

// From here on SIGINT, SIGTERM, SIGUSR1, SIGHUP (unless it is ignored, as under nohup) and SIGPIPE (the reader of the output is
// gone) ask for a stop and no longer end the process. `again`: what a second Ctrl-C does that comes a second or more after the
// first signal.
enum class Again { EndsProcess, IsRemembered };
void remember_signals(Again again);
int remembered_signal();              // the first one; 0: none
bool was_interrupted_again();         // under IsRemembered
std::string signal_name(int signal);  // "SIGTERM"

// Says on standard error, while training computes, that a signal has come and what it does.
class SignalNotice {
public:
    SignalNotice();
    ~SignalNotice();
    SignalNotice(const SignalNotice&) = delete;
    SignalNotice& operator=(const SignalNotice&) = delete;

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool leaving_ = false;
    std::thread thread_;
};

std::string_view name_of(Stopping::Reason reason);  // "signal", "time", "non_finite", "caller"; empty: none

}  // namespace lockstep::job
