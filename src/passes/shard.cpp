#include "passes/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "ops/builder.h"
#include "passes/sharding_table.h"

namespace lockstep::passes {
namespace {

using ir::AxisList;
using ir::Op;
using ir::Placement;
using ir::PortKind;
using ir::Routine;
using ir::TensorId;

// What one routine tells the next: placements of saved values by name, with their order in the frame, and of states.
struct SavedForward {
    Placement placement;
    size_t place = 0;
};
using PlacementOfValue = std::map<std::string, SavedForward>;
using PlacementOfState = std::map<ir::StateId, Placement>;

// Places one routine. Ops are visited in order; copies_[v] lists every tensor of the result that has value v.
class Sharder {
public:
    // `reader`: the backward that reads this routine's frame, or nullptr.
    Sharder(const mesh::Mesh& mesh, const ShardingTable& table, const Routine& f, const Routine* reader,
            const PlacementOfValue& saved, const PlacementOfState& states)
        : mesh_(mesh), table_(table), f_(f), reader_(reader), saved_(saved), states_(states) {
        r_ = f;
        r_.tensors.clear();
        r_.ops.clear();
        users_.resize(f.tensors.size());
        maker_.assign(f.tensors.size(), -1);
        copies_.resize(f.tensors.size());
        for (size_t k = 0; k < f.ops.size(); ++k) {
            const Op& op = f.ops[k];
            for (size_t i = 0; i < op.in.size(); ++i) users_[op.in[i]].push_back({static_cast<int>(k), static_cast<int>(i)});
            for (TensorId o : op.out) maker_[o] = static_cast<int>(k);
        }
    }

    Routine run() {
        // What is saved is in the frame as it was written; all else is placed as in the whole routine.
        std::vector<TensorId> in_frame;
        for (size_t t = 0; t < f_.tensors.size(); ++t) {
            if (is_read_in_frame(static_cast<TensorId>(t))) in_frame.push_back(static_cast<TensorId>(t));
        }
        const auto place_of = [&](TensorId t) { return saved_.at(f_.tensors[t].source).place; };
        std::stable_sort(in_frame.begin(), in_frame.end(), [&](TensorId a, TensorId b) { return place_of(a) < place_of(b); });
        size_t framed = 0;
        for (size_t t = 0; t < f_.tensors.size(); ++t) {
            const bool is_framed = is_read_in_frame(static_cast<TensorId>(t));
            define_port(is_framed ? in_frame[framed++] : static_cast<TensorId>(t));
        }
        for (const Op& op : f_.ops) visit(op);
        for (size_t t = 0; t < f_.tensors.size(); ++t) leave(static_cast<TensorId>(t));
        r_.ops = ops::live_ops(r_, r_.ops, {});
        return std::move(r_);
    }

private:
    struct Use {
        int op, operand;
    };

    const ops::OpRule& rule(const Op& op) const { return ops::rule(op.kind); }
    const ir::Port* port_of(TensorId v) const { return f_.tensors[v].port < 0 ? nullptr : &f_.ports[f_.tensors[v].port]; }
    bool is_read_in_frame(TensorId v) const {
        return port_of(v) && port_of(v)->kind == PortKind::Frame && port_of(v)->access != ir::Access::Write;
    }
    bool leaves(TensorId v) const { return port_of(v) && port_of(v)->access == ir::Access::Write; }
    const Placement& place(TensorId copy) const { return r_.tensors[copy].placement; }
    Placement at_rest(TensorId v) const { return table_.rest(f_, f_.tensors[v].dims); }

