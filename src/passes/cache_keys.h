// Requires: forwards of the entries prefill and decode, as models write them: keys and values, their positions and documents
//   reach attention by `rename` of seq to kv_seq.
// Produces: in those entries a port `cache` of each block that has keys, a state of the block's instance: instead of being
//   renamed, keys and values are appended to it, and attention reads it whole. Rows that hold nothing yet have positions larger
//   than any query's (inputs `kv_pos`, `kv_doc`), so the causal mask hides them. seq is the tokens of one step:
//   `prefill_tokens`, or one in decode. prefill only fills caches, so it has no last block.
// Leaves alone: the other entries; kv_seq, the length of the caches.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct CacheKeysOptions {
    int64_t prefill_tokens = 64;
};

ir::Program cache_keys(ir::Program program, const CacheKeysOptions& options);

}  // namespace lockstep::passes
