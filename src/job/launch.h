// One job over hosts: its processes are started by mpirun, looked after, and started again from the last checkpoint.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compile/layout.h"
#include "compile/recipe.h"
#include "job/hosts.h"
#include "job/supervisor.h"

namespace lockstep::job {

class Islands;

// All of a launch, or one of its islands.
struct LaunchedJob {
    std::vector<Host> hosts;
    compile::Recipe recipe;
    int64_t processes = 0;  // 0: one for each rank
    std::optional<int64_t> island;
    std::vector<std::string> environment;  // NAME=value
    Output output = Output::Shown;
};

class Launch {
public:
    // The options and the islands outlive it; null: the job is no island.
    Launch(const SupervisorOptions& options, LaunchedJob job, Islands* islands);
    Supervised run();

private:
    class Stop;

    int64_t last_step() const;
    std::string name() const;
    std::optional<std::vector<std::string>> command_for(const std::vector<Host>& live) const;
    int wait_for(pid_t pid, const std::vector<Host>& used, std::vector<Asked>& cleaned) const;
    Supervised finish(int code) const;

    const SupervisorOptions& args_;
    LaunchedJob job_;
    Islands* const islands_;
    const Hosts hosts_;
    compile::Layout whole_;
    int64_t processes_ = 0;       // where no host is gone
    std::string root_, records_;  // folders of checkpoints, of flight records
    std::vector<Attempt> attempts_;
};

}  // namespace lockstep::job
