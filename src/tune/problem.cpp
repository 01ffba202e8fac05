#include "tune/problem.h"

namespace lockstep::tune {

Problem problem_of(const compile::Config& base, const sim::Cluster& cluster, const std::string& file, int64_t ranks,
                   int64_t global_batch) {
    Problem p{space_of(base, ranks, global_batch, cluster.devices ? cluster.ranks_of_host() : 0), {}, {}};
    const compile::Config first = p.config(p.space.families.front());
    p.machine = planning::described_machine(first, cluster, file);
    p.machine.options.verify = false;
    p.prefix = compile::compile_prefix(first, p.machine.options);
    return p;
}

}  // namespace lockstep::tune
