// Rotary positions. Compiled once per instruction set.
#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<Rope> rope;
extern const Typed<SplitQkv> split_qkv;
extern const Typed<JoinQkv> join_qkv;

namespace {

constexpr int kDoubleLanes = kLanes / 2;
constexpr int64_t kChunk = 256;  // frequencies whose sines are held at once; head_dim 512 and less need one chunk

// Sine and cosine within 1e-9 for |angle| < 2^27: reduced to |r| <= pi/4 with pi/2 in two parts (the first has 30 bits, so
// its product with the quadrant is exact), then Taylor polynomials whose next terms are below 4e-11.
LOCKSTEP_INLINE void sine_cosine(DoubleVec angle, DoubleVec* sine, DoubleVec* cosine) {
    constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
    constexpr double kHalfPiHigh = 0x1.921fb544p+0, kHalfPiLow = 0x1.0b4611a626331p-34;
    const DoubleVec shifted = angle * 0.63661977236758134 + kRound;
    const DoubleVec n = shifted - kRound;
    const DoubleVec r = (angle - n * kHalfPiHigh) - n * kHalfPiLow, r2 = r * r;
    DoubleVec s = r2 * (1.0 / 6227020800.0) - 1.0 / 39916800.0;
    s = s * r2 + 1.0 / 362880.0;
    s = s * r2 - 1.0 / 5040.0;
    s = s * r2 + 1.0 / 120.0;
    s = s * r2 - 1.0 / 6.0;
    s = s * r2 * r + r;
    DoubleVec c = r2 * (1.0 / 479001600.0) - 1.0 / 3628800.0;
    c = c * r2 + 1.0 / 40320.0;
    c = c * r2 - 1.0 / 720.0;
    c = c * r2 + 1.0 / 24.0;
    c = c * r2 - 0.5;
    c = c * r2 + 1.0;
    const LongVec quadrant = reinterpret_cast<LongVec>(shifted);  // its low bits are n
    const LongVec odd = (quadrant & 1) != 0;
    const DoubleVec swapped_s = odd ? c : s, swapped_c = odd ? s : c;
    *sine = (quadrant & 2) != 0 ? -swapped_s : swapped_s;
    *cosine = ((quadrant + 1) & 2) != 0 ? -swapped_c : swapped_c;
}

void sines_cosines(double pos, const double* frequencies, int64_t count, float sign, float* sines, float* cosines) {
    for (int64_t i = 0; i < count; i += kDoubleLanes) {
        DoubleVec frequency{}, s, c;
        const int64_t lanes = std::min<int64_t>(kDoubleLanes, count - i);
        __builtin_memcpy(&frequency, frequencies + i, static_cast<size_t>(lanes) * 8);
        sine_cosine(frequency * pos, &s, &c);
        const HalfVec narrow_s = __builtin_convertvector(s, HalfVec) * sign, narrow_c = __builtin_convertvector(c, HalfVec);
        __builtin_memcpy(sines + i, &narrow_s, sizeof narrow_s);  // the arrays have room for whole vectors
        __builtin_memcpy(cosines + i, &narrow_c, sizeof narrow_c);
    }
}

template <class T>
void rotate(const T* x, int64_t half, int64_t count, const float* sines, const float* cosines, T* out) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t lanes = count - i;
        const Vec a = load(x + i, lanes), b = load(x + half + i, lanes), s = load(sines + i), c = load(cosines + i);
        store(out + i, a * c - b * s, lanes);
        store(out + half + i, b * c + a * s, lanes);
    }
}

template <class T>
void rope_of(Range tokens, int64_t heads, int64_t head_dim, const T* x, const int32_t* pos, const double* inverse_frequencies,
             float sign, T* out) {
    const int64_t half = head_dim / 2;
    alignas(64) float sines[kChunk + kLanes], cosines[kChunk + kLanes];
    for (int64_t first = 0; first < half; first += kChunk) {
        const int64_t count = std::min(kChunk, half - first);
        for (int64_t t = tokens.begin; t < tokens.end; ++t) {
            sines_cosines(pos[t], inverse_frequencies + first, count, sign, sines, cosines);
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t at = (t * heads + h) * head_dim + first;
                rotate(x + at, half, count, sines, cosines, out + at);
            }
        }
    }
}

// Heads of one token. Sines and cosines of some of a head's pairs, which begin at `from` and `to`; none: the head as it is.
struct Waves {
    const float *sines, *cosines;
    int64_t count;
};
template <class T>
void move_heads(int64_t heads, int64_t head_dim, const T* from, T* to, const Waves* waves) {
    if (!waves) {
        std::copy_n(from, heads * head_dim, to);
        return;
    }
    for (int64_t h = 0; h < heads; ++h)
        rotate(from + h * head_dim, head_dim / 2, waves->count, waves->sines, waves->cosines, to + h * head_dim);
}

// f(token, pairs before these, waves) for all parts of the pairs of every token; without positions once, without waves.
template <class F>
void for_each_token(Range tokens, int64_t head_dim, const int32_t* pos, const double* inverse_frequencies, float sign, F f) {
    alignas(64) float sines[kChunk + kLanes], cosines[kChunk + kLanes];
    const int64_t half = head_dim / 2;
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        if (!pos) f(t, 0, nullptr);
        for (int64_t first = 0; pos && first < half; first += kChunk) {
            const Waves waves = {sines, cosines, std::min(kChunk, half - first)};
            sines_cosines(pos[t], inverse_frequencies + first, waves.count, sign, sines, cosines);
            f(t, first, &waves);
        }
    }
}

template <class T>
void split_qkv_of(Range tokens, const QkvShape& s, const T* qkv, const int32_t* pos, const double* inverse_frequencies,
                  float sign, T* q, T* k, T* v) {
    const int64_t queries = s.queries * s.head_dim, keys = s.keys * s.head_dim;
    for_each_token(tokens, s.head_dim, pos, inverse_frequencies, sign, [&](int64_t t, int64_t first, const Waves* waves) {
        const T* const row = qkv + t * s.heads() * s.head_dim;
        move_heads(s.queries, s.head_dim, row + first, q + t * queries + first, waves);
        move_heads(s.keys, s.head_dim, row + queries + first, k + t * keys + first, waves);
        if (first == 0) std::copy_n(row + queries + keys, keys, v + t * keys);
    });
}
template <class T>
void join_qkv_of(Range tokens, const QkvShape& s, const T* q, const T* k, const T* v, const int32_t* pos,
                 const double* inverse_frequencies, float sign, T* qkv) {
    const int64_t queries = s.queries * s.head_dim, keys = s.keys * s.head_dim;
    for_each_token(tokens, s.head_dim, pos, inverse_frequencies, sign, [&](int64_t t, int64_t first, const Waves* waves) {
        T* const row = qkv + t * s.heads() * s.head_dim;
        move_heads(s.queries, s.head_dim, q + t * queries + first, row + first, waves);
        move_heads(s.keys, s.head_dim, k + t * keys + first, row + queries + first, waves);
        if (first == 0) std::copy_n(v + t * keys, keys, row + queries + keys);
    });
}

}  // namespace

constinit const Typed<Rope> rope([]<class T>() { return rope_of<T>; });
constinit const Typed<SplitQkv> split_qkv([]<class T>() { return split_qkv_of<T>; });
constinit const Typed<JoinQkv> join_qkv([]<class T>() { return join_qkv_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
