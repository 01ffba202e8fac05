// Float8 (base/float8.h), with a scale for each group of elements. T: how floats are stored; Q: F8E4M3, F8E5M2; S, of scales:
// float, or E8M0.
#pragma once

#include "base/dtype.h"
#include "base/float8.h"
#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

// Which group an element is in. Rows of `columns` elements have groups that lie beside each other, one for each column. Runs of rows
// next to each other have the same; the groups of a run follow from its index in `dims` dims, of which the last one comes first
// here. With one column, a run is of elements that all are in one group.
struct Grouping {
    static constexpr int kMost = 8;
    struct Dim {
        int64_t size, each, stride;  // runs; of them in one group; from a group to the next
    };
    int64_t columns = 1;
    int64_t run = 1;    // rows
    int64_t count = 1;  // groups
    int dims = 0;
    Dim of[kMost] = {};
};

// amax[g] = the largest |x| of the group and of what amax[g] holds, which is none below 0. NaN is larger than all.
template <class T>
void amax(Stream stream, int64_t n, const Grouping& groups, const T* x, float* amax);
// One number, as it is in another float type.
void round_to(Stream stream, Dtype type, float* x);

// q = encode(x scale) and s = 1 / scale, of the group's amax. s: null, or [groups].
template <class T, class Q>
void to_float8(Stream stream, int64_t n, const Grouping& groups, bool power_of_two, const T* x, const float* amax, Q* q,
               float* s);
// s [n] = 1 / scale, of codes up to `largest`.
void float8_scale(Stream stream, int64_t n, float largest, bool power_of_two, const float* amax, float* s);
// x = q s, or q where s is null.
template <class T, class Q, class S>
void from_float8(Stream stream, int64_t n, const Grouping& groups, const Q* q, const S* s, T* x);

// x [count, size, columns]: each column of one of `count` is a block.
struct Blocks {
    int64_t count, size, columns;
};
// q = encode(x / s), s [count, columns]: as E8M0 block_scale of the block's largest size, as float that of to_float8.
template <class T, class Q, class S>
void to_blocks(Stream stream, const Blocks& blocks, BlockRounding rounding, const T* x, Q* q, S* s);

// y = x a b, of the groups' scales. b: may be null.
template <class T, class S>
void apply_scales(Stream stream, int64_t n, const Grouping& of_a, const Grouping& of_b, const float* x, const S* a, const S* b,
                  T* y);

// The scales of a factor of a library's product, of blocks of what is summed over, in the order in which it reads them.
struct Factors {
    // [blocks, rows]; [rows, blocks] with blocks rounded up to four; tiles of 128 rows x 4 blocks, which lie like elements of
    // [rows / 128, blocks / 4], and in which (row, block) is at row % 32 * 16 + row / 32 * 4 + block (cuBLASLt's documentation).
    enum class Order { BlocksOfRows, RowsOfFour, Tiles };
    Order order = Order::BlocksOfRows;
    int64_t rows = 1, blocks = 1, row_stride = 0, block_stride = 0;  // of the scales as they are

    constexpr int64_t padded_blocks() const { return order == Order::BlocksOfRows ? blocks : (blocks + 3) / 4 * 4; }
    constexpr int64_t count() const { return (order == Order::Tiles ? (rows + 127) / 128 * 128 : rows) * padded_blocks(); }
    constexpr bool is_in_order() const {
        const auto is = [&](int64_t of_row, int64_t of_block) {
            return (rows == 1 || row_stride == of_row) && (blocks == 1 || block_stride == of_block);
        };
        if (order == Order::BlocksOfRows) return is(1, rows);
        return order == Order::RowsOfFour && is(blocks, 1) && (rows == 1 || blocks % 4 == 0);
    }
};
// out [count()]: zeros where there is no scale. S: float, E8M0.
template <class S>
void put_in_order(Stream stream, const Factors& factors, const S* scales, S* out);

// x [rows, columns] of bytes becomes [columns, rows]. Sizes and addresses are multiples of 16.
void turn(Stream stream, int64_t rows, int64_t columns, const void* x, void* out);

}  // namespace lockstep::kernels::gpu
