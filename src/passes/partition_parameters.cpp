#include "passes/partition_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/quantized.h"
#include "base/round.h"
#include "ir/sources.h"
#include "ops/builder.h"
#include "passes/quantized_transport.h"
#include "passes/select_kernels.h"
#include "passes/unit_routines.h"
#include "passes/unit_states.h"
#include "passes/weights_amax.h"

namespace lockstep::passes {
namespace {

using ir::AxisList;
using ir::PortKind;
using ir::Routine;
using ir::TensorId;
using mesh::Axis;

// Data sub-axes, innermost first: the innermost is the major one in the flat buffer.
AxisList data_axes_innermost_first(const mesh::Mesh& m) {
    AxisList all = mesh::join(mesh::join(m.whole(Axis::dp_replicate), m.whole(Axis::dp_shard)), m.whole(Axis::cp));
    std::reverse(all.begin(), all.end());
    return all;
}

AxisList prefix_of_size(const mesh::Mesh& m, const AxisList& list, int64_t size) {
    AxisList prefix;
    for (int a : list) {
        if (m.size(prefix) >= size) break;
        prefix.push_back(a);
    }
    ensure(m.size(prefix) == size,
           fmt::format("partition_parameters: a split over {} is no product of the innermost data sub-axes", size));
    return prefix;
}

std::map<std::string, AxisList> gradient_partials(const ir::Program& program) {
    std::map<std::string, AxisList> partial;
    for (const Routine& r : program.routines) {
        for (const ir::Tensor& t : r.tensors) {
            if (t.port < 0 || r.ports[t.port].kind != PortKind::Gradients) continue;
            for (const std::string_view param : ir::sources_of(t)) {
                const auto [it, is_new] = partial.emplace(param, t.placement.partial);
                ensure(is_new || it->second == t.placement.partial,
                       fmt::format("gradients of {} are accumulated with different partial axes", param));
            }
        }
    }
    return partial;
}

// Parameters that are read as one with the parameter before them: nothing is between the two.
std::set<std::string, std::less<>> read_with_the_one_before(const ir::Program& program) {
    std::set<std::string, std::less<>> out;
    for (const Routine& r : program.routines) {
        for (const ir::Tensor& t : r.tensors) {
            if (t.port < 0 || r.ports[t.port].kind != PortKind::Params) continue;
            const std::vector<std::string_view> params = ir::sources_of(t);
            out.insert(params.begin() + 1, params.end());
        }
    }
    return out;
}

// In which type gradients of the unit's parameters add up; nothing: they are not trained.
std::optional<Dtype> type_of_sums(const ir::Program& program, const std::string& unit) {
    for (const Routine& r : program.routines) {
        for (const ir::Tensor& t : r.tensors) {
            const bool is_gradient = t.port >= 0 && r.ports[t.port].kind == PortKind::Gradients;
            if (is_gradient && r.ports[t.port].unit == unit) return t.dtype;
        }
    }
    return std::nullopt;
}

// The data sub-axes that shard a parameter itself, as an expert's: its unit is split only over the other ones.
AxisList data_shards(const mesh::Mesh& m, const ir::Parameter& p) {
    return mesh::subtract(p.placement.used(), m.whole(Axis::tp));
}

// What the parameters of a unit have in common besides their block and type.
ir::Unit with_splits(ir::Unit like, const AxisList& shards, bool keeps_narrow) {
    for (AxisList* split : {&like.weights, &like.secondary, &like.gradients, &like.optimizer})
        *split = mesh::subtract(*split, shards);
    if (is_float8(like.compute)) {  // each entry makes codes of the optimizer's weights
        like.weights = like.optimizer, like.storage = like.master;
        return like;
    }
    // What is quantized for each gather is the master weights.
    const bool only_master = like.weights == like.optimizer && (!keeps_narrow || like.quantized_weights != 0);
    like.storage = only_master ? like.master : like.compute;
    return like;
}

// Elements of a cache line.
int64_t in_a_line(Dtype type) { return kAlignmentBytes / bytes_of(type); }

// Of the block's parameters whose type is the unit's, and which `data_axes` shard.
ir::Unit make_unit(const ir::Program& program, const ir::Block& block, const std::map<std::string, AxisList>& partial,
                   const ir::Unit& like, const AxisList& data_axes, const PartitionOptions& options) {
    const int64_t multiple = std::max(options.pad_elements, in_a_line(like.compute));  // shards, too, begin on cache lines
    const bool meets_quantized = options.outer && options.outer->quantized;
    const bool meets_blocks = meets_quantized && options.outer->are_jobs;
    ir::Unit unit = with_splits(like, data_axes, !partial.empty() && options.keeps_narrow);
    unit.block = block.name;
    unit.mirror = block.instances().empty();  // then only what another pipeline rank owns and this one reads is here
    const auto joined = read_with_the_one_before(program);
    std::map<std::tuple<int, AxisList, bool, AxisList, bool>, ir::Segment> segments;  // a shared parameter is one by itself
    for (const ir::Parameter& p : program.params) {
        if (p.block != block.name || p.dtype != unit.compute || data_shards(program.mesh, p) != data_axes) continue;
        const AxisList shards = p.placement.used(), grad_partial = partial.empty() ? unit.optimizer : partial.at(p.key);
        const int rule = partial.empty() ? 0 : options.optimizer.rule_of(p);
        ir::Segment& s = segments[{rule, grad_partial, !p.decay, shards, p.shared}];
        s.rule = rule;
        s.grad_partial = grad_partial;
        s.shards = shards;
        s.decay = p.decay;
        int64_t begin = s.members.empty() ? 0 : s.members.back().begin + s.members.back().count;
        if (!joined.contains(p.key)) begin = round_up(begin, in_a_line(p.dtype));
        s.members.push_back({p.key, begin, ir::local_elements(program.mesh, p)});
    }
    for (auto& [key, s] : segments) {
        ensure(mesh::is_subset(unit.optimizer, s.grad_partial),
               "partition_parameters: the optimizer's split lies outside a gradient's partial axes");
        s.begin = unit.padded;
        // Blocks of quantized elements begin where segments do, and no two ranks share one.
        const auto block = [&, decays = s.decay](int64_t bits) { return bits == 0 || !decays ? 1 : quantized_block(bits); };
        const mesh::AxisList replicas = unit.quantized_gradients == 0 ? AxisList{} : replicas_of(program.mesh, unit, s);
        // Of a shard, where several ranks have the same one and each adds up a part of it.
        const int64_t parts = std::lcm(program.mesh.size(replicas), meets_quantized ? program.mesh.islands() : 1);
        const int64_t shards_of = parts * std::max({multiple, block(unit.quantized_weights), block(unit.quantized_gradients),
                                                    parts > 1 || meets_blocks ? block(kSharedBits) : 1});
        s.padded = round_up(s.members.back().begin + s.members.back().count, program.mesh.size(unit.optimizer) * shards_of);
        unit.padded += s.padded;
        unit.segments.push_back(std::move(s));
    }
    return unit;
}

// Where a parameter is: its unit, and its elements there.
struct UnitPlace {
    const ir::Unit* unit;
    int64_t begin, end;
};
UnitPlace place_of(const ir::Program& program, std::string_view param) {
    for (const ir::Unit& u : program.units) {
        for (const ir::Segment& s : u.segments) {
            for (const ir::Member& m : s.members) {
                if (m.param == param) return {&u, s.begin + m.begin, s.begin + m.begin + m.count};
            }
        }
    }
    throw InternalError(fmt::format("partition_parameters: no unit holds {}", param));
}

// Of several that are read as one: they follow each other.
UnitPlace place_of(const ir::Program& program, const ir::Tensor& tensor) {
    const std::vector<std::string_view> params = ir::sources_of(tensor);
    UnitPlace out = place_of(program, params[0]);
    for (size_t i = 1; i < params.size(); ++i) {
        const UnitPlace next = place_of(program, params[i]);
        ensure(next.unit == out.unit && next.begin == out.end,
               fmt::format("partition_parameters: {} are read as one and do not follow each other", tensor.source));
        out.end = next.end;
    }
    return out;
}

// The port called `name`, made like `like` if it is new.
int port_like(Routine& r, const std::string& name, const ir::Port& like, const std::string& unit) {
    if (const int at = r.port(name); at >= 0) return at;
    r.ports.push_back({name, like.kind, like.access});
    r.ports.back().unit = unit;
    return static_cast<int>(r.ports.size()) - 1;
}

// Ports of parameters and gradients, one a unit, tensors at their place in the unit's buffer. Of a shared parameter (a tied
// embedding) the first call that adds to its gradient is not the first for the rest of its unit: it has a port of its own.
void bind_to_units(const ir::Program& program, Routine& r) {
    const size_t n_ports = r.ports.size();
    for (size_t p = 0; p < n_ports; ++p) {
        const ir::Port port = r.ports[p];
        if (port.kind != PortKind::Params && port.kind != PortKind::Gradients) continue;
        for (TensorId t : r.port_tensors(static_cast<int>(p))) {
            const auto [unit, begin, end] = place_of(program, r.tensors[t]);
            const bool apart = port.kind == PortKind::Gradients && program.param(ir::sources_of(r.tensors[t])[0])->shared;
            const std::string name = port.name + "." + unit->name + (apart ? ".shared" : "");
            if (r.ports[p].unit.empty()) r.ports[p].name = name, r.ports[p].unit = unit->name;
            r.tensors[t].port = port_like(r, name, port, unit->name);
            r.tensors[t].offset_bytes = begin * bytes_of(r.tensors[t].dtype);
        }
    }
    ops::renumber(r);
}

}  // namespace

ir::Program partition_parameters(ir::Program program, const PartitionOptions& options, const ops::KernelCatalog& catalog) {
    const AxisList data = data_axes_innermost_first(program.mesh);
    const auto partial = gradient_partials(program);
    const bool trains = !partial.empty();  // else parameters are only read: no gradients, no states of an optimizer
    ir::Unit splits;
    splits.weights = prefix_of_size(program.mesh, data, options.weights);
    splits.secondary = options.secondary > 0 ? prefix_of_size(program.mesh, data, options.secondary) : splits.weights;
    splits.gradients = trains ? prefix_of_size(program.mesh, data, options.gradients) : splits.weights;
    splits.optimizer = trains ? prefix_of_size(program.mesh, data, options.states) : splits.weights;
    splits.compute = options.compute;
    splits.master = options.master;
    splits.reduce = options.reduce;
    splits.quantized_weights = options.quantized_weights, splits.quantized_gradients = options.quantized_gradients;
    ir::Unit codes = splits, whole;  // what crosses ranks in float8, and what stays wide
    codes.compute = Dtype::F8E4M3, codes.quantized_weights = 0;
    whole.compute = whole.storage = whole.master = whole.reduce = options.master;
    for (const ir::Block& block : program.blocks) {
        const auto add = [&](const ir::Unit& like, const char* suffix) {
            std::set<AxisList> sharded_over;  // by none first
            for (const ir::Parameter& p : program.params) {
                if (p.block == block.name && p.dtype == like.compute) sharded_over.insert(data_shards(program.mesh, p));
            }
            for (const AxisList& axes : sharded_over) {
                program.units.push_back(make_unit(program, block, partial, like, axes, options));
                program.units.back().name = block.name + suffix + (axes.empty() ? "" : "." + program.mesh.text(axes));
            }
        };
        add(splits, "");
        add(codes, ".f8");
        if (whole.compute != splits.compute) add(whole, ".wide");
    }
    for (Routine& r : program.routines) bind_to_units(program, r);
    place_weights_amax(program);

    for (const ir::Unit& unit : program.units) add_unit_states(program, unit, options, type_of_sums(program, unit.name));
    if (trains) add_step_states(program);

    std::vector<Routine> made;
    for (const ir::Unit& unit : program.units) {
        for (Routine& r : reading_routines(program, unit, options)) made.push_back(std::move(r));
        if (!trains) continue;
        for (Routine& r : training_routines(program, unit, options)) made.push_back(std::move(r));
    }
    if (trains) made.push_back(stats_all(program, options));
    for (Routine& r : made) {
        select_kernels(program, r, catalog);
        program.routines.push_back(std::move(r));
    }
    return program;
}

}  // namespace lockstep::passes
