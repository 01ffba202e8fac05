// Compares what a checkpoint carries apart from its weights with the recipe and tokenizer that it is used with. Another model
// or another tokenizer is refused. Other differences of the recipe are listed.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "compile/recipe.h"
#include "job/stored.h"
#include "models/hugging_face_config.h"

namespace lockstep::job {

inline constexpr ErrorId kOtherArchitecture{"checkpoint.other_architecture"};
inline constexpr ErrorId kOtherTokenizer{"checkpoint.other_tokenizer"};

// `held` is the model of the weights at `origin`. UserError checkpoint.other_architecture names the first key that differs,
// with both values.
void require_same_model(const models::HuggingFaceModel& held, const std::string& origin, const compile::Recipe& recipe);

// A tokenizer.json whose tokens a command uses: those of prepared data, or of a prompt.
struct UsedTokenizer {
    std::string file;    // its path
    std::string key;     // the key or flag that named it
    std::string advice;  // a further way out, appended to the message
};
inline const std::string kInsist = "; --other-tokenizer goes on all the same";  // advice of commands with this flag

// UserError checkpoint.other_tokenizer. Two files are the same tokenizer if their bytes or their JSON values are equal. A
// checkpoint whose tokenizer is not known is accepted.
void require_same_tokenizer(const Stored& stored, const UsedTokenizer& used);

// Is `larger` the tokenizer `known` with more tokens behind its own, so that the tokens of `known` mean the same in both? False
// where one of the two files cannot be read.
bool is_extended_tokenizer(const std::string& known, const std::string& larger);
// Is `used` the checkpoint's tokenizer with more tokens?
bool extends_tokenizer(const Stored& stored, const UsedTokenizer& used);

// Is it certain that `file`, which is no extension of the checkpoint's tokenizer, is not what its model was trained with? Of a
// folder of transformers without a tokenizer.json that is not known; a run on synthetic tokens knew none.
bool is_known_other_tokenizer(const Stored& stored, const std::string& file);

// The keys that act and differ, except those of [model], in the order of the table of keys: "optimizer.lr 0.001 -> 0.0005".
std::vector<std::string> changes(const compile::Recipe& before, const compile::Recipe& now);

}  // namespace lockstep::job
