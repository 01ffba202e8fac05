// What a checkpoint carries beside its weights, held against what it is used with: its model and its tokenizer must be the same,
// and whatever else a recipe has another way is listed.
#pragma once

#include <string>
#include <vector>

#include "cli/stored.h"
#include "compile/recipe.h"
#include "models/hugging_face.h"

namespace lockstep::cli {

// `held`: the model of the weights at `origin`. UserError checkpoint.other_architecture names the first key and both values.
void require_same_model(const models::HuggingFaceModel& held, const std::string& origin, const compile::Recipe& recipe);

// A tokenizer.json that text or tokens were made with.
struct UsedTokenizer {
    std::string file;    // its path
    std::string key;     // the key or flag that named it
    std::string advice;  // what else to do, beside preparing the text anew
};
inline const std::string kInsist = "; --other-tokenizer goes on all the same";  // advice of commands with this flag

// UserError checkpoint.other_tokenizer, unless the checkpoint's tokenizer is not known. Equal: the same bytes, or the same
// tokens.
void require_same_tokenizer(const Stored& stored, const UsedTokenizer& used);

// "optimizer.lr 0.001 -> 0.0005": the keys that act and differ, in the order of the recipe's table, but for those of the model.
std::vector<std::string> changes(const compile::Recipe& before, const compile::Recipe& now);

}  // namespace lockstep::cli
