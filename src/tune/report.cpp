#include "tune/report.h"

#include <algorithm>

namespace lockstep::tune {

planning::Plan full_plan(const Problem& problem, const compile::Config& config) {
    planning::Machine machine = problem.machine;
    return planning::make_plan(config, std::move(machine));
}

Row row_of(const Problem& problem, const compile::Config& config, const Choice& choice) {
    const planning::Plan p = full_plan(problem, config);
    Row row;
    row.choice = choice, row.step_s = p.step_s(), row.tokens_per_s = p.tokens_per_s();
    row.mfu = p.utilization(compile::flops_model_of_a_rank(p.reports));
    row.exposed_communication_s = p.simulated.exposed_communication_s, row.bubble_s = p.simulated.bubble_s;
    row.band = calibration::band_of(p).value_or(calibration::Band{row.step_s, row.step_s});
    row.bytes = p.needed.bytes, row.causes = causes_of(p), row.slower = planning::slower_kernels(p);
    return row;
}

std::vector<Row> rows_of(const Problem& problem, const Found& found) {
    std::vector<Row> rows;
    for (const Planned& p : found.best) rows.push_back(row_of(problem, problem.config(p.choice), p.choice));
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.step_s < b.step_s; });
    for (size_t i = 1; i < rows.size(); ++i) rows[i].why = difference_text(rows[0].causes, rows[i].causes);
    return rows;
}

}  // namespace lockstep::tune
