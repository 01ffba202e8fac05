#include "cli/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "compile/breakdown.h"
#include "compile/memory_report.h"
#include "ops/rule.h"
#include "planning/types.h"
#include "tune/explain.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

enum class Slice { Forward, Backward, Recompute, Optimizer, Communication, Waiting };
constexpr const char* kSlices[] = {"forward", "backward", "recompute", "optimizer and parameters", "communication", "waiting"};
constexpr size_t kMostSlices = 60000;  // of a page; more are drawn a microbatch at a time
constexpr int kBins = 400;

Slice slice_of(const ir::Routine& r, const ir::Op& op) {
    if (ops::rule(op.kind).collective) return Slice::Communication;
    if (ir::is_forward(r.kind)) return Slice::Forward;
    if (!ir::is_backward(r.kind)) return Slice::Optimizer;
    return op.attrs.contains("recomputed") ? Slice::Recompute : Slice::Backward;
}

struct Drawn {
    double begin_s = 0, end_s = 0;
    Slice slice = Slice::Forward;
    int call = -1, name = 0;
    int64_t instance = 0, microbatch = 0;
};

// Words that slices name by number.
class Names {
public:
    int of(const std::string& name) {
        const auto [at, is_new] = numbers_.try_emplace(name, static_cast<int>(all_.size()));
        if (is_new) all_.push_back(name);
        return at->second;
    }
    const std::vector<std::string>& all() const { return all_; }

private:
    std::map<std::string, int> numbers_;
    std::vector<std::string> all_;
};

// Ops of one call that follow each other and have one cause are one slice.
void add(std::vector<Drawn>& out, const Drawn& d) {
    if (d.end_s <= d.begin_s) return;
    if (!out.empty()) {
        Drawn& last = out.back();
        if (last.call == d.call && last.slice == d.slice && last.name == d.name) {
            last.end_s = d.end_s;
            return;
        }
    }
    out.push_back(d);
}

std::vector<Drawn> drawn(const ir::Timeline& t, QueueName thread, Names& names) {
    const bool computes = traits_of(thread).computes;
    std::vector<Drawn> out;
    for (const ir::TimedOp& o : t.threads[thread]) {
        const ir::Call& c = t.entry->calls[static_cast<size_t>(o.call)];
        const ir::Routine& r = t.program->routines[static_cast<size_t>(c.routine)];
        Drawn d{.begin_s = o.start_s, .end_s = o.end_s, .call = o.call, .instance = c.instance, .microbatch = c.microbatch};
        if (o.op < 0) {
            if (!computes) continue;  // the communicating thread has nothing to do
            d.slice = Slice::Waiting, d.name = names.of("wait for the communicating thread");
            add(out, d);
            continue;
        }
        const ir::Op& op = r.ops[static_cast<size_t>(o.op)];
        d.slice = slice_of(r, op);
        d.name = names.of(d.slice == Slice::Communication ? compile::name_of(r, op) : r.name);
        if (d.slice == Slice::Communication && o.ready_s > o.start_s) {
            Drawn waits = d;
            waits.slice = Slice::Waiting, waits.end_s = std::min(o.ready_s, o.end_s),
            waits.name = names.of("wait for other ranks");
            if (computes) add(out, waits);
            d.begin_s = waits.end_s;
        }
        add(out, d);
    }
    return out;
}

// Slices of one cause and microbatch that follow each other, of whichever call, are one.
std::vector<Drawn> by_microbatch(const std::vector<Drawn>& all, Names& names) {
    std::vector<Drawn> out;
    for (const Drawn& d : all) {
        if (!out.empty()) {
            Drawn& last = out.back();
            const double gap_s = d.begin_s - last.end_s;
            if (last.slice == d.slice && last.microbatch == d.microbatch && gap_s <= 0.02 * (d.end_s - last.begin_s)) {
                if (last.call != d.call) last.name = names.of(kSlices[static_cast<size_t>(d.slice)]);
                last.end_s = d.end_s;
                continue;
            }
        }
        out.push_back(d);
    }
    return out;
}

