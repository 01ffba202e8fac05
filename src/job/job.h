// A recipe brought to the point where it can take steps: data opened, program compiled and proved, ranks started.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "compile/compile.h"
#include "job/agreement.h"
#include "planning/run_data.h"
#include "runtime/trainer.h"

namespace lockstep::job {

// Anonymous memory of this process; of the GPU, where kernels are its own.
int64_t memory_in_use(const compile::Config& config);

struct Job {
    compile::Recipe recipe;
    compile::Config config;  // of the recipe, with the vocabulary of the data
    planning::RunData data;
    compile::Compiled compiled;
    std::unique_ptr<runtime::Trainer> trainer;
    int64_t bytes_before = 0;  // memory_in_use before the arenas were made
    double start_up_s = 0;
};

// `group` has the ranks and outlives the job; none: all are threads of this process. `flags`: facts apart from the recipe that
// must be the same on all processes. `invitation`: the file (comm/islands/invitation.h) of a job that is one of several
// islands. UserError job.* if the processes differ, or such a job has no invitation.
std::unique_ptr<Job> start_job(compile::Recipe recipe, comm::ProcessGroup* group = nullptr, const Facts& flags = {},
                               const std::optional<std::string>& invitation = {});

}  // namespace lockstep::job
