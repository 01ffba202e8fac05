// Picks each kernel's copy for the best instruction set of this machine, once, when the program starts.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"

namespace lockstep::kernels::cpu {

Isa detect_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        return Isa::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
    return Isa::baseline;
}

const char* name(Isa isa) { return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "baseline"; }

namespace {

template <typename Kernel>
Kernel* pick([[maybe_unused]] Kernel* avx512, [[maybe_unused]] Kernel* avx2, Kernel* baseline) {
    const Isa isa = detect_isa();
    return isa == Isa::avx512 ? avx512 : isa == Isa::avx2 ? avx2 : baseline;
}

}  // namespace

#if defined(__x86_64__)
#define LOCKSTEP_KERNEL(Type, name) \
    namespace avx512 {              \
    Type name;                      \
    }                               \
    namespace avx2 {                \
    Type name;                      \
    }                               \
    namespace baseline {            \
    Type name;                      \
    }                               \
    Type* const name = pick<Type>(avx512::name, avx2::name, baseline::name);
#else
#define LOCKSTEP_KERNEL(Type, name) \
    namespace baseline {            \
    Type name;                      \
    }                               \
    Type* const name = baseline::name;
#endif

LOCKSTEP_KERNEL(PackedMatmul, packed_matmul)
LOCKSTEP_KERNEL(Attention, attention)
LOCKSTEP_KERNEL(AttentionBackward, attention_backward)
LOCKSTEP_KERNEL(RmsNorm, rms_norm)
LOCKSTEP_KERNEL(RmsNormBackward, rms_norm_backward)
LOCKSTEP_KERNEL(Add, add)
LOCKSTEP_KERNEL(Scale, scale)
LOCKSTEP_KERNEL(Exponential, exponential)
LOCKSTEP_KERNEL(SwiGlu, swiglu)
LOCKSTEP_KERNEL(SwiGluBackward, swiglu_backward)
LOCKSTEP_KERNEL(Rope, rope)
LOCKSTEP_KERNEL(Embedding, embedding)
LOCKSTEP_KERNEL(EmbeddingBackward, embedding_backward)
LOCKSTEP_KERNEL(MaskColumns, mask_columns)
LOCKSTEP_KERNEL(RowMax, row_max)
LOCKSTEP_KERNEL(CrossEntropy, cross_entropy)
LOCKSTEP_KERNEL(CrossEntropyBackward, cross_entropy_backward)
LOCKSTEP_KERNEL(AdamW, adamw)
LOCKSTEP_KERNEL(SumOfSquares, sum_of_squares)

}  // namespace lockstep::kernels::cpu
