#include "comm/communicator.h"

#include <fmt/format.h>

#include <functional>

namespace lockstep::comm {
namespace {

const char* name_of(Type type) {
    switch (type) {
        case Type::Float32: return "float32";
        case Type::Float64: return "float64";
        case Type::Int32: return "int32";
        case Type::BFloat16: return "bfloat16";
        case Type::Float16: return "float16";
    }
    return "?";
}

const char* name_of(Kind kind) {
    switch (kind) {
        case Kind::AllGather: return "all_gather";
        case Kind::ReduceScatter: return "reduce_scatter";
        case Kind::AllReduce: return "all_reduce";
        case Kind::Permute: return "permute";
        case Kind::Transfer: return "transfer";
    }
    return "?";
}

const char* name_of(ReduceOp op) { return op == ReduceOp::Sum ? "sum" : "max"; }

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
    const auto* a_begin = static_cast<const std::byte*>(a);
    const auto* b_begin = static_cast<const std::byte*>(b);
    const std::less<const std::byte*> before;
    return before(a_begin, b_begin + b_bytes) && before(b_begin, a_begin + a_bytes);
}

// The one overlap that each kind allows; see Request.
bool in_place(const Request& request, int position) {
    if (request.kind == Kind::AllReduce) return request.in == request.out;
    const int64_t offset_bytes = position * request.block_elements() * bytes_of(request.type);
    const auto* in = static_cast<const std::byte*>(request.in);
    const auto* out = static_cast<const std::byte*>(request.out);
    if (request.outer != 1 || request.kind == Kind::Permute) return false;
    return request.kind == Kind::AllGather ? in == out + offset_bytes : out == in + offset_bytes;
}

}  // namespace

int64_t bytes_of(Type type) { return type == Type::Float64 ? 8 : type == Type::BFloat16 || type == Type::Float16 ? 2 : 4; }

Request all_gather(Type type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner) {
    return {Kind::AllGather, type, in, out, outer, dim, inner, ReduceOp::Sum, false};
}

Request reduce_scatter(Type type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner, ReduceOp op) {
    return {Kind::ReduceScatter, type, in, out, outer, dim, inner, op, false};
}

Request reduce_scatter_into(Type type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner, ReduceOp op) {
    return {Kind::ReduceScatter, type, in, out, outer, dim, inner, op, true};
}

Request all_reduce(Type type, const void* in, void* out, int64_t count, ReduceOp op) {
    return {Kind::AllReduce, type, in, out, 1, count, 1, op, false};
}

Request permute(Type type, const void* in, void* out, int64_t count, int by) {
    Request out_of{Kind::Permute, type, in, out, 1, count, 1, ReduceOp::Sum, false};
    out_of.by = by;
    return out_of;
}

Request transfer(Type type, const void* in, void* out, int64_t count) {
    return {Kind::Transfer, type, in, out, 1, count, 1, ReduceOp::Sum, false};
}

std::string describe(const Request& request) {
    const bool reduces = request.kind == Kind::ReduceScatter || request.kind == Kind::AllReduce;
    const std::string way = request.way ? fmt::format(" (gather {}, reduce {}, level {})", mesh::name_of(request.way->gather),
                                                      mesh::name_of(request.way->reduce), request.way->level)
                            : request.kind == Kind::Permute ? fmt::format(" by {}", request.by)
                                                            : "";
    return fmt::format("{} {}{} [{}, {}, {}]{}", name_of(request.kind), reduces ? fmt::format("{} ", name_of(request.op)) : "",
                       name_of(request.type), request.outer, request.dim, request.inner, way);
}

std::string refusal(const Request& request, int position, int members) {
    if (request.outer < 0 || request.dim < 0 || request.inner < 0) return "a negative extent";
    if (request.accumulate && request.kind != Kind::ReduceScatter) return "accumulate outside of reduce_scatter";
    if (request.by < 0 || (request.by != 0 && request.kind != Kind::Permute)) return "a shift that only a permute has";
    const int64_t block_bytes = request.block_elements() * bytes_of(request.type);
    if (request.kind == Kind::Transfer) {
        if (members != 2) return fmt::format("a transfer among {} members", members);
        return block_bytes > 0 && !(position == 0 ? request.in : request.out) ? "a null buffer" : "";
    }
    if (block_bytes == 0) return "";
    if (!request.in || !request.out) return "a null buffer";
    const int64_t in_bytes = request.kind == Kind::ReduceScatter ? block_bytes * members : block_bytes;
    const int64_t out_bytes = request.kind == Kind::AllGather ? block_bytes * members : block_bytes;
    if (overlap(request.in, in_bytes, request.out, out_bytes) && !in_place(request, position)) {
        return "in and out overlap other than in place";
    }
    return "";
}

}  // namespace lockstep::comm
