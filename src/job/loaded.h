// A checkpoint ready to run: some entries of its recipe's program compiled and proved, their ranks started and watched, the
// weights in them. What `eval` and `sample` share.
#pragma once

#include <string>
#include <vector>

#include "compile/compile.h"
#include "job/agreement.h"
#include "job/stored.h"
#include "job/watch.h"
#include "runtime/ranks.h"

namespace lockstep::job {

struct Loaded {
    // Every process of the job, which outlives this, makes one at the same time, of the same checkpoint, recipe and
    // `flags`. UserError check.*, job.*, checkpoint.*.
    Loaded(const Stored& stored, const std::vector<ir::EntryKind>& entries, comm::ProcessGroup& group, const Facts& flags = {});

    const compile::Compiled compiled;
    runtime::Ranks ranks;
    const Watch watch;
};

}  // namespace lockstep::job
