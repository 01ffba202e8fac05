#include "measure/overheads.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "runtime/ranks.h"

namespace lockstep::measure {

double step_overhead_s(int ranks) {
    using Clock = std::chrono::steady_clock;
    ir::Program program;
    program.mesh = mesh::Mesh::build({1, ranks, 1, 1}, {});
    program.entries.push_back({"train", {}});
    runtime::Ranks all(program, {});
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
