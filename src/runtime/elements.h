// One element of a buffer whose type is known at run time. For what is not on the step path: initial values, checkpoints, tests.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/dtype.h"

namespace lockstep::runtime {

inline double element(const void* data, Dtype type, int64_t i) {
    switch (type) {
        case Dtype::F64: return static_cast<const double*>(data)[i];
        case Dtype::F32: return static_cast<double>(static_cast<const float*>(data)[i]);
        case Dtype::BF16: return static_cast<double>(static_cast<const Bf16*>(data)[i]);
        case Dtype::I32: break;
    }
    return static_cast<double>(static_cast<const int32_t*>(data)[i]);
}

// bfloat16 is rounded from float32, as the step's casts round it.
inline void set_element(void* data, Dtype type, int64_t i, double value) {
    switch (type) {
        case Dtype::F64: static_cast<double*>(data)[i] = value; break;
        case Dtype::F32: static_cast<float*>(data)[i] = static_cast<float>(value); break;
        case Dtype::BF16: static_cast<Bf16*>(data)[i] = Bf16(static_cast<float>(value)); break;
        case Dtype::I32: static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value); break;
    }
}

}  // namespace lockstep::runtime
