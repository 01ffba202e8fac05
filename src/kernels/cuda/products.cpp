#include "kernels/cuda/products.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/round.h"
#include "kernels/cuda/planned_products.h"
#include "kernels/cuda/product_kernels.h"
#include "kernels/gpu/float8.h"
#include "ops/einsum.h"

namespace lockstep::kernels::cuda {
namespace {

void check(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) throw InternalError(fmt::format("{}: {}", call, cublasLtGetStatusString(status)));
}
#define CHECK(call, ...) check(call(__VA_ARGS__), #call)

// A description of cuBLASLt that is destroyed with this.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Destroyed {
    void operator()(std::remove_pointer_t<Handle>* handle) const { destroy(handle); }
};
template <class Handle, cublasStatus_t (*destroy)(Handle)>
using Held = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyed<Handle, destroy>>;
using Description = Held<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Held<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Held<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// One for all threads of the process.
cublasLtHandle_t library() {
    static const cublasLtHandle_t handle = [] {
        cublasLtHandle_t h = nullptr;
        CHECK(cublasLtCreate, &h);
        return h;
    }();
    return handle;
}

cudaDataType_t type_of(Dtype type) {
    switch (type) {
        case Dtype::F32: return CUDA_R_32F;
        case Dtype::BF16: return CUDA_R_16BF;
        case Dtype::F16: return CUDA_R_16F;
        case Dtype::F8E4M3: return CUDA_R_8F_E4M3;
        case Dtype::F8E5M2: return CUDA_R_8F_E5M2;
        case Dtype::F64:
        case Dtype::I32:
        case Dtype::I8:
        case Dtype::E8M0: break;
    }
    throw InternalError(fmt::format("cublaslt.matmul: no products of {}", name_of(type)));
}

