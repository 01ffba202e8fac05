// Copying and reducing rows of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace lockstep::comm::processes {

struct Rows {
    const std::byte* data = nullptr;
    int64_t stride = 0;  // elements
};
struct OutRows {
    std::byte* data = nullptr;
    int64_t stride = 0;
};

void copy_rows(OutRows to, Rows from, int64_t rows, int64_t columns, int64_t element_bytes);

// to = the sources reduced in their order, or, accumulating, to op= that. `to` may be one of the sources.
void reduce_rows(Dtype type, ReduceOp op, std::span<const Rows> sources, OutRows to, int64_t rows, int64_t columns,
                 bool accumulate);

}  // namespace lockstep::comm::processes
