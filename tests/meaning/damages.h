// Damages to ops, to calls and to what a program says of its states, as a wrong pass would do them: each kind at a random place.
// Many change no number. The same seed gives the same damage.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::meaning_test {

struct Damage {
    std::string name;
    // What was done; empty where the random choice found no place.
    std::function<std::string(ir::Program&, std::mt19937_64&)> apply;
};

const std::vector<Damage>& all_damages();

}  // namespace lockstep::meaning_test
