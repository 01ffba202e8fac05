// Seeded defects: what a wrong pass, kernel or loader would do, as an edit of a compiled program or of the data it reads. The
// equivalence test must see every one of them (defects_test.cpp), which is what its silence is worth.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/equivalence/draw.h"
#include "tests/equivalence/edit.h"

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

// The same edit of every pipeline rank's program.
inline std::function<bool(Subject&)> in_programs(std::function<bool(ir::Program&)> edit) {
    return [edit = std::move(edit)](Subject& s) {
        bool any = false;
        for (ir::Program& p : s.compiled.programs) any = edit(p) || any;
        return any;
    };
}

// An edit of every op of one kind in routines of these kinds.
inline Defect in_ops(const std::string& name, const Kinds& routines, const char* kind,
                     std::function<bool(ir::Routine&, ir::Op&)> edit) {
    return {name, in_programs([=](ir::Program& p) { return each_op(p, routines, kind, edit); })};
}

// By file: what is done in an operation, what is communicated, what is called and bound, what a pipeline, context ranks and
// float8 add to these.
std::vector<Defect> operation_defects();
std::vector<Defect> communication_defects();
std::vector<Defect> call_defects();
std::vector<Defect> pipeline_defects();
std::vector<Defect> context_defects();
std::vector<Defect> float8_defects();

// As run() of run.h, on the subject's program and data.
Outcome run(const compile::Recipe& recipe, const Subject& subject, int steps);

}  // namespace lockstep::testing
