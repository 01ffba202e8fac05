#include "ops/verify_float8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/sources.h"
#include "ops/rule.h"

namespace lockstep::ops {
namespace {

bool is_of_float8(const Op& op) {
    static constexpr std::array<std::string_view, 6> kinds = {ir::kAmax,       ir::kToFloat8,     ir::kToBlocks,
                                                              ir::kFromFloat8, ir::kScaledEinsum, ir::kApplyScales};
    return std::find(kinds.begin(), kinds.end(), op.kind) != kinds.end();
}

// Operand i, of this type, read as codes or as a scale; and result i made as such.
bool reads(const Op& op, size_t i, Dtype type) {
    if (op.kind == ir::kScaledEinsum) return is_float8(type) ? i < 2 : i >= 2;
    if (op.kind == ir::kFromFloat8) return is_float8(type) ? i == 0 : i == 1;
    return op.kind == ir::kApplyScales && !is_float8(type) && i > 0;
}
bool makes(const Op& op, size_t i, Dtype type) {
    const bool makes_codes = op.kind == ir::kToFloat8 || op.kind == ir::kToBlocks || op.kind == ir::kMemberFloat8;
    if (is_float8(type)) return makes_codes && i == 0;
    return op.kind == ir::kToBlocks && i == 1;
}

// Result i has elements of operand i, unchanged; of blocks, of the operands together.
bool only_moves(const Op& op) {
    if (rule(op.kind).collective) return !ir::traits_of(op).reduces;
    static constexpr std::array<std::string_view, 4> kinds = {ir::kSlice, ir::kBlock, ir::kPack, ir::kUnpack};
    return rule(op.kind).copies || op.kind == "join_blocks" || std::find(kinds.begin(), kinds.end(), op.kind) != kinds.end();
}

class Float8Laws {
public:
    Float8Laws(const ir::Program& program, const Routine& routine) : p_(program), r_(routine), maker_(routine.tensors.size()) {}

    std::optional<Violation> run() {
        for (const Op& op : r_.ops) {
            made_and_read(op);
            if (is_of_float8(op)) groups_are_of_the_rank(op);
            if (op.attrs.contains(kAmaxOf)) {
                for (const Op& piece : pieces_of(op)) {
                    if (is_of_float8(piece)) groups_are_of_the_rank(piece);
                }
            }
            if (op.kind == ir::kToFloat8) amax_is_of_operand(op);
            if (op.kind == ir::kScaledEinsum) scales_are_of_weights(op);
            for (size_t i = 0; i < op.out.size(); ++i) maker_[static_cast<size_t>(op.out[i])] = {&op, i};
            if (found_) break;
        }
        return found_;
    }

private:
    struct Made {
        const Op* op = nullptr;
        size_t result = 0;
    };

    void fail(const Op& op, const std::string& what) {
        if (!found_) found_ = Violation{Invariant::Float8, fmt::format("{}, op {}: {}", r_.name, op.kind, what)};
    }
    const ir::Tensor& tensor(TensorId t) const { return r_.tensors[static_cast<size_t>(t)]; }
    const Made& made(TensorId t) const { return maker_[static_cast<size_t>(t)]; }

    void made_and_read(const Op& op) {
        const auto check = [&](const std::vector<TensorId>& tensors, const char* does, auto may) {
            for (size_t i = 0; i < tensors.size(); ++i) {
                const ir::Tensor& t = tensor(tensors[i]);
                if (!is_coded(t.dtype)) continue;
                const std::string_view what = is_float8(t.dtype) ? "float8" : name_of(t.dtype);
                if (!t.placement.partial.empty()) fail(op, fmt::format("{} is {} and partial", t.name, what));
                if (!only_moves(op) && !may(op, i, t.dtype)) fail(op, fmt::format("{} {}, which is {}", does, t.name, what));
            }
        };
        check(op.in, "reads", reads);
        check(op.out, "makes", makes);
    }

    // Of a dim and one that is coarse of it: a rank's elements are those of its groups, or all in one of them.
    void groups_are_of_the_rank(const Op& op) {
        std::vector<std::pair<DimId, const mesh::AxisList*>> placed;
        for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
            for (const TensorId t : *list) {
                for (size_t i = 0; i < tensor(t).placement.dims.size(); ++i)
                    placed.emplace_back(tensor(t).dims[i], &tensor(t).placement.dims[i]);
            }
        }
        for (const auto& [coarse, axes] : placed) {
            const ir::Dim& d = r_.dims[static_cast<size_t>(coarse)];
            for (const auto& [fine, all] : placed) {
                if (d.of != fine) continue;
                if (op.kind == ir::kToBlocks && *all != *axes)
                    return fail(op,
                                fmt::format("{} is split over '{}' and {} over '{}': a rank has no whole blocks", d.name,
                                            p_.mesh.text(*axes), r_.dims[static_cast<size_t>(fine)].name, p_.mesh.text(*all)));
                const bool is_one = d.size == p_.mesh.size(*axes);
                if (mesh::starts_with(*all, *axes) && (is_one || *all == *axes)) continue;
                return fail(op, fmt::format("{} is split over '{}' and {} over '{}': a rank has elements of other groups", d.name,
                                            p_.mesh.text(*axes), r_.dims[static_cast<size_t>(fine)].name, p_.mesh.text(*all)));
            }
        }
    }

