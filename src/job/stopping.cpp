#include "job/stopping.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string_view>
#include <vector>

#include "job/exit_code.h"
#include "telemetry/console.h"

namespace lockstep::job {
namespace {

std::atomic<int> stop_signal{0};
std::atomic<int64_t> stop_time_ms{0};
std::atomic<bool> interrupted_again{false}, again_ends{false};

int64_t now_ms() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
}

// Only what is safe in a signal handler. A launcher may hand one Ctrl-C on twice, so the second one counts after a pause only.
extern "C" void on_signal(int signal) {
    int none = 0;
    if (stop_signal.compare_exchange_strong(none, signal)) {
        stop_time_ms = now_ms();
        return;
    }
    constexpr int64_t kPauseMs = 1000;
    if (signal != SIGINT || now_ms() - stop_time_ms < kPauseMs) return;
    interrupted_again = true;
    if (!again_ends) return;
    constexpr std::string_view kText = "Ctrl-C again: ended at once, without a checkpoint\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kText.data(), kText.size());
    _exit(kFailed);
}

}  // namespace

void remember_signals(Again again) {
    again_ends = again == Again::EndsProcess;
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}) {
        struct sigaction before {
        }, remember{};
        sigaction(signal, nullptr, &before);
        const bool stays_ignored = before.sa_handler == SIG_IGN && (signal == SIGHUP || signal == SIGPIPE);
        if (stays_ignored) continue;
        remember.sa_handler = on_signal;
        remember.sa_flags = SA_RESTART;
        sigaction(signal, &remember, nullptr);
    }
}

int remembered_signal() { return stop_signal; }
bool was_interrupted_again() { return interrupted_again; }

std::string signal_name(int signal) {
    const char* name = sigabbrev_np(signal);
    return name ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

// Once: while a step computes, or before what is said of the end.
void say_signal() {
    static std::once_flag said;
    std::call_once(said, [] {
        telemetry::warn(fmt::format("{}: the run stops after this step (Ctrl-C again: at once, without a checkpoint)",
                                    signal_name(remembered_signal())));
    });
}

SignalNotice::SignalNotice()
    : thread_([this] {
          constexpr auto kLook = std::chrono::milliseconds(50);
          std::unique_lock lock(mutex_);
          while (remembered_signal() == 0 && !leaving_) changed_.wait_for(lock, kLook, [&] { return leaving_; });
          if (remembered_signal() != 0) say_signal();
      }) {}

SignalNotice::~SignalNotice() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

Stopping::Stopping(const compile::Config& config, Clock::time_point begun)
    : begun_(begun),
      last_step_(Clock::now()),
      limit_s_(config.training.max_time.seconds),
      max_nonfinite_(config.training.max_nonfinite_steps) {}

void Stopping::after_step(const runtime::StepResult& r, double save_s) {
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    const Clock::time_point now = Clock::now();
    longest_step_s_ = std::max(longest_step_s_, seconds(now - last_step_));  // all that lies between two steps included
    last_step_ = now;
    if (r.committed) nonfinite_ = 0;
    else if (!r.overflowed()) ++nonfinite_;
    if (max_nonfinite_ > 0 && nonfinite_ >= max_nonfinite_) reason_ = Reason::NonFinite;
    // Another step and a save must still fit.
    else if (limit_s_ > 0 && seconds(now - begun_) + longest_step_s_ + save_s > limit_s_) reason_ = Reason::Time;
}

bool Stopping::asked(comm::ProcessGroup& group) {
    if (reason_ == Reason::None && stop_signal != 0) {
        say_signal();
        reason_ = Reason::Signal, signal_ = stop_signal;
    }
    if (group.is_alone()) return reason_ != Reason::None;
    const int own[] = {static_cast<int>(reason_), signal_};
    const std::vector<std::string> all = group.exchange({reinterpret_cast<const char*>(own), sizeof own});
    for (size_t process = 0; process < all.size(); ++process) {
        int theirs[2];
        std::memcpy(theirs, all[process].data(), sizeof theirs);
        if (theirs[0] == 0) continue;
        reason_ = static_cast<Reason>(theirs[0]), signal_ = theirs[1];
        if (reason_ == Reason::Signal && remembered_signal() == 0)
            telemetry::warn(fmt::format("{} has reached process {}: all stop after this step", signal_name(signal_), process));
        return true;
    }
    return false;
}

std::string Stopping::text() const {
    switch (reason()) {
        case Reason::Signal: return "stopped by " + signal_name(signal_);
        case Reason::Time: return fmt::format("stopped by training.max_time = {:.0f} s", limit_s_);
        case Reason::NonFinite:
            return fmt::format("stopped: {} steps in a row were not finite (training.max_nonfinite_steps)", nonfinite_);
        case Reason::Caller: return "stopped by the program that called it";
        case Reason::None: break;
    }
    return "";
}

std::string_view name_of(Stopping::Reason reason) {
    constexpr std::string_view names[] = {"", "signal", "time", "non_finite", "caller"};
    return names[static_cast<size_t>(reason)];
}

}  // namespace lockstep::job
