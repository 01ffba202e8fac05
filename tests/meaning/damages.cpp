#include "tests/meaning/damages.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "ops/rule.h"

namespace lockstep::meaning_test {
namespace {

using ir::Op;
using ir::Program;
using ir::Routine;
using ir::TensorId;
using Random = std::mt19937_64;

// Whose ops: of the model's blocks, or of units and of the end of a step.
enum class Of { Blocks, Units };
bool is_of(const Routine& r, Of of) {
    const bool computes = ir::is_forward(r.kind) || ir::is_backward(r.kind);
    return of == Of::Blocks ? computes : !computes && r.kind != ir::RoutineKind::Transfer && r.kind != ir::RoutineKind::Snapshot;
}

// A random one of the ops that `wanted` accepts.
struct Place {
    Routine* routine = nullptr;
    size_t op = 0;
    Op& at() const { return routine->ops[op]; }
    std::string text() const { return fmt::format("op {} ({}) of {}", op, at().kind, routine->name); }
};
std::optional<Place> choose(Program& p, Random& random, Of of, const std::function<bool(const Routine&, const Op&)>& wanted) {
    std::vector<Place> all;
    for (Routine& r : p.routines) {
        if (!is_of(r, of)) continue;
        for (size_t i = 0; i < r.ops.size(); ++i) {
            if (wanted(r, r.ops[i])) all.push_back({&r, i});
        }
    }
    if (all.empty()) return std::nullopt;
    return all[random() % all.size()];
}

bool alike(const Routine& r, TensorId a, TensorId b) {
    const ir::Tensor &x = r.tensors[static_cast<size_t>(a)], &y = r.tensors[static_cast<size_t>(b)];
    return a != b && x.dims == y.dims && x.dtype == y.dtype && x.placement == y.placement;
}
bool is_written_before(const Routine& r, size_t op, TensorId t) {
    const ir::Tensor& tensor = r.tensors[static_cast<size_t>(t)];
    if (tensor.port >= 0 && r.ports[static_cast<size_t>(tensor.port)].access == ir::Access::Read) return true;
    return std::any_of(r.ops.begin(), r.ops.begin() + static_cast<long>(op),
                       [&](const Op& o) { return std::find(o.out.begin(), o.out.end(), t) != o.out.end(); });
}
std::vector<TensorId> instead_of(const Routine& r, size_t op, TensorId t) {
    std::vector<TensorId> out;
    for (TensorId other = 0; other < static_cast<TensorId>(r.tensors.size()); ++other) {
        if (alike(r, t, other) && is_written_before(r, op, other)) out.push_back(other);
    }
    return out;
}

// Of decisions about memory and speed, not of meaning.
bool has_meaning(const std::string& key) {
    for (const char* other :
         {"in_place", "recomputed", "any_order", "transport", "gather", "reduce", "level", "beside", "one_document"}) {
        if (key == other) return false;
    }
    return true;
}

// A number (double) or an integer (int64_t) of an op becomes another.
template <class T>
std::string change_value(Program& p, Random& random, Of of, T (*change)(T)) {
    const auto keys_of = [](const Op& op) {
        std::vector<std::string> keys;
        for (const auto& [key, value] : op.attrs) {
            if (has_meaning(key) && std::holds_alternative<T>(value)) keys.push_back(key);
        }
        return keys;
    };
    const auto place = choose(p, random, of, [&](const Routine&, const Op& op) { return !keys_of(op).empty(); });
    if (!place) return "";
    const std::vector<std::string> keys = keys_of(place->at());
    const std::string& key = keys[random() % keys.size()];
    T& value = std::get<T>(place->at().attrs[key]);
    const T before = value;
    value = change(value);
    return fmt::format("{} = {} instead of {} at {}", key, value, before, place->text());
}

std::string change_function(Program& p, Random& random, Of of) {
    const auto place = choose(p, random, of, [](const Routine&, const Op& op) { return op.attrs.contains("fn"); });
    if (!place) return "";
    std::string& fn = std::get<std::string>(place->at().attrs["fn"]);
    const std::string before = fn;
    for (const char* other : {"silu", "recip", "log", "valid"}) {
        if (fn != other && ops::check_op(*place->routine, place->at()).empty()) {
            fn = other;
            if (ops::check_op(*place->routine, place->at()).empty())
                return fmt::format("{} instead of {} at {}", fn, before, place->text());
        }
    }
    fn = before;
    return "";
}

// One operand becomes another tensor that is there, of the same dims, type and placement.
std::string change_operand(Program& p, Random& random, Of of) {
    const auto place = choose(p, random, of, [](const Routine& r, const Op& op) {
        const size_t at = static_cast<size_t>(&op - r.ops.data());
        return std::any_of(op.in.begin(), op.in.end(), [&](TensorId t) { return !instead_of(r, at, t).empty(); });
    });
    if (!place) return "";
    std::vector<size_t> positions;
    for (size_t i = 0; i < place->at().in.size(); ++i) {
        if (!instead_of(*place->routine, place->op, place->at().in[i]).empty()) positions.push_back(i);
    }
    TensorId& operand = place->at().in[positions[random() % positions.size()]];
    const std::vector<TensorId> others = instead_of(*place->routine, place->op, operand);
    const TensorId before = operand;
    operand = others[random() % others.size()];
    const auto name = [&](TensorId t) { return place->routine->tensors[static_cast<size_t>(t)].name; };
    return fmt::format("{} instead of {} at {}", name(operand), name(before), place->text());
}

std::string swap_operands(Program& p, Random& random, Of of) {
    const auto pairs = [](const Routine& r, const Op& op) {
        std::vector<std::pair<size_t, size_t>> out;
        for (size_t a = 0; a < op.in.size(); ++a) {
            for (size_t b = a + 1; b < op.in.size(); ++b) {
                if (alike(r, op.in[a], op.in[b])) out.emplace_back(a, b);
            }
        }
        return out;
    };
    const auto place = choose(p, random, of, [&](const Routine& r, const Op& op) { return !pairs(r, op).empty(); });
    if (!place) return "";
    const auto all = pairs(*place->routine, place->at());
    const auto [a, b] = all[random() % all.size()];
    std::swap(place->at().in[a], place->at().in[b]);
    return fmt::format("operands {} and {} exchanged at {}", a, b, place->text());
}

bool adds(const Routine&, const Op& op) { return !op.accumulate.empty(); }

// The results of two ops that add to gradients of one shape.
std::string swap_sums(Program& p, Random& random, Of of) {
    const auto first = choose(p, random, of, adds);
    if (!first) return "";
    Routine& r = *first->routine;
    const auto sum = [&](Op& op) -> TensorId& { return op.out[static_cast<size_t>(op.accumulate[0])]; };
    std::vector<size_t> others;
    for (size_t i = 0; i < r.ops.size(); ++i) {
        if (i != first->op && adds(r, r.ops[i]) && alike(r, sum(r.ops[i]), sum(first->at()))) others.push_back(i);
    }
    if (others.empty()) return "";
    std::swap(sum(first->at()), sum(r.ops[others[random() % others.size()]]));
    return "the sums exchanged of " + first->text();
}

std::string double_sum(Program& p, Random& random, Of of) {
    const auto place = choose(p, random, of, adds);
    if (!place) return "";
    const Op again = place->at();
    place->routine->ops.insert(place->routine->ops.begin() + static_cast<long>(place->op), again);
    return "doubled: " + place->text();
}

std::string drop_op(Program& p, Random& random, Of of) {
    const auto place = choose(p, random, of, [](const Routine&, const Op&) { return true; });
    if (!place) return "";
    const std::string what = "dropped: " + place->text();
    place->routine->ops.erase(place->routine->ops.begin() + static_cast<long>(place->op));
    return what;
}

// What an op would make of its operand is the operand itself: an op left out.
std::string pass_over(Program& p, Random& random, Of of) {
    const auto passes = [](const Routine& r, const Op& op) {
        return op.out.size() == 1 && op.accumulate.empty() && !op.in.empty() && !op.attrs.empty() && op.kind != "rename" &&
               std::any_of(op.in.begin(), op.in.end(), [&](TensorId t) { return alike(r, t, op.out[0]); });
    };
    const auto place = choose(p, random, of, passes);
    if (!place) return "";
    const std::string what = "left out: " + place->text();
    Op& op = place->at();
    const TensorId from =
        *std::find_if(op.in.begin(), op.in.end(), [&](TensorId t) { return alike(*place->routine, t, op.out[0]); });
    op.kind = "copy", op.kernel = "reference.copy", op.in = {from}, op.attrs.clear(), op.group.clear(), op.workspace_bytes = 0;
    return what;
}

std::string change_collective(Program& p, Random& random, Of of) {
    const auto place = choose(p, random, of, [](const Routine&, const Op& op) {
        return op.kind == "all_reduce" || op.kind == "reduce_scatter" || op.kind == "all_gather" || op.kind == "permute";
    });
    if (!place) return "";
    Op& op = place->at();
    std::string what = "changed: " + place->text();
    if (op.kind == "permute") {
        std::get<int64_t>(op.attrs["by"]) += 1;
    } else if (op.group.size() > 1 && random() % 2 == 0) {
        what += ", over fewer axes";
        op.group.pop_back();
    } else {
        what += ", the other reduction";
        ir::Tensor& t = place->routine->tensors[static_cast<size_t>(op.in[0])];
        if (op.kind == "all_gather") return "";
        t.placement.reduce = t.placement.reduce == ir::Reduce::Sum ? ir::Reduce::Max : ir::Reduce::Sum;
    }
    return what;
}

// Two ports of equal size that a call binds, of one kind.
std::string swap_bindings(Program& p, Random& random) {
    std::vector<std::function<std::string()>> all;
    for (ir::Entry& e : p.entries) {
        for (ir::Call& c : e.calls) {
            const Routine& r = p.routines[static_cast<size_t>(c.routine)];
            for (size_t a = 0; a < r.ports.size(); ++a) {
                for (size_t b = a + 1; b < r.ports.size(); ++b) {
                    if (r.ports[a].kind != r.ports[b].kind || r.ports[a].access != r.ports[b].access ||
                        r.ports[a].bytes != r.ports[b].bytes)
                        continue;
                    all.push_back([&c, &r, a, b] {
                        std::swap(c.bindings[a], c.bindings[b]);
                        return fmt::format("bindings of {} and {} exchanged in a call of {}[{}]", r.ports[a].name,
                                           r.ports[b].name, r.name, c.instance);
                    });
                }
            }
        }
    }
    return all.empty() ? "" : all[random() % all.size()]();
}

// A later chunk reads or writes what is of the first.
std::string change_slice(Program& p, Random& random) {
    std::vector<ir::Binding*> all;
    for (ir::Entry& e : p.entries) {
        for (ir::Call& c : e.calls) {
            const Routine& r = p.routines[static_cast<size_t>(c.routine)];
            if (r.chunks < 2) continue;
            for (size_t k = 0; k < r.ports.size(); ++k) {
                if (r.ports[k].bytes > 0 && c.bindings[k].offset_bytes >= r.ports[k].bytes) all.push_back(&c.bindings[k]);
            }
        }
    }
    if (all.empty()) return "";
    all[random() % all.size()]->offset_bytes = 0;
    return "a slice that begins at 0";
}

// Of the calls of an entry: another place, instance or microbatch.
std::string change_call(Program& p, Random& random, int64_t ir::Call::*what, const char* name) {
    std::vector<ir::Call*> all;
    for (ir::Entry& e : p.entries) {
        for (ir::Call& c : e.calls) all.push_back(&c);
    }
    ir::Call& c = *all[random() % all.size()];
    const ir::Call& other = *all[random() % all.size()];
    if (c.*what == other.*what) return "";
    c.*what = other.*what;
    return fmt::format("another {} of a call of {}", name, p.routines[static_cast<size_t>(c.routine)].name);
}
std::string change_binding(Program& p, Random& random) {
    std::vector<std::pair<const Routine*, ir::Call*>> all;
    for (ir::Entry& e : p.entries) {
        for (ir::Call& c : e.calls) {
            if (!c.bindings.empty()) all.emplace_back(&p.routines[static_cast<size_t>(c.routine)], &c);
        }
    }
    const auto& [r, c] = all[random() % all.size()];
    const size_t port = random() % c->bindings.size();
    int& buffer = c->bindings[port].buffer;
    std::vector<int> others;
    for (int b = 0; b < static_cast<int>(p.buffers.size()); ++b) {
        const ir::Buffer &x = p.buffers[static_cast<size_t>(b)], &y = p.buffers[static_cast<size_t>(buffer)];
        if (b != buffer && x.bytes == y.bytes && x.kind == y.kind) others.push_back(b);
    }
    if (others.empty()) return "";
    const int before = buffer;
    buffer = others[random() % others.size()];
    return fmt::format("{} instead of {} in a call of {}", p.buffers[static_cast<size_t>(buffer)].name,
                       p.buffers[static_cast<size_t>(before)].name, r->name);
}
std::string flip_fresh(Program& p, Random& random) {
    std::vector<std::pair<std::string, ir::Binding*>> all;
    for (ir::Entry& e : p.entries) {
        for (ir::Call& c : e.calls) {
            const Routine& r = p.routines[static_cast<size_t>(c.routine)];
            for (size_t k = 0; k < c.bindings.size(); ++k) {
                if (r.ports[k].access == ir::Access::Accumulate) all.emplace_back(r.name, &c.bindings[k]);
            }
        }
    }
    if (all.empty()) return "";
    const auto& [name, binding] = all[random() % all.size()];
    binding->fresh = !binding->fresh;
    return fmt::format("a sum of {} {} anew", name, binding->fresh ? "begins" : "no longer begins");
}

// What a unit says of its parameters.
std::string change_unit(Program& p, Random& random) {
    if (p.units.empty()) return "";
    ir::Unit& u = p.units[random() % p.units.size()];
    ir::Segment& s = u.segments[random() % u.segments.size()];
    switch (random() % 5) {
        case 0: s.decay = !s.decay; return "decay of a segment of " + u.name;
        case 1:
            if (s.grad_partial.empty()) return "";
            s.grad_partial.pop_back();
            return "a partial axis less of a segment of " + u.name;
        case 2:
            if (s.members.size() < 2) return "";
            std::swap(s.members[0].param, s.members[1].param);
            return "two members exchanged of " + u.name;
        case 3:
            if (s.shards.empty()) return "";
            s.shards.pop_back();
            return "an axis of shards less of a segment of " + u.name;
        default: s.rule += 1; return "another rule of a segment of " + u.name;
    }
}

using OfOps = std::string (*)(Program&, Random&, Of);

}  // namespace

const std::vector<Damage>& all_damages() {
    static const std::vector<Damage> all = [] {
        std::vector<Damage> out;
        for (const Of of : {Of::Blocks, Of::Units}) {
            const std::string prefix = of == Of::Blocks ? "blocks: " : "units: ";
            const auto add = [&](const std::string& name, std::function<std::string(Program&, Random&, Of)> apply) {
                out.push_back({prefix + name, [of, apply](Program& p, Random& r) { return apply(p, r, of); }});
            };
            const auto number = [&](const std::string& name, double (*change)(double)) {
                add(name, [change](Program& p, Random& r, Of o) { return change_value<double>(p, r, o, change); });
            };
            const auto integer = [&](const std::string& name, int64_t (*change)(int64_t)) {
                add(name, [change](Program& p, Random& r, Of o) { return change_value<int64_t>(p, r, o, change); });
            };
            number("a number is a tenth larger", [](double x) { return x == 0 ? 0.1 : 1.1 * x; });
            number("a number has the other sign", [](double x) { return x == 0 ? 1 : -x; });
            integer("an integer is one more", [](int64_t x) { return x + 1; });
            integer("an integer is one less", [](int64_t x) { return x - 1; });
            integer("an integer has the other sign", [](int64_t x) { return x == 0 ? 1 : -x; });
            for (const auto& [name, apply] :
                 std::initializer_list<std::pair<const char*, OfOps>>{{"another function", change_function},
                                                                      {"another operand", change_operand},
                                                                      {"two operands exchanged", swap_operands},
                                                                      {"two sums exchanged", swap_sums},
                                                                      {"a sum doubled", double_sum},
                                                                      {"an op dropped", drop_op},
                                                                      {"an op left out", pass_over},
                                                                      {"another collective", change_collective}})
                add(name, apply);
        }
        out.push_back({"calls: two bindings exchanged", swap_bindings});
        out.push_back({"calls: another buffer", change_binding});
        out.push_back({"calls: another slice", change_slice});
        out.push_back({"calls: another instance",
                       [](Program& p, Random& r) { return change_call(p, r, &ir::Call::instance, "instance"); }});
        out.push_back({"calls: another microbatch",
                       [](Program& p, Random& r) { return change_call(p, r, &ir::Call::microbatch, "microbatch"); }});
        out.push_back({"calls: a sum begins elsewhere", flip_fresh});
        out.push_back({"states: of a unit's segment", change_unit});
        return out;
    }();
    return all;
}

}  // namespace lockstep::meaning_test
