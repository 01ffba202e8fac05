// A checkpoint as `eval`, `sample` and `convert` take it: where it lies, the recipe that made it, the tokenizer of its text.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/folder.h"
#include "data/tokenizer.h"
#include "models/hugging_face_config.h"
#include "planning/recipe_args.h"

namespace lockstep::job {

// The folder that holds the manifest: `path` itself, else the latest checkpoint in it, or in its folder `checkpoint`.
// UserError checkpoint.not_found, checkpoint.is_hugging_face, checkpoint.is_adapter.
std::string find_checkpoint(const std::string& path);

struct Stored {
    std::string folder;
    checkpoint::Manifest manifest;
    compile::Recipe recipe;          // the one that made it, then `defaults`, then the flags
    std::vector<std::string> notes;  // what a person should know of it
};

// With the recipe as it is in its manifest. UserError checkpoint.manifest, checkpoint.other_step.
Stored stored_at(const std::string& folder);

using Settings = std::vector<std::pair<std::string, std::string>>;
// A folder of transformers counts as the checkpoint of step 0 that `lockstep convert` would make of it. UserError also
// checkpoint.other_architecture where a flag makes another model of it.
Stored open_stored(const planning::RecipeArgs& args, const Settings& defaults);
// Makes it the recipe of one of its islands, whose ranks are enough to use a model that is trained.
void keep_one_island(compile::Recipe& recipe);

// `given` (a tokenizer.json, or empty), else that of the checkpoint's folder, else that of the recipe's prepared data; nothing
// where none of them exists.
std::optional<data::Tokenizer> find_tokenizer(const Stored& stored, const std::string& given);

// Where a checkpoint's tokenizer.json may lie: its own folder, then those of the data that its recipe names.
std::vector<std::string> tokenizer_folders(const Stored& stored);

// The checksum of a tokenizer.json, as manifests have it; empty where it cannot be read.
std::string tokenizer_sum(const std::string& file);

// That of the first of these folders that has one.
std::optional<data::Tokenizer> find_tokenizer(const std::vector<std::string>& folders);

// The tokenizer.json of the first of these folders that has one; empty: none has.
std::string tokenizer_file(const std::vector<std::string>& folders);

// The tokens that end a text of this model: those that the folder names for transformers, and the tokenizer's separator.
std::vector<int32_t> end_tokens(const Stored& stored, const std::optional<data::Tokenizer>& tokenizer);

// The recipe of a checkpoint that is made of a folder of transformers.
compile::Recipe converted_recipe(const models::HuggingFaceModel& model);

// A recipe's model, as transformers is given it.
models::HuggingFaceModel hugging_face_model(const compile::Recipe& recipe);

}  // namespace lockstep::job
