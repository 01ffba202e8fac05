// Products of small matrices by a warp, their operands from shared memory, and copies into shared memory that overlap with
// other work: mma, ldmatrix and cp.async of NVIDIA, and the same for HIP by exchanges between lanes. Lane l holds, with g = l /
// 4 and t = l % 4, two elements a word, the lower half first:
//   left [16 rows, 16]: rows g, g + 8, g, g + 8; columns 2t and 2t + 1, in words 2 and 3 plus 8
//   right [16, 8 columns]: column g; rows 2t and 2t + 1, in word 1 plus 8
//   sum [16, 8], floats: row g, in 2 and 3 plus 8; columns 2t, 2t + 1, 2t, 2t + 1
// T: Bf16 or F16.
#pragma once

#include "kernels/gpu/dialect.h"

namespace lockstep::kernels::gpu {

// Of these a block can have copied two at a time: one is read while the other is on its way.
#if defined(__HIPCC__)
inline constexpr int kStages = 1;  // copies are done at once
#else
inline constexpr int kStages = 2;
#endif

namespace emulated {

// sum += left right, where word_of(lane, i) is word i of what a lane holds: four of left, two of right.
template <class T, class WordOf>
__device__ __forceinline__ void multiply(int lane, float (&sum)[4], WordOf word_of) {
    const int g = lane / 4, t = lane % 4;
    UNROLL
    for (int part = 0; part < 4; ++part) {  // of the sum's order, two elements from each half
        UNROLL
        for (int half = 0; half < 2; ++half) {
            float left[2][2], right[2][2];
            UNROLL
            for (int i = 0; i < 2; ++i) {
                unpack<T>(word_of(g * 4 + part, half * 2 + i), left[i][0], left[i][1]);
                unpack<T>(word_of((2 * t + i) * 4 + part, 4 + half), right[i][0], right[i][1]);
            }
            UNROLL
            for (int i = 0; i < 4; ++i) sum[i] += left[i / 2][0] * right[i % 2][0] + left[i / 2][1] * right[i % 2][1];
        }
    }
}

// Word `lane` of the 8 x 8 matrix whose row r begins at row(r); or of the transposed one.
template <bool transposed, class T, class Row>
__device__ __forceinline__ uint32_t word_of_matrix(int lane, Row row) {
    T both[2];
    if constexpr (transposed) {
        both[0] = row(lane % 4 * 2)[lane / 4], both[1] = row(lane % 4 * 2 + 1)[lane / 4];
    } else {
        const T* const own = row(lane / 4) + lane % 4 * 2;
        both[0] = own[0], both[1] = own[1];
    }
    uint32_t word;
    memcpy(&word, both, sizeof word);
    return word;
}

}  // namespace emulated

#if defined(__CUDACC__)

// sum += left right.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, Bf16>)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
#endif
}

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Four 8 x 8 matrices from shared memory, a word of each, as they are or transposed. row: of lanes 8 i and following, the rows
// of matrix i, multiples of 16 bytes.
template <bool transposed, class T>
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const T* row) {
    if constexpr (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(shared_address(row))
                     : "memory");
}

// Starts a copy of 4 or 16 bytes into shared memory; of zeros, where nothing exists at `from`.
template <int Bytes>
__device__ __forceinline__ void start_copy(void* to, const void* from, bool exists) {
    const int read = exists ? Bytes : 0;
    if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(read) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(read) : "memory");
}
// What this thread has started since the last call is a group. await_copies: until all of its groups but the last `left` are
// there, for itself; for the block after a barrier.
__device__ __forceinline__ void end_group_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Left>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

#elif defined(__HIPCC__)

// A call: inlined, products would be too long to be unrolled.
template <class T>
__device__ __attribute__((noinline)) float4 multiply(float4 sum, uint4 left, uint2 right) {
    const uint32_t own[6] = {left.x, left.y, left.z, left.w, right.x, right.y};
    float out[4] = {sum.x, sum.y, sum.z, sum.w};
    emulated::multiply<T>(static_cast<int>(thread()) % kLanes, out,
                          [&](int lane, int i) { return static_cast<uint32_t>(__shfl(static_cast<int>(own[i]), lane, kLanes)); });
    return {out[0], out[1], out[2], out[3]};
}
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
    const float4 out = multiply<T>({sum[0], sum[1], sum[2], sum[3]}, {left[0], left[1], left[2], left[3]}, {right0, right1});
    sum[0] = out.x, sum[1] = out.y, sum[2] = out.z, sum[3] = out.w;
}
template <bool transposed, class T>
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const T* row) {
    const auto own = reinterpret_cast<unsigned long long>(row);
    UNROLL
    for (int i = 0; i < 4; ++i)
        words[i] = emulated::word_of_matrix<transposed, T>(static_cast<int>(thread()) % kLanes, [&](int r) {
            return reinterpret_cast<const T*>(__shfl(own, i * 8 + r, kLanes));
        });
}
template <int Bytes>
__device__ __forceinline__ void start_copy(void* to, const void* from, bool exists) {
    if constexpr (Bytes == 16) *static_cast<Chunk*>(to) = exists ? *static_cast<const Chunk*>(from) : Chunk{};
    else *static_cast<uint32_t*>(to) = exists ? *static_cast<const uint32_t*>(from) : 0;
}
__device__ __forceinline__ void end_group_of_copies() {}
template <int Left>
__device__ __forceinline__ void await_copies() {}

#else

template <class T>
void mma_16x8x16(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1,
                 const emulator::Where& where = emulator::Where::current()) {
    const uint32_t own[6] = {left[0], left[1], left[2], left[3], right0, right1};
    const emulator::Posted* const all = emulator::post(own, sizeof own, where);
    emulated::multiply<T>(static_cast<int>(thread()) % kLanes, sum, [&](int lane, int i) {
        uint32_t word;
        memcpy(&word, all[lane] + i * sizeof word, sizeof word);
        return word;
    });
    emulator::taken(where);
}
template <bool transposed, class T>
void load_matrices(uint32_t (&words)[4], const T* row, const emulator::Where& where = emulator::Where::current()) {
    CHECK_ALIGNMENT(row, 16);
    const emulator::Posted* const all = emulator::post(&row, sizeof row, where);
    for (int i = 0; i < 4; ++i)
        words[i] = emulated::word_of_matrix<transposed, T>(static_cast<int>(thread()) % kLanes, [&](int r) {
            const T* begin;
            memcpy(&begin, all[i * 8 + r], sizeof begin);
            return begin;
        });
    emulator::taken(where);
}
template <int Bytes>
void start_copy(void* to, const void* from, bool exists) {
    emulator::start_copy(to, exists ? from : nullptr, Bytes);
}
inline void end_group_of_copies() { emulator::end_group_of_copies(); }
template <int Left>
void await_copies() {
    emulator::await_copies(Left);
}

#endif

}  // namespace lockstep::kernels::gpu
