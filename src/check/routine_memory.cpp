#include "check/routine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/round.h"
#include "check/layout.h"
#include "ir/timeline.h"
#include "ops/rule.h"

namespace lockstep::check {
namespace {

using ir::Access;
using ir::Op;
using ir::TensorId;

// Whose value is in which bytes of the scratch, or of a port.
class Contents {
public:
    void set(Bytes range, int value) {
        if (range.begin >= range.end) return;
        cut(range.begin);
        cut(range.end);
        held_.erase(held_.lower_bound(range.begin), held_.lower_bound(range.end));
        held_[range.begin] = {range.end, value};
    }
    // The first value in the range that is another one; nothing: all bytes hold `value`.
    std::optional<int> other_than(int value, Bytes range) const {
        auto it = held_.upper_bound(range.begin);
        if (it != held_.begin() && std::prev(it)->second.end > range.begin) --it;
        for (int64_t at = range.begin; at < range.end; at = it->second.end, ++it) {
            if (it == held_.end() || it->first > at) return kNothing;
            if (it->second.value != value) return it->second.value;
        }
        return std::nullopt;
    }
    // Does any byte of the range hold a value?
    bool holds_some(Bytes range) const {
        const auto it = held_.lower_bound(range.end);
        return it != held_.begin() && std::prev(it)->second.end > range.begin;
    }
    static constexpr int kNothing = -1;

private:
    struct Held {
        int64_t end;
        int value;
    };
    void cut(int64_t at) {
        auto it = held_.lower_bound(at);
        if (it == held_.begin() || std::prev(it)->second.end <= at) return;
        Held& left = std::prev(it)->second;
        held_[at] = left;
        left.end = at;
    }
    std::map<int64_t, Held> held_;  // by begin; no two overlap
};

struct Region {
    int space = 0;  // a port's index, or that after the last port: the scratch
    Bytes bytes;
    bool operator==(const Region&) const = default;
    bool overlaps(const Region& o) const { return space == o.space && bytes.begin < o.bytes.end && o.bytes.begin < bytes.end; }
};

class RoutineMemory {
public:
    RoutineMemory(const ir::Program& program, const ir::Routine& routine)
        : p_(program), r_(routine), scratch_(static_cast<int>(routine.ports.size())), contents_(routine.ports.size() + 1) {}

    std::string run() {
        wrong_ = wrong_layout(p_, r_);
        for (size_t t = 0; t < r_.tensors.size() && wrong_.empty(); ++t) locate(static_cast<TensorId>(t));
        if (!wrong_.empty()) return wrong_;
        arrive();
        for (op_ = 0; op_ < r_.ops.size() && wrong_.empty(); ++op_) run(r_.ops[op_]);
        if (wrong_.empty()) leave();
        return wrong_;
    }

private:
    const ir::Tensor& tensor(TensorId t) const { return r_.tensors[static_cast<size_t>(t)]; }
    const std::string& name(TensorId t) const { return tensor(t).name; }
    const Region& place(TensorId t) const { return places_[static_cast<size_t>(t)]; }
    int& value(TensorId t) { return values_[static_cast<size_t>(t)]; }
    Contents& contents(const Region& at) { return contents_[static_cast<size_t>(at.space)]; }

    void fail(const std::string& what) {
        if (wrong_.empty()) wrong_ = fmt::format("{}: {}", r_.name, what);
    }
    void fail_op(const std::string& what) {
        if (wrong_.empty()) wrong_ = fmt::format("{}, op {} {}: {}", r_.name, op_, r_.ops[op_].kind, what);
    }
    // A value is called as the tensor under whose name it was written; workspaces are no tensors.
    std::string text_of(int value) const {
        if (value == Contents::kNothing) return "nothing";
        const Written& w = written_[static_cast<size_t>(value)];
        return w.tensor >= 0 ? name(w.tensor) : fmt::format("the workspace of op {} {}", w.op, r_.ops[w.op].kind);
    }

    // Where the executor finds the tensor: in the bytes of the first in the chain of views that is none.
    void locate(TensorId t) {
        TensorId root = t;
        for (size_t steps = 0; tensor(root).view_of >= 0; ++steps) {
            root = tensor(root).view_of;
            if (steps > r_.tensors.size()) return fail(fmt::format("{} is a view of itself", name(t)));
        }
        const int64_t begin = tensor(root).offset_bytes, bytes = ir::local_bytes(p_.mesh, r_, tensor(t));
        const int port = tensor(root).port;
        if (!is_inside(begin, bytes, port < 0 ? r_.scratch_bytes : r_.ports[static_cast<size_t>(port)].bytes))
            return fail(fmt::format("{} lies outside the {}", name(t), port < 0 ? "scratch" : "port"));
        if (begin % ::lockstep::bytes_of(tensor(t).dtype) != 0)
            return fail(fmt::format("{} begins between two elements, at {}", name(t), begin));
        places_.push_back({port < 0 ? scratch_ : port, {begin, begin + bytes}});
    }

    // Each write makes a value of its own.
    int written(TensorId t) {
        written_.push_back({t, op_});
        return static_cast<int>(written_.size()) - 1;
    }