    std::vector<AxisList> space_of(const Routine& f, const Op& op) const {
        const auto beside = op.attrs.find("beside");
        return table_.space(f, ops::iteration_space(f, op),
                            rule(op).sharding.unsplit ? rule(op).sharding.unsplit(f, op) : std::vector<ir::DimId>{},
                            beside == op.attrs.end() ? -1 : f.dim(std::get<std::string>(beside->second)));
    }
    // The sub-axes over which a rank has only its own keys.
    AxisList ring_of(const Op& op) const {
        const std::vector<ir::DimId> dims = ops::iteration_space(f_, op);
        const auto keys = std::find_if(dims.begin(), dims.end(), [&](ir::DimId d) { return f_.dims[d].of >= 0; });
        return keys == dims.end() ? AxisList{} : space_of(f_, op)[static_cast<size_t>(keys - dims.begin())];
    }
    // The op's iteration space restricted to one tensor.
    std::vector<AxisList> restricted(const Routine& f, const Op& op, TensorId t) const {
        const std::vector<ir::DimId> dims = ops::iteration_space(f, op);
        const std::vector<AxisList> space = space_of(f, op);
        std::vector<AxisList> out;
        for (ir::DimId d : f.tensors[t].dims) out.push_back(space[std::find(dims.begin(), dims.end(), d) - dims.begin()]);
        return out;
    }
    static AxisList all_axes(const std::vector<AxisList>& dims) { return Placement{dims, {}, ir::Reduce::Sum}.used(); }

    TensorId emit_tensor(TensorId v, const std::string& name, Placement placement) {
        ir::Tensor t = f_.tensors[v];
        t.name = name;
        t.port = -1;
        t.source.clear();
        t.placement = std::move(placement);
        if (t.placement.partial.empty()) t.placement.reduce = ir::Reduce::Sum;
        for (int i = 2; r_.find(t.name) >= 0; ++i) t.name = fmt::format("{}.{}", name, i);
        r_.tensors.push_back(std::move(t));
        return static_cast<TensorId>(r_.tensors.size() - 1);
    }

    TensorId define(TensorId v, Placement placement) {
        std::sort(placement.partial.begin(), placement.partial.end());
        copies_[v] = {emit_tensor(v, f_.tensors[v].name, std::move(placement))};
        return copies_[v][0];
    }

    // Port tensors that are read or added to exist from the start; inputs are made in each placement asked for.
    void define_port(TensorId v) {
        const ir::Port* port = port_of(v);
        if (!port || port->access == ir::Access::Write || port->kind == PortKind::Input) return;
        Placement p = at_rest(v);
        if (port->kind == PortKind::Frame) p = saved_.at(f_.tensors[v].source).placement;
        if (port->kind == PortKind::State && port->access == ir::Access::Read) {
            if (auto it = states_.find(port->state); it != states_.end()) p = it->second;
        }
        ir::Tensor& t = r_.tensors[define(v, p)];
        t.port = f_.tensors[v].port;
        t.source = f_.tensors[v].source;
    }

    // A value that leaves by a written port is placed there at rest; a saved one in the copy that backward wants most.
    void leave(TensorId v) {
        if (!leaves(v)) return;
        const ir::Port& port = *port_of(v);
        const TensorId copy = port.kind == PortKind::Frame
                                  ? save(v)
                                  : get(v, at_rest(v).dims, {}, "a block's result leaves it in its default placement");
        ir::Tensor& t = r_.tensors[copy];
        ensure(t.port < 0, "shard: " + t.name + " would leave by two ports");
        t.port = f_.tensors[v].port;
        t.source = f_.tensors[v].source;
    }

    TensorId save(TensorId v) {
        const Placement rest = at_rest(v);
        std::vector<std::vector<AxisList>> wanted;
        for (const Op& op : reader_->ops) {
            for (TensorId t : op.in) {
                if (reader_->tensors[t].source == f_.tensors[v].source && reader_->tensors[t].port >= 0 &&
                    reader_->ports[reader_->tensors[t].port].kind == PortKind::Frame) {
                    wanted.push_back(restricted(*reader_, op, t));
                }
            }
        }
        TensorId best = -1;
        long most = -1;
        for (TensorId c : copies_[v]) {
            if (!place(c).partial.empty() || mesh_.size(place(c).used()) < mesh_.size(rest.used())) continue;
            const long votes = std::count(wanted.begin(), wanted.end(), place(c).dims);
            if (votes > most) best = c, most = votes;
        }
        return best >= 0 ? best : get(v, rest.dims, {}, "a saved value is reduced before it is stored");
    }

