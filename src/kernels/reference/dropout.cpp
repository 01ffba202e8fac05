#include "base/random.h"
#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {

DropoutPlace dropout_place(const ir::Op& op) {
    const auto found = op.attrs.find("dropout");
    if (found == op.attrs.end()) return {};
    const double p = op.number("dropout");
    return {true, static_cast<uint64_t>(op.integer("rng_key")), dropout_threshold(p), 1 / (1 - p)};
}

// The element's index in its token's row counts all ranks' elements.
template <class T>
Made make_dropout(const KernelContext& c) {
    const ir::Tensor& x = c.in(0);
    const int64_t tokens = c.elements(c.in(1)), width = c.elements(x) / tokens;
    std::vector<uint32_t> index(static_cast<size_t>(width));
    for (int64_t i = 0; i < width; ++i) {
        int64_t rest = i, stride = 1, global = 0;
        for (size_t d = x.dims.size(); d-- > c.in(1).dims.size();) {
            const int position = static_cast<int>(d);
            global += (rest % c.size(x, position) + c.first_index(x, position)) * stride;
            rest /= c.size(x, position);
            stride *= c.routine.dims[x.dims[d]].size;
        }
        index[static_cast<size_t>(i)] = static_cast<uint32_t>(global);
    }
    return kernel_from([=, place = dropout_place(c.op)](const KernelArgs& a) {
        const uint64_t stream = dropout_stream(place.site, static_cast<uint64_t>(a.instance));
        for (int64_t t = 0; t < tokens; ++t) {
            const uint64_t row = dropout_row(stream, static_cast<uint32_t>(in<int32_t>(a, 1)[t]));
            for (int64_t i = 0; i < width; ++i) {
                const bool kept = dropout_bits(row, index[static_cast<size_t>(i)]) >= place.threshold;
                const double value = kept ? static_cast<double>(in<T>(a, 0)[t * width + i]) * place.scale : 0;
                static_cast<T*>(a.out[0])[t * width + i] = static_cast<T>(value);
            }
        }
    });
}

template Made make_dropout<float>(const KernelContext&);
template Made make_dropout<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
