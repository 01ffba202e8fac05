// What a program says of itself: exact bytes by kind, FLOPs. Everything that prints such numbers asks here.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "compile/compile.h"

namespace lockstep::compile {

struct StageReport {
    // Of one rank, of the memory that it computes in, at the fullest point of the train entry. What the plan leaves unused
    // between buffers counts as workspace, so the kinds sum to total_bytes, the size of the arenas there.
    std::array<int64_t, ir::kMemoryKinds> bytes{};
    int64_t total_bytes = 0;
    int64_t host_bytes = 0;                      // of the host's memory, not a device's: copies of states, pinned
    double flops_model = 0, flops_executed = 0;  // of one rank and one step
};

StageReport report_of(const ir::Program& program, ComputesIn memory = ComputesIn::HostMemory);
// By call of the train entry: bytes of the buffers that are in that memory while it runs, by kind.
std::vector<std::array<int64_t, ir::kMemoryKinds>> bytes_by_call(const ir::Program& program, ComputesIn memory);
// By routine: how many calls of the whole step each of its calls stands for, where the step has `more` times the microbatches
// of the program. The microbatches that are left out call what the one in the middle calls.
std::vector<double> calls_stood_for(const ir::Program& program, double more);
// By pipeline rank, of all microbatches of the step; and what a rank has on average.
std::vector<StageReport> reports_of(const Compiled& compiled);
double flops_model_of_a_rank(const std::vector<StageReport>& reports);
double flops_executed_of_a_rank(const std::vector<StageReport>& reports);
// The element type of the op with the most FLOPs: its roof is what utilization is of.
std::string main_dtype(const ir::Program& program);

// A change of one key that makes the plan smaller.
struct Remedy {
    std::string key, value;
    int64_t total_bytes;  // with it
};

// Tries keys that lower memory, each by itself, and returns those that help, best first.
std::vector<Remedy> remedies(const Config& config, const CompileOptions& options, int64_t total_bytes);

}  // namespace lockstep::compile
