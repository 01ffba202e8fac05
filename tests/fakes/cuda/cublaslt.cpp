// cuBLASLt. A product uses its workspace: it fills it when it begins, and fails if the bytes are others when it ends.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/round.h"
#include "tests/fakes/cuda/machine.h"
#include "tests/fakes/cuda/product_rules.h"

struct cublasLtContext {
    int device;
};

namespace lockstep::fakes::cuda {
namespace {

constexpr int64_t kWorkspaceAlignment = 256;
constexpr uint64_t kMostWorkspace = 256 << 10;

cublasStatus_t answer(const char* name, FunctionRef<void()> body) {
    try {
        body();
        return CUBLAS_STATUS_SUCCESS;
    } catch (const LtRefusal& refusal) {
        if (!refusal.why.empty()) set_refusal(fmt::format("{}: {}", name, refusal.why));
        return refusal.status;
    }
}

struct Preference {
    uint64_t max_workspace_bytes = 0;
    uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

// Descriptors are objects of the fake behind the header's pointers.
Layout& of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }
Operation& of(cublasLtMatmulDesc_t operation) { return *reinterpret_cast<Operation*>(operation); }
Preference& of(cublasLtMatmulPreference_t preference) { return *reinterpret_cast<Preference*>(preference); }

template <class Handle, class T>
void create(Handle* handle, T thing) {
    require(handle != nullptr, kInvalid, "the address for the descriptor is null");
    *handle = reinterpret_cast<Handle>(new T(std::move(thing)));
}

// Where an attribute is.
struct Slot {
    void* address = nullptr;  // null: the fake does not know the attribute
    size_t bytes = 0;

    Slot() = default;
    template <class T>
    Slot(T& value) : address(&value), bytes(sizeof value) {}
};

Slot slot(Operation& o, cublasLtMatmulDescAttributes_t which) {
    switch (which) {
        case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return o.compute;
        case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return o.scale;
        case CUBLASLT_MATMUL_DESC_POINTER_MODE: return o.pointer_mode;
        case CUBLASLT_MATMUL_DESC_TRANSA: return o.transposed_a;
        case CUBLASLT_MATMUL_DESC_TRANSB: return o.transposed_b;
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return o.epilogue;
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return o.bias;
        case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return o.bias_stride;
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return o.bias_type;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return o.aux;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return o.aux_ld;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return o.aux_stride;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return o.aux_type;
        case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return o.a_scale;
        case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return o.b_scale;
        case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return o.a_scale_mode;
        case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return o.b_scale_mode;
        case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return o.fast_accumulation;
        default: return {};
    }
}

Slot slot(Layout& l, cublasLtMatrixLayoutAttribute_t which) {
    switch (which) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: return l.type;
        case CUBLASLT_MATRIX_LAYOUT_ORDER: return l.order;
        case CUBLASLT_MATRIX_LAYOUT_ROWS: return l.rows;
        case CUBLASLT_MATRIX_LAYOUT_COLS: return l.cols;
        case CUBLASLT_MATRIX_LAYOUT_LD: return l.ld;
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return l.batch_count;
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return l.batch_stride;
        default: return {};
    }
}

Slot slot(Preference& p, cublasLtMatmulPreferenceAttributes_t which) {
    switch (which) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return p.max_workspace_bytes;
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return p.reduction_schemes;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return p.alignment[0];
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return p.alignment[1];
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return p.alignment[2];
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return p.alignment[3];
        default: return {};
    }
}

void require_slot(const Slot& slot, int attribute, size_t bytes) {
    require(slot.address != nullptr, kNotSupported, fmt::format("the fake does not know attribute {}", attribute));
    require(bytes == slot.bytes, kInvalid, fmt::format("attribute {} has {} bytes, not {}", attribute, slot.bytes, bytes));
}

template <class Handle, class Attribute>
void set_attribute(Handle handle, Attribute attribute, const void* value, size_t bytes) {
    require(handle && value, kInvalid, "the descriptor or the value is null");
    const Slot s = slot(of(handle), attribute);
    require_slot(s, attribute, bytes);
    std::memcpy(s.address, value, bytes);
}

