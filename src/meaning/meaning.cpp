#include "meaning/meaning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/parallel.h"
#include "compile/compile.h"
#include "meaning/inputs.h"
#include "meaning/numbers.h"
#include "meaning/trial.h"

namespace lockstep::meaning {
namespace {

using ir::EntryKind;
using ir::PortRole;
using ir::StateRole;

using Calls = std::vector<const ir::Call*>;

// Of a block, or of what counts targets and losses for all of them (block "").
bool is_tried(const ir::Routine& r) {
    if (r.entry != EntryKind::Train && r.entry != EntryKind::Eval) return false;
    const bool counts = r.kind == ir::RoutineKind::Begin || (r.kind == ir::RoutineKind::Stats && r.entry == EntryKind::Eval);
    return ir::is_forward(r.kind) || ir::is_backward(r.kind) || (counts && r.block.empty() && r.unit.empty());
}

// The calls of a block instance for one microbatch, and what tells them from those of another: routines, slices, and which calls
// share buffers.
struct Way {
    ir::EntryKind entry = EntryKind::Train;
    int64_t instance = 0, microbatch = 0;
    Calls calls;
    std::vector<int64_t> signature;
};

// A block as a program runs it.
struct Subject {
    const ir::Program* program;
    size_t rank;  // the first that runs it
    std::string block;
    std::vector<int> routines;
    std::vector<Way> ways;  // one of each
};

std::vector<int64_t> signature_of(const ir::Program& p, const std::vector<int>& numbers, const Calls& calls) {
    std::vector<int64_t> out;
    std::map<int, int64_t> order;  // of buffers
    for (const ir::Call* c : calls) {
        const ir::Routine& r = p.routines[static_cast<size_t>(c->routine)];
        out.push_back(numbers[static_cast<size_t>(c->routine)]);
        for (size_t k = 0; k < r.ports.size(); ++k) {
            const ir::Binding& b = c->bindings[k];
            if (r.ports[k].kind == ir::PortKind::Value || r.ports[k].kind == ir::PortKind::Frame)
                out.push_back(order.emplace(b.buffer, static_cast<int64_t>(order.size())).first->second);
            out.push_back(b.offset_bytes * 2 + (b.fresh ? 1 : 0));
        }
    }
    return out;
}

std::vector<Subject> subjects_of(const ir::Program& p, size_t rank) {
    std::map<std::string_view, Subject> all;
    std::vector<int> numbers;  // of routines in their block
    for (size_t i = 0; i < p.routines.size(); ++i) {
        const ir::Routine& r = p.routines[i];
        numbers.push_back(-1);
        if (!is_tried(r)) continue;
        Subject& s = all.try_emplace(r.block, Subject{&p, rank, r.block, {}, {}}).first->second;
        numbers.back() = static_cast<int>(s.routines.size());
        s.routines.push_back(static_cast<int>(i));
    }
    for (const ir::Entry& e : p.entries) {
        std::map<std::tuple<std::string_view, int64_t, int64_t>, Calls> calls;
        for (const ir::Call& c : e.calls) {
            if (numbers[static_cast<size_t>(c.routine)] >= 0)
                calls[{p.routines[static_cast<size_t>(c.routine)].block, c.instance, c.microbatch}].push_back(&c);
        }
        std::map<std::string_view, std::set<std::vector<int64_t>>> known;
        for (auto& [at, list] : calls) {
            const auto& [block, instance, microbatch] = at;
            std::vector<int64_t> signature = signature_of(p, numbers, list);
            if (known[block].insert(signature).second)
                all.at(block).ways.push_back({e.kind, instance, microbatch, std::move(list), std::move(signature)});
        }
    }
    std::vector<Subject> out;
    for (auto& [block, s] : all) out.push_back(std::move(s));
    return out;
}

// Have both routines the same meaning, whatever their programs number otherwise?
bool same(const ir::Program& p, const ir::Routine& a, const ir::Program& q, const ir::Routine& b) {
    const auto same_port = [&](const ir::Port& x, const ir::Port& y) {
        const auto role = [](const ir::Program& of, const ir::Port& port) {
            return port.state < 0 ? std::optional<StateRole>() : of.state_of(port).role;
        };
        return x.kind == y.kind && x.access == y.access && x.role == y.role && x.bytes == y.bytes && role(p, x) == role(q, y);
    };
    return a.kind == b.kind && a.entry == b.entry && a.chunks == b.chunks && a.dims == b.dims && a.tensors == b.tensors &&
           a.ops == b.ops && std::equal(a.ports.begin(), a.ports.end(), b.ports.begin(), b.ports.end(), same_port);
}

bool same(const Subject& a, const Subject& b) {
    const ir::Program &p = *a.program, &q = *b.program;
    if (a.block != b.block || a.routines.size() != b.routines.size() || p.mesh != q.mesh || p.head_tail != q.head_tail)
        return false;
    for (size_t i = 0; i < a.routines.size(); ++i) {
        if (!same(p, p.routines[static_cast<size_t>(a.routines[i])], q, q.routines[static_cast<size_t>(b.routines[i])]))
            return false;
    }
    const auto units_of = [](const Subject& s) {
        std::vector<ir::Unit> units = s.program->units;
        std::erase_if(units, [&](const ir::Unit& u) { return u.block != s.block; });
        return units;
    };
    const auto params_of = [](const Subject& s) {
        std::vector<ir::Parameter> params = s.program->params;
        std::erase_if(params, [&](const ir::Parameter& x) { return x.block != s.block; });
        return params;
    };
    return units_of(a) == units_of(b) && params_of(a) == params_of(b);
}

// The largest difference in units of the larger of the two.
double difference(const Array& a, const Array& b) {
    double most = 0, scale = 0;
    for (size_t i = 0; i < a.values.size(); ++i) {
        const double d = std::abs(a.values[i] - b.values[i]);
        if (!(d <= most)) most = d;  // NaN, too
        scale = std::max({scale, std::abs(a.values[i]), std::abs(b.values[i])});
    }
    return most == 0 ? 0 : most / scale;
}

double dot(const Array& a, const Array& b) {
    double sum = 0;
    for (size_t i = 0; i < a.values.size(); ++i) sum += a.values[i] * b.values[i];
    return sum;
}
double norm(const Array& a) { return std::sqrt(dot(a, a)); }

// Relative differences that rounding and finite differences leave; the latter of the terms of the objective, too.
constexpr double kForward = 1e-9, kBackward = 1e-6, kRounding = 1e-10;

// One block of one program.
class Proof {
public:
    Proof(const ir::Program& p, const ir::Routine& model, const std::vector<int>& routines)
        : p_(p), small_(p, routines), model_(model), trains_(model, small_, true), runner_(p, small_) {
        draw(routines);
    }

