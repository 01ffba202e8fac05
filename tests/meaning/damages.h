// Damages to the routines of a model's blocks, and to the calls that run them, as a wrong pass would do them: each kind at a
// random place. Many change no number. The same seed gives the same damage.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::meaning_test {

struct Damage {
    std::string name;
    // What was done; empty where the random choice found no place.
    std::string (*apply)(ir::Program&, std::mt19937_64&);
};

const std::vector<Damage>& all_damages();

}  // namespace lockstep::meaning_test
