#include "runtime/prepared.h"

#include "base/error.h"
#include "ir/timeline.h"
#include "ops/algorithms.h"
#include "ops/rule.h"
#include "runtime/meet_kernel.h"

namespace lockstep::runtime {
namespace {

// Its sizes as [outer, dim, inner] around `dim`, and `dim` in `parts` parts.
void set_block(comm::Request& q, const ir::Program& p, const ir::Routine& r, const ir::Tensor& t, size_t dim, int64_t parts) {
    q.outer = q.inner = 1;
    for (size_t i = 0; i < t.dims.size(); ++i) {
        const int64_t size = ir::local_size(p.mesh, r, t, static_cast<int>(i));
        if (i < dim) q.outer *= size;
        if (i == dim) q.dim = size / parts;
        if (i > dim) q.inner *= size;
    }
}

comm::Request request_of(const ir::Program& p, const ir::Routine& r, const ir::Op& op, size_t member) {
    const mesh::CollectiveTraits& traits = ir::traits_of(op);
    const bool is_result = traits.takes == mesh::Blocks::One && traits.gives != mesh::Blocks::One;
    const ir::Tensor& block = r.tensors[is_result ? op.out[member] : op.in[member]];
    comm::Request q;
    q.kind = traits.kind;
    q.by_peers = ops::is_by_peers(op);
    if (traits.kind == mesh::Collective::Wait) return q;
    q.type = block.dtype;
    q.algorithm = ops::algorithm_of(op);
    if (traits.reduces)
        q.op = r.tensors[op.in[member]].placement.reduce == ir::Reduce::Max ? comm::ReduceOp::Max : comm::ReduceOp::Sum;
    if (traits.has(mesh::Attr::By)) q.by = static_cast<int32_t>(op.integer("by"));
    if (traits.has(mesh::Attr::Root)) q.root = static_cast<int32_t>(op.integer("root"));
    if (traits.kind == mesh::Collective::AllToAll) {
        comm::Request out;  // in which the blocks of all members lie along `from`
        set_block(out, p, r, r.tensors[op.out[member]], static_cast<size_t>(op.integer("from")), 1);
        set_block(q, p, r, block, static_cast<size_t>(op.integer("to")), p.mesh.size(op.group));
        q.outer_out = out.outer;
    } else if (traits.gives == mesh::Blocks::Members || traits.takes == mesh::Blocks::Members) {
        set_block(q, p, r, block, static_cast<size_t>(op.integer("dim")), 1);
    } else {
        q.dim = ir::local_elements(p.mesh, r, block);
    }
    return q;
}

// By routine: all calls of one are in one queue.
std::vector<QueueName> queues_of(const ir::Program& p) {
    std::vector<QueueName> out(p.routines.size(), QueueName::Compute);
    for (const ir::Entry& e : p.entries) {
        for (const ir::Call& c : e.calls) out[static_cast<size_t>(c.routine)] = c.queue;
    }
    return out;
}

}  // namespace

std::span<const comm::Request> Launch::requests_in(comm::Request (&room)[kMaxOperands]) const {
    for (size_t k = 0; k < requests.size(); ++k) {
        room[k] = requests[k];
        if (k < op->in.size()) room[k].in = in[k];
        if (k < op->out.size()) room[k].out = out[k];
        room[k].accumulate = op->accumulates(static_cast<int>(k)) && !fresh;
    }
    return std::span(room, requests.size());
}

Prepared::Prepared(const ir::Program& program, int64_t rank, comm::Communicator& communicator, int threads,
                   const DelayOf& delay_s, comm::islands::Member* islands)
    : program_(program) {
    const std::vector<QueueName> queues = queues_of(program);
    for (size_t i = 0; i < program.routines.size(); ++i)
        code_.push_back(code_of(program.routines[i], queues[i], rank, communicator, threads, delay_s, islands));
}

Prepared::Code Prepared::code_of(const ir::Routine& r, QueueName queue, int64_t rank, comm::Communicator& communicator,
                                 int threads, const DelayOf& delay_s, comm::islands::Member* islands) const {
    Code code;
    for (const ir::Tensor& t : r.tensors) {
        const ir::Tensor* root = &t;
        while (root->view_of >= 0) root = &r.tensors[root->view_of];
        code.addresses.push_back({root->port, std::max<int64_t>(root->offset_bytes, 0)});
    }
    for (const ir::Op& op : r.ops) {
        ensure(op.in.size() <= kMaxOperands && op.out.size() <= kMaxOperands, "executor: an op has too many operands");
        PreparedOp p;
        p.is_collective = ops::rule(op.kind).collective;
        if (p.is_collective) {
            std::vector<int> members;
            for (int64_t m : ir::members_of(program_, op, program_.mesh.group(rank, op.group)))
                members.push_back(static_cast<int>(m));
            p.group = communicator.add_group(members);
            communicator.use(p.group, queue, ops::is_by_peers(op));
            for (size_t i = 0; i < std::max(op.in.size(), op.out.size()); ++i)
                p.requests.push_back(request_of(program_, r, op, i));
        } else {
            p.is_view = ir::is_view(r, op);
            if (op.kernel == ir::kDeviceCopy) p.copied_bytes = ir::local_bytes(program_.mesh, r, r.tensors[op.out[0]]);
            else if (delay_s) p.delay_s = delay_s(r, op);
            else if (islands && op.kind == ir::kMeet) p.kernel = meet_through(*islands, {program_.mesh, r, op, rank, threads});
            else p.kernel = kernels::make_kernel({program_.mesh, r, op, rank, threads});
        }
        if (!op.accumulate.empty()) {
            const ir::TensorId sum = op.out[op.accumulate[0]];
            const bool is_first = std::none_of(r.ops.begin(), r.ops.begin() + (&op - r.ops.data()), [&](const ir::Op& earlier) {
                return std::find(earlier.out.begin(), earlier.out.end(), sum) != earlier.out.end();
            });
            if (is_first) p.fresh_port = r.tensors[sum].port;  // what follows in the same routine adds to it
        }
        code.ops.push_back(std::move(p));
    }
    return code;
}

void Prepared::fill(const Code& code, size_t index, Launch& launch) const {
    const ir::Call& call = *launch.call;
    const ir::Op& op = launch.routine->ops[index];
    const PreparedOp& p = code.ops[index];
    char* scratch = call.scratch >= 0 ? buffer(call.scratch) : nullptr;
    const auto address = [&](ir::TensorId t) -> void* {
        const Address& a = code.addresses[static_cast<size_t>(t)];
        if (a.port < 0) return scratch + a.offset;
        const ir::Binding& b = call.bindings[static_cast<size_t>(a.port)];
        return buffer(b.buffer) + b.offset_bytes + a.offset;
    };
    for (size_t k = 0; k < op.in.size(); ++k) launch.in[k] = address(op.in[k]);
    for (size_t k = 0; k < op.out.size(); ++k) launch.out[k] = address(op.out[k]);
    launch.op = &op;
    launch.index = static_cast<int>(index);
    launch.kernel = p.kernel.get();
    launch.copied_bytes = p.copied_bytes;
    launch.group = p.group;
    launch.requests = p.requests;
    launch.is_collective = p.is_collective;
    launch.delay_s = p.delay_s;
    launch.fresh = p.fresh_port >= 0 && call.bindings[static_cast<size_t>(p.fresh_port)].fresh;
    launch.workspace = scratch ? scratch + std::max<int64_t>(op.workspace_offset_bytes, 0) : nullptr;
}

}  // namespace lockstep::runtime
