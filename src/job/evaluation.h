// Loss and perplexity of a checkpoint on prepared tokens.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "planning/recipe_args.h"
#include "runtime/evaluator.h"

namespace lockstep::job {

struct EvaluationOptions {
    std::vector<std::string> data;         // prepared folders; none: those of the checkpoint's recipe
    std::string tokens;                    // a token file, instead of a prepared folder
    std::string split = "heldout";         // or train
    int64_t steps = 0;                     // batches; 0: the whole split once
    bool accepts_other_tokenizer = false;  // take tokens of another tokenizer than the checkpoint's
};

struct EvaluatedSet {
    std::string name;
    runtime::EvalResult result;
    int64_t bytes = 0;  // of text; 0: not known
    double bits_per_byte() const { return result.loss_sum / std::log(2.0) / static_cast<double>(bytes); }
};

struct Evaluation {
    std::string folder;  // of the checkpoint
    int64_t step = 0;
    EvaluatedSet whole;  // all data sets; its bytes are those of the first process
    std::vector<EvaluatedSet> of_sets;
    double time_s = 0;
    int64_t ranks = 1, bytes_of_a_rank = 0, bytes_of_all_ranks = 0;  // planned
};

// `checkpoint`: path of a checkpoint, of a folder of checkpoints or of a run; keys to change. Every process of the job
// calls it. UserError checkpoint.*, eval.*, data.*, check.*, job.*.
Evaluation evaluate(const planning::RecipeArgs& checkpoint, const EvaluationOptions& options, comm::ProcessGroup& group);

}  // namespace lockstep::job
