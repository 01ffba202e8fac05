#include "ops/verify_ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/rule.h"

namespace lockstep::ops {

int64_t blocks_in_sight(int64_t ranks, int64_t rows, int64_t window, bool in_plain_order) {
    if (window == 0 || !in_plain_order) return ranks;
    return std::min(ranks, 1 + (window - 1 + rows - 1) / rows);
}

namespace {

bool is_block(const Op& op) { return op.kind == ir::kAttentionBlock || op.kind == ir::kAttentionBlockBackward; }

// Of a value along the ring.
struct Value {
    int64_t shift = 0;        // it is of the rank this many places before
    int64_t hops = 0;         // a sum over this many blocks; 0: none
    std::set<int64_t> met{};  // the blocks that are in the sum
    bool goes_on = false;     // the sum is in another value now
    std::string identity{};   // equal for a value on all ranks, and for all that adds up to one sum; empty: its name

    bool is_whole() const { return shift == 0 && static_cast<int64_t>(met.size()) == hops; }
};

// Operands of a block from its queries on, and whether they travel: q, k, v, pos, kv_pos, doc, kv_doc.
constexpr bool kTravels[] = {false, true, true, false, true, false, true};

class Follower {
public:
    explicit Follower(const ir::Program& program) : p_(program) {}

    // The parts of one routine.
    std::optional<Violation> run(std::span<const Routine> parts) {
        for (const Routine& r : parts) {
            for (const Op& op : r.ops) {
                if (is_block(op)) rings_.insert(op.group);
            }
        }
        for (const Routine& r : parts) {
            r_ = &r;
            values_of_part_.clear();
            for (const Op& op : r.ops) {
                op_ = &op;
                follow();
                if (found_) return found_;
            }
            op_ = nullptr;
            for (const auto& [t, value] : values_of_part_) left(value, r.tensors[static_cast<size_t>(t)].name);
        }
        for (const auto& [port, value] : values_of_ports_) left(value, port.first);
        return found_;
    }

private:
    using NameOfPort = std::pair<std::string, std::string>;  // port and source

    void fail(const std::string& what) {
        if (found_) return;
        found_ = Violation{Invariant::Ring,
                           op_ ? fmt::format("{}, op {}: {}", r_->name, op_->kind, what) : fmt::format("{}: {}", r_->name, what)};
    }
    const std::string& name(TensorId t) const { return r_->tensors[static_cast<size_t>(t)].name; }
    Value& of(TensorId t) {
        const ir::Tensor& tensor = r_->tensors[static_cast<size_t>(t)];
        if (tensor.port < 0) return values_of_part_[t];
        return values_of_ports_[{r_->ports[static_cast<size_t>(tensor.port)].name, tensor.source}];
    }
    std::string identity(TensorId t) {
        if (const Value& v = of(t); !v.identity.empty()) return v.identity;
        const ir::Tensor& tensor = r_->tensors[static_cast<size_t>(t)];
        return tensor.port < 0 ? tensor.name : r_->ports[static_cast<size_t>(tensor.port)].name + "/" + tensor.source;
    }
    int64_t ranks() const { return p_.mesh.size(op_->group); }

    void follow() {
        if (is_block(*op_)) return block();
        if (ir::is_collective(*op_, mesh::Collective::Permute) && rings_.contains(op_->group)) return permute();
        const auto is_part = [&](TensorId t) { return of(t).hops > 0 && !of(t).is_whole(); };
        if (op_->kind == ir::kAdd && std::any_of(op_->in.begin(), op_->in.end(), is_part)) return add();
        if (!op_->kernel.empty() && rule(op_->kind).sharding.meets && !op_->group.empty())
            return fail("no kernel serves attention over the blocks of a ring");
        for (const TensorId t : op_->in) is_own(t);
        for (const TensorId t : op_->out) of(t) = {};
    }

    // Is it of this rank, and a sum of all blocks, if it is one?
    void is_own(TensorId t) {
        const Value& v = of(t);
        if (v.hops > 0 && static_cast<int64_t>(v.met.size()) < v.hops)
            fail(fmt::format("reads {}, which has {} of {} blocks", name(t), v.met.size(), v.hops));
        else if (v.shift != 0) fail(fmt::format("reads {}, which is of the rank {} places before", name(t), v.shift));
    }

    void permute() {
        for (size_t i = 0; i < op_->in.size(); ++i) {
            Value v = of(op_->in[i]);
            v.identity = identity(op_->in[i]);
            of(op_->in[i]).goes_on = true;
            v.shift = (v.shift + op_->integer("by")) % ranks();
            v.goes_on = false;
            of(op_->out[i]) = v;
        }
    }

    // Of sums of the gradients of one rank's keys.
    void add() {
        Value sum = of(op_->in[0]);
        for (size_t i = 1; i < op_->in.size(); ++i) {
            const Value& v = of(op_->in[i]);
            if (v.hops != sum.hops || v.identity != sum.identity)
                return fail(fmt::format("{} and {} are not parts of one sum", name(op_->in[0]), name(op_->in[i])));
            if (v.shift != sum.shift)
                return fail(fmt::format("{} is of the rank {} places before and {} of the one {} before", name(op_->in[0]),
                                        sum.shift, name(op_->in[i]), v.shift));
            for (const int64_t shift : v.met) {
                if (!sum.met.insert(shift).second) return fail(fmt::format("adds block {} twice", shift));
            }
        }
        for (const TensorId t : op_->in) of(t).goes_on = true;
        sum.goes_on = false;
        of(op_->out[0]) = std::move(sum);
    }

