#include "tune/goodput.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tune {

Goodput goodput_of(int64_t devices, const Failures& f) {
    Goodput out;
    if (f.mtbf_hours <= 0 || devices <= 0) return out;
    out.job_mtbf_s = 3600 * f.mtbf_hours / static_cast<double>(devices);
    const double mtbf_s = out.job_mtbf_s, save_s = std::max(f.save_s, 1e-3);
    const double half = save_s / (2 * mtbf_s);
    out.interval_s = half < 1 ? std::sqrt(2 * save_s * mtbf_s) * (1 + std::sqrt(half) / 3 + half / 9) - save_s : mtbf_s;
    // Daly's expected time of a training over its useful time.
    const double whole = mtbf_s * std::exp(f.restart_s / mtbf_s) * std::expm1((out.interval_s + save_s) / mtbf_s);
    out.useful = std::isfinite(whole) ? out.interval_s / whole : 0;
    out.saving = out.useful * save_s / out.interval_s;
    out.lost = 1 - out.useful - out.saving;
    return out;
}

}  // namespace lockstep::tune
