#include "measure/overheads.h"

#include <algorithm>
#include <vector>

#include "measure/stopwatch.h"
#include "runtime/ranks.h"

namespace lockstep::measure {

double step_overhead_s(int ranks) {
    std::vector<ir::Program> programs(1);
    ir::Program& program = programs[0];
    program.mesh = mesh::Mesh::build({1, 1, 1, ranks, 1, 1}, {});
    program.entries.push_back({ir::EntryKind::Train, {}});
    runtime::Ranks all(programs, {});
    std::vector<double> times(200);
    for (double& t : times) {
        const double start_s = now_s();
        all.parallel([](runtime::Executor& e) { e.run(ir::EntryKind::Train); });
        t = now_s() - start_s;
    }
    std::nth_element(times.begin(), times.begin() + 50, times.end());
    return times[50];
}

}  // namespace lockstep::measure
