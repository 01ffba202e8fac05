#include "cli/plan_sensitivity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "telemetry/console.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {

planning::Sensitivity sensitivity_with_progress(const compile::Recipe& opened, const std::string& cluster_file,
                                                const planning::Plan& plan) {
    telemetry::ProgressBar bar;
    planning::Sensitivity out = planning::sensitivity_of(
        opened, cluster_file, plan, [&bar](int64_t done, int64_t total) { bar.show(done, total, "other values planned"); });
    bar.clear();
    return out;
}

nlohmann::ordered_json sensitivity_json(const planning::Sensitivity& s) {
    using Json = nlohmann::ordered_json;
    Json changes = Json::array(), refused = Json::array();
    for (const planning::Change& c : s.changes)
        changes.push_back({{"key", c.key},
                           {"default", c.by_default},
                           {"instead", c.instead},
                           {"step_time_s", c.step_s},
                           {"token_time_change", c.time},
                           {"same_tokens", c.same_tokens},
                           {"needed_bytes", c.bytes},
                           {"more_bytes", c.more_bytes},
                           {"fits", c.fits}});
    for (const planning::RefusedChange& r : s.refused)
        refused.push_back({{"key", r.key}, {"instead", r.instead}, {"why", r.why}});
    return {{"changes", changes}, {"without_effect", s.without_effect}, {"refused", refused}};
}

void print_sensitivity(const planning::Sensitivity& s) {
    fmt::print("keys that the recipe leaves at their defaults, with other values\n");
    fmt::print("  {:>8} {:>10}  key: default -> instead\n", "step %", "GiB");
    int64_t small = 0;
    for (const planning::Change& c : s.changes) {
        if (!c.is_notable()) {
            small += std::ssize(c.instead);
            continue;
        }
        const double percent = std::abs(c.time) < 0.0005 ? 0 : 100 * c.time;
        fmt::print("  {:>+8.1f} {:>+10.2f}  {}: {} -> {}{}{}\n", percent, static_cast<double>(c.more_bytes) / (int64_t{1} << 30),
                   c.key, c.by_default, fmt::join(c.instead, ", "), c.same_tokens ? "" : " (time of a token)",
                   c.fits ? "" : "; does not fit");
    }
    fmt::print("  {} more change less than 0.05 % and 0.01 GiB, {} change nothing, {} are refused\n",
               telemetry::plural(small, "value"), s.without_effect, s.refused.size());
}

}  // namespace lockstep::cli
