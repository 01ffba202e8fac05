#include "job/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <thread>

#include "base/error.h"
#include "telemetry/console.h"

namespace lockstep::job {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kAnswerSeconds = 5;  // to a question
constexpr auto kPoll = std::chrono::milliseconds(20);
// While an attempt runs its hosts are asked at this interval. A host that leaves kUnanswered questions in a row unanswered is
// lost. An attempt that has not run anything for kNothingRuns questions has not started.
constexpr auto kLookAtHosts = std::chrono::seconds(5);
constexpr int kUnanswered = 2, kNothingRuns = 24;

std::string new_mark() {
    std::random_device random;
    const auto high = random(), low = random();
    return fmt::format("LOCKSTEP_JOB={:08x}{:08x}-{}", high, low, getpid());
}

}  // namespace

std::vector<Host> hosts_of(const std::string& list) {
    std::vector<Host> out;
    for (size_t at = 0; at <= list.size() && !list.empty();) {
        const size_t end = std::min(list.find(',', at), list.size()), colon = list.find(':', at);
        Host h{list.substr(at, std::min(colon, end) - at), 1};
        const std::string slots = colon < end ? list.substr(colon + 1, end - colon - 1) : "1";
        constexpr const char* kOfNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
        const bool right = !h.name.empty() && h.name.find_first_not_of(kOfNames) == std::string::npos && !slots.empty() &&
                           slots.size() < 6 && slots.find_first_not_of("0123456789") == std::string::npos;
        if (!right || std::stoll(slots) < 1)
            throw UserError("launch.hosts", "--hosts",
                            fmt::format("--hosts {}: '{}' must be a name, or name:processes", list, list.substr(at, end - at)));
        h.slots = std::stoll(slots);
        out.push_back(h);
        at = end + 1;
    }
    return out;
}

pid_t start(const std::vector<std::string>& command, Output output) {
    std::vector<char*> words;
    for (const std::string& w : command) words.push_back(const_cast<char*>(w.c_str()));
    words.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);  // signals of the terminal come to the supervisor, which hands them on
        signal(SIGUSR1, SIG_IGN);
        if (output == Output::Dropped) dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
        execvp(words[0], words.data());
        std::_Exit(127);
    }
    return pid;
}

int await_end(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

bool all_answered(std::vector<Asked>& asked) {
    for (Asked& a : asked) {
        int status = 0;
        if (!a.code && waitpid(a.pid, &status, WNOHANG) == a.pid) a.code = code_of(status);
    }
    return std::all_of(asked.begin(), asked.end(), [](const Asked& a) { return a.code.has_value(); });
}

Hosts::Hosts(std::vector<Host> hosts, std::string agent)
    : hosts_(std::move(hosts)), agent_(std::move(agent)), mark_(new_mark()) {}

// Runs a script on all at once.
std::vector<Asked> Hosts::ask(const std::vector<Host>& hosts, const std::string& script, int seconds) const {
    const std::string limit = std::to_string(kAnswerSeconds + seconds);
    std::vector<Asked> out;
    for (const Host& h : hosts)
        out.push_back({h, start({"timeout", limit, agent_, h.name, fmt::format("sh -c '{}'", script)}), {}});
    if (here()) out.push_back({{}, start({"timeout", limit, "sh", "-c", script}), {}});
    return out;
}

// A line of shell that sends a signal to every process whose environment has the mark.
std::string Hosts::send(const char* signal) const {
    return fmt::format("for p in /proc/[0-9]*; do grep -qsF {} $p/environ && kill -{} ${{p#/proc/}}; done; true", mark_, signal);
}

std::vector<Asked> Hosts::clean(int pause_s) const {
    return ask(hosts_, fmt::format("sleep {}; {}", pause_s, send("KILL")), pause_s);
}

std::vector<Asked> Hosts::end(int pause_s) const {
    return ask(hosts_, fmt::format("{}; sleep {}; {}", send("TERM"), pause_s, send("KILL")), pause_s);
}

std::vector<Asked> Hosts::ask_to_stop() const { return ask(hosts_, send("USR1")); }

std::vector<Host> Hosts::answers(std::vector<Asked> asked) const {
    while (!all_answered(asked)) std::this_thread::sleep_for(kPoll);
    std::vector<Host> out;
    for (const Asked& a : asked) {
        if (here()) continue;
        if (a.code == 0) out.push_back(a.host);
        else telemetry::warn(fmt::format("launch: {} does not answer", a.host.name));
    }
    return out;
}

Hosts::Lookout::Lookout(const Hosts& hosts, std::vector<Host> used)
    : hosts_(hosts), used_(std::move(used)), unanswered_(used_.size()), next_(Clock::now() + kLookAtHosts) {}

Hosts::Lookout::~Lookout() {
    for (Asked& a : asked_) {
        if (!a.code) await_end(a.pid);
    }
}

std::string Hosts::Lookout::loss() {
    if (used_.empty()) return "";
    if (asked_.empty()) {
        if (Clock::now() < next_) return "";
        asked_ = hosts_.ask(used_, fmt::format("grep -qsF {} /proc/[0-9]*/environ; [ $? -eq 0 ]", hosts_.mark()));
    }
    if (!all_answered(asked_)) return "";
    bool all = true, runs = false;
    for (size_t i = 0; i < used_.size(); ++i) {
        const int code = *asked_[i].code;  // 1: nothing runs there
        unanswered_[i] = code > 1 ? unanswered_[i] + 1 : 0;
        all &= code <= 1, runs |= code == 0;
        if (unanswered_[i] >= kUnanswered) return fmt::format("{} no longer answers", used_[i].name);
    }
    nothing_ran_ = runs || !all ? 0 : nothing_ran_ + 1;
    if (nothing_ran_ >= kNothingRuns) return "nothing runs on any host";
    asked_.clear();
    next_ = Clock::now() + (all ? Clock::duration(kLookAtHosts) : Clock::duration());
    return "";
}

}  // namespace lockstep::job
