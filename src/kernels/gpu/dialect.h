// What a kernel here may say of a GPU: the words that nvcc, hipcc and the emulator (for g++ and clang++) all know. No kernel
// names a vendor. A kernel is a `__global__` function; it is started by launch().
//   - Lanes exchange with shuffle_xor() in groups of 32, whether a warp has 32 lanes or 64. All lanes take part.
//   - No kernel adds atomically: sums have one order, so that equal input gives equal bits. The largest of integers has no order:
//     raise_to().
//   - Memory is read and written through load() and store(), 16 bytes at a time where the data allows it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/gpu/types.h"

// UNROLL, NO_UNROLL: before a loop that has few and a known number of turns; before one that hardly ever runs.
// UNROLL_BY(count): before a loop whose loads shall be on their way `count` at a time.
// CHECK_ALIGNMENT: refuses an address that is no multiple, where an emulator can.
// SHARED_MEMORY: the bytes that a launch asks for, as an array of T in a kernel.
#if defined(__CUDACC__) || defined(__HIPCC__)
#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime.h>
#endif
#define UNROLL _Pragma("unroll")
#if defined(__HIPCC__)
#define UNROLL_BY(count)  // clang warns where it does not
#else
#define LOCKSTEP_PRAGMA(words) _Pragma(#words)
#define UNROLL_BY(count) LOCKSTEP_PRAGMA(unroll count)
#endif
#define NO_UNROLL _Pragma("unroll 1")
#define CHECK_ALIGNMENT(address, bytes)
#define SHARED_MEMORY(T, name)                                     \
    extern __shared__ __align__(128) unsigned char name##_bytes[]; \
    T* const name = reinterpret_cast<T*>(name##_bytes)
#else
#include <cmath>
#include <utility>

#include "kernels/gpu/emulator.h"
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define UNROLL
#define UNROLL_BY(count)
#define NO_UNROLL
#define CHECK_ALIGNMENT(address, bytes) ::lockstep::kernels::gpu::emulator::check_alignment(address, bytes)
#define SHARED_MEMORY(T, name) T* const name = reinterpret_cast<T*>(::lockstep::kernels::gpu::emulator::shared_memory())
#endif

namespace lockstep::kernels::gpu {

inline constexpr int kLanes = 32;

struct Grid {
    unsigned blocks, threads;  // of a block
    unsigned shared_bytes = 0;
};
// For which a launch on any GPU can ask: that of gfx90a; of NVIDIA's that of 8.6, 8.9 and 12.0, which have the least. A kernel
// that can do with more asks most_shared_bytes().
#if defined(__HIPCC__)
inline constexpr unsigned kSharedBytesAnywhere = 64 << 10;
#else
inline constexpr unsigned kSharedBytesAnywhere = 99 << 10;
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)

// Throws where the last launch was refused.
void check_launch();
// For which a launch on the calling thread's GPU can ask.
unsigned most_shared_bytes();

#if defined(__HIPCC__)
using NativeStream = hipStream_t;
__device__ __forceinline__ float shuffle_xor(float v, int mask) { return __shfl_xor(v, mask, kLanes); }
__device__ __forceinline__ double shuffle_xor(double v, int mask) { return __shfl_xor(v, mask, kLanes); }
__device__ __forceinline__ int shuffle_xor(int v, int mask) { return __shfl_xor(v, mask, kLanes); }
#else
using NativeStream = cudaStream_t;
__device__ __forceinline__ float shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
__device__ __forceinline__ double shuffle_xor(double v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
__device__ __forceinline__ int shuffle_xor(int v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
#endif
__device__ __forceinline__ void block_barrier() { __syncthreads(); }
__device__ __forceinline__ void raise_to(int* at, int v) { atomicMax(at, v); }
__device__ __forceinline__ unsigned thread() { return threadIdx.x; }
__device__ __forceinline__ unsigned threads() { return blockDim.x; }
__device__ __forceinline__ unsigned block() { return blockIdx.x; }
__device__ __forceinline__ unsigned blocks() { return gridDim.x; }

// What a launch gets without asking is 48 KiB. Where that fails, so does check_launch().
template <class... P>
void allow_shared([[maybe_unused]] void (*kernel)(P...), [[maybe_unused]] unsigned bytes) {
#if !defined(__HIPCC__)
    if (bytes > 48u << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
#endif
}

template <class... P, class... A>
void launch(void (*kernel)(P...), const Grid& grid, Stream stream, A... arguments) {
    allow_shared(kernel, grid.shared_bytes);
    kernel<<<grid.blocks, grid.threads, grid.shared_bytes, static_cast<NativeStream>(stream)>>>(static_cast<P>(arguments)...);
    check_launch();
}

#else

template <class T>
T shuffle_xor(T v, int mask, const emulator::Where& where = emulator::Where::current()) {
    T other;
    emulator::exchange(&v, &other, sizeof v, (emulator::place.thread.x % kLanes) ^ static_cast<unsigned>(mask), where);
    return other;
}
inline void block_barrier(const emulator::Where& where = emulator::Where::current()) { emulator::block_barrier(where); }
inline void raise_to(int* at, int v) { *at = v > *at ? v : *at; }  // one thread runs at a time
inline unsigned thread() { return emulator::place.thread.x; }
inline unsigned threads() { return emulator::place.block_size.x; }
inline unsigned block() { return emulator::place.block.x; }
inline unsigned blocks() { return emulator::place.grid_size.x; }

inline unsigned most_shared_bytes() { return emulator::most_shared_bytes(); }

template <class... P, class... A>
void launch(void (*kernel)(P...), const Grid& grid, Stream stream, A... arguments) {
    emulator::see({grid.blocks, grid.threads, grid.shared_bytes});
    emulator::give(stream, [=] {
        emulator::run({grid.blocks}, {grid.threads}, grid.shared_bytes, [&] { kernel(static_cast<P>(arguments)...); });
    });
}

#endif

// Storage types to and from float, by the processor's own conversions: to the nearest, ties to even, as base/ does it.
template <class T>
__device__ __forceinline__ float widen(T x) {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, F16>) {
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
        return wide;
    }
#endif
    return static_cast<float>(x);
}
template <class T>
__device__ __forceinline__ T narrow(float x) {
#if defined(__CUDA_ARCH__)
    T out;
    if constexpr (std::is_same_v<T, F16>) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
        return out;
    } else if constexpr (std::is_same_v<T, Bf16>) {
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
        return out;
    }
#endif
    return static_cast<T>(x);
}

// Two elements of 16 bits, the lower half of the word first.
template <class T>
__device__ __forceinline__ void unpack(uint32_t word, float& low, float& high) {
    if constexpr (std::is_same_v<T, Bf16>) {
        low = std::bit_cast<float>(word << 16), high = std::bit_cast<float>(word & 0xffff0000u);
    } else {
        T both[2];
        memcpy(both, &word, sizeof both);
        low = widen(both[0]), high = widen(both[1]);
    }
}
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t word;
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, Bf16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
    const T both[2] = {narrow<T>(low), narrow<T>(high)};
    memcpy(&word, both, sizeof word);
#endif
    return word;
}

// 2^x, 1 / x and 1 / sqrt(x) within two units of the last place, without a branch. What is below 2^-126 may be 0.
__device__ __forceinline__ float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
#else
    return exp2f(x);
#endif
}
__device__ __forceinline__ float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
#else
    return 1.0f / x;
