#include "cli/stopping.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>

namespace lockstep::cli {
namespace {

std::atomic<int> stop_signal{0};
extern "C" void on_signal(int signal) { stop_signal = signal; }

}  // namespace

void remember_signals() {
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    std::signal(SIGUSR1, on_signal);  // what Slurm is told to send, and mpirun hands on without ending the job
}

int remembered_signal() { return stop_signal; }

Stopping::Stopping(const compile::Recipe& recipe, Clock::time_point begun)
    : begun_(begun),
      last_step_(Clock::now()),
      limit_s_(compile::seconds_of(recipe.text("training.max_time")).value_or(0)),
      max_nonfinite_(recipe.integer("training.max_nonfinite_steps")) {}

void Stopping::after_step(const runtime::StepResult& r, double save_s) {
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    const Clock::time_point now = Clock::now();
    longest_step_s_ = std::max(longest_step_s_, seconds(now - last_step_));  // all that lies between two steps included
    last_step_ = now;
    nonfinite_ = r.committed ? 0 : nonfinite_ + 1;
    if (max_nonfinite_ > 0 && nonfinite_ >= max_nonfinite_) reason_ = Reason::NonFinite;
    // Another step and a save must still fit.
    else if (limit_s_ > 0 && seconds(now - begun_) + longest_step_s_ + save_s > limit_s_) reason_ = Reason::Time;
}

bool Stopping::asked(comm::Crew& crew) {
    if (reason_ == Reason::None && stop_signal != 0) reason_ = Reason::Signal, signal_ = stop_signal;
    if (crew.is_alone()) return reason_ != Reason::None;
    const int own[] = {static_cast<int>(reason_), signal_};
    for (const std::string& text : crew.exchange({reinterpret_cast<const char*>(own), sizeof own})) {
        int theirs[2];
        std::memcpy(theirs, text.data(), sizeof theirs);
        if (theirs[0] == 0) continue;
        reason_ = static_cast<Reason>(theirs[0]), signal_ = theirs[1];
        return true;
    }
    return false;
}

std::string Stopping::text() const {
    switch (reason()) {
        case Reason::Signal: return fmt::format("stopped by signal {}", signal_);
        case Reason::Time: return fmt::format("stopped by training.max_time = {:.0f} s", limit_s_);
        case Reason::NonFinite:
            return fmt::format("stopped: {} steps in a row were not finite (training.max_nonfinite_steps)", nonfinite_);
        case Reason::None: break;
    }
    return "";
}

std::string_view name_of(Stopping::Reason reason) {
    constexpr std::string_view names[] = {"", "signal", "time", "non_finite"};
    return names[static_cast<size_t>(reason)];
}

}  // namespace lockstep::cli
