#include "tests/fakes/cuda/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/bfloat16.h"
#include "base/float16.h"

namespace lockstep::fakes::cuda {
namespace {

// Arithmetic happens in float for the types that only store.
template <class T>
using Wide = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

template <class T>
T combined(ncclRedOp_t operation, Wide<T> a, Wide<T> b) {
    switch (operation) {
        case ncclProd: return static_cast<T>(a * b);
        case ncclMax: return static_cast<T>(std::max(a, b));
        case ncclMin: return static_cast<T>(std::min(a, b));
        default: return static_cast<T>(a + b);
    }
}

template <class T>
void reduce_elements(ncclRedOp_t operation, const std::vector<const char*>& in, size_t count, size_t first, char* out) {
    const size_t ranks = in.size();
    for (size_t i = 0; i < count; ++i) {
        const auto of_rank = [&](size_t rank) { return reinterpret_cast<const T*>(in[rank % ranks])[i]; };
        T result = of_rank(first);
        for (size_t r = 1; r < ranks; ++r) result = combined<T>(operation, static_cast<Wide<T>>(result), of_rank(first + r));
        if (operation == ncclAvg) result = static_cast<T>(static_cast<Wide<T>>(result) / static_cast<Wide<T>>(ranks));
        reinterpret_cast<T*>(out)[i] = result;
    }
}

}  // namespace

ElementType element_type(ncclDataType_t type) {
    switch (type) {
        case ncclInt8: return {"int8", 1};
        case ncclUint8: return {"uint8", 1};
        case ncclInt32: return {"int32", 4};
        case ncclUint32: return {"uint32", 4};
        case ncclInt64: return {"int64", 8};
        case ncclUint64: return {"uint64", 8};
        case ncclFloat16: return {"float16", 2};
        case ncclFloat32: return {"float32", 4};
        case ncclFloat64: return {"float64", 8};
        case ncclBfloat16: return {"bfloat16", 2};
        default: return {"", 0};
    }
}

std::string_view name_of(ncclRedOp_t operation) {
    switch (operation) {
        case ncclSum: return "sum";
        case ncclProd: return "product";
        case ncclMax: return "maximum";
        case ncclMin: return "minimum";
        case ncclAvg: return "average";
        default: return "";
    }
}

void reduce(ncclDataType_t type, ncclRedOp_t operation, const std::vector<const char*>& in, size_t count, size_t first,
            char* out) {
    switch (type) {
        case ncclInt8: return reduce_elements<int8_t>(operation, in, count, first, out);
        case ncclUint8: return reduce_elements<uint8_t>(operation, in, count, first, out);
        case ncclInt32: return reduce_elements<int32_t>(operation, in, count, first, out);
        case ncclUint32: return reduce_elements<uint32_t>(operation, in, count, first, out);
        case ncclInt64: return reduce_elements<int64_t>(operation, in, count, first, out);
        case ncclUint64: return reduce_elements<uint64_t>(operation, in, count, first, out);
        case ncclFloat16: return reduce_elements<F16>(operation, in, count, first, out);
        case ncclFloat32: return reduce_elements<float>(operation, in, count, first, out);
        case ncclFloat64: return reduce_elements<double>(operation, in, count, first, out);
        case ncclBfloat16: return reduce_elements<Bf16>(operation, in, count, first, out);
        default: return;
    }
}

}  // namespace lockstep::fakes::cuda
