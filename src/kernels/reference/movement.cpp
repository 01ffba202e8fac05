#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/storage.h"
#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {
namespace {

// A rank's part along one dim of a tensor that is whole there.
Made make_slice(const KernelContext& c) {
    const auto dim = static_cast<size_t>(c.op.integer("dim"));
    const int64_t size = bytes_of(c.out(0).dtype);
    int64_t outer = 1, inner = size;
    for (size_t i = 0; i < c.out(0).dims.size(); ++i) {
        if (i < dim) outer *= c.size(c.out(0), static_cast<int>(i));
        if (i > dim) inner *= c.size(c.out(0), static_cast<int>(i));
    }
    const int64_t part = c.size(c.out(0), static_cast<int>(dim)) * inner, whole = c.size(c.in(0), static_cast<int>(dim)) * inner;
    const int64_t begin = c.mesh.index(c.rank, c.op.group) * part;
    return kernel_from([=](const KernelArgs& a) {
        for (int64_t o = 0; o < outer; ++o)
            std::memcpy(static_cast<char*>(a.out[0]) + o * part, in<char>(a, 0) + o * whole + begin, static_cast<size_t>(part));
    });
}

// Blocks of a tensor along one dim, in bytes: `outer` rows of blocks, `block` bytes each; the whole has `count` in a row.
struct Blocks {
    int64_t outer = 1, block = 0, count = 1, index = 0;  // index: this rank's own

    Blocks(const KernelContext& c, const ir::Tensor& of_block, const ir::Tensor& whole) {
        const auto dim = static_cast<size_t>(c.op.integer("dim"));
        block = bytes_of(of_block.dtype);
        for (size_t i = 0; i < of_block.dims.size(); ++i) (i < dim ? outer : block) *= c.size(of_block, static_cast<int>(i));
        count = c.size(whole, static_cast<int>(dim)) / c.size(of_block, static_cast<int>(dim));
        index = c.mesh.index(c.rank, c.op.group);
    }
    void copy(char* to, int64_t to_stride, const char* from, int64_t from_stride, const device::Queue& queue) const {
        queue.pool().parallel([&](int thread, int threads) {
            for (int64_t o = 0; o < outer; ++o) {
                const Range part = split(block, threads, thread, 64);
                std::memcpy(to + o * to_stride + part.begin, from + o * from_stride + part.begin,
                            static_cast<size_t>(part.count()));
            }
        });
    }
};

Made make_block(const KernelContext& c) {
    const Blocks b(c, c.out(0), c.in(0));
    const int64_t at = b.count == 1 ? 0 : (b.index + c.op.integer("shift")) % b.count;
    return kernel_from([=](const KernelArgs& a) {
        if (b.count == 1 && a.in[0] == a.out[0]) return;
        b.copy(static_cast<char*>(a.out[0]), b.block, in<char>(a, 0) + at * b.block, b.count * b.block, a.queue);
    });
}

Made make_join_blocks(const KernelContext& c) {
    const Blocks b(c, c.in(0), c.out(0));
    return kernel_from([=](const KernelArgs& a) {
        for (int64_t i = 0; i < b.count; ++i) {
            const int64_t at = (b.index - i + b.count) % b.count;
            b.copy(static_cast<char*>(a.out[0]) + at * b.block, b.count * b.block, in<char>(a, static_cast<int>(i)), b.block,
                   a.queue);
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
    if (c.op.kind == "slice") return make_slice(c);
    if (c.op.kind == "block") return make_block(c);
    if (c.op.kind == "join_blocks") return make_join_blocks(c);
    if (c.op.kind == "append") return make_append(c);
    if (c.op.kind == "unpack") return make_unpack(c);
    if (c.op.kind == "pack") return make_pack(c);
    // rename, reshape, copy
    return kernel_from([bytes = static_cast<size_t>(ir::local_bytes(c.mesh, c.routine, c.out(0)))](const KernelArgs& a) {
        if (a.in[0] != a.out[0]) std::memcpy(a.out[0], a.in[0], bytes);
    });
}

}  // namespace lockstep::kernels::reference
