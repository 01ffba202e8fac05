#include "comm/islands/mean.h"

#include <span>

#include "base/error.h"
#include "base/quantized.h"

namespace lockstep::comm::islands {
namespace {

constexpr int64_t kBits = 8;
constexpr size_t kBlock = quantized_block(kBits), kBlockBytes = quantized_bytes(kBlock, kBits);

template <class T>
std::string sum_of(const std::vector<const std::string*>& parts, double scale) {
    std::string out = *parts[0];
    const size_t n = out.size() / sizeof(T);
    T* const sum = reinterpret_cast<T*>(out.data());
    for (size_t p = 1; p < parts.size(); ++p) {
        const T* const x = reinterpret_cast<const T*>(parts[p]->data());
        for (size_t i = 0; i < n; ++i) sum[i] += x[i];
    }
    for (size_t i = 0; i < n && scale != 1; ++i) sum[i] = static_cast<T>(static_cast<double>(sum[i]) * scale);
    return out;
}

}  // namespace

bool are_elements(size_t bytes, int64_t bits) {
    return (bits == 64 && bytes % sizeof(double) == 0) || (bits == 32 && bytes % sizeof(float) == 0) ||
           (bits == kBits && bytes % kBlockBytes == 0);
}

std::string mean_of(const std::vector<const std::string*>& parts, int64_t islands, int64_t bits) {
    if (parts.empty()) return {};
    const double scale = static_cast<double>(islands) / static_cast<double>(parts.size());
    if (bits == 64) return sum_of<double>(parts, scale);
    if (bits == 32) return sum_of<float>(parts, scale);
    ensure(bits == kBits, "a mean of elements of other bits");
    const size_t n = parts[0]->size() / kBlockBytes * kBlock;
    std::vector<std::string> wide;
    for (const std::string* part : parts) {
        wide.emplace_back(n * sizeof(float), '\0');
        from_int8(std::span<const char>(*part), std::span(reinterpret_cast<float*>(wide.back().data()), n));
    }
    std::vector<const std::string*> floats;
    for (const std::string& w : wide) floats.push_back(&w);
    const std::string sum = sum_of<float>(floats, scale);
    std::string out(parts[0]->size(), '\0');
    to_int8(std::span(reinterpret_cast<const float*>(sum.data()), n), std::span(out));
    return out;
}

}  // namespace lockstep::comm::islands
