// Small folders as transformers saves them: a Llama of one layer whose values are numbers by place.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "tests/cli/command.h"

namespace lockstep::testing {

struct SmallTensor {
    std::vector<int64_t> shape;
    float first = 0;  // element i is sin(first + i), or about 1 in a norm
    std::vector<float> values() const;
};
using SmallTensors = std::map<std::string, SmallTensor>;

nlohmann::json small_config(int64_t vocab = 16);
SmallTensors small_tensors(int64_t vocab = 16);
void write_tensors(const Scratch& s, const std::string& file, const SmallTensors& tensors);
// config.json and model.safetensors.
void write_small_folder(const Scratch& s, const std::string& folder, const nlohmann::json& config, const SmallTensors& tensors);
// The tensors as shards of one tensor each, "shard-N.safetensors", with an index that names these and `more`.
void write_small_shards(const Scratch& s, const std::string& folder, const SmallTensors& tensors, const nlohmann::json& more);
std::vector<float> tensor_of(const Scratch& s, const std::string& file, const std::string& name);

}  // namespace lockstep::testing
