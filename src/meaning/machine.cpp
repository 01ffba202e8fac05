#include "meaning/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/elements.h"
#include "base/error.h"
#include "base/round.h"
#include "ops/expand.h"
#include "ops/rule.h"

namespace lockstep::meaning {
namespace {

using ir::TensorId;

const ops::KernelCatalog& catalog() {
    static const ops::KernelCatalog all = kernels::reference_catalog();
    return all;
}

const ops::KernelEntry* kernel_of(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op) {
    for (const ops::KernelEntry& e : catalog().entries) {
        if (e.op == op.kind && e.dtype == r.tensors[static_cast<size_t>(op.out[0])].dtype && e.serves(mesh, r, op)) return &e;
    }
    return nullptr;
}

// Until every op has a reference kernel, or is a collective.
void choose_kernels(const mesh::Mesh& mesh, ir::Routine& r) {
    ops::expand_unserved(r, [&](ir::Op& op) {
        if (ops::rule(op.kind).collective) return true;
        const ops::KernelEntry* e = kernel_of(mesh, r, op);
        ensure(e || ops::rule(op.kind).expand, fmt::format("meaning: no reference kernel serves {} in {}", op.kind, r.name));
        if (!e) return false;
        op.kernel = e->kernel;
        op.workspace_bytes = e->workspace_bytes ? e->workspace_bytes(mesh, r, op) : 0;
        return true;
    });
}

// A local tensor as [outer, dim, inner], cut along the dim.
struct Cut {
    int64_t outer = 1, dim = 1, inner = 1;
};
Cut cut(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Tensor& t, int64_t at) {
    Cut c;
    for (size_t k = 0; k < t.dims.size(); ++k) {
        const int64_t size = ir::local_size(mesh, r, t, static_cast<int>(k));
        (static_cast<int64_t>(k) < at ? c.outer : static_cast<int64_t>(k) == at ? c.dim : c.inner) *= size;
    }
    return c;
}

// Block `from_block` of `from_blocks` of one tensor becomes block `to_block` of `to_blocks` of another. Along the dim each is cut
// in, a block of both has the same elements.
void copy_block(const char* from, const Cut& f, int64_t from_block, char* to, const Cut& t, int64_t to_block, int64_t bytes) {
    const int64_t length = std::min(f.dim, t.dim);
    for (int64_t o = 0; o < f.outer; ++o) {
        std::memcpy(to + (o * t.dim + to_block * length) * t.inner * bytes,
                    from + (o * f.dim + from_block * length) * f.inner * bytes, static_cast<size_t>(length * f.inner * bytes));
    }
}

}  // namespace

Machine::Machine(const mesh::Mesh& mesh, ir::Routine routine) : mesh_(mesh), routine_(std::move(routine)), ranks_(mesh.ranks()) {
    choose_kernels(mesh_, routine_);
    int64_t bytes = 0, most = 0;
    std::vector<int64_t> at;
    for (const ir::Tensor& t : routine_.tensors) {
        const int64_t local = round_up(ir::local_bytes(mesh_, routine_, t), kAlignmentBytes);
        for (int64_t r = 0; r < ranks_; ++r, bytes += local) at.push_back(bytes);
    }
    for (const ir::Op& op : routine_.ops) most = std::max(most, op.workspace_bytes);
    memory_.assign(static_cast<size_t>(bytes + kAlignmentBytes), std::byte{0xff});  // NaN until written
    workspace_.resize(static_cast<size_t>(most + kAlignmentBytes));
    const auto base = reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(memory_.data()), kAlignmentBytes));
    for (const int64_t offset : at) data_.push_back(base + offset);
    for (size_t i = 0; i < routine_.ops.size(); ++i) prepare(i);
}

void Machine::prepare(size_t i) {
    const ir::Op& op = routine_.ops[i];
    Step& step = steps_.emplace_back();
    if (ops::rule(op.kind).collective) return;
    for (int64_t r = 0; r < ranks_; ++r) step.kernels.push_back(kernels::make_kernel({mesh_, routine_, op, r, 1}));
    for (const ops::Rewrite& w : ops::rewrites_of(op)) {
        if (w.must)
            step.overwrites.push_back(op.out[static_cast<size_t>(w.result)]),
                step.with.push_back(op.in[static_cast<size_t>(w.operand)]);
    }
    step.first_sum =
        !op.accumulate.empty() && std::none_of(routine_.ops.begin(), routine_.ops.begin() + static_cast<long>(i),
                                               [&](const ir::Op& o) { return !o.accumulate.empty() && o.out == op.out; });
}

Values Machine::get(TensorId t, int64_t rank) const {
    const ir::Tensor& tensor = routine_.tensors[static_cast<size_t>(t)];
    Values out(static_cast<size_t>(ir::local_elements(mesh_, routine_, tensor)));
    for (size_t i = 0; i < out.size(); ++i) out[i] = element(data(t, rank), tensor.dtype, static_cast<int64_t>(i));
    return out;
}

void Machine::set(TensorId t, int64_t rank, const Values& values) {
    const ir::Tensor& tensor = routine_.tensors[static_cast<size_t>(t)];
    ensure(static_cast<int64_t>(values.size()) == ir::local_elements(mesh_, routine_, tensor),
           fmt::format("meaning: {} of {} has {} elements, not {}", tensor.name, routine_.name,
                       ir::local_elements(mesh_, routine_, tensor), values.size()));
    for (size_t i = 0; i < values.size(); ++i) set_element(data(t, rank), tensor.dtype, static_cast<int64_t>(i), values[i]);
}