    // May operand i of op stay partial over this sub-axis?
    bool can_pass(const Op& op, int i, int axis) const {
        const ops::OpRule& rule_of = rule(op);
        if (rule_of.sharding.linear_in_all_together || rule_of.accumulates) return true;
        if (!ops::is_linear(f_, op, i)) return false;
        if (mesh::contains(all_axes(space_of(f_, op)), axis)) return false;
        return rule_of.sharding.linear_unconditionally ||
               std::all_of(op.out.begin(), op.out.end(), [&](TensorId o) { return absorbs_reduction(o, axis); });
    }
    // Does every path of v end where no reduction of its own is needed: in an accumulator, or in an add that reduces over this
    // sub-axis anyway?
    bool absorbs_reduction(TensorId v, int axis) const {
        if (leaves(v)) return false;
        return std::all_of(users_[v].begin(), users_[v].end(), [&](const Use& u) {
            const Op& op = f_.ops[u.op];
            if (rule(op).accumulates) return true;
            if (!rule(op).sharding.linear_in_all_together) {
                return can_pass(op, u.operand, axis) &&
                       std::all_of(op.out.begin(), op.out.end(), [&](TensorId o) { return absorbs_reduction(o, axis); });
            }
            if (absorbs_reduction(op.out[0], axis)) return true;
            return std::any_of(op.in.begin(), op.in.end(), [&](TensorId t) { return t != v && partial_by_itself(t, axis); });
        });
    }
    // Is v partial over this sub-axis by its own contraction?
    bool partial_by_itself(TensorId v, int axis) const {
        if (maker_[v] < 0) return false;
        const Op& op = f_.ops[maker_[v]];
        const auto result = std::find(op.out.begin(), op.out.end(), v) - op.out.begin();
        if (ops::is_repeated(op, static_cast<int>(result))) return false;
        return mesh::contains(all_axes(space_of(f_, op)), axis) && !mesh::contains(all_axes(restricted(f_, op, v)), axis);
    }
    // The sub-axes over which every user of v can leave it partial.
    AxisList passable(TensorId v) const {
        if (leaves(v) || copies_[v].empty()) return {};
        const Placement& p = place(copies_[v][0]);
        if (p.reduce != ir::Reduce::Sum) return {};
        AxisList out;
        for (int a : p.partial) {
            if (std::all_of(users_[v].begin(), users_[v].end(),
                            [&](const Use& u) { return can_pass(f_.ops[u.op], u.operand, a); }))
                out.push_back(a);
        }
        return out;
    }

    TensorId input(TensorId v, const std::vector<AxisList>& dims) {
        std::string name = f_.tensors[v].name;
        for (size_t i = 1; i < dims.size(); ++i) {
            std::string axes = mesh_.text(dims[i]);
            for (char& c : axes) {
                if (std::string_view(",:()").find(c) != std::string_view::npos) c = '.';
            }
            name += "@" + (axes.empty() ? "whole" : axes);
        }
        if (const TensorId known = r_.find(name); known >= 0) return known;
        ir::Tensor t = f_.tensors[v];
        t.name = name;
        t.source = f_.tensors[v].source;
        t.placement = {dims, {}, ir::Reduce::Sum};
        t.port = static_cast<int>(r_.ports.size());
        r_.ports.push_back({name, PortKind::Input, ir::Access::Read, port_of(v)->role});
        r_.tensors.push_back(std::move(t));
        return static_cast<TensorId>(r_.tensors.size() - 1);
    }

