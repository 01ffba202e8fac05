#include "comm/processes/rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/reduce.h"

namespace lockstep::comm::processes {
namespace {

constexpr int64_t kChunkBytes = 64 * 1024;  // as in comm/local_copy.cpp

}  // namespace

void copy_rows(OutRows to, Rows from, int64_t rows, int64_t columns, int64_t element_bytes) {
    if (to.data == from.data && (to.stride == from.stride || rows == 1)) return;
    if (to.stride == columns && from.stride == columns) columns *= std::exchange(rows, 1);
    for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(to.data + row * to.stride * element_bytes, from.data + row * from.stride * element_bytes,
                    static_cast<size_t>(columns * element_bytes));
    }
}

void reduce_rows(Type type, ReduceOp op, std::span<const Rows> sources, OutRows to, int64_t rows, int64_t columns,
                 bool accumulate) {
    const bool one_run =
        to.stride == columns && std::all_of(sources.begin(), sources.end(), [&](const Rows& s) { return s.stride == columns; });
    if (one_run) columns *= std::exchange(rows, 1);
    const int64_t element_bytes = bytes_of(type), chunk = kChunkBytes / element_bytes;
    alignas(64) std::byte buffer[kChunkBytes];
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t done = 0; done < columns; done += chunk) {
            const int64_t count = std::min(chunk, columns - done);
            const auto at = [&](const Rows& s) { return s.data + (row * s.stride + done) * element_bytes; };
            const std::byte* sum = at(sources[0]);
            for (size_t k = 1; k < sources.size(); ++k) {
                combine(type, op, sum, at(sources[k]), buffer, count);
                sum = buffer;
            }
            std::byte* out = to.data + (row * to.stride + done) * element_bytes;
            if (accumulate) combine(type, op, out, sum, out, count);
            else if (out != sum) std::memcpy(out, sum, static_cast<size_t>(count * element_bytes));
        }
    }
}

}  // namespace lockstep::comm::processes