#endif
}
__device__ __forceinline__ float inverse_root(float x) {
#if defined(__CUDA_ARCH__)
    float out;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
#else
    return 1.0f / sqrtf(x);
#endif
}
inline constexpr float kLog2E = 1.4426950408889634f;

// e^(x - shift) and 1 / (1 + e^-x). T: how the data is stored. In 16 bits nobody sees a difference of two units of a float's last
// place.
template <class T>
__device__ __forceinline__ float exponential(float x, float shift) {
    if constexpr (sizeof(T) == 2) return power_of_two((x - shift) * kLog2E);
    else return expf(x - shift);
}
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
    if constexpr (sizeof(T) == 2) return reciprocal(1.0f + power_of_two(x * -kLog2E));
    else return 1.0f / (1.0f + expf(-x));
}
template <class T>
__device__ __forceinline__ float inverse_root(float x) {
    if constexpr (sizeof(T) == 2) return inverse_root(x);
    else return 1.0f / sqrtf(x);
}

// W elements that lie side by side, in float.
template <int W>
struct Floats {
    float v[W];
    __device__ float& operator[](int i) { return v[i]; }
    __device__ float operator[](int i) const { return v[i]; }
};

struct __attribute__((may_alias, aligned(16))) Chunk {
    uint32_t words[4];
};