    // The copy of v placed as `dims`, still partial over `keep` only.
    TensorId get(TensorId v, const std::vector<AxisList>& dims, const AxisList& keep, const std::string& why) {
        if (port_of(v) && port_of(v)->kind == PortKind::Input) return input(v, dims);
        if (copies_[v].empty())
            throw InternalError(fmt::format("shard: routine {} reads {} before it is made", f_.name, f_.tensors[v].name));
        const AxisList partial = mesh::intersect(place(copies_[v][0]).partial, keep);
        std::vector<TensorId> done;  // reduced already: never reduce twice
        for (TensorId c : copies_[v]) {
            if (place(c).partial != partial) continue;
            if (place(c).dims == dims) return c;
            done.push_back(c);
        }
        const auto refines = [&](TensorId c) {
            for (size_t i = 0; i < dims.size(); ++i) {
                if (!mesh::starts_with(dims[i], place(c).dims[i])) return false;
            }
            return true;
        };
        const auto slice = std::find_if(done.begin(), done.end(), refines);
        const TensorId source = slice != done.end() ? *slice : done.empty() ? copies_[v][0] : done[0];
        return reshard(v, source, dims, partial, why);
    }

    TensorId reshard(TensorId v, TensorId from, const std::vector<AxisList>& dims, const AxisList& partial,
                     const std::string& why) {
        const auto emit_op = [&](std::string_view kind, const char* tag, ir::Attrs attrs, const AxisList& group, Placement to) {
            Op op;
            op.kind = kind;
            op.in = {from};
            op.group = group;
            op.note = why;
            op.attrs = std::move(attrs);
            from = emit_tensor(v, f_.tensors[v].name + "." + tag, std::move(to));
            op.out = {from};
            copies_[v].push_back(from);
            r_.ops.push_back(std::move(op));
        };
        const auto emit = [&](std::string_view kind, const char* tag, int dim, const AxisList& group, Placement to) {
            emit_op(kind, tag, dim < 0 ? ir::Attrs{} : ir::Attrs{{"dim", static_cast<int64_t>(dim)}}, group, std::move(to));
        };
        // What dim i has behind what it keeps, and what it wants behind that.
        const auto kept = [&](size_t i) {
            const AxisList& have = place(from).dims[i];
            size_t k = 0;
            while (k < have.size() && k < dims[i].size() && have[k] == dims[i][k]) ++k;
            return static_cast<long>(k);
        };
        const auto leaving = [&](size_t i) { return AxisList(place(from).dims[i].begin() + kept(i), place(from).dims[i].end()); };
        const auto wanted = [&](size_t i) { return AxisList(dims[i].begin() + kept(i), dims[i].end()); };
        const auto moves = [&](int axis) {  // from a dim to another
            for (size_t i = 0; i < dims.size(); ++i) {
                for (size_t j = 0; j < dims.size(); ++j) {
                    if (i != j && mesh::contains(leaving(i), axis) && mesh::contains(wanted(j), axis)) return true;
                }
            }
            return false;
        };
        const auto append = [&](size_t i, const AxisList& group) {  // a reduce_scatter where partial, else a local slice
            const bool reduces = mesh::contains(place(from).partial, group[0]);
            Placement to = place(from);
            to.dims[i] = mesh::join(to.dims[i], group);
            to.partial = mesh::subtract(to.partial, group);
            emit(reduces ? "reduce_scatter" : ir::kSlice, reduces ? "rs" : "sl", static_cast<int>(i), group, to);
        };
        // One step on the way of sub-axes that go from the end of a dim to the end of another. False: there are none left.
        const auto exchange = [&] {
            for (size_t i = 0; i < dims.size(); ++i) {
                const AxisList tail = leaving(i);
                for (size_t k = 0; k < tail.size(); ++k) {
                    const AxisList last(tail.begin() + static_cast<long>(k), tail.end());
                    for (size_t j = 0; j < dims.size(); ++j) {
                        if (j == i || !leaving(j).empty() || !mesh::starts_with(wanted(j), last)) continue;
                        Placement to = place(from);
                        to.dims[i].resize(to.dims[i].size() - last.size());
                        to.dims[j] = mesh::join(to.dims[j], last);
                        emit_op("all_to_all", "a2a", {{"from", static_cast<int64_t>(i)}, {"to", static_cast<int64_t>(j)}}, last,
                                to);
                        return true;
                    }
                }
            }
            for (size_t j = 0; j < dims.size(); ++j) {  // what comes before them
                const AxisList want = wanted(j);
                const auto first = std::find_if(want.begin(), want.end(), moves);
                if (first == want.begin() || first == want.end() || !leaving(j).empty()) continue;
                AxisList group = {want[0]};
                const bool reduces = mesh::contains(place(from).partial, want[0]);
                for (auto a = want.begin() + 1; a != first && mesh::contains(place(from).partial, *a) == reduces; ++a)
                    group.push_back(*a);
                append(j, group);
                return true;
            }
            for (size_t i = 0; i < dims.size(); ++i) {  // what comes after them
                const AxisList tail = leaving(i);
                if (tail.empty() || moves(tail.back()) || std::none_of(tail.begin(), tail.end(), moves)) continue;
                AxisList group = {tail.back()};
                Placement to = place(from);
                to.dims[i].pop_back();
                emit("all_gather", "ag", static_cast<int>(i), group, to);
                return true;
            }
            return false;
        };
        while (exchange()) {
        }
        for (size_t i = 0; i < dims.size(); ++i) {  // gather the tail that is not wanted
            const AxisList tail = leaving(i);
            if (tail.empty()) continue;
            Placement to = place(from);
            to.dims[i].resize(to.dims[i].size() - tail.size());
            emit("all_gather", "ag", static_cast<int>(i), tail, to);
        }
        for (size_t i = 0; i < dims.size(); ++i) {  // append what is wanted
            while (place(from).dims[i].size() < dims[i].size()) {
                const AxisList rest = wanted(i);
                const bool reduces = mesh::contains(place(from).partial, rest[0]);
                size_t k = 1;
                while (k < rest.size() && mesh::contains(place(from).partial, rest[k]) == reduces) ++k;
                append(i, AxisList(rest.begin(), rest.begin() + static_cast<long>(k)));
            }
        }
        const AxisList left = mesh::subtract(place(from).partial, partial);
        if (!left.empty()) {
            Placement to = place(from);
            to.partial = partial;
            emit("all_reduce", "ar", -1, left, to);
        }
        return from;
    }

