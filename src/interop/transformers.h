// A model of Hugging Face transformers as a recipe: config.json, in the folder that has the weights.
#pragma once

#include <string>

#include "interop/reading.h"
#include "models/hugging_face_config.h"

namespace lockstep::interop {

// The keys of [model], and training.seq_len: the context that it was made for.
compile::Recipe recipe_of(const models::HuggingFaceModel& model);
// `path`: of a config.json. UserError convert.*.
Reading read_transformers(const std::string& path);

}  // namespace lockstep::interop