// Column-major, as cuBLASLt has matrices.
Layout layout(Dtype type, int64_t rows, int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    CHECK(cublasLtMatrixLayoutCreate, &made, type_of(type), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
    return Layout(made);
}

// What cuBLASLt does to a product before it stores it.
struct Epilogue {
    cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
    bool has_bias = false, has_aux = false;
};
Epilogue epilogue_of(const ir::Op& op) {
    if (op.kind == "linear") return {CUBLASLT_EPILOGUE_BIAS, true, false};
    if (op.kind == "linear_gelu" && op.out.size() == 2) return {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, true};
    if (op.kind == "linear_gelu") return {CUBLASLT_EPILOGUE_GELU_BIAS, true, false};
    if (op.kind == "matmul_dgelu") return {CUBLASLT_EPILOGUE_DGELU, false, true};
    return {};
}

struct Operands {
    const void *a, *b;
    const void* before;  // what is added to; may be c. None: nothing is
    void* c;
    const void* bias = nullptr;                         // [n]
    const void* aux = nullptr;                          // GELU's operand [m, n]: written with a bias, else read
    const void *a_scale = nullptr, *b_scale = nullptr;  // of factors in float8
};

struct Types {
    Dtype a, b, out;
};

void* aligned_workspace(void* workspace) {
    return reinterpret_cast<void*>(round_up(reinterpret_cast<int64_t>(workspace), kProductAlignment));
}

// A row-major product C [m, n] = or += A [m, k] B [n, k]^T, where A and B may be transposed. Its transpose is what cuBLASLt
// computes: C^T [n, m] in columns has the bytes of C in rows.
class Product {
public:
    // op: for messages. workspace_bytes: what the library may use.
    Product(std::string op, const ops::MatmulShape& s, Epilogue epilogue, const Types& types, int64_t workspace_bytes)
        : op_(std::move(op)),
          shape_(s),
          epilogue_(epilogue),
          types_(types),
          workspace_bytes_(workspace_bytes),
          a_(s.a_transposed ? layout(types.a, s.m, s.k) : layout(types.a, s.k, s.m)),
          b_(s.b_transposed ? layout(types.b, s.n, s.k) : layout(types.b, s.k, s.n)),
          c_(layout(types.out, s.n, s.m)) {
        cublasLtMatmulDesc_t made = nullptr;
        CHECK(cublasLtMatmulDescCreate, &made, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        description_.reset(made);
        const cublasOperation_t of_b = s.b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T,
                                of_a = s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
        set(CUBLASLT_MATMUL_DESC_TRANSA, of_b);
        set(CUBLASLT_MATMUL_DESC_TRANSB, of_a);
        if (epilogue.kind == CUBLASLT_EPILOGUE_DEFAULT) return;
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue.kind);
        if (epilogue.has_aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.n);
    }

    // What the library lacks shows before the first step.
    void prepare() {
        if (has_parts()) algorithms_[1] = choose(true);
    }
    // Of float8: sums may be taken in fewer bits than float32 has.
    void sum_fast() { set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1}); }
    void scale_as(ScaleMode a, ScaleMode b) {
        if (a == ScaleMode::All) return;
        constexpr int64_t kFirst = 120900;  // version with all of them
        if (products_version() < kFirst)
            refuse(fmt::format("it is of version {}, before {}", products_version(), kFirst).c_str());
        set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(b));
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(a));
    }
    // For aligned pointers this one; for others, the library chooses.
    void use(const ChosenAlgorithm& chosen) {
        const auto refuse = [&](const std::string& why) {
            return UserError(
                "runtime.products", "runtime.products",
                fmt::format("cuBLASLt does not take the algorithm of {}, a product of [{}, {}] and [{}, {}]: {}; write "
                            "the file of runtime.products again with lockstep bench --products RECIPE",
                            op_, shape_.m, shape_.k, shape_.k, shape_.n, why));
        };
        if (chosen.version != products_version())
            throw refuse(fmt::format("it is of version {} of the library, and this is {}", chosen.version, products_version()));
        cublasLtMatmulAlgo_t algorithm = {};
        static_assert(sizeof algorithm.data == sizeof chosen.words);
        std::memcpy(algorithm.data, chosen.words.data(), sizeof algorithm.data);
        point_to_some(true);
        cublasLtMatmulHeuristicResult_t result = {};
        const cublasStatus_t status =
            cublasLtMatmulAlgoCheck(library(), description_.get(), b_.get(), a_.get(), c_.get(), c_.get(), &algorithm, &result);
        if (status != CUBLAS_STATUS_SUCCESS) throw refuse(cublasLtGetStatusString(status));
        if (static_cast<int64_t>(result.workspaceSize) > workspace_bytes_)
            throw refuse(fmt::format("it needs {} bytes of workspace and has {}", result.workspaceSize, workspace_bytes_));
        algorithms_[1] = algorithm;
    }
    // The best first, for aligned pointers.
    std::vector<ProductAlgorithm> all(int most) {
        std::vector<ProductAlgorithm> out;
        for (const cublasLtMatmulHeuristicResult_t& r : ask(true, most)) {
            ProductAlgorithm& a = out.emplace_back();
            std::memcpy(a.words.data(), r.algo.data, sizeof r.algo.data);
            a.workspace_bytes = static_cast<int64_t>(r.workspaceSize);
        }
        return out;
    }

    void run(cudaStream_t stream, const Operands& o, void* workspace) {
        const float one = 1, beta = o.before ? 1 : 0;
        const void* const before = o.before ? o.before : o.c;
        const cublasLtMatmulAlgo_t& chosen = algorithm(o, before);
        point_to(o.bias, o.aux);
        if (is_scaled()) scale_by(o.a_scale, o.b_scale);
        CHECK(cublasLtMatmul, library(), description_.get(), &one, o.b, b_.get(), o.a, a_.get(), &beta, before, c_.get(), o.c,
              c_.get(), &chosen, aligned_workspace(workspace), static_cast<size_t>(workspace_bytes_), stream);
    }

