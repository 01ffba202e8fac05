// How far off a plan may be: from what is not known of the machine's constants, and from what no constant explains.
#pragma once

#include <optional>
#include <vector>

#include "calibration/constants.h"
#include "planning/plan.h"

namespace lockstep::calibration {

// Deviation of the logarithm of a step time that is left where all constants are known (docs/accuracy.md).
constexpr double kUnexplained = 0.03;

// The same of each part of a machine (chip, network, stack) that no published run was compared with, and of each that runs of
// only one source were. The spreads of the part's constants are in the band as well (docs/accuracy.md, "The band").
constexpr double kNeverSeen = 0.02, kOfOneSource = 0.015;
// In place of kNeverSeen, if the files of a machine give no spread of any number.
constexpr double kNoSpread = 0.13;

// Of a step: the parts that its ranks use. One rank alone uses no network.
std::vector<sim::Part> parts_of(const std::vector<sim::Part>& parts, int64_t ranks);
// Those that add to a band's deviation, in words: "No run was ever compared with a plan of: chip mi300x. ..". Empty: none.
std::string text_of(const std::vector<sim::Part>& parts);

struct Band {
    double low_s = 0, high_s = 0;  // of a step: about four plans in five lie between
};

// `deviation`: of the logarithm.
Band band_around(double step_s, double deviation);

// The deviation of the logarithm of the step time, `step_s` with these values, that these programs have on a machine: of each
// constant by itself, moved by its spread, of each part that few runs were on, and of the unexplained,
// as if they were independent.
double deviation_of(double step_s, const compile::Compiled& compiled, const compile::RankThreads& rank_threads,
                    const Constants& constants, const Constants::Sources& sources, const std::vector<double>& values,
                    const std::vector<double>& spreads, const std::vector<sim::Part>& parts);

// The parts on which the band of a plan rests; none where the machine itself was measured.
std::vector<sim::Part> parts_behind(const planning::Plan& plan);

// What a plan takes from the class of its chip, with one deviation to each side, in words: "class amd_cdna3 says:
// product_efficiency 0.55 (0.516 to 0.586), ..". Empty: nothing, or the machine was measured.
std::string text_of_class(const planning::Plan& plan);

// Of a plan. None where its machine was measured, or has no devices. UserError cluster.*: of its files, which are read again.
std::optional<Band> band_of(const planning::Plan& plan);

}  // namespace lockstep::calibration
