#include "runtime/evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/round.h"

namespace lockstep::runtime {

Evaluator::Evaluator(Ranks& ranks, const BatchShape& shape)
    : ranks_(ranks), windows_of_batch_(shape.microbatch * ranks.first().program().microbatches) {
    const BatchShape whole{shape.microbatch, windows_of_batch_, shape.seq_len};  // no sequence of a batch is masked
    for (const auto& e : ranks.here()) {
        const ir::Program& p = e->program();
        loaders_.emplace_back(p, ir::EntryKind::Eval, e->rank(), whole);
        const bool has_totals = p.buffer(p.state(ir::StateRole::TotalLoss), 0) >= 0;
        if (has_totals && p.mesh.island_of(e->rank()) == 0) totals_ = e.get();
    }
}

int64_t Evaluator::batches(const data::Dataset& heldout) const { return ceil_div(heldout.windows(), windows_of_batch_); }

EvalResult Evaluator::evaluate(const data::Dataset& heldout, int64_t batches) {
    EvalResult result;
    for (int64_t b = 0; b < batches; ++b) {
        ranks_.parallel([&](Executor& e) {
            loaders_[ranks_.place(e.rank())].load(
                e, b * windows_of_batch_, [&](int64_t i, auto ids, auto targets, auto pos, auto doc) {
                    heldout.sequential(i, ids, targets, pos, doc);
                    if (i >= heldout.windows())
                        std::fill(targets.begin(), targets.end(), data::kNoTarget);  // once through, no window twice
                });
            e.run(ir::EntryKind::Eval);
        });
        if (!totals_) continue;
        // The sum is in parts on the ranks that have the last block; the last routine of the entry has made it whole on each.
        result.loss_sum += totals_->value(ir::StateRole::TotalLoss);
        result.targets += std::llround(totals_->value(ir::StateRole::TotalCount));
    }
    if (ranks_.group().is_alone()) return result;
    std::string own(totals_ ? sizeof result : 0, '\0');
    std::memcpy(own.data(), &result, own.size());
    for (const std::string& totals : ranks_.group().exchange(own)) {
        if (totals.empty()) continue;
        std::memcpy(&result, totals.data(), totals.size());
        break;
    }
    return result;
}

}  // namespace lockstep::runtime
