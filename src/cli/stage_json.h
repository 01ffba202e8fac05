// The memory of a stage as `check` and `plan` print it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "compile/report.h"

namespace lockstep::cli {

inline nlohmann::ordered_json bytes_json(const compile::StageReport& report) {
    nlohmann::ordered_json bytes = {{"total", report.total_bytes}};
    for (int k = 0; k < ir::kMemoryKinds; ++k)
        bytes[std::string(ir::name_of(static_cast<ir::MemoryKind>(k)))] = report.bytes[static_cast<size_t>(k)];
    return bytes;
}

}  // namespace lockstep::cli
