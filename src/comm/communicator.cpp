#include "comm/communicator.h"

#include <fmt/format.h>

#include <functional>

namespace lockstep::comm {
namespace {

using mesh::Attr;

const char* name_of(ReduceOp op) { return op == ReduceOp::Sum ? "sum" : "max"; }

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
    const auto* a_begin = static_cast<const std::byte*>(a);
    const auto* b_begin = static_cast<const std::byte*>(b);
    const std::less<const std::byte*> before;
    return before(a_begin, b_begin + b_bytes) && before(b_begin, a_begin + a_bytes);
}

// The one overlap that a kind allows; see Request.
bool in_place(const Request& r, int position) {
    const auto *in = static_cast<const std::byte*>(r.in), *out = static_cast<const std::byte*>(r.out);
    const mesh::CollectiveTraits& traits = r.traits();
    if (traits.same_result && traits.takes == mesh::Blocks::One) return in == out;
    const int64_t offset_bytes = position * r.block_bytes();
    if (r.outer != 1 || traits.gives == traits.takes) return false;
    return traits.takes == mesh::Blocks::Members ? in == out + offset_bytes : out == in + offset_bytes;
}

}  // namespace

Request all_gather(Dtype type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner) {
    return {Collective::AllGather, type, in, out, outer, dim, inner};
}

Request reduce_scatter(Dtype type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner, ReduceOp op) {
    return {Collective::ReduceScatter, type, in, out, outer, dim, inner, op};
}

Request reduce_scatter_into(Dtype type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner, ReduceOp op) {
    return {Collective::ReduceScatter, type, in, out, outer, dim, inner, op, true};
}

Request all_reduce(Dtype type, const void* in, void* out, int64_t count, ReduceOp op) {
    return {Collective::AllReduce, type, in, out, 1, count, 1, op};
}

Request all_to_all(Dtype type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner, int64_t outer_out) {
    Request r{Collective::AllToAll, type, in, out, outer, dim, inner};
    r.outer_out = outer_out;
    return r;
}

Request broadcast(Dtype type, const void* in, void* out, int64_t count, int root) {
    Request r{Collective::Broadcast, type, in, out, 1, count, 1};
    r.root = root;
    return r;
}

Request permute(Dtype type, const void* in, void* out, int64_t count, int by) {
    Request r{Collective::Permute, type, in, out, 1, count, 1};
    r.by = by;
    return r;
}

Request send(Dtype type, const void* in, int64_t count) { return {Collective::Send, type, in, nullptr, 1, count, 1}; }
Request recv(Dtype type, void* out, int64_t count) { return {Collective::Recv, type, nullptr, out, 1, count, 1}; }

std::string describe(const Request& r) {
    if (r.kind == Collective::Wait) return std::string(mesh::name_of(r.kind));
    std::string text =
        fmt::format("{} {}{} [{}, {}, {}]", mesh::name_of(r.kind), r.traits().reduces ? fmt::format("{} ", name_of(r.op)) : "",
                    name_of(r.type), r.outer, r.dim, r.inner);
    if (r.algorithm)
        text += fmt::format(" (gather {}, reduce {}, level {})", mesh::name_of(r.algorithm->gather),
                            mesh::name_of(r.algorithm->reduce), r.algorithm->level);
    if (r.traits().has(Attr::By)) text += fmt::format(" by {}", r.by);
    if (r.traits().has(Attr::Root)) text += fmt::format(" from {}", r.root);
    if (r.kind == Collective::AllToAll && r.outer_out != r.outer) text += fmt::format(" into [{}, ..]", r.outer_out);
    return text;
}

std::string refusal(const Request& r, int position, int members) {
    const mesh::CollectiveTraits& traits = r.traits();
    if (r.outer < 0 || r.dim < 0 || r.inner < 0) return "a negative extent";
    if (r.accumulate && r.kind != Collective::ReduceScatter) return "accumulate outside of reduce_scatter";
    if (r.algorithm && !traits.has_algorithm()) return "an algorithm, although this kind of collective has only one";
    if (traits.has(Attr::By) ? r.by < 0 || r.by >= members : r.by != 0)
        return fmt::format("a shift by {} among {} members", r.by, members);
    if (traits.has(Attr::Root) ? r.root < 0 || r.root >= members : r.root != 0)
        return fmt::format("a root at position {} of {}", r.root, members);
    if (r.kind == Collective::AllToAll && (r.outer_out < 1 || r.block_elements() % r.outer_out != 0))
        return fmt::format("results of {} rows, which do not divide a block", r.outer_out);
    if (!traits.symmetric && members != 2) return fmt::format("a {} among {} members", traits.name, members);
    if (!traits.symmetric && (position == 0) == (r.kind == Collective::Recv))
        return position == 0 ? "the first of two members sends" : "the second of two members receives";
    if (r.block_elements() == 0) return "";
    const bool reads = traits.gives != mesh::Blocks::None && (!traits.has(Attr::Root) || position == r.root);
    if ((reads && !r.in) || (traits.takes != mesh::Blocks::None && !r.out)) return "a null buffer";
    if (reads && r.out && overlap(r.in, r.in_bytes(members), r.out, r.out_bytes(members)) && !in_place(r, position))
        return "in and out overlap other than in place";
    return "";
}

}  // namespace lockstep::comm