Json timeline_json(const planning::Plan& p, double unit_s) {
    Names names;
    std::vector<ByStepQueue<std::vector<Drawn>>> ranks;
    size_t count = 0;
    for (const ir::Timeline& t : p.simulated.timelines) {
        auto& of = ranks.emplace_back();
        for (QueueName thread : kQueuesOfSteps) of[thread] = drawn(t, thread, names), count += of[thread].size();
    }
    Json out = Json::array();
    for (size_t k = 0; k < ranks.size(); ++k) {
        Json threads = Json::array();
        for (std::vector<Drawn>& slices : ranks[k]) {
            if (count > kMostSlices) slices = by_microbatch(slices, names);
            Json numbers = Json::array();
            for (const Drawn& d : slices) {
                const double begin = std::round(d.begin_s / unit_s), end = std::round(d.end_s / unit_s);
                for (const auto n : {static_cast<int64_t>(begin), static_cast<int64_t>(end - begin),
                                     static_cast<int64_t>(d.slice), static_cast<int64_t>(d.name), d.instance, d.microbatch})
                    numbers.push_back(n);
            }
            threads.push_back(std::move(numbers));
        }
        out.push_back({{"rank", k}, {"threads", std::move(threads)}});
    }
    return {{"causes", kSlices}, {"names", names.all()}, {"ranks", std::move(out)}};
}

// When each call begins; those that record nothing begin with the one before.
std::vector<double> begins_of(const ir::Timeline& t) {
    std::vector<double> out(t.entry->calls.size(), -1);
    for (const auto& thread : t.threads) {
        for (const ir::TimedOp& o : thread) {
            double& begin = out[static_cast<size_t>(o.call)];
            if (o.op >= 0 && (begin < 0 || o.start_s < begin)) begin = o.start_s;
        }
    }
    double last = 0;
    for (double& begin : out) last = begin = begin < 0 ? last : begin;
    return out;
}

Json memory_json(const planning::Plan& p, double played_s) {
    Json kinds = Json::array(), ranks = Json::array();
    for (int k = 0; k < ir::kMemoryKinds; ++k) kinds.push_back(ir::name_of(static_cast<ir::MemoryKind>(k)));
    for (size_t rank = 0; rank < p.compiled.programs.size(); ++rank) {
        const ir::Program& program = p.compiled.programs[rank];
        // Of microbatches that were not played.
        const int64_t more_input = p.reports[rank].total_bytes - compile::bytes_computed_in(program, p.compiled.memory);
        const std::vector<double> begins = begins_of(p.simulated.timelines[rank]);
        const auto by_call = compile::bytes_by_call(program, p.compiled.memory);
        const auto sum = [](const auto& of) { return std::accumulate(of.begin(), of.end(), int64_t{0}); };
        std::vector<std::optional<size_t>> fullest(kBins);
        for (size_t i = 0; i < by_call.size(); ++i) {
            auto& bin = fullest[static_cast<size_t>(std::clamp(kBins * begins[i] / played_s, 0.0, kBins - 1.0))];
            if (!bin || sum(by_call[i]) > sum(by_call[*bin])) bin = i;
        }
        Json bins = Json::array();
        size_t last = 0;
        for (const auto& bin : fullest) {
            last = bin.value_or(last);
            Json bytes = Json::array();
            for (size_t k = 0; k < by_call[last].size(); ++k)
                bytes.push_back(by_call[last][k] + (k == static_cast<size_t>(ir::MemoryKind::Input) ? more_input : 0));
            bins.push_back(std::move(bytes));
        }
        ranks.push_back({{"rank", rank},
                         {"total", p.reports[rank].total_bytes},
                         {"host", p.reports[rank].host_bytes},
                         {"bytes", std::move(bins)}});
    }
    return {{"kinds", kinds}, {"capacity", p.machine.capacity.bytes.value_or(0)}, {"bins", kBins}, {"ranks", ranks}};
}