    std::string of(const Way& way) {
        const bool trains = way.entry == EntryKind::Train;
        if (!trains && !evaluates_) evaluates_.emplace(model_, small_, false);
        ModelBlock& block = trains ? trains_ : *evaluates_;
        Trial trial;
        trial.given = given_;
        trial.scalars = {{StateRole::InverseCount, 0.37}, {StateRole::LossSeed, 0.59}};
        const Array y = block.run(given_, way.instance);
        if (!block.ends_in_logits()) trial.dy = drawn("dy", y.sizes, 1);
        if (std::string wrong = runner_.run(way.calls, trial); !wrong.empty()) return wrong;
        if (std::string wrong = forward(trial, block, y); !wrong.empty()) return wrong;
        return trains ? backward(trial, way.instance) : "";
    }

private:
    void draw(const std::vector<int>& routines) {
        const ir::Routine& r = trains_.routine();
        InputOptions o;
        int64_t batch = 1, seq = 1;
        for (const ir::Dim& d : r.dims) {
            if (d.role == ir::DimRole::Batch) batch = d.size;
            if (d.role == ir::DimRole::Seq) seq = d.size;
            if (d.role == ir::DimRole::Vocab) o.vocab = d.size;
            if (d.role == ir::DimRole::Positions) o.positions = d.size;
        }
        for (const int i : routines) {
            for (const ir::Op& op : p_.routines[static_cast<size_t>(i)].ops) {
                if (op.attrs.contains("one_document")) o.one_document = true;
            }
        }
        for (const ir::Op& op : r.ops) {
            if (const auto w = op.attrs.find("window"); w != op.attrs.end()) o.window = std::get<int64_t>(w->second);
        }
        o.head_tail = p_.head_tail, o.stride = small_.stride(ir::DimRole::Seq);
        given_.inputs = inputs_of(batch, seq, o);
        for (const ir::Tensor& t : r.tensors) {
            if (t.port < 0) continue;
            const ir::Port& port = r.ports[static_cast<size_t>(t.port)];
            const std::vector<int64_t> sizes = sizes_of(r, t);
            // A stream so small that the epsilon of a norm counts.
            if (port.kind == ir::PortKind::Params) given_.params[t.source] = drawn(t.source, sizes, 0.3);
            if (port.role == PortRole::X) given_.inputs[PortRole::X] = drawn("x", sizes, 0.05);
        }
    }

