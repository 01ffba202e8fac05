// What the reference kernels share. Each is templated on the one float type T of the op's tensors, float or double; sums are
// taken in double, in index order, on the calling thread. Ops on narrow types, or on several types, run the kernel for double
// on converted copies (converting.cpp), so no kernel needs to know of them.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::reference {

using Made = std::unique_ptr<Kernel>;

template <class T>
Made make_einsum(const KernelContext& c);
template <class T>
Made make_elementwise(const KernelContext& c);  // add, scale, cast, unary
template <class T>
Made make_embedding(const KernelContext& c);  // gather, scatter, pick, unpick
template <class T>
Made make_rope(const KernelContext& c);
template <class T>
Made make_qkv(const KernelContext& c);  // split_qkv, join_qkv
template <class T>
Made make_attention(const KernelContext& c);  // both directions
template <class T>
Made make_dropout(const KernelContext& c);
template <class T>
Made make_loss(const KernelContext& c);  // max, exp_shifted, mask_padding
template <class T>
Made make_optimizer(const KernelContext& c);  // adamw, zero_padding, inverse_count
template <class T>
Made make_quantize(const KernelContext& c);  // quantize, dequantize, dequantize_sum
template <class T>
Made make_accumulate(const KernelContext& c);
template <class T>
Made make_stack(const KernelContext& c);      // stack, unstack
Made make_movement(const KernelContext& c);   // rename, copy, slice, block, join_blocks, append: any element type
Made make_block_sum(const KernelContext& c);  // sum_blocks: any float type
Made make_scalars(const KernelContext& c);    // sum_squares, owned, step_control, update_loss_scale: in double

// Of the ops of ops/float8.cpp.
void add_float8(std::vector<Registered>& all);

// Are all floats of the op of this type? (adamw's scalars are in double whatever they are.)
bool has_one_float_type(const ir::Routine& routine, const ir::Op& op, Dtype type);
// The op by its kernel for double, `make`, with copies of its tensors in converting_workspace_bytes.
Made make_converting(const KernelContext& c, Made (*make)(const KernelContext&));
int64_t converting_workspace_bytes(const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op);

// What an op drops (ops/dropout.h). A kept value is multiplied by scale.
struct DropoutPlace {
    bool drops = false;
    uint64_t site = 0;
    uint32_t threshold = 0;
    double scale = 1;
};
DropoutPlace dropout_place(const ir::Op& op);

// out[i] = value, or += where the op adds there and it is not the first write.
template <class T>
struct Store {
    T* out;
    bool add;
    void operator()(int64_t i, double value) const { out[i] = static_cast<T>(add ? static_cast<double>(out[i]) + value : value); }
};
template <class T>
Store<T> store(const KernelArgs& a, const ir::Op& op, int position) {
    return {static_cast<T*>(a.out[position]), op.accumulates(position) && !a.fresh};
}
template <class T>
const T* in(const KernelArgs& a, int position) {
    return static_cast<const T*>(a.in[position]);
}

}  // namespace lockstep::kernels::reference
