#include "comm/processes/rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/reduce.h"

namespace lockstep::comm::processes {

void copy_rows(OutRows to, Rows from, int64_t rows, int64_t columns, int64_t element_bytes) {
    if (to.data == from.data && (to.stride == from.stride || rows == 1)) return;
    if (to.stride == columns && from.stride == columns) columns *= std::exchange(rows, 1);
    for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(to.data + row * to.stride * element_bytes, from.data + row * from.stride * element_bytes,
                    static_cast<size_t>(columns * element_bytes));
    }
}

void reduce_rows(Dtype type, ReduceOp op, std::span<const Rows> sources, OutRows to, int64_t rows, int64_t columns,
                 bool accumulate) {
    const bool one_run =
        to.stride == columns && std::all_of(sources.begin(), sources.end(), [&](const Rows& s) { return s.stride == columns; });
    if (one_run) columns *= std::exchange(rows, 1);
    const int64_t element_bytes = bytes_of(type);
    const auto members = static_cast<int>(sources.size());
    for (int64_t row = 0; row < rows; ++row) {
        const auto in = [&](int k) { return sources[k].data + row * sources[k].stride * element_bytes; };
        reduce_in_chunks(type, op, members, 1, in, columns, [&](const std::byte* sum, int64_t at_bytes, int64_t count) {
            std::byte* out = to.data + row * to.stride * element_bytes + at_bytes;
            if (accumulate) combine(type, op, out, sum, out, count);
            else if (out != sum) std::memcpy(out, sum, static_cast<size_t>(count * element_bytes));
        });
    }
}

}  // namespace lockstep::comm::processes
