// What is next to a model's weights for those who serve it: how its tokenizer is used, chat templates, which tokens end a
// text. Training does not need these files; a checkpoint carries them byte for byte, from the folder of transformers that it
// came from to the one that is made of it. The weights and tokenizer.json are not among them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// The config.json that a model came with. A checkpoint holds it under a name of its own, as a folder with a config.json is one
// of transformers.
inline const std::string kSourceConfigFile = "transformers_config.json";

using ServingFiles = std::map<std::string, std::string>;  // name -> bytes

// Of a folder of transformers, or of a checkpoint. What is not there, or cannot be read, or is larger than any such file, is
// left out.
ServingFiles read_serving_files(const std::string& folder);
// Into a new folder. One of transformers has a config.json of its own, and does not get the source's.
enum class ServingFolder { Checkpoint, Transformers };
void write_serving_files(const std::string& folder, const ServingFiles& files, ServingFolder kind);

// What else lies in a folder of transformers and is not carried, ascending; its weights and hidden files are not listed.
std::vector<std::string> not_carried(const std::string& folder);

// One of them as JSON; null where it is not there, no JSON object, or larger than any config.
nlohmann::json json_of(const ServingFiles& files, const std::string& name);

// The ids of tokens that end a text: those of generation_config.json, else of the source's config.json; ascending.
std::vector<int32_t> end_tokens(const ServingFiles& files);
// eos_token_id as transformers has it, a number or a list of them.
std::vector<int32_t> end_tokens(const nlohmann::json& config);

}  // namespace lockstep::checkpoint
