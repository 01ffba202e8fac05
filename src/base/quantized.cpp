#include "base/quantized.h"

#include <limits>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr int64_t kBits = 8;
constexpr size_t kBlock = quantized_block(kBits), kBlockBytes = quantized_bytes(kBlock, kBits);

}  // namespace

template <class T>
void to_int8(std::span<const T> x, std::span<char> q) {
    ensure(x.size() % kBlock == 0 && q.size() == x.size() / kBlock * kBlockBytes, "to_int8: sizes");
    auto* to = reinterpret_cast<int8_t*>(q.data());
    for (size_t i = 0; i < x.size(); i += kBlock, to += kBlockBytes) {
        T most = 0;
        bool finite = true;
        for (size_t k = 0; k < kBlock; ++k) {
            const T size = std::abs(x[i + k]);
            finite &= size <= std::numeric_limits<T>::max();
            most = std::max(most, size);
        }
        const int e = finite ? exponent_for(static_cast<double>(most), least_exponent(Dtype::F32), kBits) : kNotFinite;
        to[kBlock] = static_cast<int8_t>(e);
        const T scale = static_cast<T>(std::ldexp(1.0, -e));
        for (size_t k = 0; k < kBlock; ++k) to[k] = finite ? static_cast<int8_t>(std::nearbyint(x[i + k] * scale)) : int8_t{0};
    }
}

template <class T>
void from_int8(std::span<const char> q, std::span<T> x) {
    ensure(x.size() % kBlock == 0 && q.size() == x.size() / kBlock * kBlockBytes, "from_int8: sizes");
    const auto* from = reinterpret_cast<const int8_t*>(q.data());
    for (size_t i = 0; i < x.size(); i += kBlock, from += kBlockBytes) {
        const T scale =
            from[kBlock] == kNotFinite ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(std::ldexp(1.0, from[kBlock]));
        for (size_t k = 0; k < kBlock; ++k) x[i + k] = static_cast<T>(from[k]) * scale;
    }
}

template void to_int8(std::span<const float>, std::span<char>);
template void to_int8(std::span<const double>, std::span<char>);
template void from_int8(std::span<const char>, std::span<float>);
template void from_int8(std::span<const char>, std::span<double>);

}  // namespace lockstep