// ---- Algorithms.

enum Operand { kA, kB, kC, kD, kBias, kAux, kOperands };

// What lies in the header's cublasLtMatmulAlgo_t: an algorithm is for one product, for a workspace, and for addresses that are
// aligned at least like this.
struct Algorithm {
    uint64_t product;  // a hash
    uint64_t workspace_bytes;
    uint16_t alignment[kOperands];
    uint32_t number;  // of those for the product: it sums in one part more
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
constexpr uint32_t kAlgorithms = 3;

Algorithm algorithm_in(const cublasLtMatmulAlgo_t& words) {
    Algorithm algorithm;
    std::memcpy(&algorithm, &words, sizeof algorithm);
    cublasLtMatmulAlgo_t same = {};
    std::memcpy(&same, &algorithm, sizeof algorithm);
    require(std::memcmp(&same, &words, sizeof same) == 0 && algorithm.number < kAlgorithms, kNotSupported,
            "these words are no algorithm");
    return algorithm;
}
cublasLtMatmulAlgo_t words_of(const Algorithm& algorithm) {
    cublasLtMatmulAlgo_t words = {};
    std::memcpy(&words, &algorithm, sizeof algorithm);
    return words;
}

Product checked(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    const DeviceProperties& device = machine().properties;
    return checked(o, a, b, c, d, 10 * device.major + device.minor);
}

uint64_t hash(const Product& p) {
    const Operation& o = p.operation;
    std::string all = fmt::format("{} {} {} {} {} {} {} {} {}", static_cast<int>(o.compute), o.pointer_mode, o.transposed_a,
                                  o.transposed_b, o.epilogue, o.aux_ld, o.fast_accumulation, o.a_scale_mode, o.b_scale_mode);
    for (const Layout* l : {&p.a, &p.b, &p.c, &p.d}) {
        all += fmt::format(" {} {} {} {} {} {} {}", static_cast<int>(l->type), l->rows, l->cols, l->ld, l->order, l->batch_count,
                           l->batch_stride);
    }
    return std::hash<std::string>()(all);
}

constexpr uint16_t kMostAlignment = 256;

uint16_t alignment_of(const void* address) {
    const auto bits = reinterpret_cast<uintptr_t>(address) | kMostAlignment;
    return static_cast<uint16_t>(bits & -bits);
}

Algorithm choose(const Product& p, const Preference& preference) {
    Algorithm algorithm{hash(p), 0, {}, 0};
    const Layout* layouts[] = {&p.a, &p.b, &p.c, &p.d};
    for (int i = kA; i <= kD; ++i) {
        const uint32_t alignment = std::min<uint32_t>(preference.alignment[i], kMostAlignment);
        require(alignment > 0 && (alignment & (alignment - 1)) == 0, kInvalid, "an alignment is no power of 2");
        require(alignment >= element_bytes(layouts[i]->type), kNotSupported, "an alignment is less than an element's");
        require(!is_float8(p.a.type) || alignment >= kFloat8Alignment, kNotSupported,
                "matrices of a product of float8 are aligned to 16 bytes");
        algorithm.alignment[i] = static_cast<uint16_t>(alignment);
    }
    const auto take_alignment = [&](Operand operand, const char* name, const void* address, bool is_used) {
        if (!is_used) return;
        require(address != nullptr, kInvalid, fmt::format("the address of {} is null: its alignment is not known", name));
        algorithm.alignment[operand] = alignment_of(address);
        require(algorithm.alignment[operand] >= element_bytes(p.d.type), kNotSupported, "an alignment is less than an element's");
    };
    take_alignment(kBias, "the bias", p.operation.bias, p.epilogue.uses_bias());
    take_alignment(kAux, "the auxiliary matrix", p.operation.aux, p.epilogue.aux);
    if (preference.reduction_schemes != CUBLASLT_REDUCTION_SCHEME_NONE) {
        const auto wanted = static_cast<uint64_t>(round_up(p.rows() * p.cols() * 4, kWorkspaceAlignment));
        algorithm.workspace_bytes = std::min({wanted, kMostWorkspace, preference.max_workspace_bytes});
    }
    return algorithm;
}

// ---- A product.

struct Range {
    const char* name;
    Operand operand;
    const void* address;
    size_t bytes;
    Pitch pitch = {};

