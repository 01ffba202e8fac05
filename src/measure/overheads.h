// What a step takes apart from its ops.
#pragma once

namespace lockstep::measure {

// Telling `ranks` ranks to take a step and hearing that all have: a step without calls, lower quartile. Seconds.
double step_overhead_s(int ranks);

}  // namespace lockstep::measure
