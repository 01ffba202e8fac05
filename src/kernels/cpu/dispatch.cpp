// Picks each kernel's copy for the instruction set in use: when the program starts, and again by use_isa().
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <vector>

#include "base/error.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/bias.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/float8_runs.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_onednn.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/scaled_matmul_blocks.h"

namespace lockstep::kernels::cpu {

#if defined(__x86_64__)
namespace {
// By CPUID: clang 14's __builtin_cpu_supports knows neither of these.
bool has_feature(unsigned leaf, unsigned ecx, unsigned edx) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(leaf, 0, &a, &b, &c, &d) != 0 && (c & ecx) == ecx && (d & edx) == edx;
}
bool has_f16c() { return has_feature(1, 1u << 29, 0); }
bool processor_has_amx() { return has_feature(7, 0, 1u << 22 | 1u << 24); }  // bfloat16, tiles
}  // namespace
#endif

Isa processor_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        return Isa::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) return Isa::avx2;
#endif
    return Isa::baseline;
}

Isa detect_isa() {
#if defined(LOCKSTEP_ONLY_ISA)
    return Isa::LOCKSTEP_ONLY_ISA;
#else
    return processor_isa();
#endif
}

bool has_isa(Isa wanted) {
#if defined(LOCKSTEP_ONLY_ISA)
    return wanted == Isa::LOCKSTEP_ONLY_ISA;
#else
    return wanted <= processor_isa();
#endif
}

const char* name(Isa isa) { return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "baseline"; }

namespace {

Isa& used() {
    static Isa used = detect_isa();
    return used;
}

std::vector<void (*)()>& choices() {
    static std::vector<void (*)()> choices;  // one a kernel
    return choices;
}

// Makes the choice of one kernel now, and whenever another instruction set is used.
struct Choice {
    explicit Choice(void (*choose)()) {
        choose();
        choices().push_back(choose);
    }
};

template <class Kernel>
Kernel pick(const Kernel& avx512, const Kernel& avx2, const Kernel& baseline) {
    return isa() == Isa::avx512 ? avx512 : isa() == Isa::avx2 ? avx2 : baseline;
}

}  // namespace

Isa isa() { return used(); }

void use_isa(Isa wanted) {
    ensure(has_isa(wanted), "use_isa: this processor or this build lacks that instruction set");
    used() = wanted;
    for (void (*choose)() : choices()) choose();
}

// The namespaces of a kernel's copies: one for each instruction set, or the only one that this build has.
#if defined(LOCKSTEP_ONLY_ISA)
#define LOCKSTEP_AVX512 LOCKSTEP_ONLY_ISA
#define LOCKSTEP_AVX2 LOCKSTEP_ONLY_ISA
#define LOCKSTEP_BASELINE LOCKSTEP_ONLY_ISA
#else
#define LOCKSTEP_AVX512 avx512
#define LOCKSTEP_AVX2 avx2
#define LOCKSTEP_BASELINE baseline
#endif
// LOCKSTEP_KERNEL: a function. LOCKSTEP_KERNELS: a table of them, one function a storage type.
#define LOCKSTEP_KERNEL(Type, name) \
    namespace LOCKSTEP_AVX512 {     \
    Type name;                      \
    }                               \
    namespace LOCKSTEP_AVX2 {       \
    Type name;                      \
    }                               \
    namespace LOCKSTEP_BASELINE {   \
    Type name;                      \
    }                               \
    Type* name;                     \
    const Choice choice_of_##name(  \
        [] { name = pick<Type*>(LOCKSTEP_AVX512::name, LOCKSTEP_AVX2::name, LOCKSTEP_BASELINE::name); });
#define LOCKSTEP_KERNELS(Table, name) \
    namespace LOCKSTEP_AVX512 {       \
    extern const Table name;          \
    }                                 \
    namespace LOCKSTEP_AVX2 {         \
    extern const Table name;          \
    }                                 \
    namespace LOCKSTEP_BASELINE {     \
    extern const Table name;          \
    }                                 \
    Table name;                       \
    const Choice choice_of_##name([] { name = pick(LOCKSTEP_AVX512::name, LOCKSTEP_AVX2::name, LOCKSTEP_BASELINE::name); });

