#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/storage.h"
#include "kernels/block_copies.h"
#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {
namespace {

Made make_blocks(const KernelContext& c) {
    return kernel_from([copies = block_copies(c)](const KernelArgs& a) {
        for (const BlockCopy& b : copies) {
            const char* const from = in<char>(a, static_cast<int>(b.operand)) + b.from;
            char* const to = static_cast<char*>(a.out[0]) + b.to;
            if (from == to) continue;
            a.queue.pool().parallel([&](int thread, int threads) {
                const Range part = split(b.bytes, threads, thread, 64);
                for (int64_t row = 0; row < b.count; ++row)
                    std::memcpy(to + row * b.to_stride + part.begin, from + row * b.from_stride + part.begin,
                                static_cast<size_t>(part.count()));
            });
        }
    });
}

// Ranks in ascending order, rounded after each, as a reduce_scatter does it (comm/reduce.h).
template <class T>
Made make_sum_blocks(const KernelContext& c) {
    const int64_t n = c.elements(c.out(0));
    const auto members = static_cast<int64_t>(c.op.in.size());
    const int64_t index = c.mesh.index(c.rank, c.op.group);
    return kernel_from([=](const KernelArgs& a) {
        const auto operand = [&](int64_t rank) { return in<T>(a, static_cast<int>((index - rank + members) % members)); };
        a.queue.pool().parallel([&](int thread, int threads) {
            const Range part = split(n, threads, thread, 64);
            constexpr int64_t kChunk = 1024;
            T sum[kChunk];
            for (int64_t begin = part.begin; begin < part.end; begin += kChunk) {
                const int64_t count = std::min(kChunk, part.end - begin);
                std::memcpy(sum, operand(0) + begin, static_cast<size_t>(count) * sizeof(T));
                for (int64_t rank = 1; rank < members; ++rank) {
                    const T* more = operand(rank) + begin;
                    using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
                    for (int64_t i = 0; i < count; ++i)
                        sum[i] = static_cast<T>(static_cast<Wide>(sum[i]) + static_cast<Wide>(more[i]));
                }
                std::memcpy(static_cast<T*>(a.out[0]) + begin, sum, static_cast<size_t>(count) * sizeof(T));
            }
        });
    });
}

// cache [batch, kv_seq, row], x [batch, seq, row], pos [batch, seq]
Made make_append(const KernelContext& c) {
    const int64_t batch = c.size(c.in(1), 0), seq = c.size(c.in(1), 1), length = c.size(c.in(0), 1);
    const int64_t row = ir::local_bytes(c.mesh, c.routine, c.in(1)) / (batch * seq);
    return kernel_from([=](const KernelArgs& a) {
        for (int64_t i = 0; i < batch * seq; ++i) {
            const int64_t p = in<int32_t>(a, 2)[i];
            if (p < 0 || p >= length) continue;
            std::memcpy(static_cast<char*>(a.out[0]) + (i / seq * length + p) * row, in<char>(a, 1) + i * row,
                        static_cast<size_t>(row));
        }
    });
}

// Tensors and where they begin in a flat one, in bytes.
struct Piece {
    size_t begin, bytes;
};
std::vector<Piece> pieces(const KernelContext& c, const std::vector<ir::TensorId>& tensors) {
    const auto& begins = std::get<std::vector<int64_t>>(c.op.attrs.at("begins"));
    std::vector<Piece> out;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const ir::Tensor& t = c.routine.tensors[tensors[i]];
        out.push_back(
            {static_cast<size_t>(begins[i] * bytes_of(t.dtype)), static_cast<size_t>(ir::local_bytes(c.mesh, c.routine, t))});
    }
    return out;
}

Made make_unpack(const KernelContext& c) {
    return kernel_from([all = pieces(c, c.op.out)](const KernelArgs& a) {
        for (size_t i = 0; i < all.size(); ++i) std::memcpy(a.out[i], in<char>(a, 0) + all[i].begin, all[i].bytes);
    });
}

Made make_pack(const KernelContext& c) {
    const auto bytes = static_cast<size_t>(ir::local_bytes(c.mesh, c.routine, c.out(0)));
    return kernel_from([all = pieces(c, c.op.in), bytes](const KernelArgs& a) {
        char* to = static_cast<char*>(a.out[0]);
        size_t end = 0;
        for (size_t i = 0; i < all.size(); ++i) {
            std::memset(to + end, 0, all[i].begin - end);
            std::memcpy(to + all[i].begin, a.in[i], all[i].bytes);
            end = all[i].begin + all[i].bytes;
        }
        std::memset(to + end, 0, bytes - end);
    });
}

}  // namespace

template <class T>
Made make_accumulate(const KernelContext& c) {
    return kernel_from([n = c.elements(c.out(0)), op = c.op](const KernelArgs& a) {
        const Store<T> out = store<T>(a, op, 0);
        for (int64_t i = 0; i < n; ++i) out(i, static_cast<double>(in<T>(a, 0)[i]));
    });
}

// A whole [rows, parts, n] and its parts [rows, n].
template <class T>
Made make_stack(const KernelContext& c) {
    const bool stacks = c.op.kind == "stack";
    const std::vector<ir::TensorId>& ids = stacks ? c.op.in : c.op.out;
    const ir::Tensor &whole = stacks ? c.out(0) : c.in(0), &part = c.routine.tensors[ids[0]];
    const auto parts = static_cast<int64_t>(ids.size());
    const auto at = std::mismatch(part.dims.begin(), part.dims.end(), whole.dims.begin(), whole.dims.end()).first;
    int64_t rows = 1;
    for (auto d = part.dims.begin(); d != at; ++d) rows *= c.size(part, static_cast<int>(d - part.dims.begin()));
    const int64_t n = c.elements(part) / rows;
    return kernel_from([=](const KernelArgs& a) {
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t k = 0; k < parts; ++k) {
                const int64_t in_whole = (row * parts + k) * n, in_part = row * n;
                const T* const from = in<T>(a, stacks ? static_cast<int>(k) : 0) + (stacks ? in_part : in_whole);
                T* const to = static_cast<T*>(a.out[stacks ? 0 : static_cast<size_t>(k)]) + (stacks ? in_whole : in_part);
                std::copy(from, from + n, to);
            }
        }
    });
}

template Made make_stack<float>(const KernelContext&);
template Made make_stack<double>(const KernelContext&);
template Made make_accumulate<float>(const KernelContext&);
template Made make_accumulate<double>(const KernelContext&);

Made make_block_sum(const KernelContext& c) {
    return with_storage(c.out(0).dtype, [&]<class T>(std::type_identity<T>) -> Made {
        if constexpr (is_float(kDtypeOf<T>)) return make_sum_blocks<T>(c);
        else throw InternalError("sum_blocks: no sum of integers");
    });
}

Made make_movement(const KernelContext& c) {
    if (c.op.kind == ir::kSlice || c.op.kind == ir::kBlock || c.op.kind == "join_blocks") return make_blocks(c);
    if (c.op.kind == "append") return make_append(c);
    if (c.op.kind == "unpack") return make_unpack(c);
    if (c.op.kind == "pack") return make_pack(c);
    // rename, reshape, copy
    return kernel_from([bytes = static_cast<size_t>(ir::local_bytes(c.mesh, c.routine, c.out(0)))](const KernelArgs& a) {
        if (a.in[0] != a.out[0]) std::memcpy(a.out[0], a.in[0], bytes);
    });
}

}  // namespace lockstep::kernels::reference
