// The data of a recipe, opened: what `train` reads, and what `check`, `plan` and `show` look at, so that all refuse the same.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compile/config.h"
#include "compile/recipe.h"
#include "data/data_sets.h"
#include "data/sampler.h"

namespace lockstep::planning {

struct RunData {
    struct Heldout {
        std::string name;
        data::Dataset data;
    };

    struct Part {
        std::string name;
        double share = 1;     // of the sequences
        int64_t windows = 0;  // sequences in an epoch
    };

    std::unique_ptr<data::Source> source;        // null: it is not prepared yet
    std::vector<Part> parts;                     // of prepared data
    std::vector<Heldout> heldout;                // empty without validation
    std::string tokenizer;                       // the file where it lies, if there is one; empty: the data is synthetic
    std::optional<double> unigram_entropy_nats;  // of the tokens, where they are of one data set
};

// Where the data is not prepared yet, commands that do not train go on with the model's own vocabulary and say so.
enum class MissingData { Refuse, Assume };

// Sequences of a recipe's length and mask, each token a target once.
data::DatasetOptions dataset_options(const compile::Config& config);

// Sets model.vocab_size to the data's where the recipe leaves it open. UserError recipe.no_data, recipe.vocabulary,
// recipe.no_heldout, data.*.
RunData open_run_data(compile::Recipe& recipe, MissingData missing);

}  // namespace lockstep::planning
