#include "cli/job.h"

#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "cli/agreement.h"
#include "cli/machine.h"
#include "cli/types.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"

namespace lockstep::cli {

std::unique_ptr<Job> start_job(const RecipeArgs& args, comm::Crew* crew, const Facts& flags) {
    const auto start = std::chrono::steady_clock::now();
    auto job = std::make_unique<Job>();
    job->recipe = read_recipe(args);
    if (crew) {
        take_ranks(job->recipe, *crew);
        require_same_job(job->recipe, flags, *crew);
    }
    use_instruction_set(compile::config_of(job->recipe));
    if (const std::string slow = slow_types_warning(compile::values_of(job->recipe)); !slow.empty()) telemetry::warn(slow);
    job->data = open_run_data(job->recipe, MissingData::Refuse);
    const compile::Config& config = job->config = compile::config_of(job->recipe);
    note_other_machine(config);
    const compile::CompileOptions options = compile_options(config, crew);
    job->compiled = compile::compile(config, options);
    require_runnable(config, options, job->compiled, capacity_here(config, job->compiled.layout.ranks, crew));
    if (crew) require_same_programs(job->compiled, *crew);
    job->anonymous_bytes_before = telemetry::anonymous_resident_bytes();
    job->trainer = std::make_unique<runtime::Trainer>(config, job->compiled, *job->data.source, crew);
    job->start_up_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return job;
}

}  // namespace lockstep::cli
