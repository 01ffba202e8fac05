#include "runtime/evaluator.h"

#include <algorithm>
#include <cmath>

#include "base/round.h"

namespace lockstep::runtime {

Evaluator::Evaluator(Ranks& ranks, const BatchShape& shape)
    : ranks_(ranks), windows_of_batch_(shape.microbatch * ranks.executor(0).program().microbatches) {
    const BatchShape whole{shape.microbatch, windows_of_batch_, shape.seq_len};  // no sequence of a batch is masked
    for (int r = 0; r < ranks.count(); ++r) {
        const ir::Program& p = ranks.executor(r).program();
        loaders_.emplace_back(p, "eval", r, whole);
        if (p.buffer("eval.total_loss") >= 0) has_totals_ = r;
    }
}

int64_t Evaluator::batches(const data::Dataset& heldout) const { return ceil_div(heldout.windows(), windows_of_batch_); }

EvalResult Evaluator::evaluate(const data::Dataset& heldout, int64_t batches) {
    EvalResult result;
    for (int64_t b = 0; b < batches; ++b) {
        ranks_.parallel([&](Executor& e) {
            loaders_[e.rank()].load(e, b * windows_of_batch_, [&](int64_t i, auto ids, auto targets, auto pos, auto doc) {
                heldout.sequential(i, ids, targets, pos, doc);
                if (i >= heldout.windows())
                    std::fill(targets.begin(), targets.end(), data::kNoTarget);  // once through, no window twice
            });
            e.run("eval");
        });
        // The sum stands in parts on the ranks that have the last block; the last routine of the entry has made it whole on each.
        result.loss_sum += *ranks_.executor(has_totals_).scalar("eval.total_loss");
        result.targets += std::llround(*ranks_.executor(has_totals_).scalar("eval.total_count"));
    }
    return result;
}

}  // namespace lockstep::runtime
