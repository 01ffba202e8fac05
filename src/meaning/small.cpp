#include "meaning/small.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "ir/kinds.h"
#include "ops/dropout.h"
#include "ops/rule.h"

namespace lockstep::meaning {

using ir::DimRole;
using ir::TensorId;

namespace {

// Their sizes are those of groups of heads, of rows in a list, and of places that ops count.
bool keeps_size(DimRole role) { return role == DimRole::Group || role == DimRole::Qkv || role == DimRole::Other; }
// The least elements with which a mistake shows.
int64_t least(DimRole role) {
    switch (role) {
        case DimRole::Hidden:
        case DimRole::HeadDim: return 4;
        case DimRole::Seq:
        case DimRole::Positions: return 8;
        case DimRole::Vocab: return 5;
        case DimRole::Batch:
        case DimRole::Ffn: return 2;
        default: return 1;
    }
}

int64_t least_factor(int64_t n) {
    for (int64_t f = 2; f * f <= n; ++f) {
        if (n % f == 0) return f;
    }
    return n;
}

// Its elements are groups of another dim's, not names of them.
bool is_of_groups(const ir::Dim& dim) { return dim.of >= 0 && dim.role != DimRole::KvSeq; }

// By name: dims of blocks, which have the role of what they are blocks of.
std::map<std::string, DimRole> blocks_in(const ir::Program& p, const std::vector<int>& routines) {
    std::map<std::string, DimRole> out;
    for (const int i : routines) {
        const ir::Routine& r = p.routines[static_cast<size_t>(i)];
        for (const ir::Op& op : r.ops) {
            if (!ops::rule(op.kind).sharding.of_blocks) continue;
            const auto at = static_cast<size_t>(op.integer("dim"));
            const auto dim = [&](TensorId t) { return r.dims[static_cast<size_t>(r.tensors[static_cast<size_t>(t)].dims[at])]; };
            const ir::Dim a = dim(op.in[0]), b = dim(op.out[0]);
            if (a.role != b.role) out.emplace(a.size < b.size ? a.name : b.name, a.size < b.size ? b.role : a.role);
        }
    }
    return out;
}

// Sub-axes whose number of ranks is also a number of ops: those around which blocks go.
std::set<int> unrolled(const ir::Program& p, const std::vector<int>& routines) {
    std::set<int> out;
    for (const int i : routines) {
        for (const ir::Op& op : p.routines[static_cast<size_t>(i)].ops) {
            const ops::Sharding& s = ops::rule(op.kind).sharding;
            if (s.of_blocks || s.aligned || ir::is_collective(op, mesh::Collective::Permute))
                out.insert(op.group.begin(), op.group.end());
        }
    }
    return out;
}

// Numbers of elements of norms that are ops of their own.
std::set<int64_t> counts_of_norms(const ir::Program& p, const std::vector<int>& routines) {
    std::set<int64_t> out;
    for (const int i : routines) {
        for (const ir::Op& op : p.routines[static_cast<size_t>(i)].ops) {
            if (op.kind == ir::kUnary && op.attrs.contains("n")) out.insert(op.integer("n"));
        }
    }
    return out;
}

// Sub-axes over which the routines communicate.
std::set<int> crossed(const ir::Program& p, const std::vector<int>& routines) {
    std::set<int> out;
    for (const int i : routines) {
        for (const ir::Op& op : p.routines[static_cast<size_t>(i)].ops) out.insert(op.group.begin(), op.group.end());
    }
    return out;
}

mesh::Mesh small_mesh(const ir::Program& p, const std::vector<int>& routines) {
    const std::set<int> whole = unrolled(p, routines), few = crossed(p, routines);
    mesh::Mesh out = p.mesh;
    out.degrees = mesh::kNoAxes;
    for (size_t a = 0; a < out.sub_axes.size(); ++a) {
        mesh::SubAxis& s = out.sub_axes[a];
        const auto i = static_cast<int>(a);
        const bool is_inside = s.axis != mesh::Axis::island && s.axis != mesh::Axis::pp;
        if (!whole.contains(i)) s.size = few.contains(i) && is_inside ? least_factor(s.size) : 1;
        int64_t& degree = out.degrees[static_cast<size_t>(s.axis)];
        s.pre = degree, degree *= s.size;
    }
    return out;
}

}  // namespace

Small::Small(const ir::Program& p, const std::vector<int>& routines)
    : mesh_(small_mesh(p, routines)), blocks_(blocks_in(p, routines)) {
    std::map<DimRole, std::map<int64_t, int64_t>> parts;  // by class and size: what must divide it
    std::set<DimRole> padded;
    const auto note = [&](const ir::Dim& dim, int64_t divisor) {
        const DimRole role = class_of(dim);
        if (keeps_size(role)) return;
        if (dim.valid < dim.size) padded.insert(role);
        int64_t& all = parts[role].emplace(dim.size, 1).first->second;
        all = std::lcm(all, divisor);
    };
    for (const int i : routines) {
        const ir::Routine& r = p.routines[static_cast<size_t>(i)];
        for (const ir::Tensor& t : r.tensors) {
            for (size_t k = 0; k < t.dims.size(); ++k) {
                const ir::Dim& dim = r.dims[static_cast<size_t>(t.dims[k])];
                const int64_t ranks = k < t.placement.dims.size() ? mesh_.size(t.placement.dims[k]) : 1;
                if (!is_of_groups(dim)) {
                    note(dim, ranks);
                    continue;
                }
                int64_t& groups = groups_.emplace(dim.name, 1).first->second;
                groups = std::lcm(groups, ranks);
            }
        }
    }
    // A block has its share of the groups that the whole has, or is in one of them.
    const auto for_each_of_groups = [&](const auto& f) {
        for (const int i : routines) {
            const ir::Routine& r = p.routines[static_cast<size_t>(i)];
            for (const ir::Op& op : r.ops) {
                if (op.kind != ir::kBlock) continue;
                const auto at = static_cast<size_t>(op.integer("dim"));
                const auto dim = [&](TensorId t) -> const ir::Dim& {
                    return r.dims[static_cast<size_t>(r.tensors[static_cast<size_t>(t)].dims[at])];
                };
                if (is_of_groups(dim(op.in[0]))) f(dim(op.in[0]), dim(op.out[0]));
            }
        }
    };
    for_each_of_groups([&](const ir::Dim& whole, const ir::Dim& block) {
        int64_t& groups = groups_.at(whole.name);
        groups = std::lcm(groups, whole.size / block.size * groups_.at(block.name));
    });
    for_each_of_groups([&](const ir::Dim& whole, const ir::Dim& block) {
        groups_.at(block.name) = groups_.at(whole.name) * block.size / whole.size;
    });
    for (const int i : routines) {
        const ir::Routine& r = p.routines[static_cast<size_t>(i)];
        for (const ir::Dim& dim : r.dims) {
            const auto groups = groups_.find(dim.name);
            if (is_of_groups(dim) && groups != groups_.end()) note(r.dims[static_cast<size_t>(dim.of)], groups->second);
        }
    }
    for (const ir::Parameter& x : p.params) {
        for (size_t k = 0; k < x.dims.size(); ++k)
            note(x.dims[k], k < x.placement.dims.size() ? mesh_.size(x.placement.dims[k]) : 1);
    }
    // Where the number of elements of a norm could be either, both stay whole.
    const auto longest = [&](DimRole role) { return parts.contains(role) ? parts.at(role).rbegin()->first : -1; };
    const bool is_ambiguous = longest(DimRole::Hidden) == longest(DimRole::HeadDim);
    const std::set<int64_t> counted = counts_of_norms(p, routines);
    for (const auto& of_class : parts) {
        const DimRole role = of_class.first;
        const std::map<int64_t, int64_t>& sizes = of_class.second;
        Class c;
        for (const auto& [size, divisor] : sizes) c.whole = std::max(c.whole, size);
        c.is_padded = padded.contains(role);
        const int64_t chunks = role == DimRole::Seq && p.head_tail > 1 ? 2 * p.head_tail : 1;
        const auto fits = [&](int64_t n) {
            if (n % chunks != 0) return false;
            return std::all_of(sizes.begin(), sizes.end(), [&](const auto& part) {
                const auto& [size, divisor] = part;
                return size * n % c.whole == 0 && size * n / c.whole % divisor == 0 && (role != DimRole::HeadDim || n % 2 == 0);
            });
        };
        const bool is_of_norm = role == DimRole::Hidden || role == DimRole::HeadDim;
        c.small = is_of_norm && is_ambiguous ? c.whole : std::min(least(role), c.whole);
        c.is_counted = is_of_norm && counted.contains(c.whole);
        while (c.small < c.whole && !fits(c.small)) ++c.small;
        classes_[role] = c;
    }
}

// Dims of one class get longer and shorter together.
DimRole Small::class_of(const ir::Dim& dim) const {
    const auto block = blocks_.find(dim.name);
    const DimRole role = block == blocks_.end() ? dim.role : block->second;
    return role == DimRole::KvSeq ? DimRole::Seq : role;
}

int64_t Small::stride(DimRole role) const {
    const auto it = classes_.find(role);
    return it == classes_.end() ? 1 : it->second.whole / it->second.small;
}

ir::Dim Small::of(ir::Dim dim) const {
    const auto it = classes_.find(class_of(dim));
    if (it == classes_.end()) return dim;
    dim.size = dim.size * it->second.small / it->second.whole;
    dim.valid = dim.size - (it->second.is_padded ? 1 : 0);
    return dim;
}

ir::Dim Small::plain(ir::Dim dim) const {
    const auto it = classes_.find(class_of(dim));
    if (it != classes_.end()) dim.size = it->second.small - (it->second.is_padded ? 1 : 0);
    dim.valid = dim.size;
    return dim;
}

namespace {

// Each result that adds to a port becomes a temporary, which an op of its own adds.
void add_apart(ir::Routine& r) {
    std::vector<ir::Op> out;
    for (ir::Op& op : r.ops) {
        std::vector<ir::Op> sums;
        if (!ops::rule(op.kind).accumulates) {
            for (const int position : std::exchange(op.accumulate, {})) {
                TensorId& result = op.out[static_cast<size_t>(position)];
                ir::Tensor apart = r.tensors[static_cast<size_t>(result)];
                apart.name += ".apart", apart.port = -1, apart.source.clear();
                ir::Op sum;
                sum.kind = "accumulate", sum.out = {result}, sum.accumulate = {0};
                result = static_cast<TensorId>(r.tensors.size());
                sum.in = {result};
                r.tensors.push_back(std::move(apart));
                sums.push_back(std::move(sum));
            }
        }
        out.push_back(std::move(op));
        std::move(sums.begin(), sums.end(), std::back_inserter(out));
    }
    r.ops = std::move(out);
}

// Floats become float64, and a tensor that has no placement is whole on every rank.
void widen(ir::Routine& r) {
    for (ir::Tensor& t : r.tensors) {
        if (!is_integer(t.dtype)) t.dtype = Dtype::F64;
        t.placement.dims.resize(t.dims.size());
    }
    for (ir::Op& op : r.ops) {
        op.attrs.erase("in_place");  // every tensor has bytes of its own
        // Of so few elements a usual share would drop none.
        if (ops::has_dropout(op)) op.attrs["dropout"] = 0.3 + 0.4 * op.number("dropout");
    }
    add_apart(r);
}

}  // namespace

// An expanded norm has its number of elements in the attributes of its ops: n, the mean's 1 / n, and -1 / 2n of the derivative
// of 1 / rms.
void Small::shorten_norm(ir::Op& op) const {
    for (const DimRole role : {DimRole::Hidden, DimRole::HeadDim}) {
        const auto it = classes_.find(role);
        if (it == classes_.end() || !it->second.is_counted) continue;
        const auto& [whole, small, padded, counted] = it->second;
        if (op.kind == ir::kUnary && op.attrs.contains("n") && op.integer("n") == whole) {
            op.attrs["n"] = small;
            return;
        }
        if (op.kind != "scale") continue;
        const double times = op.number("c") * static_cast<double>(whole);
        if (std::abs(times - 1) < 1e-12 || std::abs(times + 0.5) < 1e-12) {
            op.attrs["c"] = times / static_cast<double>(small);
            return;
        }
    }
}

ir::Routine Small::of(const ir::Routine& routine) const {
    ir::Routine r = routine;
    for (ir::Dim& d : r.dims) d = of(d);
    for (ir::Dim& d : r.dims) {
        if (!is_of_groups(d)) continue;
        const auto groups = groups_.find(d.name);
        d.size = d.valid = groups == groups_.end() ? 1 : groups->second;
        d.each = r.dims[static_cast<size_t>(d.of)].size / d.size;
    }
    for (ir::Op& op : r.ops) shorten_norm(op);
    widen(r);
    return r;
}

ir::Routine Small::plain(const ir::Routine& routine) const {
    ir::Routine r = routine;
    for (ir::Dim& d : r.dims) d = plain(d);
    widen(r);
    return r;
}

}  // namespace lockstep::meaning