// Of the accesses by which W elements are read and written.
template <int W, class T>
inline constexpr size_t kAccessBytes = W * sizeof(T) % sizeof(Chunk) == 0 ? sizeof(Chunk) : alignof(T);

// W elements that lie side by side, as they are stored.
template <int W, class T>
struct Stored {
    T v[W];
};
// Requires: p is a multiple of kAccessBytes.
template <int W, class T>
__device__ __forceinline__ Stored<W, T> load_stored(const T* p) {
    CHECK_ALIGNMENT(p, (kAccessBytes<W, T>));
    Stored<W, T> out;
    if constexpr (W * sizeof(T) % sizeof(Chunk) == 0) {
        Chunk chunks[W * sizeof(T) / sizeof(Chunk)];
        UNROLL
        for (unsigned i = 0; i < W * sizeof(T) / sizeof(Chunk); ++i) chunks[i] = reinterpret_cast<const Chunk*>(p)[i];
        memcpy(out.v, chunks, sizeof out.v);
    } else {
        UNROLL
        for (int i = 0; i < W; ++i) out.v[i] = p[i];
    }
    return out;
}
template <int W, class T>
__device__ __forceinline__ void store_stored(T* p, const Stored<W, T>& x) {
    CHECK_ALIGNMENT(p, (kAccessBytes<W, T>));
    if constexpr (W * sizeof(T) % sizeof(Chunk) == 0) {
        Chunk chunks[W * sizeof(T) / sizeof(Chunk)];
        memcpy(chunks, x.v, sizeof x.v);
        UNROLL
        for (unsigned i = 0; i < W * sizeof(T) / sizeof(Chunk); ++i) reinterpret_cast<Chunk*>(p)[i] = chunks[i];
    } else {
        UNROLL
        for (int i = 0; i < W; ++i) p[i] = x.v[i];
    }
}

// The same in float. Elements of 16 bits are converted by words of two.
template <int W, class T>
inline constexpr bool kIsPacked = sizeof(T) == 2 && !std::is_integral_v<T> && W % 2 == 0;
template <int W, class T>
__device__ __forceinline__ Floats<W> widened(const Stored<W, T>& x) {
    Floats<W> out;
    if constexpr (kIsPacked<W, T>) {
        uint32_t words[W / 2];
        memcpy(words, x.v, sizeof words);
        UNROLL
        for (int i = 0; i < W / 2; ++i) unpack<T>(words[i], out[2 * i], out[2 * i + 1]);
    } else {
        UNROLL
        for (int i = 0; i < W; ++i) out[i] = widen(x.v[i]);
    }
    return out;
}
template <int W, class T>
__device__ __forceinline__ Stored<W, T> narrowed(const Floats<W>& x) {
    Stored<W, T> out;
    if constexpr (kIsPacked<W, T>) {
        uint32_t words[W / 2];
        UNROLL
        for (int i = 0; i < W / 2; ++i) words[i] = pack<T>(x[2 * i], x[2 * i + 1]);
        memcpy(out.v, words, sizeof words);
    } else {
        UNROLL
        for (int i = 0; i < W; ++i) out.v[i] = narrow<T>(x[i]);
    }
    return out;
}
template <int W, class T>
__device__ __forceinline__ Floats<W> load(const T* p) {
    return widened(load_stored<W>(p));
}
template <int W, class T>
__device__ __forceinline__ void store(T* p, const Floats<W>& x) {
    store_stored(p, narrowed<W, T>(x));
}