    bool overlaps(const Range& other) const {
        const auto *first = static_cast<const char*>(address), *others = static_cast<const char*>(other.address);
        if (first >= others + other.bytes || others >= first + bytes) return false;
        if (pitch.bytes == 0 || pitch.bytes != other.pitch.bytes) return true;
        // Columns of one may lie between columns of the other.
        const auto pitch_bytes = static_cast<ptrdiff_t>(pitch.bytes);
        const auto offset = static_cast<size_t>(((others - first) % pitch_bytes + pitch_bytes) % pitch_bytes);
        return offset < pitch.used_bytes || offset + other.pitch.used_bytes > pitch.bytes;
    }
};

void require_device_memory(const char* name, const void* address, size_t bytes) {
    const std::string why = unusable(address, bytes, current_device(), false);
    require(why.empty(), kInvalid, fmt::format("{}: {}", name, why));
}

void require_scales(const void* scales, int32_t mode, int64_t outer, int64_t depth) {
    if (!scales) return;
    require_device_memory("a scale", scales, scale_bytes(mode, outer, depth));
    require(mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F || alignment_of(scales) >= kFloat8Alignment, kInvalid,
            "scales are aligned to 16 bytes");
}

std::vector<Range> ranges(const Product& p) {
    const Operation& o = p.operation;
    std::vector<Range> all;
    const auto add = [&](const char* name, Operand operand, const void* address, const Layout& l) {
        all.push_back({name, operand, address, extent_bytes(l), pitch_of(l)});
    };
    add("A", kA, p.at_a, p.a), add("B", kB, p.at_b, p.b), add("C", kC, p.at_c, p.c), add("D", kD, p.at_d, p.d);
    Layout like = p.d;
    if (p.epilogue.uses_bias()) {
        like.rows = p.epilogue.sums_of_b ? p.d.cols : p.d.rows, like.cols = 1;
        like.batch_stride = o.bias_stride;
        add("the bias", kBias, o.bias, like);
    }
    if (p.epilogue.aux) {
        like = p.d;
        like.ld = o.aux_ld, like.batch_stride = o.aux_stride;
        add("the auxiliary matrix", kAux, o.aux, like);
    }
    return all;
}

// What a product writes overlaps nothing else; but D may be C.
void require_apart(const Product& p, const std::vector<Range>& all) {
    const bool in_place = p.at_c == p.at_d;
    require(!in_place || p.c == p.d, kInvalid, "C and D are one matrix, but their layouts differ");
    const auto is_written = [&](const Range& r) {
        switch (r.operand) {
            case kD: return true;
            case kBias: return !p.epilogue.bias;
            case kAux: return p.epilogue.gelu;
            default: return false;
        }
    };
    for (const Range& written : all) {
        if (!is_written(written)) continue;
        for (const Range& other : all) {
            const bool is_same_matrix = in_place && written.operand == kD && other.operand == kC;
            if (&other == &written || is_same_matrix) continue;
            require(!written.overlaps(other), kInvalid, fmt::format("{} overlaps {}", written.name, other.name));
        }
    }
}

struct Workspace {
    char* memory;
    size_t bytes;
};

void require_workspace(const Workspace& given, const Algorithm& algorithm, const std::vector<Range>& operands) {
    require(given.bytes >= algorithm.workspace_bytes, kInvalid,
            fmt::format("the algorithm needs a workspace of {} bytes, it has {}", algorithm.workspace_bytes, given.bytes));
    if (given.bytes == 0) return;
    require(reinterpret_cast<uintptr_t>(given.memory) % kWorkspaceAlignment == 0, kInvalid,
            "the workspace is not aligned to 256 bytes");
    require_device_memory("the workspace", given.memory, given.bytes);
    const Range range{"the workspace", kOperands, given.memory, given.bytes};
    for (const Range& operand : operands)
        require(!range.overlaps(operand), kInvalid, fmt::format("the workspace overlaps {}", operand.name));
}

// Noise of a product; another product's differs.
char noise(uint64_t product, size_t i) {
    return static_cast<char>((product * 0x9e3779b97f4a7c15u) >> (i % 7 * 8)) ^ static_cast<char>(i);
}

void fill(const Workspace& w, uint64_t product) {
    for (size_t i = 0; i < w.bytes; ++i) w.memory[i] = noise(product, i);
}

void require_unchanged(const Workspace& w, uint64_t product) {
    for (size_t i = 0; i < w.bytes; ++i) {
        if (w.memory[i] != noise(product, i)) throw std::runtime_error("something else has used its workspace meanwhile");
    }
}

// Reads alpha and beta now if they are the host's, else when the product runs.
std::function<std::pair<float, float>()> scales(const Operation& o, const void* alpha, const void* beta) {
    const auto *a = static_cast<const float*>(alpha), *b = static_cast<const float*>(beta);
    if (o.pointer_mode == CUBLASLT_POINTER_MODE_HOST) return [values = std::pair(*a, *b)] { return values; };
    require_device_memory("alpha", alpha, sizeof(float));
    require_device_memory("beta", beta, sizeof(float));
    return [=] { return std::pair(*a, *b); };
}

// Two pieces, so that another stream's work may come between them.
Issue issue_of(const Product& p, const Workspace& w, uint32_t algorithm, std::function<std::pair<float, float>()> scales) {
    static std::atomic<uint64_t> products = 0;
    const uint64_t number = ++products;
    const auto wait = std::chrono::microseconds(algorithm == 0 ? machine().first_algorithm_us : 0);
    const Issue begin = plain("cublasLtMatmul", [=] { fill(w, number); });
    const Issue end = plain("cublasLtMatmul", [=, scales = std::move(scales)] {
        require_unchanged(w, number);
        const auto [alpha, beta] = scales();
        multiply(p, alpha, beta, algorithm + 1);
        if (wait.count() > 0) std::this_thread::sleep_for(wait);
    });
    return [=](int queue) {
        begin(queue);
        end(queue);
    };
}

struct Status {
    cublasStatus_t status;
    const char *name, *text;
};

constexpr Status kStatuses[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "an unsupported value or parameter was passed to the function"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the GPU program failed to execute"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the functionality requested is not supported"},
};

