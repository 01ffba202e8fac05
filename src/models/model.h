// A model is a list of blocks: embed, layer x L, head. A block is one forward routine over global, named dims of one
// sequence: how many there are in a microbatch, and how a vocabulary is padded, is the layout's (passes/bind_sizes). Nothing
// here knows of parallelism, precision, recompute or devices: adding a model touches this folder only (write one file like
// llama3.cpp and list it in model.cpp).
//
// Ports of a block: x (absent in the first block) -> y, or -> logits in the last one; inputs `ids`, `pos`, `doc`, `noise` of
// the loader, [batch, seq] int32; parameters in the port `params`, each tensor named by its key.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/allowed.h"
#include "ir/program.h"

namespace lockstep::models {

struct ModelKey {
    std::string name;
    ir::Attr default_value;
    std::string help;
    Allowed allowed;
};

struct Flavor {
    std::string name;
    ir::Attrs values;
};

struct Model {
    std::vector<ir::Block> blocks;
    std::vector<ir::Parameter> params;  // without placements
    std::vector<ir::Routine> routines;  // one forward a block, in the order of the blocks
};

struct ModelSpec {
    std::string name;
    std::string alias_of;  // has the keys and the blocks of this model, other defaults and flavors; empty: not an alias
    std::vector<ModelKey> keys;
    std::vector<Flavor> flavors;
    // `shape` holds every key; `seq`: tokens of a sequence. Both throw UserError where the shape contradicts itself.
    std::function<std::vector<ir::Dim>(const ir::Attrs& shape, int64_t seq)> dims;  // of every block
    std::function<Model(const ir::Attrs& shape, int64_t seq)> build;
};

const std::vector<ModelSpec>& all_models();
const ModelSpec* find_model(std::string_view name);  // null: there is none
ModelSpec gpt2();
ModelSpec llama3();
ModelSpec qwen3();

// A model, or one of its flavors, that torchtitan v0.2.2 has and this version has not.
struct AbsentModel {
    std::string name;
    std::string flavor;     // empty: every one
    std::string technique;  // that it needs
};
const std::vector<AbsentModel>& absent_models();

}  // namespace lockstep::models