    std::string forward(const Trial& trial, const ModelBlock& block, const Array& y) {
        if (block.ends_in_logits()) {
            const ir::StateId state = p_.state(StateRole::LossSum);
            double sum = 0;
            if (std::string wrong = runner_.sum(trial, state, sum); !wrong.empty()) return wrong;
            if (!trial.begun_states.contains(state)) sum -= Trial::kBefore;
            const double loss = loss_of(y, given_.inputs.at(PortRole::Targets)).sum;
            if (std::abs(sum - loss) <= kForward * std::abs(loss)) return "";
            return fmt::format("the sum of losses is {}, that of the model {}", sum, loss);
        }
        Array made;
        if (std::string wrong = runner_.result(trial, PortRole::Y, y.sizes, made); !wrong.empty()) return wrong;
        const double apart = difference(made, y);
        return apart <= kForward ? "" : fmt::format("the result differs from the model's by {:.2g} of it", apart);
    }

    // What backward differentiates: its value, and the size of the terms that it adds up.
    struct Objective {
        double value = 0, terms = 0;
    };
    Objective objective(const Trial& trial, int64_t instance, const Given& given) {
        const Array y = trains_.run(given, instance);
        if (!trains_.ends_in_logits()) return {dot(y, trial.dy), norm(y) * norm(trial.dy)};
        const bool scaled = p_.state(StateRole::LossSeed) >= 0;
        const double loss = trial.scalars.at(scaled ? StateRole::LossSeed : StateRole::InverseCount) *
                            loss_of(y, given.inputs.at(PortRole::Targets)).sum;
        return {loss, std::abs(loss)};
    }
    // Its change along a direction in which `of` moves: the derivative of the polynomial through four values.
    double slope(const Trial& trial, int64_t instance, Given& given, Array& of, const Array& direction) {
        const auto at = [&](double h) {
            const Array before = of;
            for (size_t i = 0; i < of.values.size(); ++i) of.values[i] += h * direction.values[i];
            const double value = objective(trial, instance, given).value;
            of = before;
            return value;
        };
        constexpr double h = 2e-4;
        return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
    }

    std::string compare(const Trial& trial, int64_t instance, Given& given, Array& of, const std::string& name,
                        const Array& gradient) {
        const double size = norm(of) / std::sqrt(static_cast<double>(of.values.size()));
        const Array direction = drawn("along " + name, of.sizes, size);
        const double is = dot(gradient, direction), should = slope(trial, instance, given, of, direction);
        const double scale = std::abs(is) + std::abs(should) + size * norm(gradient);
        if (std::abs(is - should) <= kBackward * scale + kRounding * objective(trial, instance, given).terms) return "";
        return fmt::format("the gradient of {} is not the derivative: {:.9g} along a drawn direction, where the model has {:.9g}",
                           name, is, should);
    }

    std::string backward(const Trial& trial, int64_t instance) {
        Given given = given_;
        if (const auto x = given.inputs.find(PortRole::X); x != given.inputs.end()) {
            Array dx;
            if (std::string wrong = runner_.result(trial, PortRole::DX, x->second.sizes, dx); !wrong.empty()) return wrong;
            if (std::string wrong = compare(trial, instance, given, x->second, "x", dx); !wrong.empty()) return wrong;
        }
        for (auto& [key, value] : given.params) {
            Array gradient;
            if (std::string wrong = runner_.gradient(trial, key, value.sizes, gradient); !wrong.empty()) return wrong;
            if (!trial.begun.contains(key)) {
                for (double& g : gradient.values) g -= Trial::kBefore;
            }
            if (std::string wrong = compare(trial, instance, given, value, key, gradient); !wrong.empty()) return wrong;
        }
        return "";
    }

