// Which products cublasLtMatmul has, by its documentation: types, orders, sizes that fit, epilogues.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fakes/cuda/product.h"

namespace lockstep::fakes::cuda {

constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;
constexpr auto kNotSupported = CUBLAS_STATUS_NOT_SUPPORTED;

// Of addresses and sizes of a product of float8.
constexpr uint32_t kFloat8Alignment = 16;

// Ends a call of cuBLASLt: it returns `status`. Without `why` something else has said why.
struct LtRefusal {
    cublasStatus_t status;
    std::string why;
};

inline void require(bool holds, cublasStatus_t status, std::string_view why) {
    if (!holds) throw LtRefusal{status, std::string(why)};
}

// Without addresses yet, on a GPU of that compute capability (90: Hopper). Throws LtRefusal.
Product checked(const Operation& operation, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
                int compute_capability);

}  // namespace lockstep::fakes::cuda
