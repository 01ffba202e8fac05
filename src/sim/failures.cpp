#include "sim/failures.h"

namespace lockstep::sim {

double mtbf_hours_of(const std::vector<Source>& sources) {
    double hours = 0;
    for (const Source& s : sources) hours = s.tables["machine"]["mtbf_hours"].value_or(hours);
    return hours;
}

}  // namespace lockstep::sim