    void block() {
        const int64_t shift = op_->integer("shift"), hops = op_->integer("hops");
        const bool is_forward = op_->kind == ir::kAttentionBlock;
        const auto query = static_cast<size_t>(rule(op_->kind).queries);
        const ir::Tensor& keys = r_->tensors[static_cast<size_t>(op_->in[query + 1])];
        const int64_t rows = r_->dims[static_cast<size_t>(keys.dims[1])].size / ranks();
        if (!op_->group.empty() && hops != blocks_in_sight(ranks(), rows, op_->integer("window"), p_.head_tail == 1))
            return fail(fmt::format("{} blocks are not those that its queries can see", hops));
        const int64_t order = op_->attrs.contains("head_tail") ? op_->integer("head_tail") : 1;
        if (!op_->group.empty() && order != p_.head_tail)
            return fail(
                fmt::format("its tokens are in the order of {} ranks, and the loader's in that of {}", order, p_.head_tail));
        const mesh::AxisList* split = keys.placement.dims.empty() ? nullptr : &keys.placement.dims[1];
        if (split && *split != op_->group) return fail(fmt::format("{} is not split over its ring", keys.name));
        const size_t carried = shift > 0 ? (is_forward ? 2 : 1) : 0, first_carried = op_->in.size() - carried;
        std::string attention = op_->kind;
        for (size_t i = 0; i < first_carried; ++i) {
            const TensorId t = op_->in[i];
            attention += " " + identity(t);
            const bool travels = i >= query && i < query + std::size(kTravels) && kTravels[i - query];
            if (!travels) is_own(t);
            else if (of(t).hops > 0 || of(t).shift != shift)
                fail(fmt::format("{} is of the rank {} places before, not of the one {} before", name(t), of(t).shift, shift));
            if (found_) return;
        }
        for (size_t i = 0; i < op_->out.size(); ++i) {
            const bool is_of_keys = !is_forward && i > 0;
            Value v{
                .shift = is_of_keys ? shift : 0, .hops = hops, .met = {shift}, .identity = fmt::format("{} {}", attention, i)};
            if (i < carried) {
                const Value& before = of(op_->in[first_carried + i]);
                const std::string& so_far = name(op_->in[first_carried + i]);
                if (before.hops != hops || before.identity != v.identity)
                    return fail(fmt::format("{} is of another attention", so_far));
                if (before.met.contains(shift)) return fail(fmt::format("{} has block {} already", so_far, shift));
                v.met.insert(before.met.begin(), before.met.end());
            }
            of(op_->out[i]) = std::move(v);
        }
    }

    // Nothing reads it any more in this routine.
    void left(const Value& v, const std::string& name) {
        if (v.hops > 0 && !v.goes_on && !v.is_whole())
            fail(fmt::format("{} is left with {} of {} blocks, of the rank {} places before", name, v.met.size(), v.hops,
                             v.shift));
    }

    const ir::Program& p_;
    const Routine* r_ = nullptr;
    const Op* op_ = nullptr;
    std::set<ir::AxisList> rings_;
    std::map<NameOfPort, Value> values_of_ports_;
    std::map<TensorId, Value> values_of_part_;
    std::optional<Violation> found_;
};

// Attention of one document whose queries are split takes its masks from the order of tokens, which must be the loader's.
std::optional<Violation> wrong_order(const ir::Program& program) {
    for (const Routine& r : program.routines) {
        for (const Op& op : r.ops) {
            if (is_block(op) || rule(op.kind).queries < 0 || !op.attrs.contains("one_document")) continue;
            const ir::Placement& queries =
                r.tensors[static_cast<size_t>(op.in[static_cast<size_t>(rule(op.kind).queries)])].placement;
            if (queries.dims.empty() || queries.dims[1].empty()) continue;
            const int64_t order = op.attrs.contains("head_tail") ? op.integer("head_tail") : 1;
            if (order != program.head_tail)
                return Violation{Invariant::Ring,
                                 fmt::format("{}, op {}: its tokens are in the order of {} ranks, and the loader's in that of {}",
                                             r.name, op.kind, order, program.head_tail)};
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<Violation> wrong_ring(const ir::Program& program) {
    if (auto found = wrong_order(program)) return found;
    const std::vector<Routine>& all = program.routines;
    const auto concerns = [](const Op& op) { return is_block(op) || (rule(op.kind).sharding.meets && !op.group.empty()); };
    for (size_t first = 0, end = 0; first < all.size(); first = end) {
        end = first + 1;
        while (end < all.size() && all[end].part > all[end - 1].part) ++end;
        const std::span<const Routine> parts(all.data() + first, end - first);
        const bool any = std::any_of(parts.begin(), parts.end(),
                                     [&](const Routine& r) { return std::any_of(r.ops.begin(), r.ops.end(), concerns); });
        if (!any) continue;
        if (auto found = Follower(program).run(parts)) return found;
    }
    return std::nullopt;
}

}  // namespace lockstep::ops