Json roofline_json(const planning::Plan& p) {
    std::map<std::string, compile::TimeSpent> all;
    const double share = 1 / static_cast<double>(p.breakdowns.size());
    for (const compile::Breakdown& b : p.breakdowns) {
        for (const auto& [name, spent] : b.ops) {
            if (spent.communication || spent.time_s <= 0) continue;
            compile::TimeSpent& s = all[name];
            s.time_s += share * spent.time_s, s.count += share * spent.count;
            s.flops += share * spent.flops, s.bytes += share * spent.bytes;
        }
    }
    Json ops = Json::array();
    for (const auto& [name, s] : all) {
        const size_t open = name.rfind('(');
        const std::string kind = open == std::string::npos ? name : name.substr(open + 1, name.size() - open - 2);
        ops.push_back(
            {{"name", name}, {"kind", kind}, {"count", s.count}, {"time_s", s.time_s}, {"flops", s.flops}, {"bytes", s.bytes}});
    }
    const auto& rates = p.cluster.costs.bytes_per_s;
    return {{"flops_per_s", p.peak_flops_per_s}, {"bytes_per_s", rates.empty() ? 0 : rates.front()}, {"ops", ops}};
}

Json communication_json(const planning::Plan& p) {
    struct Spent {
        double exposed_s = 0, waiting_s = 0, hidden_s = 0, bytes = 0;
    };
    std::map<std::pair<std::string, std::string>, Spent> all;
    const double share = 1 / static_cast<double>(p.simulated.timelines.size());
    for (const ir::Timeline& t : p.simulated.timelines) {
        const std::vector<double> times = compile::calls_stood_for(*t.program, p.compiled.microbatches_for_each());
        for (QueueName thread : kQueuesOfSteps) {
            for (const ir::TimedOp& o : t.threads[thread]) {
                if (o.op < 0) continue;
                const auto routine = static_cast<size_t>(t.entry->calls[static_cast<size_t>(o.call)].routine);
                const ir::Routine& r = t.program->routines[routine];
                const ir::Op& op = r.ops[static_cast<size_t>(o.op)];
                if (!ops::rule(op.kind).collective) continue;
                const std::string over = op.group.empty() ? "pipeline" : t.program->mesh.text(op.group);
                Spent& s = all[{op.kind, over}];
                const double n = share * times[routine], ready_s = std::clamp(o.ready_s, o.start_s, o.end_s);
                if (traits_of(thread).computes) s.waiting_s += n * (ready_s - o.start_s), s.exposed_s += n * (o.end_s - ready_s);
                else s.hidden_s += n * (o.end_s - ready_s);
                for (const ir::TensorId in : op.in)
                    s.bytes += n * static_cast<double>(ir::local_bytes(t.program->mesh, r, r.tensors[static_cast<size_t>(in)]));
            }
        }
    }
    Json out = Json::array();
    for (const auto& [key, s] : all)
        out.push_back({{"op", key.first},
                       {"over", key.second},
                       {"exposed_s", s.exposed_s},
                       {"waiting_s", s.waiting_s},
                       {"hidden_s", s.hidden_s},
                       {"bytes", s.bytes}});
    return out;
}

}  // namespace

Json plan_page_data(const planning::Plan& p, const std::string& name, const std::string& recipe, const Json& printed) {
    const double played_s = p.simulated.step_time_s, unit_s = played_s / 1e7;
    Json causes = Json::object();
    const tune::Causes of = tune::causes_of(p);
    for (const tune::Cause c : tune::kCauses) causes[std::string(tune::text_of(c))] = of[c];
    const compile::Layout& layout = p.compiled.layout;
    Json facts = Json::array();
    facts.push_back({"Machine", fmt::format("{}: {}", p.cluster.name, p.cluster.description)});
    if (!p.cluster.stack.name.empty()) facts.push_back({"Software", p.cluster.stack.description});
    facts.push_back({"Kernels", p.machine.kernels.text});
    facts.push_back({"Layout", mesh::text(layout.mesh.degrees)});
    facts.push_back({"Batch", fmt::format("{} sequences of {} tokens in {} microbatches", layout.global_batch, layout.seq_len,
                                          layout.microbatches)});
    return {{"name", name},
            {"facts", facts},
            {"plan", printed},
            {"recipe", recipe},
            {"causes", causes},
            {"step_s", played_s},
            {"unit_s", unit_s},
            {"microbatches", {{"played", p.compiled.programs[0].microbatches}, {"all", layout.microbatches}}},
            {"timeline", timeline_json(p, unit_s)},
            {"memory", memory_json(p, played_s)},
            {"roofline", roofline_json(p)},
            {"communication", communication_json(p)}};
}

}  // namespace lockstep::cli
