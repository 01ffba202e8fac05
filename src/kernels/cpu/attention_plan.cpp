#include "kernels/cpu/attention_plan.h"

#include <algorithm>

#include "base/round.h"

namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kAmxTile = 32;            // rows of a block of tiles, and steps of its sums
constexpr int64_t kBlockInts = 8 * kBlock;  // positions, documents and a few per-query numbers of the current block

int64_t blocks(int64_t n) { return ceil_div(n, kBlock); }

int64_t round_up_to_line(int64_t floats) { return round_up(floats, 16); }

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
int64_t score_blocks(const AttentionShape& shape, Delta delta) { return delta == Delta::of_keys ? key_blocks(shape) : 1; }

int64_t sum_elements(const AttentionShape& shape, AttentionKernel kernel) {
    return kBlock * (kernel == AttentionKernel::amx ? round_up(shape.head_dim, kAmxTile) : shape.head_dim);
}
int64_t operand_elements(const AttentionShape& shape, AttentionKernel kernel) {
    return sum_elements(shape, kernel) / (kernel == AttentionKernel::amx ? 2 : 1);  // pairs of bfloat16
}

int64_t attention_scratch_floats(const AttentionShape& shape, AttentionKernel kernel) {
    // packed keys and values, and a block of queries; output; scores
    return (2 * key_blocks(shape) + 1) * operand_elements(shape, kernel) + sum_elements(shape, kernel) + kBlock * kBlock +
           kBlockInts + round_up_to_line(4 * key_blocks(shape)) + 64;
}

int64_t attention_row_scratch_floats(const AttentionShape& shape) {
    return shape.group * (round_up_to_line(shape.kv_seq) + round_up_to_line(shape.head_dim));
}

int64_t attention_backward_scratch_floats(const AttentionShape& shape, AttentionKernel kernel, Delta delta) {
    // keys as two operands and values as one, a block of queries and d_out as two each; d_q; P, dS; delta in lanes
    return (3 * key_blocks(shape) + 4) * operand_elements(shape, kernel) + sum_elements(shape, kernel) +
           2 * score_blocks(shape, delta) * kBlock * kBlock + 16 * kBlock + kBlockInts + round_up_to_line(4 * key_blocks(shape)) +
           64;
}

int64_t key_gradient_floats(const AttentionShape& shape, AttentionKernel kernel) {
    return 2 * key_blocks(shape) * sum_elements(shape, kernel);
}

int64_t attention_workspace_bytes(const AttentionShape& shape, int threads, AttentionKernel kernel) {
    return threads * attention_scratch_floats(shape, kernel) * 4;
}

int64_t attention_row_workspace_bytes(const AttentionShape& shape, int threads) {
    return threads * attention_row_scratch_floats(shape) * 4;
}

namespace {
int64_t backward_bytes(const AttentionShape& shape, int threads, AttentionKernel kernel, Delta delta) {
    const AttentionTasks tasks = attention_tasks(shape, threads);
    const int64_t sums = tasks.parts == 1 ? threads : tasks.count();
    return (threads * attention_backward_scratch_floats(shape, kernel, delta) + sums * key_gradient_floats(shape, kernel)) * 4;
}
}  // namespace

int64_t attention_backward_workspace_bytes(const AttentionShape& shape, int threads, AttentionKernel kernel) {
    return backward_bytes(shape, threads, kernel, Delta::of_keys);
}

int64_t attention_block_backward_workspace_bytes(const AttentionShape& shape, int threads, AttentionKernel kernel) {
    return backward_bytes(shape, threads, kernel, Delta::of_result);
}

}  // namespace lockstep::kernels::cpu
