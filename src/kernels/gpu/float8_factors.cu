#include "kernels/gpu/each.h"
#include "kernels/gpu/float8.h"

namespace lockstep::kernels::gpu {
namespace {

// A block turns tiles of kTurned x kTurned bytes. Each thread reads 16 of a row, and writes 16 of a row of the result.
constexpr int kTurned = 64, kChunksOfRow = kTurned / static_cast<int>(sizeof(Chunk));
static_assert(kTurned * kChunksOfRow == kEachThreads);
__global__ void __launch_bounds__(kEachThreads) turn_kernel(int64_t rows, int64_t columns, const uint8_t* x, uint8_t* out) {
    // A word more in a row: rows that a warp reads at once begin in other banks.
    __shared__ uint32_t tile[kTurned][kTurned / 4 + 1];
    const int64_t across = (columns + kTurned - 1) / kTurned, all = (rows + kTurned - 1) / kTurned * across;
    const int row = static_cast<int>(thread()) / kChunksOfRow, part = static_cast<int>(thread()) % kChunksOfRow;
    for (int64_t t = block(); t < all; t += blocks()) {
        const int64_t top = t / across * kTurned, left = t % across * kTurned;
        const int64_t from = left + part * 16, to = top + part * 16;
        if (top + row < rows && from < columns) {
            CHECK_ALIGNMENT(x, sizeof(Chunk));
            const Chunk chunk = *reinterpret_cast<const Chunk*>(x + (top + row) * columns + from);
            UNROLL
            for (int i = 0; i < 4; ++i) tile[row][part * 4 + i] = chunk.words[i];
        }
        block_barrier();
        if (left + row < columns && to < rows) {
            Chunk chunk;
            UNROLL
            for (int i = 0; i < 4; ++i) {
                uint32_t word = 0;
                UNROLL
                for (int j = 0; j < 4; ++j) word |= (tile[part * 16 + i * 4 + j][row / 4] >> row % 4 * 8 & 0xffu) << j * 8;
                chunk.words[i] = word;
            }
            CHECK_ALIGNMENT(out, sizeof(Chunk));
            *reinterpret_cast<Chunk*>(out + (left + row) * rows + to) = chunk;
        }
        block_barrier();  // the tile has been read
    }
}

template <class S>
struct InOrder {
    Factors f;
    const S* scales;
    S* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t padded = f.padded_blocks();
        int64_t row = i / padded, in_row = i - row * padded;
        if (f.order == Factors::Order::BlocksOfRows) {
            in_row = i / f.rows, row = i - in_row * f.rows;
        } else if (f.order == Factors::Order::Tiles) {
            const int64_t tile = i / 512, across = padded / 4, down = tile / across;
            const int at = static_cast<int>(i % 512);
            row = down * 128 + at % 16 / 4 * 32 + at / 16, in_row = (tile - down * across) * 4 + at % 4;
        }
        S scale{};
        if (row < f.rows && in_row < f.blocks) scale = scales[row * f.row_stride + in_row * f.block_stride];
        out[i] = scale;
    }
};

}  // namespace

template <class S>
void put_in_order(Stream stream, const Factors& factors, const S* scales, S* out) {
    for_each(stream, factors.count(), InOrder<S>{factors, scales, out});
}
template void put_in_order<float>(Stream, const Factors&, const float*, float*);
template void put_in_order<E8M0>(Stream, const Factors&, const E8M0*, E8M0*);

void turn(Stream stream, int64_t rows, int64_t columns, const void* x, void* out) {
    const int64_t all = (rows + kTurned - 1) / kTurned * ((columns + kTurned - 1) / kTurned);
    const Grid grid = {static_cast<unsigned>(all < kEachBlocks ? all : kEachBlocks), kEachThreads};
    launch(turn_kernel, grid, stream, rows, columns, static_cast<const uint8_t*>(x), static_cast<uint8_t*>(out));
}

}  // namespace lockstep::kernels::gpu
