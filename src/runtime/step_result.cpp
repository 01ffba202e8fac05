#include "runtime/step_result.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/step_control.h"

namespace lockstep::runtime {
namespace {

// What is noted of a step, by whether its number is odd: its control, and the loss scale before and after it.
enum Noted { kControl, kScaleBefore, kScaleAfter };
int place_of(Noted what, int64_t step) { return 2 * what + static_cast<int>(step % 2); }
void note(Executor& e, ir::StateRole role, Noted what, int64_t step) {
    if (const ir::StateId id = e.program().state(role); id >= 0) e.note(id, place_of(what, step));
}
double noted_scale(Executor& e, Noted what, int64_t step) {
    double scale = 0;
    if (e.program().state(ir::StateRole::LossScale) >= 0) e.noted(place_of(what, step), {&scale, 1});
    return scale;
}
kernels::StepControl noted_control(Executor& e, int64_t step) {
    double values[kernels::StepControl::kValues];
    e.noted(place_of(kControl, step), values);
    return kernels::StepControl::read(values);
}

}  // namespace

void note_before(Executor& e, int64_t step) { note(e, ir::StateRole::LossScale, kScaleBefore, step); }

void note_after(Executor& e, int64_t step) {
    note(e, ir::StateRole::Control, kControl, step);
    note(e, ir::StateRole::LossScale, kScaleAfter, step);
}

// The ranks of an island share its control.
void read_notes(Ranks& ranks, const mesh::Mesh& mesh, StepResult& result) {
    const auto first = noted_control(ranks.first(), result.step);
    result.loss = first.loss, result.grad_norm = first.grad_norm, result.committed = first.commit;
    result.loss_scale = noted_scale(ranks.first(), kScaleBefore, result.step);
    result.next_loss_scale = noted_scale(ranks.first(), kScaleAfter, result.step);
    if (mesh.islands() == 1) return;
    using Json = nlohmann::json;
    std::map<int64_t, Json> own;  // by island: loss, norm, whether it counted, and whether all that was wrong is the scale
    for (const auto& e : ranks.here()) {
        const auto control = noted_control(*e, result.step);
        const bool overflowed =
            !control.commit && noted_scale(*e, kScaleAfter, result.step) < noted_scale(*e, kScaleBefore, result.step);
        own[mesh.island_of(e->rank())] = {control.loss, control.grad_norm, control.commit, overflowed};
    }
    std::map<int64_t, Json> all;
    for (const std::string& text : ranks.group().exchange(cbor_of(Json(own)))) {
        for (const auto& [island, values] : json_of_cbor<Json>(text).get<std::map<int64_t, Json>>()) all[island] = values;
    }
    result.loss = result.grad_norm = 0, result.committed = true;
    bool overflowed = true;
    for (const auto& [island, values] : all) {
        result.loss += values[0].get<double>() / static_cast<double>(all.size());
        result.grad_norm = std::max(result.grad_norm, values[1].get<double>());
        if (values[2].get<bool>()) continue;
        result.committed = false;
        overflowed = overflowed && values[3].get<bool>();
    }
    if (!result.committed) result.next_loss_scale = overflowed ? result.loss_scale / 2 : result.loss_scale;
}

}  // namespace lockstep::runtime