void Machine::run(int64_t instance, const std::vector<bool>& fresh) {
    char* const workspace = reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(workspace_.data()), kAlignmentBytes));
    std::vector<void*> in, out;
    for (size_t i = 0; i < steps_.size(); ++i) {
        const ir::Op& op = routine_.ops[i];
        const Step& step = steps_[i];
        if (step.kernels.empty()) {
            communicate(op);
            continue;
        }
        const int port = op.accumulate.empty() ? -1 : routine_.tensors[static_cast<size_t>(op.out[0])].port;
        const bool is_first_write = step.first_sum && port >= 0 && fresh[static_cast<size_t>(port)];
        for (int64_t r = 0; r < ranks_; ++r) {
            in.clear(), out.clear();
            for (const TensorId t : op.in) in.push_back(data(t, r));
            for (const TensorId t : op.out) out.push_back(data(t, r));
            for (size_t k = 0; k < step.with.size(); ++k) {
                if (step.overwrites[k] != step.with[k])
                    std::memcpy(data(step.overwrites[k], r), data(step.with[k], r),
                                static_cast<size_t>(
                                    ir::local_bytes(mesh_, routine_, routine_.tensors[static_cast<size_t>(step.with[k])])));
            }
            step.kernels[static_cast<size_t>(r)]->run({in.data(), out.data(), is_first_write, workspace, queue_, instance});
        }
    }
}

void Machine::communicate(const ir::Op& op) {
    const mesh::Collective kind = ir::collective_of(op);
    for (size_t k = 0; k < op.out.size(); ++k) {
        const TensorId from = op.in[k], to = op.out[k];
        const ir::Tensor &x = routine_.tensors[static_cast<size_t>(from)], &y = routine_.tensors[static_cast<size_t>(to)];
        const int64_t bytes = bytes_of(x.dtype);
        const int64_t elements = ir::local_elements(mesh_, routine_, x);
        // What a rank gets may overwrite what another has yet to give.
        std::vector<std::vector<char>> given(static_cast<size_t>(ranks_));
        for (int64_t r = 0; r < ranks_; ++r)
            given[static_cast<size_t>(r)].assign(data(from, r), data(from, r) + elements * bytes);
        for (int64_t r = 0; r < ranks_; ++r) {
            const std::vector<int64_t> group = mesh_.group(r, op.group);
            const auto n = static_cast<int64_t>(group.size()), me = mesh_.index(r, op.group);
            const auto gave = [&](int64_t member) {
                return given[static_cast<size_t>(group[static_cast<size_t>(member)])].data();
            };
            const auto reduced = [&] {
                Values sum(static_cast<size_t>(elements));
                for (int64_t m = 0; m < n; ++m) {
                    for (int64_t i = 0; i < elements; ++i) {
                        const double value = element(gave(m), x.dtype, i);
                        double& total = sum[static_cast<size_t>(i)];
                        total = m == 0 ? value : x.placement.reduce == ir::Reduce::Max ? std::max(total, value) : total + value;
                    }
                }
                std::vector<char> out(static_cast<size_t>(elements * bytes));
                for (int64_t i = 0; i < elements; ++i) set_element(out.data(), x.dtype, i, sum[static_cast<size_t>(i)]);
                return out;
            };
            const auto whole = [&](const ir::Tensor& t, std::string_view dim) {
                return cut(mesh_, routine_, t, op.integer(dim));
            };
            switch (kind) {
                case mesh::Collective::AllGather:
                    for (int64_t m = 0; m < n; ++m)
                        copy_block(gave(m), whole(x, "dim"), 0, data(to, r), whole(y, "dim"), m, bytes);
                    break;
                case mesh::Collective::ReduceScatter:
                    copy_block(reduced().data(), whole(x, "dim"), me, data(to, r), whole(y, "dim"), 0, bytes);
                    break;
                case mesh::Collective::AllReduce:
                    std::memcpy(data(to, r), reduced().data(), static_cast<size_t>(elements * bytes));
                    break;
                case mesh::Collective::Permute:
                    std::memcpy(data(to, r), gave(((me - op.integer("by")) % n + n) % n), static_cast<size_t>(elements * bytes));
                    break;
                case mesh::Collective::Broadcast:
                    std::memcpy(data(to, r), gave(op.integer("root")), static_cast<size_t>(elements * bytes));
                    break;
                case mesh::Collective::AllToAll: {
                    // My block of each member's dim `to`, put one after the other along the dim `from`.
                    ir::Tensor one = x;  // a member's block: x with the dim `to` split as y's is
                    one.placement.dims[static_cast<size_t>(op.integer("to"))] =
                        y.placement.dims[static_cast<size_t>(op.integer("to"))];
                    std::vector<char> block(static_cast<size_t>(elements / n * bytes));
                    for (int64_t m = 0; m < n; ++m) {
                        copy_block(gave(m), whole(x, "to"), me, block.data(), whole(one, "to"), 0, bytes);
                        copy_block(block.data(), whole(one, "from"), 0, data(to, r), whole(y, "from"), m, bytes);
                    }
                    break;
                }
                default: ensure(false, fmt::format("meaning: {} in {} crosses stages", op.kind, routine_.name));
            }
        }
    }
}

}  // namespace lockstep::meaning
