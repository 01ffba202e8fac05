// Where the time of a planned step goes, and why one plan takes longer than another:
// seconds by cause, which add up to the step.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "planning/plan.h"

namespace lockstep::tune {

enum class Cause { Compute, Recompute, Optimizer, Communication, Bubble, Host };
constexpr std::array kCauses = {Cause::Compute,       Cause::Recompute, Cause::Optimizer,
                                Cause::Communication, Cause::Bubble,    Cause::Host};
std::string_view text_of(Cause cause);

// Means over pipeline ranks. Compute: forwards, backwards and the loss, without what is computed again. Communication: exposed,
// without waits for other pipeline ranks, which are the bubble. Host: all that no op accounts for.
struct Causes {
    std::array<double, kCauses.size()> time_s{};
    double& operator[](Cause c) { return time_s[static_cast<size_t>(c)]; }
    double operator[](Cause c) const { return time_s[static_cast<size_t>(c)]; }
};
Causes causes_of(const planning::Plan& plan);

// What `slower` takes longer for, as "exposed communication +1.2 s (+3.4 %), bubble +0.3 s (+0.9 %)": causes that differ by at
// least a tenth of the largest difference, largest first. Percent of the other step.
std::string difference_text(const Causes& faster, const Causes& slower);

}  // namespace lockstep::tune
