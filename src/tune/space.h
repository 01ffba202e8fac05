// Which layouts there are for a model, a global batch and a number of ranks. A layout is a change of the recipe's
// configuration; model, data, element types and optimizer stay.
//
// The space is a list of families. A family fixes what decides the time of the pipeline: degrees, schedule, microbatch,
// recompute. Its members differ in how states are split over its data ranks, and in prefetch. Keys that a flag of the command
// set are held; so are levels of [partition] that the recipe names, and what crosses ranks quantized.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compile/config.h"
#include "compile/layout.h"
#include "mesh/mesh.h"

namespace lockstep::tune {

// Why a space has no layout.
inline constexpr ErrorId kNoneDividesBatch{"tune.batch"};
inline constexpr ErrorId kNoneHasHeldKeys{"tune.held"};

// Degrees by axis, and values of keys. space.cpp has a row for each of them: its key, and when a search varies it.
struct Choice {
    mesh::Degrees degrees = mesh::kNoAxes;     // their product is the number of ranks
    int64_t microbatch = 1, microbatches = 1;  // sequences of one on a data rank; how many a step has
    std::string schedule = "1F1B";             // of a pipeline
    int64_t stages_per_rank = 1;
    compile::RecomputeMode recompute = compile::RecomputeMode::None;  // Selective: by op
    int64_t budget_bytes = 0;                                         // of Budget
    compile::PartitionPreset partition = compile::PartitionPreset::None;
    int64_t prefetch = 1;
    bool sequence_parallel = true, async_tensor_parallel = false;
    compile::RotateMethod rotate_method = compile::RotateMethod::Allgather;  // of context ranks
    int64_t head_degree = 0;

    int64_t& degree(mesh::Axis axis) { return degrees[static_cast<size_t>(axis)]; }
    int64_t degree(mesh::Axis axis) const { return degrees[static_cast<size_t>(axis)]; }
    int64_t tensor() const { return degree(mesh::Axis::tp); }
    int64_t pipeline() const { return degree(mesh::Axis::pp); }
    int64_t replicate() const { return degree(mesh::Axis::dp_replicate); }
    int64_t shard() const { return degree(mesh::Axis::dp_shard); }
    int64_t context() const { return degree(mesh::Axis::cp); }
    int64_t data() const { return replicate() * shard(); }
    int64_t holders() const { return data() * context(); }  // of the same parameters
    int64_t ranks() const;
    // Of the data ranks this many hold copies; the others split states.
    void set_replicate(int64_t count) {
        degree(mesh::Axis::dp_shard) = data() / count;
        degree(mesh::Axis::dp_replicate) = count;
    }
    // What decides a block's routines on a rank: without the pipeline, and without data ranks too.
    mesh::Degrees of_states() const;
    mesh::Degrees of_blocks() const;
    bool operator==(const Choice&) const = default;
};

// `base` with this layout, of `global_batch` sequences a step.
compile::Config with(const compile::Config& base, const Choice& choice, int64_t global_batch);
// The keys that with() changes, with their values in `changed` as they are in TOML.
std::vector<std::pair<std::string, std::string>> settings_of(const compile::Config& changed);
// The choice that a configuration makes; its keys may say more than a choice can.
Choice choice_of(const compile::Config& config, const compile::Layout& layout);
// "tp 4 pp 16 1F1B dp 2 zero1 mb 1 full"
std::string text_of(const Choice& choice);

struct Excluded {
    std::string reason;
    int64_t families = 0;
};

struct Space {
    compile::Config base;
    int64_t ranks = 1, global_batch = 1, ranks_of_host = 0;  // of a host: 0: any number
    std::vector<ir::Dim> dims;                               // of the model's blocks
    std::vector<Choice> families;                            // each as its first member
    std::vector<Excluded> excluded;                          // degrees that no layout can have, by reason
    std::vector<Choice> members(const Choice& family) const;
    int64_t size() const;  // members of all families
};

// UserError tune.batch: no layout divides the batch; tune.held: a flag holds a key at a value that no layout has.
Space space_of(const compile::Config& base, int64_t ranks, int64_t global_batch, int64_t ranks_of_host = 0);

// Has a flag of the command line set the key? The search does not vary such keys.
bool is_held(const compile::Config& base, const char* key);

}  // namespace lockstep::tune