    std::string reason(const Op& op, TensorId v) const {
        if (!copies_[v].empty() && !place(copies_[v][0]).partial.empty()) {
            return fmt::format("{} ({}) needs the reduced value", op.kind, result_name(op));
        }
        if (op.kind == ir::kRename) return "attention needs the keys of all tokens";
        for (ir::DimId d : ops::iteration_space(f_, op)) {
            const ir::DimRole role = f_.dims[d].role;
            if (role == ir::DimRole::KvHeads || role == ir::DimRole::Ffn || role == ir::DimRole::Vocab)
                return fmt::format("{} runs over {}, which is sharded over tp, so seq must be whole", result_name(op),
                                   f_.dims[d].name);
        }
        return fmt::format("{} needs the default placement", result_name(op));
    }
    std::string result_name(const Op& op) const { return f_.tensors[op.out[0]].name; }

    void visit(const Op& op) {
        if (rule(op).accumulates) return visit_accumulate(op);
        if (rule(op).sharding.linear_in_all_together) return visit_add(op);
        const AxisList used = all_axes(space_of(f_, op));
        AxisList passed;
        Op placed = op;
        for (size_t i = 0; i < op.in.size(); ++i) {
            const TensorId v = op.in[i];
            AxisList keep;
            for (int a : passable(v)) {  // a product of sums is not a sum of products: one partial operand per sub-axis
                if (!mesh::contains(passed, a) && can_pass(op, static_cast<int>(i), a)) keep.push_back(a);
            }
            passed = mesh::unite(passed, keep);
            placed.in[i] = get(v, restricted(f_, op, v), keep, reason(op, v));
        }
        if (rule(op).sharding.meets) placed.group = ring_of(op);
        for (size_t o = 0; o < op.out.size(); ++o) {
            if (port_of(op.out[o]) && port_of(op.out[o])->access == ir::Access::Update) {  // a state is changed where it is
                ensure(copies_[op.out[o]].size() == 1,
                       "shard: " + f_.tensors[op.out[o]].name + " is changed while a copy of it exists");
                placed.out[o] = copies_[op.out[o]][0];
                continue;
            }
            Placement p{restricted(f_, op, op.out[o]), {}, ir::Reduce::Sum};
            const AxisList lost = ops::is_repeated(op, static_cast<int>(o)) ? AxisList{} : mesh::subtract(used, p.used());
            p.partial = mesh::unite(passed, lost);
            if (!lost.empty()) p.reduce = rule(op).sharding.reduce;
            placed.out[o] = define(op.out[o], p);
        }
        r_.ops.push_back(std::move(placed));
    }

