#include "tune/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace lockstep::tune {

planning::Plan full_plan(const Problem& problem, const compile::Config& config) {
    planning::Machine machine = problem.machine;
    return planning::make_plan(config, std::move(machine));
}

Row row_of(const Problem& problem, const compile::Config& config, const Choice& choice, std::optional<int64_t> bytes) {
    planning::Machine machine = problem.machine;
    // Gaps between buffers change what a budget saves.
    machine.options.place_buffers = !bytes || !problem.cluster().devices || choice.recompute == compile::RecomputeMode::Budget;
    const planning::Plan p = planning::make_plan(config, std::move(machine));
    return row_of(p, choice, bytes.value_or(p.needed.bytes));
}

std::vector<Row> rows_of(const Problem& problem, const Found& found) {
    std::vector<Row> rows;
    for (const Planned& p : found.best) {
        const auto known = std::ranges::find(found.budgets, p.choice, &Row::choice);
        rows.push_back(known != found.budgets.end() ? *known : row_of(problem, problem.config(p.choice), p.choice, p.bytes));
    }
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.step_s < b.step_s; });
    for (size_t i = 1; i < rows.size(); ++i) rows[i].why = difference_text(rows[0].causes, rows[i].causes);
    return rows;
}

std::vector<InSoftware> in_both(const Problem& problem, const Choice& choice) {
    const std::string& stack = problem.cluster().stack.name;
    if (stack.empty()) return {};
    const auto in = [&](const std::string& name, const planning::Plan& p) {
        return InSoftware{name, p.step_s(), p.needed.bytes, p.fits};
    };
    compile::Config own = problem.config(choice);
    own.cluster.stack.clear();
    try {
        const planning::Plan as_lockstep =
            planning::make_plan(own, planning::described_machine(own, problem.machine.file, "--cluster"));
        return {in(stack, full_plan(problem, problem.config(choice))), in("Lockstep", as_lockstep)};
    } catch (const UserError&) {  // the search was for the stack, and does not need it
        return {};
    }
}

std::string LinesSoFar::line_at(double elapsed_s, const Progress& p) {
    if (elapsed_s < next_s_) return "";
    next_s_ = elapsed_s + kPauseSeconds;
    const std::string searched =
        fmt::format("after {:.0f} min {:.0f} % is searched, {} layouts are planned", elapsed_s / 60, 100 * p.share, p.compiled);
    return p.best ? fmt::format("{}; the best so far: {:.5g} s  {}", searched, p.best_s, text_of(*p.best))
                  : searched + "; none fits so far";
}

}  // namespace lockstep::tune
