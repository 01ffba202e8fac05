// The entry `eval` of a program, fed with held-out data in its own order: losses without a gradient. Serves a trainer between
// two steps and `lockstep eval` by itself.
#pragma once

#include <vector>

#include "data/sampler.h"
#include "runtime/loader.h"
#include "runtime/ranks.h"

namespace lockstep::runtime {

struct EvalResult {
    double loss_sum = 0;  // nats over all targets
    int64_t targets = 0;
    double loss() const { return targets > 0 ? loss_sum / static_cast<double>(targets) : 0; }
    void operator+=(const EvalResult& other) { loss_sum += other.loss_sum, targets += other.targets; }
};

class Evaluator {
public:
    // `ranks` run a program with an entry eval, and outlive this.
    Evaluator(Ranks& ranks, const BatchShape& shape);

    // Over the first `batches` batches of the data; what lies past its end counts for nothing.
    EvalResult evaluate(const data::Dataset& heldout, int64_t batches);
    // Batches that cover the data once, and windows in one.
    int64_t batches(const data::Dataset& heldout) const;
    int64_t windows_of_batch() const { return windows_of_batch_; }

private:
    Ranks& ranks_;
    int64_t windows_of_batch_;
    Executor* totals_ = nullptr;   // of a rank here that has the last block, if there is one
    std::vector<Loader> loaders_;  // by place
};

}  // namespace lockstep::runtime
