// The size of attention's workspace. No kernels: the compiler plans memory by it.
#pragma once

#include "kernels/attention_shape.h"

namespace lockstep::kernels::gpu {

constexpr int64_t tiles_of(int64_t tokens, int64_t tile) { return (tokens + tile - 1) / tile; }

// Workspaces hold bounds (attention_tiles.h) of as many tiles as the smallest ones make.
inline constexpr int kLeastTile = 16, kBoundsBytes = 16;
inline int64_t bytes_of_bounds(int64_t batch, int64_t tokens) { return batch * tiles_of(tokens, kLeastTile) * kBoundsBytes; }

// Into which keys are divided where queries are too few to fill a GPU: as many on any device, so that sums have one order. An
// H100 has 132 processors.
inline int64_t parts_of_keys(const AttentionShape& s) {
    constexpr int64_t kRows = 64, kBlocks = 528, kKeys = 256;
    const int64_t blocks = s.batch * s.kv_heads * tiles_of(s.seq * s.group, kRows), most = tiles_of(s.kv_seq, kKeys);
    if (blocks == 0 || most == 0 || blocks > kBlocks / 2) return 1;
    return kBlocks / blocks < most ? kBlocks / blocks : most;
}

// Of a block of keys: whether what earlier blocks have made is joined with it.
inline int64_t attention_block_workspace_bytes(const AttentionShape& s, bool carries) {
    const int64_t parts = parts_of_keys(s), rows = s.batch * s.seq * s.kv_heads * s.group;
    const int64_t of_parts = parts > 1 || carries ? parts * rows * (s.head_dim + 1) * static_cast<int64_t>(sizeof(float)) : 0;
    return bytes_of_bounds(s.batch, s.kv_seq) + of_parts;
}
inline int64_t attention_workspace_bytes(const AttentionShape& s) { return attention_block_workspace_bytes(s, false); }
inline int64_t attention_backward_workspace_bytes(const AttentionShape& s) {
    return bytes_of_bounds(s.batch, s.seq) + bytes_of_bounds(s.batch, s.kv_seq) +
           s.batch * s.seq * s.kv_heads * s.group * static_cast<int64_t>(sizeof(float));
}

}  // namespace lockstep::kernels::gpu
