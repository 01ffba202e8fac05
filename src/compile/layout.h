// From degrees and batch sizes to the numbers that the passes need: all that a search over layouts varies. Every refusal names
// the key to change.
#pragma once

#include <vector>

#include "compile/config.h"
#include "compile/refusal.h"
#include "mesh/mesh.h"
#include "ops/catalog.h"
#include "passes/bind_sizes.h"
#include "passes/partition_options.h"
#include "passes/schedule.h"
#include "passes/sharding_table.h"

namespace lockstep::compile {

inline constexpr ErrorId kTooManyMicrobatches{"recipe.too_many_microbatches"};

// How long parameters stay gathered, and how often gradients are reduced: with a pipeline, as torchtitan does it.
struct Windows {
    passes::ReduceGradients reduce_gradients = passes::ReduceGradients::EachMicrobatch;
    int64_t resident_stages = 0;  // see passes/schedule.h
};
Windows windows_of(const Config& config, bool pipeline);

struct Layout {
    mesh::Mesh mesh;
    int64_t ranks = 1;         // of all islands
    int64_t data_ranks = 1;    // of an island
    int64_t local_batch = 1;   // sequences of a microbatch on one data rank
    int64_t global_batch = 1;  // sequences of a step, of all islands, that count; the rest of the last microbatch is masked
    int64_t microbatches = 1;
    int64_t seq_len = 1;
    passes::ContextOptions context = {};
    int64_t head_tail = 1;  // ranks over which the sequence is in head-tail order (mesh/order.h)
    bool sequence_parallel = true;
    passes::PartitionOptions partition;
    Windows windows;
    int64_t vocab_multiple = 1;
    // A scale of activations in 8 bits is of these sequences and one of these parts of each; 0: nothing is in 8 bits.
    int64_t scale_sequences = 0, scale_context_blocks = 0;
    int64_t sync_steps = 1;  // from one meeting of islands to the next

    int64_t jobs = 1, job = 0;  // islands that are jobs of their own, and which of them this is

    int64_t islands() const { return mesh.islands() * jobs; }
    int64_t island_batch() const { return global_batch / islands(); }
    passes::BindSizesOptions sizes() const { return {mesh, microbatches, local_batch * data_ranks, vocab_multiple, head_tail}; }
};

// `dims`: those of the model's blocks (models::ModelSpec::dims). A refusal is a UserError recipe.*.
OrRefusal<Layout> layout_of(const Config& config, const std::vector<ir::Dim>& dims);
// The same for the configuration's own model; throws the refusal, or what the model's shape contradicts.
Layout layout_of(const Config& config);

std::vector<ir::Dim> dims_of(const Config& config);
int64_t size_of(const std::vector<ir::Dim>& dims, ir::DimRole role);  // 1 where absent

// Of the loss at once: the recipe's, or what the kernels like.
int64_t loss_chunk_tokens(const Config& config, const ops::KernelCatalog& catalog);

}  // namespace lockstep::compile
