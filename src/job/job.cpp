#include "job/job.h"

#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "job/agreement.h"
#include "planning/machine.h"
#include "planning/recipe_args.h"
#include "planning/refusal.h"
#include "planning/topology.h"
#include "planning/types.h"
#include "plugins/gpu_module.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"

namespace lockstep::job {

int64_t memory_in_use(const compile::Config& config) {
    return config.on_gpu() ? plugins::gpu_module().used_bytes() : telemetry::anonymous_resident_bytes();
}
namespace {

// To meet other islands, where this job is one of them.
std::optional<comm::islands::Invitation> invitation_of(const compile::Config& config, const std::optional<std::string>& file) {
    if (!config.fault_tolerance.is_job()) return std::nullopt;
    if (file) return comm::islands::read_invitation(*file);
    const char* const key = "fault_tolerance.replica_id";
    throw UserError(
        "job.island", key,
        fmt::format("{}{} = {}: this job would be one of {} islands, which `lockstep launch` starts and lets meet: start "
                    "them with it, or leave {} out, and all islands are in this job",
                    config.where(key), key, config.fault_tolerance.replica_id, config.fault_tolerance.group_size, key));
}

}  // namespace

std::unique_ptr<Job> start_job(compile::Recipe recipe, comm::ProcessGroup* group, const Facts& flags,
                               const std::optional<std::string>& invitation) {
    const auto start = std::chrono::steady_clock::now();
    auto job = std::make_unique<Job>();
    job->recipe = std::move(recipe);
    planning::set_levels(job->recipe, "", group);
    if (group) {
        planning::take_ranks(job->recipe, *group);
        require_same_job(job->recipe, flags, *group);
    }
    planning::use_instruction_set(compile::config_of(job->recipe));
    const std::optional<comm::islands::Invitation> islands = invitation_of(compile::config_of(job->recipe), invitation);
    if (const std::string slow = planning::slow_types_warning(compile::values_of(job->recipe)); !slow.empty())
        telemetry::warn(slow);
    job->data = planning::open_run_data(job->recipe, planning::MissingData::Refuse);
    const compile::Config& config = job->config = compile::config_of(job->recipe);
    planning::note_other_machine(config);
    const compile::CompileOptions options = planning::compile_options(config, group);
    job->compiled = compile::compile(config, options);
    planning::Capacity capacity = planning::capacity_here(config, job->compiled.layout.ranks, group);
    capacity.for_another =
        planning::for_another_machine(config, job->compiled.layout.ranks, "`lockstep check` or `lockstep plan` ");
    planning::require_runnable(config, options, job->compiled, capacity);
    if (group) require_same_programs(job->compiled, *group);
    job->bytes_before = memory_in_use(config);
    job->trainer =
        std::make_unique<runtime::Trainer>(config, job->compiled, *job->data.source, group, runtime::Backend{}, islands);
    job->start_up_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return job;
}

}  // namespace lockstep::job
