#include "compile/breakdown.h"

#include <fmt/format.h>

#include "compile/memory_report.h"
#include "ops/rule.h"

namespace lockstep::compile {
namespace {

struct TimesOfOps {
    std::string name;
    double flops = 0, bytes = 0;
    bool communication = false;
    double times = 1;                    // that each of its records stands for
    ByStepQueue<TimeSpent*> spent = {};  // by thread: where it is counted; null until its first record
};

// Names and costs of every op, once: a step of a deep model records each op of a routine a hundred times.
std::vector<std::vector<TimesOfOps>> costs_of(const ir::Program& program, const Naming& naming, double microbatches) {
    std::vector<std::vector<TimesOfOps>> all;
    const bool trains = program.entry(ir::EntryKind::Train) != nullptr;
    const std::vector<double> stood_for =
        trains ? calls_stood_for(program, microbatches) : std::vector<double>(program.routines.size(), 1);
    for (const ir::Routine& r : program.routines) {
        const double times = stood_for[all.size()];
        std::vector<TimesOfOps>& costs = all.emplace_back();
        for (const ir::Op& op : r.ops) {
            costs.push_back({naming(r, op), ops::flops_of(program.mesh, r, op).executed,
                             static_cast<double>(ops::bytes_moved(program.mesh, r, op)), ops::rule(op.kind).collective, times});
        }
    }
    return all;
}

}  // namespace

std::string kind_of(const ir::Routine&, const ir::Op& op) { return op.kind; }

std::string name_of(const ir::Routine& r, const ir::Op& op) {
    return fmt::format("{} {} ({})", r.name, r.tensors[op.subject()].name, op.kind);
}

void add_step(Breakdown& sum, int64_t steps, std::span<const ir::Timeline> timelines, const Naming& naming, double microbatches) {
    Breakdown step;
    const double share = 1.0 / static_cast<double>(timelines.size());
    std::map<const ir::Program*, std::vector<std::vector<TimesOfOps>>> known;
    for (const ir::Timeline& timeline : timelines) {
        if (!known.contains(timeline.program)) known[timeline.program] = costs_of(*timeline.program, naming, microbatches);
        auto& costs = known[timeline.program];
        double inside_s = 0;
        for (QueueName thread : kQueuesOfSteps) {
            const bool computes = traits_of(thread).computes;
            for (const ir::TimedOp& t : timeline.threads[thread]) {
                if (computes) inside_s += t.end_s - t.start_s;
                if (t.op < 0) {
                    if (computes) step.waiting_s += share * (t.end_s - t.start_s);
                    continue;
                }
                TimesOfOps& c = costs[timeline.entry->calls[t.call].routine][t.op];
                if (!c.spent[thread]) c.spent[thread] = &(computes ? step.ops : step.beside)[c.name];
                TimeSpent& spent = *c.spent[thread];
                spent.time_s += c.times * share * (t.end_s - t.ready_s);
                spent.count += c.times * share;
                spent.flops += c.times * share * c.flops;
                spent.bytes += c.times * share * c.bytes;
                spent.communication = c.communication;
                if (computes) step.waiting_s += share * (t.ready_s - t.start_s);
            }
        }
        const double data_s = timeline.data_end_s - timeline.data_begin_s;
        step.step_s += share * timeline.end_s;
        step.data_s += share * data_s;
        step.remainder_s += share * (timeline.end_s - inside_s - data_s);
    }
    const double keep = static_cast<double>(steps) / static_cast<double>(steps + 1), add = 1 - keep;
    const auto mean = [&](double& a, double b) { a = keep * a + add * b; };
    mean(sum.step_s, step.step_s), mean(sum.waiting_s, step.waiting_s), mean(sum.data_s, step.data_s);
    mean(sum.remainder_s, step.remainder_s);
    for (auto [to, from] : {std::pair{&sum.ops, &step.ops}, std::pair{&sum.beside, &step.beside}}) {
        for (const auto& [name, spent] : *from) {
            TimeSpent& s = (*to)[name];
            mean(s.time_s, spent.time_s), mean(s.count, spent.count), mean(s.flops, spent.flops), mean(s.bytes, spent.bytes);
            s.communication = spent.communication;
        }
    }
}

}  // namespace lockstep::compile