    void arrive() {
        values_.assign(r_.tensors.size(), Contents::kNothing);
        for (size_t i = 0; i < r_.tensors.size(); ++i) {
            const auto t = static_cast<TensorId>(i);
            const int port = tensor(t).port;
            if (port < 0 || r_.ports[static_cast<size_t>(port)].access == Access::Write) continue;
            value(t) = written(t);
            for (const Bytes& b : arriving_bytes(p_, r_, tensor(t))) contents(place(t)).set(b, value(t));
        }
        arrived_ = written_.size();
    }

    void leave() {
        for (size_t i = 0; i < r_.tensors.size(); ++i) {
            const auto t = static_cast<TensorId>(i);
            const int port = tensor(t).port;
            if (port < 0 || r_.ports[static_cast<size_t>(port)].access == Access::Read) continue;
            if (const auto other = contents(place(t)).other_than(value(t), place(t).bytes))
                return fail(fmt::format("{} of port {} holds {} in the end", name(t), r_.ports[static_cast<size_t>(port)].name,
                                        text_of(*other)));
        }
    }
    // A new name for the operand's bytes: no kernel runs, or one that finds both in one place and does nothing.
    bool only_names(const Op& op) const { return ops::rule(op.kind).memory.view && place(op.in[0]) == place(op.out[0]); }

    void run(const Op& op) {
        const bool is_skipped = ir::is_view(r_, op);
        if (is_skipped && place(op.in[0]) != place(op.out[0])) {
            return fail_op(fmt::format("{} is a view of {}, which is not placed where its operand {} is", name(op.out[0]),
                                       name(tensor(op.out[0]).view_of), name(op.in[0])));
        }
        extents(op);
        for (TensorId t : op.in) {
            if (wrong_.empty()) read(op, t);
        }
        if (wrong_.empty() && only_names(op)) {
            value(op.out[0]) = value(op.in[0]);
            return;
        }
        adds(op);
        if (op.workspace_bytes != 0) workspace(op);
        for (size_t i = 0; i < op.out.size() && wrong_.empty(); ++i) apart(op, i);
        must_rewrite(op);
        for (size_t i = 0; i < op.out.size() && wrong_.empty(); ++i) write(op, op.out[i]);
    }

    void read(const Op& op, TensorId t) {
        if (ops::rule(op.kind).step_end.clears) return;  // it only writes, between what is there
        if (may_be_new(value(t)))
            return fail_op(fmt::format("reads {} before it is added to, when it may hold nothing", name(t)));
        holds(t, "reads");
    }
    // A sum to which this call may be the first to add.
    bool may_be_new(int value) const {
        if (value < 0 || value >= static_cast<int>(arrived_)) return false;
        const int port = tensor(written_[static_cast<size_t>(value)].tensor).port;
        return r_.ports[static_cast<size_t>(port)].access == Access::Accumulate;
    }
    void holds(TensorId t, const char* does) {
        if (const auto other = contents(place(t)).other_than(value(t), place(t).bytes))
            fail_op(fmt::format("{} {}, whose bytes hold {}", does, name(t), text_of(*other)));
    }

    // The executor asks the binding of the first sum's port whether an op overwrites,
    // where nothing was added to that sum before.
    void adds(const Op& op) {
        for (int position : op.accumulate) {
            if (position < 0 || position >= static_cast<int>(op.out.size())) return fail_op("adds to a result that it lacks");
            const TensorId t = op.out[static_cast<size_t>(position)], first = op.out[static_cast<size_t>(op.accumulate[0])];
            if (tensor(t).port != tensor(first).port || may_be_new(value(t)) != may_be_new(value(first)))
                return fail_op(fmt::format("adds to {} and {}: one of them may be new and the other not", name(first), name(t)));
            holds(t, "adds to");
        }
    }

    void workspace(const Op& op) {
        const Region at = {scratch_, {op.workspace_offset_bytes, op.workspace_offset_bytes + op.workspace_bytes}};
        if (!is_inside(op.workspace_offset_bytes, op.workspace_bytes, r_.scratch_bytes))
            return fail_op("its workspace lies outside the scratch");
        if (op.workspace_offset_bytes % kAlignmentBytes != 0) return fail_op("its workspace is not aligned");
        for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
            for (TensorId t : *list) {
                if (at.overlaps(place(t))) return fail_op(fmt::format("its workspace lies over {}", name(t)));
            }
        }
        contents(at).set(at.bytes, written(-1));
    }

