#include "kernels/cpu/attention_plan.h"

#include <algorithm>

namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kBlockInts = 8 * kBlock;  // positions, documents and a few per-query numbers of the current block

int64_t blocks(int64_t n) { return (n + kBlock - 1) / kBlock; }

int64_t round_up_to_line(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

AttentionTasks attention_tasks(const AttentionShape& shape, int threads) {
    AttentionTasks tasks{shape.batch * shape.kv_heads, 1};
    const int64_t items = shape.group * query_blocks(shape);
    while (tasks.count() % threads != 0 && tasks.count() < 4 * threads && tasks.parts < items) ++tasks.parts;
    return tasks;
}

bool is_item_of_part(int64_t item, int64_t part, int64_t parts) {
    const int64_t place = item % (2 * parts);
    return place == part || place == 2 * parts - 1 - part;
}

int64_t key_blocks(const AttentionShape& shape) { return blocks(shape.kv_seq); }
int64_t query_blocks(const AttentionShape& shape) { return blocks(shape.seq); }

int64_t attention_scratch_floats(const AttentionShape& shape) {
    const int64_t block = kBlock * round_up_to_line(shape.head_dim);
    // packed keys and values; query and output block; scores
    return (2 * key_blocks(shape) + 2) * block + kBlock * kBlock + kBlockInts + round_up_to_line(4 * key_blocks(shape)) + 64;
}

int64_t attention_row_scratch_floats(const AttentionShape& shape) {
    return shape.group * (round_up_to_line(shape.kv_seq) + round_up_to_line(shape.head_dim));
}

int64_t attention_backward_scratch_floats(const AttentionShape& shape) {
    const int64_t block = kBlock * round_up_to_line(shape.head_dim);
    // keys in two layouts and values; query and d_out in two, d_q; P, dS, dS transposed
    return (3 * key_blocks(shape) + 5) * block + 3 * kBlock * kBlock + kBlockInts + round_up_to_line(4 * key_blocks(shape)) + 64;
}

int64_t key_gradient_floats(const AttentionShape& shape) {
    return 2 * key_blocks(shape) * kBlock * round_up_to_line(shape.head_dim);
}

int64_t attention_workspace_bytes(const AttentionShape& shape, int threads) {
    return threads * attention_scratch_floats(shape) * 4;
}

int64_t attention_row_workspace_bytes(const AttentionShape& shape, int threads) {
    return threads * attention_row_scratch_floats(shape) * 4;
}

int64_t attention_backward_workspace_bytes(const AttentionShape& shape, int threads) {
    const AttentionTasks tasks = attention_tasks(shape, threads);
    const int64_t sums = tasks.parts == 1 ? threads : tasks.count();
    return (threads * attention_backward_scratch_floats(shape) + sums * key_gradient_floats(shape)) * 4;
}

}  // namespace lockstep::kernels::cpu
