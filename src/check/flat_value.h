// What a tensor of a routine at the end of a step holds, as `step_end.h` follows it from op to op: which state of which segment,
// and over which ranks it must still be summed. How it is split is in its placement.
#pragma once

#include <string>
#include <string_view>

#include "ir/program.h"

namespace lockstep::check {

// Besides those of states, which are called as their role.
inline constexpr std::string_view kNothing = "nothing", kWeights = "the weights", kNewWeights = "the new weights",
                                  kGradient = "the gradient", kMirrored = "a mirror's gradient",
                                  kSquares = "the squares of the gradient", kMoment = "the moment", kNewMoment = "the new moment",
                                  kDirection = "the momentum of the update", kOrthogonal = "the orthogonal update",
                                  kAnchor = "the anchor", kNewAnchor = "the new anchor", kOuterMomentum = "the outer momentum",
                                  kNewOuterMomentum = "the new outer momentum", kChange = "this island's share of the change",
                                  kMean = "the mean change of islands",
                                  kMeanOfFirst = "the mean change of islands on the rank that met",
                                  kValidTargets = "which targets are valid", kNewControl = "the step's control",
                                  kNewSteps = "the next number of steps", kAmax = "the largest size of weights",
                                  kNewLossScale = "the next loss scale", kNewGrowthTracker = "the next growth tracker";

struct FlatValue {
    std::string_view what = kNothing;
    int segment = -1;           // of the routine's unit; -1: it is of none
    int member = -1;            // of the segment: one of its matrices; -1: all of them
    ir::StateId state = -1;     // of a moment: which
    ir::AxisList partial = {};  // ascending: over which the ranks' values must still be summed
    ir::AxisList rows = {};     // of bytes: has a row for each rank along these, which are terms of a sum
    int64_t bits = 0;           // of an element, if it is quantized
    std::string_view group{};   // of a largest size: the parameters, as Tensor::source has them
    bool operator==(const FlatValue&) const = default;
};

inline ir::AxisList ascending(const ir::AxisList& axes) { return mesh::unite(axes, {}); }

inline std::string text_of(const ir::Program& p, const FlatValue& v) {
    std::string out(v.what);
    if (v.state >= 0) out += " " + p.states[static_cast<size_t>(v.state)].name;
    if (v.member >= 0) out += " of matrix " + std::to_string(v.member);
    if (v.segment >= 0) out += " of segment " + std::to_string(v.segment);
    if (!v.group.empty()) out.append(" of ").append(v.group);
    if (!v.partial.empty()) out += " (a partial sum over " + p.mesh.text(v.partial) + ")";
    if (v.bits != 0) out += " (in " + std::to_string(v.bits) + " bits)";
    return out;
}

}  // namespace lockstep::check