    // Has the state of the block `amax` for weights among which those of the port tensor `weights` are?
    void is_of_weights(const Op& op, TensorId amax, TensorId weights) {
        const int port = tensor(amax).port;
        if (port < 0 || !p_.has_role(r_.ports[static_cast<size_t>(port)], ir::StateRole::WeightsAmax)) return;
        const std::vector<std::string_view> group = ir::sources_of(tensor(amax));
        const auto is_known = [&](std::string_view key) { return std::find(group.begin(), group.end(), key) != group.end(); };
        const std::vector<std::string_view> keys = ir::sources_of(tensor(weights));
        if (!std::all_of(keys.begin(), keys.end(), is_known))
            fail(op, fmt::format("{} is of {}, not of {}", tensor(amax).name, tensor(amax).source, tensor(weights).source));
    }
    bool are_weights(TensorId t) const {
        return tensor(t).port >= 0 && r_.ports[static_cast<size_t>(tensor(t).port)].kind == ir::PortKind::Params;
    }

    bool is_saved(TensorId t) const {
        return tensor(t).port >= 0 && r_.ports[static_cast<size_t>(tensor(t).port)].kind == ir::PortKind::Frame;
    }

    // Codes that come as weights have the scale that the state of the block gives. What another part of the routine has made
    // cannot be followed.
    void scales_are_of_weights(const Op& op) {
        for (const size_t i : {0, 1}) {
            const TensorId weights = source(op.in[i]), scale = source(op.in[i + 2]);
            if (!are_weights(weights)) continue;
            const Op* maker = made(scale).op;
            if (!maker && tensor(scale).port >= 0) continue;
            if (!maker || maker->kind != ir::kFloat8Scale || maker->text("type") != name_of(tensor(weights).dtype))
                return fail(op, fmt::format("{} is not the scale of {}", tensor(op.in[i + 2]).name, tensor(weights).name));
            is_of_weights(op, source(maker->in[0]), weights);
        }
    }

    // The largest sizes of x, maybe of all ranks, and maybe in a wider type. Of what comes by a port only weights are followed.
    void amax_is_of_operand(const Op& op) {
        if (const TensorId x = source(op.in[0]); are_weights(x)) is_of_weights(op, source(op.in[1]), x);
        TensorId t = op.in[1];
        const Op* last = &op;
        while (const Op* maker = made_before(t, last)) {
            for (const Op& piece : pieces_of(*maker)) {
                if (piece.kind != ir::kAmax || piece.out[0] != t) continue;
                const TensorId x = source(op.in[0]);
                // What is saved and what is computed again have two names.
                const auto is_of = [&](TensorId of) { return source(of) == x || is_saved(source(of)) || is_saved(x); };
                if (std::none_of(piece.in.begin(), piece.in.end(), is_of))
                    fail(op, fmt::format("{} is of {}, not of {}", tensor(op.in[1]).name, tensor(piece.in[0]).name,
                                         tensor(op.in[0]).name));
                return;
            }
            if (!keeps_amax(*maker)) return fail(op, fmt::format("{} is made by {}", tensor(op.in[1]).name, maker->kind));
            t = maker->in[made(t).result];
            last = maker;
        }
    }

    bool keeps_amax(const Op& op) const {
        if (op.in.size() != op.out.size()) return false;
        if (op.kind == ir::kCast) return bytes_of(tensor(op.out[0]).dtype) >= bytes_of(tensor(op.in[0]).dtype);
        const bool reduces = rule(op.kind).collective && ir::traits_of(op).reduces;
        return reduces ? tensor(op.in[0]).placement.reduce == ir::Reduce::Max : only_moves(op);
    }

    // What the tensor is a copy of.
    TensorId source(TensorId t) const {
        const Op* maker = made(t).op;
        while (maker && only_moves(*maker) && maker->in.size() == maker->out.size()) {
            t = maker->in[made(t).result];
            maker = made_before(t, maker);
        }
        return t;
    }

    // What an op overwrites in place it does not make of itself.
    const Op* made_before(TensorId t, const Op* reader) const { return made(t).op < reader ? made(t).op : nullptr; }

    const ir::Program& p_;
    const Routine& r_;
    std::vector<Made> maker_;  // so far
    std::optional<Violation> found_;
};

}  // namespace

std::optional<Violation> wrong_float8(const ir::Program& program, const ir::Routine& routine) {
    return Float8Laws(program, routine).run();
}

}  // namespace lockstep::ops
