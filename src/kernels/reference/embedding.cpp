#include <algorithm>

#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {

template <class T>
Made make_embedding(const KernelContext& c) {
    const std::string& kind = c.op.kind;
    const int64_t tokens = c.elements(c.in(1));
    const bool table = kind == "gather" || kind == "scatter";  // else vocab is the last dim
    const ir::Tensor& with_vocab = kind == "gather" || kind == "pick" ? c.in(0) : c.out(0);
    const int position = table ? 0 : static_cast<int>(with_vocab.dims.size()) - 1;
    const int64_t rows = c.size(with_vocab, position), first = c.first_index(with_vocab, position);
    const int64_t width = table ? c.elements(with_vocab) / rows : rows;
    const int64_t out_elements = c.elements(c.out(0));
    // The rank's row of an id, or -1.
    const auto row = [rows, first](int32_t id) { return id >= first && id < first + rows ? id - first : int64_t{-1}; };
    if (kind == "gather") {
        return kernel_from([=](const KernelArgs& a) {
            T* out = static_cast<T*>(a.out[0]);
            for (int64_t t = 0; t < tokens; ++t) {
                const int64_t r = row(in<int32_t>(a, 1)[t]);
                for (int64_t i = 0; i < width; ++i) out[t * width + i] = r < 0 ? T(0) : in<T>(a, 0)[r * width + i];
            }
        });
    }
    if (kind == "scatter") {
        return kernel_from([=, op = c.op](const KernelArgs& a) {
            T* out = static_cast<T*>(a.out[0]);
            if (!op.accumulates(0) || a.fresh) std::fill(out, out + out_elements, T(0));
            for (int64_t t = 0; t < tokens; ++t) {
                const int64_t r = row(in<int32_t>(a, 1)[t]);
                for (int64_t i = 0; r >= 0 && i < width; ++i) out[r * width + i] += in<T>(a, 0)[t * width + i];
            }
        });
    }
    if (kind == "pick") {
        return kernel_from([=](const KernelArgs& a) {
            for (int64_t t = 0; t < tokens; ++t) {
                const int64_t r = row(in<int32_t>(a, 1)[t]);
                static_cast<T*>(a.out[0])[t] = r < 0 ? T(0) : in<T>(a, 0)[t * width + r];
            }
        });
    }
    return kernel_from([=](const KernelArgs& a) {  // unpick
        T* out = static_cast<T*>(a.out[0]);
        std::fill(out, out + out_elements, T(0));
        for (int64_t t = 0; t < tokens; ++t) {
            const int64_t r = row(in<int32_t>(a, 1)[t]);
            if (r >= 0) out[t * width + r] = in<T>(a, 0)[t];
        }
    });
}

template Made make_embedding<float>(const KernelContext&);
template Made make_embedding<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
