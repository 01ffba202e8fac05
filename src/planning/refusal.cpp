#include "planning/refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "check/check.h"
#include "compile/memory_report.h"
#include "meaning/meaning.h"
#include "telemetry/wrap.h"

namespace lockstep::planning {

std::optional<UserError> refusal_of(const compile::Config& config, const compile::CompileOptions& options,
                                    const compile::Compiled& compiled, const Capacity& capacity) {
    if (const auto refusal = check::prove(compiled.of_ranks(), &options.catalog))
        throw InternalError(fmt::format("check ({}): {}", refusal->reason, refusal->message));
    if (const std::string wrong = meaning::wrong_meaning(compiled.of_ranks(), config); !wrong.empty())
        throw InternalError("check (meaning): " + wrong);
    if (const int64_t on_host = compiled.host_bytes(); capacity.host_bytes && on_host > *capacity.host_bytes) {
        return UserError("check.host_memory", "checkpoint.async_mode",
                         fmt::format("a rank needs {} of the host's memory, for copies of its states from which checkpoints are "
                                     "written during training, and has {}: set checkpoint.async_mode = \"disabled\", or split "
                                     "the states over more hosts",
                                     telemetry::gib(on_host), telemetry::gib(*capacity.host_bytes)));
    }
    const int64_t needed = compiled.arena_bytes();
    if (!capacity.bytes || needed <= *capacity.bytes) return std::nullopt;
    std::string advice;
    std::string key = "training.local_batch_size";
    const std::vector<compile::Remedy> remedies = compile::remedies(config, options, needed);
    for (size_t i = 0; i < remedies.size() && i < 3; ++i) {
        if (i == 0) key = remedies[i].key;
        advice += fmt::format("{}{} = {} ({})", i == 0 ? "" : ", or ", remedies[i].key, remedies[i].value,
                              telemetry::gib(remedies[i].total_bytes));
    }
    const int64_t has = std::max<int64_t>(*capacity.bytes, 0);
    return UserError("check.does_not_fit", key,
                     fmt::format("a rank needs {} and has {} ({}): {} too much; what would help most: {}{}",
                                 telemetry::gib(needed), telemetry::gib(has), capacity.of, telemetry::gib(needed - has),
                                 advice.empty() ? "a smaller model" : advice, capacity.for_another));
}

void require_runnable(const compile::Config& config, const compile::CompileOptions& options, const compile::Compiled& compiled,
                      const Capacity& capacity) {
    if (const std::optional<UserError> refusal = refusal_of(config, options, compiled, capacity)) throw *refusal;
}

}  // namespace lockstep::planning
