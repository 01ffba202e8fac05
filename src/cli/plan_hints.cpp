#include "cli/plan_hints.h"

#include <fmt/format.h>

#include <algorithm>

#include "telemetry/console.h"

namespace lockstep::cli {

planning::Hints hints_with_progress(const compile::Recipe& opened, const std::string& cluster_file, const planning::Plan& plan) {
    telemetry::ProgressBar bar;
    static constexpr int64_t kUsual = 13;  // layouts that are planned where the recipe fits
    planning::Hints out = planning::hints_of(opened, cluster_file, plan,
                                             [&bar](int64_t done) { bar.show(done, std::max(done, kUsual), "layouts planned"); });
    bar.clear();
    return out;
}

nlohmann::ordered_json hints_json(const planning::Hints& hints) {
    using Json = nlohmann::ordered_json;
    const auto of_step = [](Json out, const planning::OtherStep& o) {
        out.update(Json{{"ranks", o.step.ranks},
                        {"step_time_s", o.step.step_s},
                        {"rank_time_of_a_token_change", o.time},
                        {"needed_bytes", o.step.bytes},
                        {"more_bytes", o.more_bytes},
                        {"sent_bytes_of_a_rank", o.step.sent_bytes},
                        {"fits", o.step.fits}});
        return out;
    };
    Json all = Json::array(), refused = Json::array(), float8;
    for (const planning::Hint& h : hints.hints)
        all.push_back(of_step({{"context_parallel_degree", h.context_ranks}, {"context_parallel_rotate_method", h.form}}, h));
    for (const planning::RefusedHint& r : hints.refused)
        refused.push_back({{"context_parallel_degree", r.context_ranks}, {"why", r.why}});
    if (hints.float8 && hints.float8->step) float8 = of_step(Json::object(), *hints.float8->step);
    else if (hints.float8) float8 = {{"why", hints.float8->why}};
    return {{"context_ranks", all}, {"refused", refused}, {"float8", float8}};
}

void print_hints(const planning::Hints& hints) {
    const auto gib = [](double bytes) { return bytes / (int64_t{1} << 30); };
    fmt::print("other numbers of context ranks, each in the form that is fastest\n");
    fmt::print("  {:>13}  {:<10} {:>6} {:>10} {:>12} {:>9} {:>9}\n", "context ranks", "form", "ranks", "step s", "rank s/token",
               "GiB", "GiB sent");
    for (const planning::Hint& h : hints.hints)
        fmt::print("  {:>13}  {:<10} {:>6} {:>10.4g} {:>+10.1f} % {:>9.2f} {:>9.2f}{}\n", h.context_ranks,
                   h.form.empty() ? "-" : h.form, h.step.ranks, h.step.step_s, 100 * h.time,
                   gib(static_cast<double>(h.step.bytes)), gib(h.step.sent_bytes), h.step.fits ? "" : "  does not fit");
    for (const planning::RefusedHint& r : hints.refused) fmt::print("  {:>13}  {}\n", r.context_ranks, r.why);
    if (!hints.float8) return;
    if (!hints.float8->step) {
        fmt::print("model.converters = \"float8\" cannot be planned: {}\n", hints.float8->why);
        return;
    }
    const planning::OtherStep& o = *hints.float8->step;
    fmt::print(
        "model.converters = \"float8\", weights cross data ranks in 1 byte (changes arithmetic): step {:.4g} s, {:+.1f} % rank "
        "s/token, {:.2f} GiB, {:.2f} GiB sent{}\n",
        o.step.step_s, 100 * o.time, gib(static_cast<double>(o.step.bytes)), gib(o.step.sent_bytes),
        o.step.fits ? "" : "; does not fit");
}

}  // namespace lockstep::cli
