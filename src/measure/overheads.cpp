#include "measure/overheads.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "runtime/ranks.h"

namespace lockstep::measure {

double step_overhead_s(int ranks) {
    using Clock = std::chrono::steady_clock;
    std::vector<ir::Program> programs(1);
    ir::Program& program = programs[0];
    program.mesh = mesh::Mesh::build({1, 1, ranks, 1, 1}, {});
    program.entries.push_back({"train", {}});
    runtime::Ranks all(programs, {});
    std::vector<double> times(200);
    for (double& t : times) {
        const auto start = Clock::now();
        all.parallel([](runtime::Executor& e) { e.run("train"); });
        t = std::chrono::duration<double>(Clock::now() - start).count();
    }
    std::nth_element(times.begin(), times.begin() + 50, times.end());
    return times[50];
}

}  // namespace lockstep::measure
