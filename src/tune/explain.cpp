#include "tune/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/rule.h"

namespace lockstep::tune {

std::string_view text_of(Cause cause) {
    switch (cause) {
        case Cause::Compute: return "compute";
        case Cause::Recompute: return "recompute";
        case Cause::Optimizer: return "optimizer";
        case Cause::Communication: return "exposed communication";
        case Cause::Bubble: return "bubble";
        case Cause::Host: return "host and idle";
    }
    throw InternalError("tune: a cause of no kind");
}

namespace {

Cause cause_of(const ir::Routine& r, const ir::Op& op) {
    if (ops::rule(op.kind).collective) return Cause::Communication;
    if (!ir::is_forward(r.kind) && !ir::is_backward(r.kind)) return Cause::Optimizer;
    return op.attrs.contains("recomputed") ? Cause::Recompute : Cause::Compute;
}

}  // namespace

Causes causes_of(const planning::Plan& plan) {
    Causes out;
    const double share = 1 / static_cast<double>(plan.simulated.timelines.size());
    for (const ir::Timeline& t : plan.simulated.timelines) {
        const auto name = [](const ir::Routine& r, const ir::Op& op) { return std::string(text_of(cause_of(r, op))); };
        compile::Breakdown b;
        compile::add_step(b, 0, {&t, 1}, name, plan.compiled.microbatches_for_each());
        for (const Cause c : kCauses) {
            if (const auto at = b.ops.find(std::string(text_of(c))); at != b.ops.end()) out[c] += share * at->second.time_s;
        }
    }
    // Collectives count from when the last member has come; waits for the other thread are communication, too.
    const double waited_s = plan.simulated.exposed_communication_s - plan.simulated.bubble_s;
    if (plan.compiled.microbatches_for_each() == 1) out[Cause::Communication] = waited_s;
    out[Cause::Bubble] = plan.simulated.bubble_s;
    double sum = 0;
    for (const double s : out.time_s) sum += s;
    out[Cause::Host] = plan.step_s() - sum;
    return out;
}

std::string difference_text(const Causes& faster, const Causes& slower) {
    double before_s = 0, most_s = 0;
    std::vector<std::pair<Cause, double>> differences;
    for (const Cause c : kCauses) {
        before_s += faster[c];
        differences.emplace_back(c, slower[c] - faster[c]);
        most_s = std::max(most_s, std::abs(differences.back().second));
    }
    std::stable_sort(differences.begin(), differences.end(),
                     [](const auto& a, const auto& b) { return std::abs(a.second) > std::abs(b.second); });
    std::string out;
    for (const auto& [cause, s] : differences) {
        if (std::abs(s) < most_s / 10 || s == 0) continue;
        out += fmt::format("{}{} {:+.4g} s ({:+.1f} %)", out.empty() ? "" : ", ", text_of(cause), s, 100 * s / before_s);
    }
    return out.empty() ? "equal" : out;
}

}  // namespace lockstep::tune
