#include "cli/launched.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/environment.h"
#include "comm/mpi/session.h"
#include "comm/processes/wire.h"
#include "job/agreement.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

std::optional<int> number(const char* name) {
    const std::string text = variable(name).value_or("");
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc() && end == text.data() + text.size() && value >= 0;
    return is_number ? std::optional(value) : std::nullopt;
}

}  // namespace

Launched launched() {
    struct Names {
        const char *process, *processes, *on_this_host;
    };
    // Open MPI's mpirun; MPICH's and others that speak PMI; a step of srun (a batch script by itself has no step).
    constexpr Names kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
                                    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"}};
    for (const Names& names : kLaunchers) {
        const std::optional<int> process = number(names.process), processes = number(names.processes);
        if (process && processes && *process < *processes) return {*process, *processes, number(names.on_this_host).value_or(1)};
    }
    return {};
}

int in_process_group(const std::string& command, FunctionRef<int(comm::ProcessGroup&)> f, FunctionRef<int()> failed) {
    const Launched as = launched();
    if (as.processes == 1) {
        comm::ProcessGroup alone;
        return f(alone);
    }
    if (as.process > 0) telemetry::mute();
    // Each process's share of the processors, and one for what moves messages.
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    // Open MPI catches SIGSEGV and its kin to print a stack, and can lock up there when the heap is damaged: the job would hang
    // instead of ending. 64 is a signal that nobody raises.
    set_unless_set("OMPI_MCA_opal_signal", "64");
    comm::mpi::Session session(std::max(2, static_cast<int>(processors) / std::max(1, as.on_this_host)));
    if (!session.notice().empty()) telemetry::info(session.notice());
    comm::ProcessGroup group([&] { return session.wire(); });
    int code = 0;
    try {
        group.guard([&] {
            if (group.processes() != as.processes)
                throw UserError(
                    "job.launcher", "",
                    fmt::format("the launcher started {} processes, but MPI sees {}: use srun --mpi=pmix, or the mpirun of "
                                "the MPI that lockstep was built with",
                                as.processes, group.processes()));
            job::require_agreement({{job::kBuild, job::build_text()}, {"the command", command}}, group);
            code = f(group);
        });
    } catch (const std::exception&) {
        code = failed();
    }
    return code;
}

}  // namespace lockstep::cli
