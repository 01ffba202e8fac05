// Requires: routines over global dims as the model, its derivative and its element types make them, for one sequence.
// Produces: the same over the dims of a layout: `batch` has the sequences of a microbatch, `vocab` is padded to what the ranks
//   divide; the mesh, the number of microbatches and the order of the sequence. Masks of padding (mask_padding) go where nothing
//   is padded. It is the first pass that depends on the layout, and what it reads does not: a search over layouts begins here.
// Leaves alone: everything else.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct BindSizesOptions {
    mesh::Mesh mesh;
    int64_t microbatches = 1;
    int64_t batch = 1;           // sequences of a microbatch, of all data ranks
    int64_t vocab_multiple = 1;  // to which the vocabulary is padded
    int64_t head_tail = 1;       // ranks over which the sequence is in head-tail order
};

// A dim with the sizes of the layout.
ir::Dim bound(ir::Dim dim, const BindSizesOptions& options);

ir::Program bind_sizes(ir::Program program, const BindSizesOptions& options);

}  // namespace lockstep::passes
