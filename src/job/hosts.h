// The hosts of a job that is supervised: asked over an agent (ssh) whether they are there, whether the job runs there, and to
// end what it has left.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::job {

struct Host {
    std::string name;
    int64_t slots = 1;  // processes
};

// Of "n0:2,n1:2". UserError launch.hosts.
std::vector<Host> hosts_of(const std::string& list);

// A child in a process group of its own: signals of the terminal do not reach it. It ignores SIGUSR1, and so do the processes
// that it starts until they catch it: one that is asked to stop before it listens goes on.
enum class Output { Shown, Dropped };  // what it prints on standard output
pid_t start(const std::vector<std::string>& command, Output output = Output::Shown);
// Its status once it has ended.
int await_end(pid_t pid);
// Exit code, or 128 + signal.
int code_of(int status);

// Questions to hosts under way.
struct Asked {
    Host host;
    pid_t pid = 0;
    std::optional<int> code;  // 0: yes
};
bool all_answered(std::vector<Asked>& asked);

class Hosts {
public:
    // Without hosts it is this machine.
    Hosts(std::vector<Host> hosts, std::string agent);

    const std::vector<Host>& all() const { return hosts_; }
    bool here() const { return hosts_.empty(); }
    // NAME=value, in the environment of all processes of this job and of no others.
    const std::string& mark() const { return mark_; }

    // Whether they are there; those that are also end what runs of this job, after a pause. Does not wait.
    std::vector<Asked> clean(int pause_s) const;
    // The same with SIGTERM before the pause.
    std::vector<Asked> end(int pause_s) const;
    // Asks every process of this job to stop as a run does (SIGUSR1). Does not wait.
    std::vector<Asked> ask_to_stop() const;
    // Those that are there; waits for the answers, and warns of the others.
    std::vector<Host> answers(std::vector<Asked> asked) const;

    // Looks now and then at the hosts of an attempt: a launcher may wait for ever for one that is cut off, above all while it
    // starts.
    class Lookout {
    public:
        Lookout(const Hosts& hosts, std::vector<Host> used);
        ~Lookout();
        Lookout(const Lookout&) = delete;
        Lookout& operator=(const Lookout&) = delete;
        // Why the attempt is lost; empty: it is not. Does not wait.
        std::string loss();

    private:
        const Hosts& hosts_;
        const std::vector<Host> used_;
        std::vector<Asked> asked_;
        std::vector<int> unanswered_;  // looks in a row, by host
        int nothing_ran_ = 0;
        std::chrono::steady_clock::time_point next_;
    };

private:
    std::string send(const char* signal) const;
    std::vector<Asked> ask(const std::vector<Host>& hosts, const std::string& script, int seconds = 0) const;

    const std::vector<Host> hosts_;
    const std::string agent_, mark_;
};

}  // namespace lockstep::job
