#include "kernels/cuda/products.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>
#include <type_traits>

#include "base/error.h"
#include "base/round.h"
#include "kernels/cuda/product_kernels.h"
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

cudaDataType_t type_of(Dtype type) { return type == Dtype::BF16 ? CUDA_R_16BF : type == Dtype::F16 ? CUDA_R_16F : CUDA_R_32F; }

// Column-major, as cuBLASLt has matrices.
Layout layout(cudaDataType_t type, int64_t rows, int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    CHECK(cublasLtMatrixLayoutCreate, &made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
    return Layout(made);
}

// A row-major product C [m, n] = or += A [m, k] B [n, k]^T, where A and B may stand transposed. Its transpose is what cuBLASLt
// computes: C^T [n, m] in columns has the bytes of C in rows.
class Product {
public:
    Product(const ops::MatmulShape& s, cudaDataType_t in, cudaDataType_t out)
        : shape_(s),
          in_(in),
          out_(out),
          a_(s.a_transposed ? layout(in, s.m, s.k) : layout(in, s.k, s.m)),
          b_(s.b_transposed ? layout(in, s.n, s.k) : layout(in, s.k, s.n)),
          c_(layout(out, s.n, s.m)) {
        cublasLtMatmulDesc_t made = nullptr;
        CHECK(cublasLtMatmulDescCreate, &made, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        description_.reset(made);
        const cublasOperation_t of_b = s.b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T,
                                of_a = s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
        CHECK(cublasLtMatmulDescSetAttribute, made, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b);
        CHECK(cublasLtMatmulDescSetAttribute, made, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof of_a);
    }

    // before: what is added to; may be c. None: nothing is.
    void run(cudaStream_t stream, const void* a, const void* b, const void* before, void* c, void* workspace) {
        const float one = 1, beta = before ? 1 : 0;
        if (!before) before = c;
        const cublasLtMatmulAlgo_t& chosen = algorithm(a, b, before, c);
        CHECK(cublasLtMatmul, library(), description_.get(), &one, b, b_.get(), a, a_.get(), &beta, before, c_.get(), c, c_.get(),
              &chosen, aligned(workspace), kProductWorkspaceBytes, stream);
    }

private:
    static constexpr uint32_t kAligned = 16;
    static uint32_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

    static void* aligned(void* workspace) {
        return reinterpret_cast<void*>(round_up(reinterpret_cast<int64_t>(workspace), kProductAlignment));
    }

    // For pointers that are aligned as kernels like them, or any: chosen at the first use of each.
    const cublasLtMatmulAlgo_t& algorithm(const void* a, const void* b, const void* before, const void* c) {
        const auto bits = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
        const bool is_aligned = (bits(a) | bits(b) | bits(before) | bits(c)) % kAligned == 0;
        std::optional<cublasLtMatmulAlgo_t>& found = algorithms_[is_aligned ? 1 : 0];
        if (!found) found = choose(is_aligned);
        return *found;
    }
    cublasLtMatmulAlgo_t choose(bool is_aligned) const {
        cublasLtMatmulPreference_t made = nullptr;
        CHECK(cublasLtMatmulPreferenceCreate, &made);
        const Preference preference(made);
        const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            CHECK(cublasLtMatmulPreferenceSetAttribute, made, attribute, &value, sizeof value);
        };
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kProductWorkspaceBytes));
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
        for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES})
            set(attribute, is_aligned ? kAligned : bytes_of(in_));
        for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            set(attribute, is_aligned ? kAligned : bytes_of(out_));
        cublasLtMatmulHeuristicResult_t result = {};
        int count = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library(), description_.get(), b_.get(), a_.get(), c_.get(),
                                                                     c_.get(), made, 1, &result, &count);
        if (status != CUBLAS_STATUS_SUCCESS || count == 0)
            throw InternalError(fmt::format("cuBLASLt has no algorithm for a product of [{}, {}] and [{}, {}]: {}", shape_.m,
                                            shape_.k, shape_.k, shape_.n, cublasLtGetStatusString(status)));
        return result.algo;
    }

    const ops::MatmulShape shape_;
    const cudaDataType_t in_, out_;
    const Layout a_, b_, c_;
    Description description_;
    std::array<std::optional<cublasLtMatmulAlgo_t>, 2> algorithms_;
};

struct Library {
    static constexpr const char* kName = kProductsName;
};

}  // namespace

std::unique_ptr<Kernel> make_product(const KernelContext& c, Dtype in, Dtype out) {
    ops::MatmulShape shape;
    ensure(ops::is_matmul(c.mesh, c.routine, c.op, &shape), "cublaslt.matmul: not a product of matrices");
    const int first = c.op.kind == "addmm" ? 1 : 0;
    return kernel_from([product = std::make_shared<Product>(shape, type_of(in), type_of(out)), first, swapped = shape.swapped,
                        adds = c.op.accumulates(0)](const KernelArgs& k) {
        const void* const before = first == 1 ? k.in[0] : adds && !k.fresh ? k.out[0] : nullptr;
        product->run(static_cast<cudaStream_t>(k.queue.handle()), k.in[first + (swapped ? 1 : 0)],
                     k.in[first + (swapped ? 0 : 1)], before, k.out[0], k.workspace);
    });
}

const std::vector<Registered>& product_kernels() {
    static const std::vector<Registered> all = list_of_products<Library>();
    return all;
}

}  // namespace lockstep::kernels::cuda