    const ir::Program& p_;
    const Small small_;
    const ir::Routine& model_;
    ModelBlock trains_;
    std::optional<ModelBlock> evaluates_;
    Runner runner_;
    Given given_;
};

// Of subjects that are the same one, with the ways of all.
std::vector<Subject> without_repeats(std::vector<Subject> all) {
    std::vector<Subject> out;
    for (Subject& s : all) {
        const auto known = std::find_if(out.begin(), out.end(), [&](const Subject& o) { return same(o, s); });
        if (known == out.end()) {
            out.push_back(std::move(s));
            continue;
        }
        std::erase_if(s.ways, [&](const Way& w) {
            return std::any_of(known->ways.begin(), known->ways.end(),
                               [&](const Way& o) { return o.entry == w.entry && o.signature == w.signature; });
        });
        if (!s.ways.empty()) out.push_back(std::move(s));
    }
    return out;
}

// Targets are counted, and sums taken over all ranks.
std::string wrong_counts(const ir::Program& p, const Small& small, const Way& way) {
    Runner runner(p, small);
    Trial trial;
    trial.given.inputs =
        inputs_of(small.plain({"batch", 1, 1, ir::DimRole::Batch}).size, small.plain({"seq", 1, 1, ir::DimRole::Seq}).size, {});
    trial.scalars = {{StateRole::LossScale, 8}};
    if (std::string wrong = runner.run(way.calls, trial); !wrong.empty()) return wrong;
    const auto is = [&](StateRole role) {
        double value = Trial::kBefore;
        const auto given = trial.scalars.find(role);
        if (given != trial.scalars.end()) value = given->second;
        if (trial.states.contains(p.state(role))) runner.sum(trial, p.state(role), value);
        return value;
    };
    double targets = trial.begun_states.contains(p.state(StateRole::TargetCount)) ? 0 : Trial::kBefore;
    for (const double t : trial.given.inputs.at(PortRole::Targets).values) targets += t >= 0 ? 1 : 0;
    const std::map<StateRole, double> should = {{StateRole::TargetCount, targets},
                                                {StateRole::InverseCount, 1 / std::max(1.0, is(StateRole::TargetCount))},
                                                {StateRole::LossSeed, is(StateRole::InverseCount) * is(StateRole::LossScale)},
                                                {StateRole::TotalLoss, is(StateRole::LossSum)},
                                                {StateRole::TotalCount, is(StateRole::TargetCount)}};
    for (const auto& [state, values] : trial.states) {
        const ir::State& s = p.states[static_cast<size_t>(state)];
        const auto known = should.find(s.role);
        if (known == should.end()) return fmt::format("{} is changed", s.full_name());
        double value = 0;
        if (std::string wrong = runner.sum(trial, state, value); !wrong.empty()) return wrong;
        if (std::abs(value - known->second) > kForward * std::abs(known->second))
            return fmt::format("{} becomes {}, not {}", s.full_name(), value, known->second);
    }
    return "";
}

std::string named(const Subject& s, const Way& w, const std::string& wrong) {
    if (wrong.empty()) return "";
    return fmt::format("rank {}, {}: {}[{}] in microbatch {}: {}", s.rank, ir::name_of(w.entry),
                       s.block.empty() ? "counts" : s.block, w.instance, w.microbatch, wrong);
}

std::string wrong_subject(const Subject& s, const ir::Program& model) {
    if (s.block.empty()) {
        const Small small(*s.program, s.routines);
        for (const Way& w : s.ways) {
            if (std::string wrong = wrong_counts(*s.program, small, w); !wrong.empty()) return named(s, w, wrong);
        }
        return "";
    }
    const auto is_of = [&](const ir::Routine& r) { return r.block == s.block; };
    const auto forward = std::find_if(model.routines.begin(), model.routines.end(), is_of);
    if (forward == model.routines.end()) return fmt::format("the model has no block {}", s.block);
    Proof proof(*s.program, *forward, s.routines);
    for (const Way& w : s.ways) {
        if (std::string wrong = proof.of(w); !wrong.empty()) return named(s, w, wrong);
    }
    return "";
}

}  // namespace

std::string wrong_meaning(const std::vector<const ir::Program*>& ranks, const compile::Config& config) {
    const ir::Program model = compile::build_blocks(config);
    std::set<const ir::Program*> seen;
    std::vector<size_t> first;
    for (size_t r = 0; r < ranks.size(); ++r) {
        if (seen.insert(ranks[r]).second) first.push_back(r);
    }
    for (const size_t r : first) {
        if (std::string wrong = wrong_numbers(*ranks[r], config); !wrong.empty()) return wrong;
    }
    std::vector<std::vector<Subject>> of_program(first.size());
    parallel_for(first.size(), [&](size_t i) { of_program[i] = subjects_of(*ranks[first[i]], first[i]); });
    std::vector<Subject> subjects;
    for (std::vector<Subject>& all : of_program) std::move(all.begin(), all.end(), std::back_inserter(subjects));
    subjects = without_repeats(std::move(subjects));
    std::vector<std::string> wrong(subjects.size());
    parallel_for(subjects.size(), [&](size_t i) { wrong[i] = wrong_subject(subjects[i], model); });
    const auto found = std::find_if(wrong.begin(), wrong.end(), [](const std::string& w) { return !w.empty(); });
    return found == wrong.end() ? "" : *found;
}

}  // namespace lockstep::meaning
