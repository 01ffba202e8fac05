// A model as Hugging Face transformers stores it: config.json <-> the keys of [model], and which tensors its files hold. What a
// config asks for and the model here does not have is refused, never dropped: the numbers would be those of another model.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"

namespace lockstep::models {

struct HuggingFaceModel {
    std::string name;  // of the model here
    ir::Attrs shape;   // every key of [model]
    int64_t context;   // tokens of a sequence that it was made for
};

// What a config leaves out is what transformers' class of that model_type has. `origin` names the config in messages. UserError
// convert.unsupported, convert.config; the key is the config's.
HuggingFaceModel from_hugging_face(const nlohmann::json& config, const std::string& origin);
// UserError convert.no_architecture where no architecture of transformers has this shape.
nlohmann::ordered_json to_hugging_face(const HuggingFaceModel& model);
// The same for a model that came with the config `source`: that config with what has changed since (a longer context, rows of
// the vocabulary, a head of its own). If the model has become another, its own config with the ids of tokens of `source`.
nlohmann::json to_hugging_face(const HuggingFaceModel& model, nlohmann::json source);

// What makes two models compute differently: the first key of [model] and both values. Nothing where they compute the same.
// Dropout, and the context that they were made for, are of training and not of the model. What a shape leaves to be worked out
// (a width of 0, one key-value head a query head) is compared as it is built.
struct Difference {
    std::string key, a, b;  // "model.rope_theta"
};
std::optional<Difference> difference(const HuggingFaceModel& a, const HuggingFaceModel& b);

// A tensor in transformers' files: parameters here, side by side along its last dim (GPT-2's fused c_attn), or a single one.
// All parts have the same size.
struct StoredTensor {
    std::string name;
    std::vector<int64_t> shape;
    struct Part {
        std::string name;
        std::vector<int64_t> shape;  // as a checkpoint has it: heads as [kv_heads, group, head_dim]
    };
    std::vector<Part> parts;
};
// In the order of the blocks.
std::vector<StoredTensor> stored_tensors(const HuggingFaceModel& model);

// Tensors in such files that are no parameters (masks, frequencies), or copies of others (a tied lm_head).
bool is_no_parameter(const std::string& name, bool tied);

}  // namespace lockstep::models
