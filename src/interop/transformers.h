// A model of Hugging Face transformers as a recipe: config.json, in the folder that has the weights.
#pragma once

#include <string>

#include "interop/reading.h"
#include "models/hugging_face_config.h"

namespace lockstep::interop {

// The keys of [model], and training.seq_len: the context that it was made for.
compile::Recipe recipe_of(const models::HuggingFaceModel& model);
// What training goes on from a model's weights with, unless the recipe says it: a small learning rate, a short warm-up, and a
// folder of transformers at the end. Each is listed as assumed.
void assume_fine_tuning(Reading& reading);
// `path`: of a config.json. UserError convert.*.
Reading read_transformers(const std::string& path);

}  // namespace lockstep::interop
