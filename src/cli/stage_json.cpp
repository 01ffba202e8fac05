#include "cli/stage_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.h"
#include "schedules/timeline.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

// The stages of a program's pipeline rank, and how many instances of repeated blocks it has.
std::vector<int64_t> stages_of(const ir::Program& p) {
    std::vector<int64_t> out;
    for (const ir::Stage& s : p.stages) out.push_back(s.index);
    return out.empty() ? std::vector<int64_t>{0} : out;
}
int64_t layers_of(const ir::Program& p) {
    int64_t n = 0;
    for (const ir::Block& b : p.blocks)
        n += &b != &p.blocks.front() && &b != &p.blocks.back() ? static_cast<int64_t>(b.instances().size()) : 0;
    return n;
}

}  // namespace

nlohmann::ordered_json stage_json(const ir::Program& program, const compile::StageReport& report, int64_t reserve_bytes) {
    nlohmann::ordered_json bytes = {{"total", report.total_bytes}};
    for (int k = 0; k < ir::kMemoryKinds; ++k)
        bytes[std::string(ir::name_of(static_cast<ir::MemoryKind>(k)))] = report.bytes[static_cast<size_t>(k)];
    return {{"stage", program.pipeline_rank},    {"stages", stages_of(program)},
            {"layers", layers_of(program)},      {"bytes", bytes},
            {"host_bytes", report.host_bytes},   {"reserve", reserve_bytes},
            {"flops_model", report.flops_model}, {"flops_executed", report.flops_executed}};
}

nlohmann::ordered_json rows_json(const schedules::Table& table) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const schedules::Row& row : schedules::with_waits(table).rows) {
        nlohmann::ordered_json& cells = rows.emplace_back(nlohmann::ordered_json::array());
        for (const schedules::Action& a : row) cells.push_back(schedules::text_of(a));
    }
    return rows;
}

void print_bytes(const compile::Compiled& compiled, const std::vector<compile::StageReport>& reports, int64_t capacity_bytes) {
    const auto fullest =
        static_cast<size_t>(std::max_element(reports.begin(), reports.end(),
                                             [](const auto& a, const auto& b) { return a.total_bytes < b.total_bytes; }) -
                            reports.begin());
    for (size_t k = 0; k < reports.size() && reports.size() > 1; ++k) {
        const ir::Program& p = compiled.programs[k];
        fmt::print("pipeline rank {:<3} stages {}: {} layers, {}, {:.4g} model FLOPs a step\n", k, fmt::join(stages_of(p), ", "),
                   layers_of(p), telemetry::gib(reports[k].total_bytes), reports[k].flops_model);
    }
    fmt::print("bytes of a rank{}\n", reports.size() > 1 ? fmt::format(" of pipeline rank {}, the fullest", fullest) : "");
    for (int k = 0; k < ir::kMemoryKinds; ++k) {
        const int64_t b = reports[fullest].bytes[static_cast<size_t>(k)];
        if (b > 0) fmt::print("  {:<14} {:>16} {:>14}\n", ir::name_of(static_cast<ir::MemoryKind>(k)), b, telemetry::gib(b));
    }
    const int64_t total = reports[fullest].total_bytes;
    fmt::print("  {:<14} {:>16} {:>14}{}\n", "total", total, telemetry::gib(total),
               capacity_bytes > 0
                   ? fmt::format(" of {}{}", telemetry::gib(capacity_bytes), total <= capacity_bytes ? "" : ": DOES NOT FIT")
                   : "");
    if (const int64_t pinned = reports[fullest].host_bytes; pinned > 0)
        fmt::print("  {:<14} {:>16} {:>14}   pinned: copies of the states, from which checkpoints are written\n", "host memory",
                   pinned, telemetry::gib(pinned));
}

}  // namespace lockstep::cli
