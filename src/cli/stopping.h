// Why a run ends before its last step: a signal, the time limit, too many steps in a row that did not count.
#pragma once

#include <chrono>
#include <string>

#include "compile/recipe.h"
#include "runtime/trainer.h"

namespace lockstep::cli {

class Stopping {
public:
    using Clock = std::chrono::steady_clock;
    // SIGINT, SIGTERM and SIGUSR1 no longer end the process from here on. `begun`: when the time limit began to run.
    Stopping(const compile::Recipe& recipe, Clock::time_point begun);

    // After each step; `save_s`: how long a save would take.
    void after_step(const runtime::StepResult& r, double save_s);

    enum class Reason { None, Signal, Time, NonFinite };
    // Looks for a signal; of several processes that ask, at the same time, all get the same answer. From then on it is reason().
    bool asked(comm::Crew& crew);
    Reason reason() const { return reason_; }
    std::string text() const;  // "stopped by signal 15"

private:
    Clock::time_point begun_, last_step_;
    double limit_s_ = 0, longest_step_s_ = 0;  // limit 0: none
    int64_t max_nonfinite_ = 0, nonfinite_ = 0;
    Reason reason_ = Reason::None;
    int signal_ = 0;  // if it was one
};

// Ignores nothing and stops nothing: only remembers the signal. Called first thing in `train`.
void remember_signals();
int remembered_signal();                            // the last one; 0: none
std::string_view name_of(Stopping::Reason reason);  // "signal", "time", "non_finite"; empty: none

}  // namespace lockstep::cli