// Products have a fourth copy, for the processor's bfloat16 dot product.
bool has_bf16_dot() {
#if defined(__x86_64__)
    return isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}
bool prefers_bf16_dot() {
#if defined(__x86_64__)
    return has_bf16_dot() && __builtin_cpu_is("amd");
#else
    return false;
#endif
}

// And products and attention by AMX. Linux saves a thread's tiles only for a process that has asked it to.
bool has_amx() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr long kAskForFeature = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    if (!has_bf16_dot()) return false;
    static const bool granted = processor_has_amx() && syscall(SYS_arch_prctl, kAskForFeature, kTileData) == 0;
    return granted;
#else
    return false;
#endif
}

InstructionSets instruction_sets_here() { return {isa(), has_bf16_dot(), prefers_bf16_dot(), has_amx(), onednn_is_built()}; }

std::string instruction_sets() {
    std::string out = name(isa());
    if (has_bf16_dot()) out += ", avx512_bf16";
    if (has_amx()) out += ", amx";
    return out;
}

#if defined(LOCKSTEP_HAS_AVX512)
namespace avx512bf16 {
extern const PackedMatmuls packed_matmul;
extern const ScaledMatmuls packed_scaled_matmul;
}  // namespace avx512bf16
namespace amx {
extern const Bf16Matmuls packed_matmul;
extern const ScaledMatmulKernel packed_scaled_matmul;
}  // namespace amx
PackedMatmuls pick(const PackedMatmuls& avx512, const PackedMatmuls& avx2, const PackedMatmuls& baseline) {
    PackedMatmuls table = has_bf16_dot() ? avx512bf16::packed_matmul : pick<PackedMatmuls>(avx512, avx2, baseline);
    table.amx = amx::packed_matmul;
    return table;
}
ScaledMatmuls pick(const ScaledMatmuls& avx512, const ScaledMatmuls& avx2, const ScaledMatmuls& baseline) {
    ScaledMatmuls table = has_bf16_dot() ? avx512bf16::packed_scaled_matmul : pick<ScaledMatmuls>(avx512, avx2, baseline);
    table.amx = amx::packed_scaled_matmul;
    return table;
}
#endif
LOCKSTEP_KERNELS(PackedMatmuls, packed_matmul)
LOCKSTEP_KERNELS(ScaledMatmuls, packed_scaled_matmul)
#if defined(LOCKSTEP_HAS_AVX512)
namespace amx {
extern const Typed<Attention> attention;
extern const Typed<AttentionBackward> attention_backward;
extern const Typed<AttentionBlock> attention_block;
extern const Typed<AttentionBlockBackward> attention_block_backward;
}  // namespace amx
const Typed<Attention> attention_amx = amx::attention;
const Typed<AttentionBackward> attention_backward_amx = amx::attention_backward;
const Typed<AttentionBlock> attention_block_amx = amx::attention_block;
const Typed<AttentionBlockBackward> attention_block_backward_amx = amx::attention_block_backward;
#else
const Typed<Attention> attention_amx{};
const Typed<AttentionBackward> attention_backward_amx{};
const Typed<AttentionBlock> attention_block_amx{};
const Typed<AttentionBlockBackward> attention_block_backward_amx{};
#endif
LOCKSTEP_KERNELS(Typed<Attention>, attention)
LOCKSTEP_KERNELS(Typed<Attention>, attention_row)
LOCKSTEP_KERNELS(Typed<AttentionBackward>, attention_backward)
LOCKSTEP_KERNELS(Typed<AttentionBlock>, attention_block)
LOCKSTEP_KERNELS(Typed<AttentionBlockBackward>, attention_block_backward)
LOCKSTEP_KERNELS(TypedNorm<RmsNorm>, rms_norm)
LOCKSTEP_KERNELS(TypedNorm<AddRmsNorm>, add_rms_norm)
LOCKSTEP_KERNELS(TypedNormBackward<RmsNormBackward>, rms_norm_backward)
LOCKSTEP_KERNELS(TypedNorm<LayerNorm>, layer_norm)
LOCKSTEP_KERNELS(TypedNormBackward<LayerNormBackward>, layer_norm_backward)
LOCKSTEP_KERNELS(Typed<Bias>, bias)
LOCKSTEP_KERNELS(Typed<BiasGelu>, bias_gelu)
LOCKSTEP_KERNELS(Typed<BiasGeluBackward>, bias_gelu_backward)
LOCKSTEP_KERNELS(Typed<Dropout>, dropout)
LOCKSTEP_KERNELS(TypedOnStream<BiasDropoutAdd>, bias_dropout_add)
LOCKSTEP_KERNELS(Typed<SumRows>, sum_rows)
LOCKSTEP_KERNELS(Typed<Add>, add)
LOCKSTEP_KERNELS(Typed<Scale>, scale)
LOCKSTEP_KERNELS(Typed<Narrow>, narrow_to)
LOCKSTEP_KERNELS(Typed<Widen>, widen_from)
LOCKSTEP_KERNELS(Typed<Accumulate>, accumulate)
LOCKSTEP_KERNEL(Exponential, exponential)
LOCKSTEP_KERNELS(Typed<SwiGlu>, swiglu)
LOCKSTEP_KERNELS(Typed<SwiGluBackward>, swiglu_backward)
LOCKSTEP_KERNELS(Typed<SwiGluPacked>, swiglu_packed)
LOCKSTEP_KERNELS(Typed<SwiGluPackedBackward>, swiglu_packed_backward)
LOCKSTEP_KERNELS(Typed<Rope>, rope)
LOCKSTEP_KERNELS(Typed<SplitQkv>, split_qkv)
LOCKSTEP_KERNELS(Typed<JoinQkv>, join_qkv)
LOCKSTEP_KERNELS(TypedOnStream<Embedding>, embedding)
LOCKSTEP_KERNELS(Typed<EmbeddingBackward>, embedding_backward)
LOCKSTEP_KERNELS(Typed<RowMax>, row_max)
LOCKSTEP_KERNELS(Typed<CrossEntropy>, cross_entropy)
LOCKSTEP_KERNELS(TypedOnStream<CrossEntropyBackward>, cross_entropy_backward)
LOCKSTEP_KERNELS(TypedOnStream<CrossEntropyGradient>, cross_entropy_gradient)
LOCKSTEP_KERNELS(TypedOnStream<AdamW>, adamw)
LOCKSTEP_KERNELS(Typed<AdamWOfNarrowMoments>, adamw_of_narrow_moments)
LOCKSTEP_KERNELS(Typed<Sgd>, sgd)
LOCKSTEP_KERNELS(Typed<MuonMomentum>, muon_momentum)
LOCKSTEP_KERNELS(Typed<Muon>, muon)
LOCKSTEP_KERNELS(Typed<OuterGradient>, outer_gradient)
LOCKSTEP_KERNELS(Typed<OuterSgd>, outer_sgd)
LOCKSTEP_KERNEL(SumOfSquares, sum_of_squares)
LOCKSTEP_KERNELS(Typed<Quantize>, quantize)
LOCKSTEP_KERNELS(Typed<Dequantize>, dequantize)
LOCKSTEP_KERNELS(Typed<LargestSize>, largest_size)
LOCKSTEP_KERNELS(Typed<LargestOfColumns>, largest_of_columns)
LOCKSTEP_KERNELS(Typed<LargestOfBlocks>, largest_of_blocks)
LOCKSTEP_KERNEL(BlockScales, block_scales)
LOCKSTEP_KERNEL(FloatScales, float_scales)
LOCKSTEP_KERNELS(TypedFloat8<RunToFloat8>, run_to_float8)
LOCKSTEP_KERNELS(TypedFloat8<ColumnsToFloat8>, columns_to_float8)
LOCKSTEP_KERNELS(TypedFloat8<BlocksToFloat8>, blocks_to_float8)
LOCKSTEP_KERNELS(TypedFloat8<RunFromFloat8>, run_from_float8)
LOCKSTEP_KERNELS(TypedFloat8<ColumnsFromFloat8>, columns_from_float8)

}  // namespace lockstep::kernels::cpu
