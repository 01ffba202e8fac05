#include "tune/row.h"

namespace lockstep::tune {

Row row_of(const planning::Plan& plan, const Choice& choice, int64_t bytes) {
    Row row;
    row.choice = choice, row.step_s = plan.step_s(), row.tokens_per_s = plan.tokens_per_s();
    row.mfu = plan.utilization(compile::flops_model_of_a_rank(plan.reports));
    row.exposed_communication_s = plan.simulated.exposed_communication_s, row.bubble_s = plan.simulated.bubble_s;
    row.band = calibration::band_of(plan).value_or(calibration::Band{row.step_s, row.step_s});
    row.bytes = bytes, row.causes = causes_of(plan), row.slower = planning::slower_kernels(plan);
    return row;
}

}  // namespace lockstep::tune