private:
    static constexpr uint32_t kAligned = 16;
    // What the library may count on.
    static uint32_t alignment(Dtype type, bool is_aligned) {
        return is_aligned ? kAligned : static_cast<uint32_t>(bytes_of(type));
    }

    template <class T>
    void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
        CHECK(cublasLtMatmulDescSetAttribute, description_.get(), attribute, &value, sizeof value);
    }
    void point_to(const void* bias, const void* aux) {
        if (epilogue_.has_bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        if (epilogue_.has_aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    }

    static int32_t mode_of(ScaleMode mode) {
        switch (mode) {
            case ScaleMode::All: break;
            case ScaleMode::Row: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            case ScaleMode::Block: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
            case ScaleMode::Tile: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
            case ScaleMode::Power: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
        }
        return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    }
    void scale_by(const void* a, const void* b) {
        set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b);
        set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a);
    }
    bool is_scaled() const { return is_float8(types_.a); }
    // Could other ops do the same?
    bool has_parts() const { return is_scaled() || epilogue_.kind != CUBLASLT_EPILOGUE_DEFAULT; }

    // For pointers that are aligned as kernels like them, or any: chosen at the first use of each.
    const cublasLtMatmulAlgo_t& algorithm(const Operands& o, const void* before) {
        uintptr_t bits = 0;
        for (const void* p : {o.a, o.b, before, static_cast<const void*>(o.c), o.bias, o.aux})
            bits |= reinterpret_cast<uintptr_t>(p);
        const bool is_aligned = bits % kAligned == 0;
        std::optional<cublasLtMatmulAlgo_t>& found = algorithms_[is_aligned ? 1 : 0];
        if (!found) found = choose(is_aligned);
        return *found;
    }
    // Of these the library takes the alignment from an address.
    void point_to_some(bool is_aligned) {
        const auto* const some = reinterpret_cast<const void*>(static_cast<uintptr_t>(alignment(types_.out, is_aligned)));
        point_to(some, some);
        if (is_scaled()) scale_by(some, some);
    }
    cublasLtMatmulAlgo_t choose(bool is_aligned) { return ask(is_aligned, 1).front().algo; }
    std::vector<cublasLtMatmulHeuristicResult_t> ask(bool is_aligned, int most) {
        cublasLtMatmulPreference_t made = nullptr;
        CHECK(cublasLtMatmulPreferenceCreate, &made);
        const Preference preference(made);
        const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            CHECK(cublasLtMatmulPreferenceSetAttribute, made, attribute, &value, sizeof value);
        };
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes_));
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(types_.b, is_aligned));
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(types_.a, is_aligned));
        for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            set(attribute, alignment(types_.out, is_aligned));
        point_to_some(is_aligned);
        std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
        int count = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library(), description_.get(), b_.get(), a_.get(), c_.get(),
                                                                     c_.get(), made, most, results.data(), &count);
        if (status != CUBLAS_STATUS_SUCCESS || count == 0) refuse(cublasLtGetStatusString(status));
        results.resize(static_cast<size_t>(count));
        std::erase_if(results, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
        if (results.empty()) refuse("none of those that it names");
        return results;
    }
    [[noreturn]] void refuse(const char* why) const {
        const std::string text = fmt::format("cuBLASLt has no algorithm for {}, a product of [{}, {}] and [{}, {}]: {}", op_,
                                             shape_.m, shape_.k, shape_.k, shape_.n, why);
        if (!has_parts()) throw InternalError(text);
        throw UserError("runtime.no_algorithm", "runtime.disabled_kernels",
                        fmt::format("{}: add {} to runtime.disabled_kernels, and its parts run instead", text, op_));
    }

    const std::string op_;
    const ops::MatmulShape shape_;
    const Epilogue epilogue_;
    const Types types_;
    const int64_t workspace_bytes_;
    const Layout a_, b_, c_;
    Description description_;
    std::array<std::optional<cublasLtMatmulAlgo_t>, 2> algorithms_;
};

ops::MatmulShape shape_of(const KernelContext& c) {
    ops::MatmulShape shape;
    ensure(ops::is_matmul(c.mesh, c.routine, c.op, &shape), "cublaslt.matmul: not a product of matrices");
    return shape;
}

struct Library {
    static constexpr const char* kName = kProductsName;
};

}  // namespace

int64_t products_version() { return static_cast<int64_t>(cublasLtGetVersion()); }

std::vector<ProductAlgorithm> product_algorithms(const KernelContext& c, int64_t workspace_bytes, int most) {
    const std::optional<ProductRow> p = product_of(c);
    ensure(p.has_value(), "cublaslt.matmul: not a product of matrices");
    return Product(p->op, shape_of(c), epilogue_of(c.op), {p->in, p->in, p->out}, workspace_bytes).all(most);
}

