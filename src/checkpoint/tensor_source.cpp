#include "checkpoint/tensor_source.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/elements.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

int64_t elements_of(const TensorSpec& spec) {
    return std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
}

void TensorSource::read_as(const std::string& name, int64_t begin, int64_t count, std::string_view dtype, void* data,
                           Cursor& cursor) const {
    constexpr int64_t kElements = 1 << 18;
    const std::string& from = spec(name).dtype;
    if (from == dtype) return read(name, begin, count, data, cursor);
    std::vector<char> buffer(static_cast<size_t>(std::min(count, kElements) * dtype_bytes(from)));
    for (int64_t done = 0; done < count; done += kElements) {
        const int64_t n = std::min(kElements, count - done);
        read(name, begin + done, n, buffer.data(), cursor);
        convert(from, buffer.data(), dtype, static_cast<char*>(data) + done * dtype_bytes(dtype), n);
    }
}

}  // namespace lockstep::checkpoint
