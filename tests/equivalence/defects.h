// Seeded defects: what a wrong pass, kernel or loader would do, as an edit of a compiled program or of the data it reads. The
// equivalence test must see every one of them (defects_test.cpp), which is what its silence is worth.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/equivalence/draw.h"

namespace lockstep::testing {

struct Sample {
    std::span<int32_t> ids, targets, positions, documents;  // [seq_len] each
};

struct Subject {
    compile::Compiled compiled;              // of any layout; all ranks run it
    std::function<void(Sample)> alter_data;  // applied to what the loader reads; empty: nothing
};

struct Defect {
    std::string name;
    std::function<bool(Subject&)> seed;  // false where the layout has no place for it
};

// In three files: what is done in an operation, what is communicated, what is called and bound.
std::vector<Defect> operation_defects();
std::vector<Defect> communication_defects();
std::vector<Defect> call_defects();

// As run() of run.h, on the subject's program and data.
Outcome run(const compile::Recipe& recipe, const Subject& subject, int steps);

}  // namespace lockstep::testing