    // A result overlaps no other result, and no operand but one that the kernel may overwrite.
    void apart(const Op& op, size_t i) {
        const Region& at = place(op.out[i]);
        for (size_t k = 0; k < i; ++k) {
            if (at.overlaps(place(op.out[k])))
                return fail_op(fmt::format("its results {} and {} overlap", name(op.out[k]), name(op.out[i])));
        }
        for (size_t k = 0; k < op.in.size(); ++k) {
            if (!at.overlaps(place(op.in[k])) || (at == place(op.in[k]) && may_rewrite(op, i, k))) continue;
            return fail_op(fmt::format("its result {} lies over its operand {}", name(op.out[i]), name(op.in[k])));
        }
    }
    bool may_rewrite(const Op& op, size_t result, size_t operand) const {
        const ops::OpRule& rule = ops::rule(op.kind);
        if (result == 0 && static_cast<int>(operand) == rule.memory.in_place && op.attrs.contains("in_place")) return true;
        const bool grouped = rule.collective && result == operand;
        const std::vector<ops::Rewrite> rewrites = ops::rewrites_of(op);
        return std::any_of(rewrites.begin(), rewrites.end(), [&](const ops::Rewrite& w) {
            return grouped || (w.result == static_cast<int>(result) && w.operand == static_cast<int>(operand));
        });
    }
    void must_rewrite(const Op& op) {
        for (const ops::Rewrite& w : ops::rewrites_of(op)) {
            if (!w.must || w.result >= static_cast<int>(op.out.size()) || w.operand >= static_cast<int>(op.in.size())) continue;
            const TensorId in = op.in[static_cast<size_t>(w.operand)], out = op.out[static_cast<size_t>(w.result)];
            if (place(in) != place(out))
                return fail_op(fmt::format("its kernel reads {} where it writes {}, which is elsewhere", name(in), name(out)));
        }
    }

    void write(const Op& op, TensorId t) {
        const Region& at = place(t);
        if (at.space != scratch_ && r_.ports[static_cast<size_t>(at.space)].access == Access::Read)
            return fail_op(fmt::format("writes {} into port {}, which it may only read", name(t),
                                       r_.ports[static_cast<size_t>(at.space)].name));
        if (!ops::rule(op.kind).step_end.clears) {
            value(t) = written(t);
            return contents(at).set(at.bytes, value(t));
        }
        const int64_t size = ::lockstep::bytes_of(tensor(t).dtype);
        const std::vector<int64_t>& ranges = std::get<std::vector<int64_t>>(op.attrs.at("ranges"));
        for (size_t i = 0; i + 1 < ranges.size(); i += 2) {
            const Bytes range = {at.bytes.begin + ranges[i] * size, at.bytes.begin + ranges[i + 1] * size};
            if (range.begin < range.end && contents(at).holds_some(range))
                return fail_op(fmt::format("clears elements {} to {} of {}, but some of them are no padding", ranges[i],
                                           ranges[i + 1], name(t)));
            contents(at).set(range, value(t));
        }
    }

    // Ops of states run over the elements of their first operand, or over ranges that an attribute names.
    void extents(const Op& op) {
        const auto elements = [&](TensorId t) { return ir::local_elements(p_.mesh, r_, tensor(t)); };
        const ops::OpRule& rule = ops::rule(op.kind);
        const auto even = [&](TensorId t) {
            if (elements(t) != elements(op.in[0]))
                fail_op(fmt::format("runs over {}, and {} has another number of elements", name(op.in[0]), name(t)));
        };
        if (rule.step_end.obeys_control) {
            const long scalars = op.attrs.contains("seed") ? 2 : 1;  // control, and before it the number of steps
            std::for_each(op.in.begin(), op.in.end() - scalars, even);
            std::for_each(op.out.begin(), op.out.end(), even);
        }
        if (rule.copies || rule.accumulates) even(op.out[0]);
        if (rule.step_end.clears) within(op, std::get<std::vector<int64_t>>(op.attrs.at("ranges")), elements(op.out[0]));
        if (op.kind == ir::kPack || op.kind == ir::kUnpack) {
            const std::vector<TensorId>& parts = op.kind == ir::kPack ? op.in : op.out;
            std::vector<int64_t> ranges;
            for (size_t i = 0; i < parts.size(); ++i) {
                const int64_t begin = std::get<std::vector<int64_t>>(op.attrs.at("begins"))[i];
                ranges.insert(ranges.end(), {begin, begin + elements(parts[i])});
            }
            within(op, ranges, elements(op.kind == ir::kPack ? op.out[0] : op.in[0]));
        }
    }
    // Pairs [begin, end) that ascend.
    void within(const Op& op, const std::vector<int64_t>& ranges, int64_t elements) {
        const bool ascend = std::is_sorted(ranges.begin(), ranges.end()) && ranges.size() % 2 == 0;
        if (!ascend || (!ranges.empty() && (ranges.front() < 0 || ranges.back() > elements)))
            fail_op(fmt::format("its ranges do not ascend inside the {} elements of {}", elements,
                                name(op.kind == ir::kUnpack ? op.in[0] : op.out[0])));
    }

    struct Written {
        TensorId tensor;  // -1: a workspace
        size_t op;
    };
    const ir::Program& p_;
    const ir::Routine& r_;
    const int scratch_;
    std::vector<Contents> contents_;  // of ports, and of the scratch
    std::vector<Region> places_;      // by tensor
    std::vector<Written> written_;    // by value
    std::vector<int> values_;         // by tensor: the value that its name stands for
    size_t arrived_ = 0, op_ = 0;     // values that came through ports; the op that runs
    std::string wrong_;
};

}  // namespace

std::string wrong_routine_memory(const ir::Program& program, const ir::Routine& routine) {
    return RoutineMemory(program, routine).run();
}

}  // namespace lockstep::check
