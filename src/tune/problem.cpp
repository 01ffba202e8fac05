#include "tune/problem.h"

#include <fmt/format.h>

namespace lockstep::tune {
namespace {

// Takes the margin off the memory that a rank may use.
void leave_free(Problem& p, double share) {
    planning::Capacity& capacity = p.machine.capacity;
    if (!capacity.bytes || share <= 0) return;
    p.margin_bytes = static_cast<int64_t>(share * static_cast<double>(*capacity.bytes));
    *capacity.bytes -= p.margin_bytes;
    capacity.of += fmt::format(", less the margin of {:g} %", 100 * share);
}

}  // namespace

Problem problem_of(const compile::Config& base, const sim::Cluster& cluster, const std::string& file, int64_t ranks,
                   int64_t global_batch, double memory_margin) {
    Problem p{space_of(base, ranks, global_batch, cluster.devices ? cluster.ranks_of_host() : 0), {}, {}};
    const compile::Config first = p.config(p.space.families.front());
    p.machine = planning::described_machine(first, cluster, file);
    leave_free(p, memory_margin);
    p.machine.options.verify = false;
    p.prefixes = std::make_shared<compile::Prefixes>(first, p.machine.options);
    return p;
}

}  // namespace lockstep::tune