const Status& find(cublasStatus_t status) {
    static constexpr Status kUnknown = {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_UNKNOWN", "unknown status"};
    const auto* it =
        std::find_if(std::begin(kStatuses), std::end(kStatuses), [&](const Status& s) { return s.status == status; });
    return it == std::end(kStatuses) ? kUnknown : *it;
}

}  // namespace
}  // namespace lockstep::fakes::cuda

using namespace lockstep::fakes::cuda;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    return answer(__func__, [&] {
        require(handle != nullptr, kInvalid, "the address for the handle is null");
        int device = 0;
        require(cudaGetDevice(&device) == cudaSuccess, CUBLAS_STATUS_NOT_INITIALIZED, "CUDA's runtime does not work");
        *handle = new cublasLtContext{device};
    });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return answer(__func__, [&] {
        require(handle != nullptr, CUBLAS_STATUS_NOT_INITIALIZED, "the handle is null");
        delete handle;
    });
}

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t status) { return find(status).name; }
const char* cublasLtGetStatusString(cublasStatus_t status) { return find(status).text; }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
    return answer(__func__, [&] { create(layout, Layout{type, rows, cols, ld}); });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return answer(__func__, [&] { delete &of(layout); });
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
    return answer(__func__, [&] { set_attribute(layout, attribute, value, bytes); });
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute, cudaDataType_t scale) {
    return answer(__func__, [&] { create(operation, Operation{compute, scale}); });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
    return answer(__func__, [&] { delete &of(operation); });
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
    return answer(__func__, [&] { set_attribute(operation, attribute, value, bytes); });
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              void* value, size_t bytes, size_t* written) {
    return answer(__func__, [&] {
        require(operation && (bytes == 0 ? written != nullptr : value != nullptr), kInvalid, "an address is null");
        const Slot s = slot(of(operation), attribute);
        require_slot(s, attribute, bytes == 0 ? s.bytes : bytes);
        if (bytes != 0) std::memcpy(value, s.address, bytes);
        if (written) *written = s.bytes;
    });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    return answer(__func__, [&] { create(preference, Preference{}); });
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return answer(__func__, [&] { delete &of(preference); });
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
    return answer(__func__, [&] { set_attribute(preference, attribute, value, bytes); });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
    return answer(__func__, [&] {
        require(handle != nullptr, CUBLAS_STATUS_NOT_INITIALIZED, "the handle is null");
        require(operation && a && b && c && d && preference && results && returned, kInvalid, "an address is null");
        require(requested > 0, kInvalid, "no algorithm is requested");
        *returned = 0;
        require(of(operation).epilogue != machine().epilogue_without_algorithm, kNotSupported,
                "a test lets it lack an algorithm");
        const Algorithm algorithm = choose(checked(of(operation), of(a), of(b), of(c), of(d)), of(preference));
        *returned = std::min<int>(requested, kAlgorithms);
        for (int i = 0; i < *returned; ++i) {
            Algorithm one = algorithm;
            one.number = static_cast<uint32_t>(i);
            results[i] = {words_of(one), algorithm.workspace_bytes, CUBLAS_STATUS_SUCCESS, 1, {}};
        }
    });
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
    return answer(__func__, [&] {
        require(handle != nullptr, CUBLAS_STATUS_NOT_INITIALIZED, "the handle is null");
        require(operation && a && b && c && d && algo && result, kInvalid, "an address is null");
        const Algorithm algorithm = algorithm_in(*algo);
        require(algorithm.product == hash(checked(of(operation), of(a), of(b), of(c), of(d))), kNotSupported,
                "the algorithm was chosen for another product");
        *result = {*algo, algorithm.workspace_bytes, CUBLAS_STATUS_SUCCESS, 1, {}};
    });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* at_a,
                              cublasLtMatrixLayout_t a, const void* at_b, cublasLtMatrixLayout_t b, const void* beta,
                              const void* at_c, cublasLtMatrixLayout_t c, void* at_d, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
    return answer(__func__, [&] {
        require(handle != nullptr, CUBLAS_STATUS_NOT_INITIALIZED, "the handle is null");
        require(handle->device == current_device(), kInvalid, "the handle is of another device than the current one");
        require(operation && alpha && beta && a && b && d && at_a && at_b && at_c && at_d, kInvalid, "an address is null");
        Product p = checked(of(operation), of(a), of(b), of(c ? c : d), of(d));
        p.at_a = at_a, p.at_b = at_b, p.at_c = at_c, p.at_d = at_d;

        Algorithm algorithm = choose(p, {});
        if (algo) algorithm = algorithm_in(*algo);
        require(algorithm.product == hash(p), kNotSupported, "the algorithm was chosen for another product");

        const std::vector<Range> operands = ranges(p);
        for (const Range& r : operands) {
            require_device_memory(r.name, r.address, r.bytes);
            require(alignment_of(r.address) >= algorithm.alignment[r.operand], kInvalid,
                    fmt::format("the algorithm needs {} aligned to {} bytes", r.name, algorithm.alignment[r.operand]));
        }
        require_scales(p.operation.a_scale, p.operation.a_scale_mode, p.rows(), p.depth());
        require_scales(p.operation.b_scale, p.operation.b_scale_mode, p.cols(), p.depth());
        require_apart(p, operands);
        require_workspace({static_cast<char*>(workspace), workspace_bytes}, algorithm, operands);

        const Workspace used{static_cast<char*>(workspace), algorithm.workspace_bytes};
        const Issue product = issue_of(p, used, algorithm.number, scales(p.operation, alpha, beta));
        const cudaError_t error = call("cublasLtMatmul", [&](Machine& m, Lock& lock) {
            require_current_device(m, stream);
            issue(m, lock, stream, &Counts::launches, product);
        });
        require(error == cudaSuccess, CUBLAS_STATUS_EXECUTION_FAILED, "");
    });
}

}  // extern "C"