    // A gradient is placed like its parameter and keeps any partial sum; so does a scalar that sums up a step.
    void visit_accumulate(const Op& op) {
        Op placed = op;
        const TensorId target = copies_[op.out[0]][0];
        placed.in = {
            get(op.in[0], at_rest(op.out[0]).dims, place(copies_[op.in[0]][0]).partial, "a gradient stands like its parameter")};
        placed.out = {target};
        r_.tensors[target].placement.partial = place(placed.in[0]).partial;
        r_.ops.push_back(std::move(placed));
    }

    // Terms that are placed equally (dims and partial) are summed as they are; if all do, so does the result. Otherwise each
    // group's sum is brought to the table's placement and those are added: one reduction for dx_q + dx_k + dx_v, none for a
    // residual.
    void visit_add(const Op& op) {
        const Placement rest{restricted(f_, op, op.out[0]), {}, ir::Reduce::Sum};
        std::vector<std::pair<Placement, std::vector<TensorId>>> groups;
        for (TensorId v : op.in) {
            const bool stays = !copies_[v].empty() && passable(v) == place(copies_[v][0]).partial;
            const Placement at = stays ? place(copies_[v][0]) : rest;
            const TensorId term = stays ? copies_[v][0] : get(v, rest.dims, {}, reason(op, v));
            auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == at; });
            if (it == groups.end()) it = groups.insert(groups.end(), {at, {}});
            it->second.push_back(term);
        }
        Op sum = op;
        if (groups.size() == 1) {
            sum.in = groups[0].second;
            sum.out = {define(op.out[0], groups[0].first)};
            r_.ops.push_back(std::move(sum));
            return;
        }
        sum.in.clear();
        for (auto& [at, terms] : groups) {
            if (at == rest) {
                sum.in.insert(sum.in.end(), terms.begin(), terms.end());
                continue;
            }
            TensorId one = terms[0];
            if (terms.size() > 1) {
                one = emit_tensor(op.out[0], f_.tensors[op.out[0]].name + ".sum", at);
                Op part = op;
                part.in = terms;
                part.out = {one};
                part.note = "terms in the same placement are summed first, then reduced once";
                r_.ops.push_back(std::move(part));
            }
            sum.in.push_back(bring_to_rest(op, one, rest));
        }
        sum.out = {define(op.out[0], rest)};
        r_.ops.push_back(std::move(sum));
    }

    // Like get(), for a term that may be a sum made here: looks for the value that `copy` is a copy of.
    TensorId bring_to_rest(const Op& op, TensorId copy, const Placement& rest) {
        const std::string why =
            fmt::format("the other terms of {} are not partial, so this one is reduced before the add", result_name(op));
        for (TensorId v : op.in) {
            if (std::find(copies_[v].begin(), copies_[v].end(), copy) != copies_[v].end()) return get(v, rest.dims, {}, why);
        }
        const std::vector<TensorId> keep = copies_[op.out[0]];
        const TensorId result = reshard(op.out[0], copy, rest.dims, {}, why);
        copies_[op.out[0]] = keep;
        return result;
    }

