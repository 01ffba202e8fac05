// What `tune` finds and what it prints are what `plan` says of the same layout.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "tests/tune/small_problem.h"
#include "tune/report.h"
#include "tune/search.h"

namespace lockstep::testing {
namespace {

using tune::Choice, tune::Planned, tune::Problem;

// A short step on GPUs is a graph, which is launched once: `plan` and `tune` take its launches as free, and bounds hold.
TEST(TuneAgreement, TakesLaunchesAsAPlanDoes) {
    std::map<std::string, double> sum_s;
    for (const char* graph : {"auto", "true", "false"}) {
        const compile::Config config = small_config({{"runtime.kernels", "cuda"}, {"runtime.cuda_graph", graph}});
        const Problem p = tune::problem_of(config, sim::read_cluster("h100", "--cluster"), "h100", 2, 8);
        ASSERT_GT(p.cluster().host.launch_s, 0);
        tune::Bounds bounds(p);
        int64_t compared = 0;
        for (size_t i = 0; i < p.space.families.size(); i += 5) {
            const Choice& c = p.space.families[i];
            const auto planned = tune::plan_of(p, c);
            if (compile::refusal_of(planned)) continue;
            const double step_s = std::get<Planned>(planned).step_s;
            EXPECT_NEAR(step_s / tune::full_plan(p, p.config(c)).step_s(), 1, 1e-9) << graph << ": " << text_of(c);
            EXPECT_LE(bounds.of_member(c).step_s, step_s) << graph << ": " << text_of(c);
            sum_s[graph] += step_s, ++compared;
        }
        EXPECT_GT(compared, 10) << graph;
    }
    EXPECT_EQ(sum_s["auto"], sum_s["true"]);
    EXPECT_LT(sum_s["auto"], 0.9 * sum_s["false"]);
}

// What a budget saves depends on gaps between buffers. The table and the front print one step: that of the program with offsets.
TEST(TuneAgreement, RowsOfABudgetAreOfProgramsWithOffsets) {
    const compile::Config config = small_config({{"model.n_layers", "12"}, {"parallelism.tensor_parallel_degree", "1"}});
    Problem p = tune::problem_of(config, sim::read_cluster("h100", "--cluster"), "h100", 2, 8);
    int64_t differ = 0;
    for (Choice c : p.space.families) {
        if (differ >= 3) break;
        if (c.pipeline() != 2 || c.recompute != compile::RecomputeMode::None || c.microbatch > 2) continue;
        const int64_t of_all = std::get<Planned>(tune::plan_of(p, c)).bytes;
        c.recompute = compile::RecomputeMode::Budget;
        for (const double share : {0.98, 0.94, 0.9, 0.86}) {
            *p.machine.capacity.bytes = c.budget_bytes = static_cast<int64_t>(share * static_cast<double>(of_all));
            const auto placed = tune::plan_of(p, c), least = tune::plan_of(p, c, tune::Bytes::Least);
            if (compile::refusal_of(placed)) continue;
            const Planned& planned = std::get<Planned>(placed);
            if (std::abs(std::get<Planned>(least).step_s / planned.step_s - 1) < 1e-6) continue;  // no gaps
            const tune::Row row = tune::row_of(p, p.config(c), c, planned.bytes);
            EXPECT_NEAR(row.step_s / planned.step_s, 1, 1e-9) << text_of(c) << share;
            EXPECT_EQ(row.bytes, planned.bytes) << text_of(c) << share;
            ++differ;
        }
    }
    EXPECT_GT(differ, 0) << "no budget whose program has gaps";
}

}  // namespace
}  // namespace lockstep::testing
