// A step as a trace file that chrome://tracing and Perfetto open: a process a rank, a thread a queue, a slice for every call
// with its ops inside. `train --trace` writes a measured step, `plan --trace` a simulated one, in the same form.
#pragma once

#include <span>
#include <string>

#include "ir/timeline.h"

namespace lockstep::telemetry {

// Refuses now what could only be refused when the step is over.
void require_can_be_written(const std::string& path);

// timelines: of all ranks, or of the first of each pipeline rank. UserError trace.cannot_write.
void write_trace(const std::string& path, std::span<const ir::Timeline> timelines);

}  // namespace lockstep::telemetry