    const mesh::Mesh& mesh_;
    const ShardingTable& table_;
    const Routine& f_;
    const Routine* reader_;
    const PlacementOfValue& saved_;
    const PlacementOfState& states_;
    Routine r_;
    std::vector<std::vector<Use>> users_;
    std::vector<int> maker_;
    std::vector<std::vector<TensorId>> copies_;
};

// Ports of the global routine that hold unplaced inputs are replaced by those that the Sharder made.
void drop_unplaced_inputs(Routine& r) {
    for (size_t p = 0; p < r.ports.size(); ++p) {
        if (r.port_tensors(static_cast<int>(p)).empty()) {
            for (ir::Tensor& t : r.tensors) t.port -= t.port > static_cast<int>(p);
            r.ports.erase(r.ports.begin() + static_cast<long>(p--));
        }
    }
}

bool generates(const Routine& r) { return r.entry == ir::EntryKind::Prefill || r.entry == ir::EntryKind::Decode; }

}  // namespace

ir::Program shard(ir::Program program, const ShardOptions& options) {
    int64_t kv_heads = 1;
    for (const Routine& r : program.routines) {
        if (const ir::DimId d = r.dim(ir::DimRole::KvHeads); d >= 0) kv_heads = r.dims[d].size;
    }
    const ContextOptions no_context{.whole = true};
    const ShardingTable table(program.mesh, kv_heads, options.sequence_parallel, options.context),
        generation(program.mesh, kv_heads, options.sequence_parallel, no_context),
        whole(program.mesh, kv_heads, false, no_context);
    if (options.context.ring) {
        for (Routine& r : program.routines) {
            const ir::DimId keys = r.dim(ir::DimRole::KvSeq);
            if (keys >= 0 && !generates(r)) r.dims[keys].of = r.dim(ir::DimRole::Seq);
        }
    }
    const auto table_of = [&](const Routine& r) -> const ShardingTable& {
        if (!generates(r)) return table;
        const ir::DimId seq = r.dim(ir::DimRole::Seq);  // takes tp where it divides; one token does not
        return seq >= 0 && r.dims[seq].size % program.mesh.degree(mesh::Axis::tp) != 0 ? whole : generation;
    };
    for (ir::Parameter& p : program.params) {
        Routine dims_only;
        dims_only.dims = p.dims;
        std::vector<ir::DimId> all(p.dims.size());
        for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
        p.placement = table.rest(dims_only, all);
    }

    // Forwards before their backwards, so that saved values' placements are known.
    const std::vector<Routine> global = program.routines;
    std::map<std::string, PlacementOfValue> saved;  // by block
    PlacementOfState states;
    for (size_t i = 0; i < global.size(); ++i) {
        const Routine& f = global[i];
        const Routine* reader = nullptr;
        if (f.kind == ir::RoutineKind::Forward && f.entry == ir::EntryKind::Train) {
            for (const Routine& b : global) {
                if (b.kind == ir::RoutineKind::Backward && b.block == f.block) reader = &b;
            }
        }
        Routine placed = Sharder(program.mesh, table_of(f), f, reader, saved[f.block], states).run();
        drop_unplaced_inputs(placed);
        for (const ir::Tensor& t : placed.tensors) {
            if (t.port < 0) continue;
            const ir::Port& port = placed.ports[t.port];
            if (port.kind == PortKind::Frame && port.access == ir::Access::Write)
                saved[f.block].try_emplace(t.source, SavedForward{t.placement, saved[f.block].size()});
            if (port.kind == PortKind::State && port.access == ir::Access::Accumulate) states[port.state] = t.placement;
        }
        program.routines[i] = std::move(placed);
    }
    return program;
}

}  // namespace lockstep::passes
