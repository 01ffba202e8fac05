// Defects that only context ranks can have: in which order they have a sequence, whose keys a block has, who has which heads.
#include <algorithm>

#include "mesh/order.h"
#include "ops/verify_ring.h"
#include "tests/equivalence/defects.h"
#include "tests/equivalence/edit.h"

namespace lockstep::testing {
namespace {

using ir::Op;
using ir::Program;
using ir::Routine;

Defect on_program(const std::string& name, std::function<bool(Program&)> edit) { return {name, in_programs(std::move(edit))}; }

// The loader's data as it would be in another order: `alter` has the sample and, by place in the program's order, positions.
Defect in_order(const std::string& name, std::function<void(Sample, const std::vector<size_t>& position)> alter) {
    return {name, [=](Subject& s) {
                const int64_t seq = s.compiled.layout.seq_len, n = s.compiled.layout.head_tail;
                std::vector<size_t> position;
                for (int64_t j = 0; j < seq; ++j) position.push_back(static_cast<size_t>(mesh::position_of(seq, n, j)));
                s.alter_data = [=](Sample x) { alter(x, position); };
                return n > 1;
            }};
}

// The loader brings what it then finds at their places in plain order.
void load_plainly(std::span<int32_t> values, const std::vector<size_t>& position) {
    const std::vector<int32_t> plain(values.begin(), values.end());
    for (size_t j = 0; j < plain.size(); ++j) values[position[j]] = plain[j];
}

// Each rank has its last piece's positions for those of its first, and the other way.
void exchange_halves(std::span<int32_t> positions, int64_t pieces) {
    const auto piece = positions.size() / static_cast<size_t>(pieces);
    for (size_t first = 0, last = positions.size() - piece; first < last; first += piece, last -= piece)
        std::swap_ranges(positions.begin() + static_cast<long>(first), positions.begin() + static_cast<long>(first + piece),
                         positions.begin() + static_cast<long>(last));
}

// In a ring whose blocks end with what a window sees in plain order, the loader gives heads and tails.
bool load_heads_and_tails(Program& p) {
    const bool prunes = each_op(p, kForwards, ir::kAttentionBlock,
                                [&](Routine&, Op& op) { return p.head_tail == 1 && op.integer("hops") < p.mesh.size(op.group); });
    if (prunes) p.head_tail = p.mesh.degree(mesh::Axis::cp);
    return prunes;
}

bool is_over_context_ranks(const Program& p, const Op& op) {
    return std::all_of(op.group.begin(), op.group.end(), [&](int a) { return p.mesh.sub_axes[a].axis == mesh::Axis::cp; });
}

// Keys, values and sums of a ring go `more` places farther than they should.
bool go_farther(Program& p, const Kinds& routines, int64_t more) {
    return each_op(p, routines, "permute", [&](Routine&, Op& op) {
        const int64_t ranks = p.mesh.size(op.group), by = (op.integer("by") + more) % ranks;
        if (!is_over_context_ranks(p, op) || by == op.integer("by")) return false;
        op.attrs["by"] = by;
        return true;
    });
}

// Only what nothing follows: sums on the last way home.
bool stay_away(Program& p) {
    bool any = false;
    for (Routine& r : p.routines) {
        if (std::find(kBackwards.begin(), kBackwards.end(), r.kind) == kBackwards.end() || r.part == 0) continue;
        const auto home = std::find_if(r.ops.begin(), r.ops.end(), [&](const Op& op) {
            return op.kind == "permute" && is_over_context_ranks(p, op) && op.in.size() == 2;
        });
        if (home == r.ops.end()) continue;
        home->attrs["by"] = int64_t{0};
        any = true;
    }
    return any;
}

// A block behind the first, once more in the place of its results.
bool meet_twice(Program& p, const Kinds& routines, std::string_view kind) {
    bool any = false;
    for (Routine& r : p.routines) {
        if (std::find(routines.begin(), routines.end(), r.kind) == routines.end()) continue;
        std::vector<Op> ops;
        for (const Op& op : r.ops) {
            const bool again = op.kind == kind && op.integer("shift") == 1;
            ops.insert(ops.end(), again ? 2 : 1, op);
            any = any || again;
        }
        r.ops = std::move(ops);
    }
    return any;
}

bool leave_out_last(Program& p, std::string_view kind) {
    return each_op(p, kForwards, kind, [](Routine&, Op& op) {
        if (op.integer("shift") == 0 || op.integer("shift") + 1 < op.integer("hops")) return false;
        op.in.clear(), op.out.clear();
        return true;
    });
}

// Heads are exchanged over other context ranks: as many of them.
bool exchange_heads_elsewhere(Program& p) {
    return each_op(p, kCompute, "all_to_all", [&](Routine&, Op& op) {
        const mesh::AxisList others = mesh::subtract(p.mesh.whole(mesh::Axis::cp), op.group);
        if (others.empty() || p.mesh.size(others) != p.mesh.size(op.group)) return false;
        op.group = others;
        return true;
    });
}

bool exchange_heads_in_reverse(Program& p, const Kinds& routines) {
    return each_op(p, routines, "all_to_all", [](Routine&, Op& op) {
        std::reverse(op.group.begin(), op.group.end());
        return op.group.size() > 1;
    });
}

// Attention's results take the way of queries: sequence for heads.
bool keep_heads(Program& p) {
    return each_op(p, kForwards, "all_to_all", [](Routine&, Op& op) {
        if (op.integer("from") < op.integer("to")) return false;
        op.kind = "copy", op.kernel = "reference.copy";
        op.group.clear(), op.attrs.clear();
        return true;
    });
}

}  // namespace

std::vector<Defect> context_defects() {
    return {
        in_order("the loader gives tokens in plain order, and positions as the program says",
                 [](Sample x, const std::vector<size_t>& position) {
                     load_plainly(x.ids, position), load_plainly(x.targets, position);
                 }),
        in_order("the loader gives documents in plain order",
                 [](Sample x, const std::vector<size_t>& position) { load_plainly(x.documents, position); }),
        {"positions of head and tail are exchanged",
         [](Subject& s) {
             const int64_t pieces = 2 * s.compiled.layout.head_tail;
             s.alter_data = [pieces](Sample x) { exchange_halves(x.positions, pieces); };
             return pieces > 2;
         }},
        on_program("the loader gives heads and tails to a ring in plain order", load_heads_and_tails),
        on_program("keys go one place too far around the ring", [](Program& p) { return go_farther(p, kForwards, 1); }),
        on_program("keys stay where they are", [](Program& p) { return go_farther(p, kForwards, -1); }),
        on_program("keys and sums of backward go one place too far", [](Program& p) { return go_farther(p, kBackwards, 1); }),
        on_program("sums of gradients are not brought home", stay_away),
        on_program("a block of the ring is met twice", [](Program& p) { return meet_twice(p, kForwards, ir::kAttentionBlock); }),
        on_program("a block of the ring adds to the queries' gradient twice",
                   [](Program& p) { return meet_twice(p, kBackwards, ir::kAttentionBlockBackward); }),
        on_program("the last block of the ring is left out", [](Program& p) { return leave_out_last(p, ir::kAttentionBlock); }),
        on_program("heads are exchanged over other context ranks", exchange_heads_elsewhere),
        on_program("heads are exchanged in reverse order", [](Program& p) { return exchange_heads_in_reverse(p, kForwards); }),
        on_program("heads are not given back", keep_heads),
    };
}

}  // namespace lockstep::testing