std::unique_ptr<Kernel> make_product(const KernelContext& c, Dtype in, Dtype out) {
    const ops::MatmulShape shape = shape_of(c);
    const int first = c.op.kind == "addmm" ? 1 : 0;
    const Epilogue epilogue = epilogue_of(c.op);
    const int64_t workspace_bytes = c.op.workspace_bytes - whole_product_bytes(0);
    auto product = std::make_shared<Product>(c.op.kind, shape, epilogue, Types{in, in, out}, workspace_bytes);
    if (const std::optional<ChosenAlgorithm> chosen = chosen_by(c.op.kernel)) product->use(*chosen);
    else product->prepare();
    return kernel_from([product = std::move(product), first, swapped = shape.swapped, adds = c.op.accumulates(0),
                        epilogue](const KernelArgs& k) {
        const void* const before = first == 1 ? k.in[0] : adds && !k.fresh ? k.out[0] : nullptr;
        Operands o = {k.in[first + (swapped ? 1 : 0)], k.in[first + (swapped ? 0 : 1)], before, k.out[0]};
        if (epilogue.has_bias) o.bias = k.in[2];
        if (epilogue.has_aux) o.aux = epilogue.has_bias ? k.out[1] : k.in[2];
        product->run(static_cast<cudaStream_t>(k.queue.handle()), o, k.workspace);
    });
}

std::unique_ptr<Kernel> make_scaled_product(const KernelContext& c, GpuKind kind) {
    const std::optional<ScaledProblem> found = scaled_problem(c, kind);
    ensure(found.has_value(), "cublaslt.scaled_matmul: not a product that it serves");
    const ScaledProblem p = *found;
    const bool turns = turns_float8(kind);
    ops::MatmulShape shape = p.shape;
    if (turns) shape.a_transposed = shape.b_transposed = false;
    const auto type = [&](const ScaledFactor& f) { return c.in(static_cast<size_t>(f.operand)).dtype; };
    auto product = std::make_shared<Product>(c.op.kind, shape, Epilogue{}, Types{type(p.a), type(p.b), c.out(0).dtype},
                                             kProductWorkspaceBytes);
    product->scale_as(p.a.mode, p.b.mode);
    // Sums of blocks are added in float32.
    const bool may_be_fast = p.a.mode == ScaleMode::All || p.a.mode == ScaleMode::Row;
    if (may_be_fast && c.op.attrs.contains("fast") && c.op.integer("fast") != 0) product->sum_fast();
    product->prepare();
    return kernel_from([=, adds = c.op.accumulates(0)](const KernelArgs& k) {
        const gpu::Stream stream = k.queue.handle();
        // Behind what the library uses.
        char* next = static_cast<char*>(aligned_workspace(k.workspace)) + kProductWorkspaceBytes;
        const auto codes = [&](const ScaledFactor& f) -> const void* {
            const int64_t bytes = f.code_bytes(turns);
            if (bytes == 0) return k.in[f.operand];
            gpu::turn(stream, f.k, f.rows, k.in[f.operand], next);
            return std::exchange(next, next + bytes);
        };
        const auto scales = [&](const ScaledFactor& f) -> const void* {
            const void* const own = k.in[f.operand + 2];
            const std::optional<gpu::Factors> factors = f.factors();
            if (!factors) return own;
            if (f.mode == ScaleMode::Power)
                gpu::put_in_order(stream, *factors, static_cast<const E8M0*>(own), reinterpret_cast<E8M0*>(next));
            else gpu::put_in_order(stream, *factors, static_cast<const float*>(own), reinterpret_cast<float*>(next));
            return std::exchange(next, next + f.scale_bytes());
        };
        Operands o = {};
        o.a = codes(p.a), o.b = codes(p.b), o.a_scale = scales(p.a), o.b_scale = scales(p.b);
        o.before = adds && !k.fresh ? k.out[0] : nullptr, o.c = k.out[0];
        product->run(static_cast<cudaStream_t>(stream), o, k.workspace);
    });
}

const std::vector<Registered>& product_kernels(int compute_capability) {
    static const std::map<GpuKind, std::vector<Registered>> all = [] {
        std::map<GpuKind, std::vector<Registered>> out;
        for (const GpuKind kind : {GpuKind::Ampere, GpuKind::Ada, GpuKind::Hopper, GpuKind::Blackwell, GpuKind::Consumer})
            out[kind] = list_of_products<Library>(compute_capability_of(kind));
        return out;
    }();
    return all.at(kind_of(compute_capability));
}

}  // namespace lockstep::kernels::cuda
