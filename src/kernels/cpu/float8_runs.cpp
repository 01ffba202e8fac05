// Compiled once per instruction set.
#include "kernels/cpu/float8_runs.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<LargestSize> largest_size;
extern const TypedFloat8<RunToFloat8> run_to_float8;
extern const TypedFloat8<RunFromFloat8> run_from_float8;
extern const Typed<ScaleSums> scale_sums;

namespace {

// Elements that are widened, then worked on by plain loops, which compilers turn into vectors.
constexpr int64_t kPiece = 256;

template <class T>
void widen_piece(int64_t n, const T* x, float* out) {
    for (int64_t k = 0; k < n; k += kLanes) store(out + k, load(x + k, n - k));
}

template <class T>
uint32_t largest_size_of(int64_t n, const T* x) {
    alignas(64) float wide[kPiece];
    BitVec most[4] = {};
    uint32_t all = 0;
    int64_t i = 0;
    for (; i + kPiece <= n; i += kPiece) {
        for (int64_t k = 0; k < kPiece; k += 4 * kLanes) {
            for (int j = 0; j < 4; ++j) {
                const BitVec bits = reinterpret_cast<BitVec>(load(x + i + k + j * kLanes)) & 0x7fffffffu;
                most[j] = bits > most[j] ? bits : most[j];
            }
        }
    }
    widen_piece(n - i, x + i, wide);
    for (int64_t k = 0; k < n - i; ++k) all = std::max(all, std::bit_cast<uint32_t>(wide[k]) & 0x7fffffffu);
    for (const BitVec& m : most) {
        for (int k = 0; k < kLanes; ++k) all = std::max(all, uint32_t{m[k]});
    }
    return all;
}

template <class T, class Q>
void run_to_float8_of(int64_t n, const T* x, float scale, Q* q) {
    alignas(64) float wide[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
        const int64_t count = std::min(kPiece, n - i);
        widen_piece(count, x + i, wide);
        for (int64_t k = 0; k < count; ++k) q[i + k] = Q(wide[k] * scale);
    }
}

template <class T, class Q>
void run_from_float8_of(int64_t n, const Q* q, float scale, T* x) {
    alignas(64) float wide[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
        const int64_t count = std::min(kPiece, n - i);
        for (int64_t k = 0; k < count; ++k) wide[k] = static_cast<float>(q[i + k]) * scale;
        for (int64_t k = 0; k < count; k += kLanes) store(x + i + k, load(wide + k), count - k);
    }
}

template <class T>
void scale_sums_of(int64_t n, const float* sums, float of_row, const float* of_columns, const float* before, T* out) {
    for (int64_t i = 0; i < n; i += kLanes) {
        Vec v = load(sums + i, n - i) * of_row * load(of_columns + i, n - i);
        if (before) v += load(before + i, n - i);
        store(out + i, v, n - i);
    }
}

}  // namespace

constinit const Typed<LargestSize> largest_size([]<class T>() { return largest_size_of<T>; });
constinit const TypedFloat8<RunToFloat8> run_to_float8([]<class T, class Q>() { return run_to_float8_of<T, Q>; });
constinit const TypedFloat8<RunFromFloat8> run_from_float8([]<class T, class Q>() { return run_from_float8_of<T, Q>; });
constinit const Typed<ScaleSums> scale_sums([]<class T>() { return scale_sums_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
