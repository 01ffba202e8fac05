// Starts a job over hosts, looks after it and starts it again: from its last checkpoint, with fewer data-parallel replicas
// where hosts are gone, with all of them where they are back. Islands (docs/islands.md) are a job each, which meet in a service
// of the supervisor; one that is started again takes the state of another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job/exit_code.h"
#include "planning/recipe_args.h"

namespace lockstep::job {

struct SupervisorOptions {
    std::string hosts;         // "n0:2,n1:2"; empty: this one
    int64_t processes = 0;     // without hosts; 0: as many as ranks
    int64_t max_restarts = 3;  // in a row without a new checkpoint
    int64_t grace_s = 300;     // from a signal until what still runs is ended
    std::string meet_at;       // host:port by which islands reach this one; empty: its name, and a port that is free
    std::string agent = "ssh";
    std::string mpirun =
        "mpirun --bind-to none -mca mpi_yield_when_idle 1 -mca odls_base_sigkill_timeout 0 -mca oob_tcp_keepalive_time 2 "
        "-mca oob_tcp_keepalive_intvl 1 -mca oob_tcp_keepalive_probes 3";
    std::vector<std::string> command;  // words behind the name of this program: train, recipe, flags
    planning::RecipeArgs recipe;       // of that command; no path: it is no such command
};

struct Attempt {
    std::optional<int64_t> island;
    std::vector<std::string> hosts;
    int code = kFailed;
    double time_s = 0;
    int64_t from_step = 0, to_step = 0;
};

struct Supervised {
    int code = kFailed;
    int64_t step = 0;  // of the latest checkpoint; of islands that of the first one
    std::vector<Attempt> attempts;
};

// Returns when the job is done, was stopped by a signal or is given up. Signals are remembered from here on (stopping.h).
// UserError launch.*, recipe.*.
Supervised supervise(const SupervisorOptions& options);

}  // namespace lockstep::job