// In accesses of 16 bytes, for a kernel whose stores the compiler takes apart.
template <int W, class T>
__device__ __forceinline__ void store_whole(T* p, const Floats<W>& x) {
#if defined(__CUDA_ARCH__)
    if constexpr (W * sizeof(T) % sizeof(Chunk) == 0) {
        const Stored<W, T> held = narrowed<W, T>(x);
        Chunk chunks[W * sizeof(T) / sizeof(Chunk)];
        memcpy(chunks, held.v, sizeof held.v);
        UNROLL
        for (unsigned i = 0; i < W * sizeof(T) / sizeof(Chunk); ++i) {
            const uint32_t* const w = chunks[i].words;
            asm volatile(
                "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(reinterpret_cast<Chunk*>(p) + i)),
                "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                : "memory");
        }
        return;
    }
#endif
    store(p, x);
}

// W elements that wait in registers, in as few as they are stored in: the compiler would keep floats.
template <int W, class T>
class Waiting {
public:
    Waiting() = default;
    __device__ explicit Waiting(const Stored<W, T>& x) { memcpy(pieces_, x.v, sizeof x.v); }
    __device__ explicit Waiting(const T* p) {
        CHECK_ALIGNMENT(p, (kAccessBytes<W, T>));
        UNROLL
        for (int i = 0; i < kPieces; ++i) pieces_[i] = reinterpret_cast<const Piece*>(p)[i];
    }
    __device__ Floats<W> floats() const {
        Piece pieces[kPieces];
        UNROLL
        for (int i = 0; i < kPieces; ++i) {
            pieces[i] = pieces_[i];
#if defined(__CUDA_ARCH__)
            if constexpr (kIsWide) {
                UNROLL
                for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(pieces[i].words[j]));
            }
#endif
        }
        Stored<W, T> held;
        memcpy(held.v, pieces, sizeof held.v);
        return widened(held);
    }

private:
    static constexpr bool kIsWide = W * sizeof(T) % sizeof(Chunk) == 0;
    using Piece = std::conditional_t<kIsWide, Chunk, T>;
    static constexpr int kPieces = W * sizeof(T) / sizeof(Piece);
    Piece pieces_[kPieces] = {};
};

// Whether kernels may take W = kWide at once: rows of n elements, and where they begin.
inline constexpr int kWide = 8;
template <class... T>
bool is_wide(int64_t n, const T*... begins) {
    return n % kWide == 0 && ((reinterpret_cast<uintptr_t>(begins) % sizeof(Chunk) == 0) && ...);
}

// `of` all values of `Threads` threads that are side by side, in one order, for each of them. `parts`: shared, one for each 32
// threads of the block; not needed for 32.
template <int Threads, class T, class F>
__device__ __forceinline__ T reduce_over(T v, T* parts, F of) {
    UNROLL
    for (int mask = kLanes / 2; mask > 0; mask /= 2) v = of(v, shuffle_xor(v, mask));
    if constexpr (Threads > kLanes) {
        block_barrier();  // parts have been read
        if (thread() % kLanes == 0) parts[thread() / kLanes] = v;
        block_barrier();
        v = parts[0];
        UNROLL
        for (int i = 1; i < Threads / kLanes; ++i) v = of(v, parts[i]);
    }
    return v;
}
template <int Threads, class T>
__device__ __forceinline__ T sum_over(T v, T* parts) {
    return reduce_over<Threads>(v, parts, [](T a, T b) { return a + b; });
}

}  // namespace lockstep::kernels::gpu
