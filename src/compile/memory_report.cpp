#include "compile/memory_report.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/cost.h"
#include "ops/rule.h"

namespace lockstep::compile {
namespace {

// Of the train entry. `times`: by routine, what each of its calls counts.
ops::Flops flops_of_calls(const ir::Program& p, const std::vector<double>& times) {
    std::vector<ops::Flops> of_routine(p.routines.size());
    for (size_t i = 0; i < p.routines.size(); ++i) {
        for (const ir::Op& op : p.routines[i].ops) {
            const ops::Flops f = ops::flops_of(p.mesh, p.routines[i], op);
            of_routine[i].model += times[i] * f.model;
            of_routine[i].executed += times[i] * f.executed;
        }
    }
    ops::Flops sum;
    for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
        sum.model += of_routine[c.routine].model;
        sum.executed += of_routine[c.routine].executed;
    }
    return sum;
}

double mean(const std::vector<StageReport>& reports, double StageReport::*of) {
    double sum = 0;
    for (const StageReport& r : reports) sum += r.*of;
    return sum / static_cast<double>(reports.size());
}

}  // namespace

std::vector<double> calls_stood_for(const ir::Program& p, double more) {
    std::vector<double> calls(p.routines.size()), steady(p.routines.size());
    for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
        const auto routine = static_cast<size_t>(c.routine);
        ++calls[routine];
        if (c.microbatch == p.microbatches / 2) ++steady[routine];
    }
    const double left_out = (more - 1) * static_cast<double>(p.microbatches);
    for (size_t i = 0; i < calls.size(); ++i) calls[i] = calls[i] > 0 ? 1 + left_out * steady[i] / calls[i] : 1;
    return calls;
}

std::vector<std::array<int64_t, ir::kMemoryKinds>> bytes_by_call(const ir::Program& p, ComputesIn memory) {
    const ir::Entry* train = p.entry(ir::EntryKind::Train);
    ensure(train, "bytes_by_call: no entry train");
    std::vector<int> first(p.buffers.size(), -1), last(p.buffers.size(), -1);
    for (size_t i = 0; i < train->calls.size(); ++i) {
        const ir::Call& c = train->calls[i];
        const auto use = [&](int b) {
            if (first[b] < 0) first[b] = static_cast<int>(i);
            last[b] = static_cast<int>(i);
        };
        for (const ir::Binding& b : c.bindings) use(b.buffer);
        if (c.scratch >= 0) use(c.scratch);
    }
    std::array<int64_t, ir::kMemoryKinds> now{};
    std::vector<std::vector<size_t>> begin(train->calls.size()), end(train->calls.size() + 1);
    for (size_t b = 0; b < p.buffers.size(); ++b) {
        if (memory == ComputesIn::DeviceMemory && p.buffers[b].place == Place::Host) continue;
        if (p.buffers[b].resident) now[static_cast<size_t>(p.buffers[b].kind)] += p.buffers[b].bytes;
        else if (first[b] >= 0)
            begin[static_cast<size_t>(first[b])].push_back(b), end[static_cast<size_t>(last[b]) + 1].push_back(b);
    }
    std::vector<std::array<int64_t, ir::kMemoryKinds>> out;
    out.reserve(train->calls.size());
    for (size_t i = 0; i < train->calls.size(); ++i) {
        for (size_t b : end[i]) now[static_cast<size_t>(p.buffers[b].kind)] -= p.buffers[b].bytes;
        for (size_t b : begin[i]) now[static_cast<size_t>(p.buffers[b].kind)] += p.buffers[b].bytes;
        out.push_back(now);
    }
    return out;
}

StageReport report_of(const ir::Program& p, ComputesIn memory) {
    StageReport report;
    report.total_bytes = bytes_computed_in(p, memory), report.host_bytes = bytes_beside(p, memory);
    const ops::Flops flops = flops_of_calls(p, std::vector<double>(p.routines.size(), 1));
    report.flops_model = flops.model;
    report.flops_executed = flops.executed;
    int64_t most = -1;
    for (const auto& now : bytes_by_call(p, memory)) {
        const int64_t sum = std::accumulate(now.begin(), now.end(), int64_t{0});
        if (sum > most) most = sum, report.bytes = now;
    }
    report.bytes[static_cast<size_t>(ir::MemoryKind::Workspace)] += report.total_bytes - std::max<int64_t>(most, 0);
    return report;
}

std::vector<StageReport> reports_of(const Compiled& compiled) {
    std::vector<StageReport> out(compiled.programs.size());
    const double more = compiled.microbatches_for_each();
    parallel_for(out.size(), [&](size_t i) {
        const ir::Program& p = compiled.programs[i];
        StageReport& report = out[i] = report_of(p, compiled.memory);
        if (more > 1) {
            const int64_t inputs = compiled.arena_bytes(p) - report.total_bytes;
            report.bytes[static_cast<size_t>(ir::MemoryKind::Input)] += inputs;
            report.total_bytes += inputs;
            const ops::Flops all = flops_of_calls(p, calls_stood_for(p, more));
            report.flops_model = all.model;
            report.flops_executed = all.executed;
        }
    });
    return out;
}

double flops_model_of_a_rank(const std::vector<StageReport>& reports) { return mean(reports, &StageReport::flops_model); }
double flops_executed_of_a_rank(const std::vector<StageReport>& reports) { return mean(reports, &StageReport::flops_executed); }

std::vector<Remedy> remedies(const Config& config, const CompileOptions& options, int64_t total_bytes) {
    struct Try {
        const char* key;
        std::string value;
        std::function<void(Config&)> change;
    };
    const Layout layout = layout_of(config);
    const int64_t batch = config.training.local_batch_size / 2, seq = config.training.seq_len / 2;
    const int64_t chunk = std::max<int64_t>(loss_chunk_tokens(config, options.catalog) / 4, 1);
    const int64_t shard = layout.mesh.degree(mesh::Axis::dp_shard), tp = layout.mesh.degree(mesh::Axis::tp);
    const int64_t cp = layout.mesh.degree(mesh::Axis::cp);
    const auto on_more_ranks = [&](Config& c, int64_t of_shard, int64_t of_cp, int64_t of_tp) {
        c.cluster.ranks = 0;
        c.parallelism.data_parallel_shard_degree = of_shard;
        c.parallelism.context_parallel_degree = of_cp, c.parallelism.tensor_parallel_degree = of_tp;
    };
    const std::vector<Try> tries = {
        {"activation_checkpoint.mode", "full", [](Config& c) { c.activation_checkpoint.mode = RecomputeMode::Full; }},
        {"partition.preset", "zero3", [](Config& c) { c.partition.preset = PartitionPreset::Zero3; }},
        {"parallelism.prefetch", "0", [](Config& c) { c.parallelism.prefetch = 0; }},
        {"training.fuse_loss", "true", [](Config& c) { c.training.fuse_loss = true; }},
        {"training.loss_chunk_tokens", std::to_string(chunk), [&](Config& c) { c.training.loss_chunk_tokens = chunk; }},
        {"parallelism.tensor_parallel_degree", std::to_string(2 * tp), [&](Config& c) { on_more_ranks(c, shard, cp, 2 * tp); }},
        {"parallelism.context_parallel_degree", std::to_string(2 * cp), [&](Config& c) { on_more_ranks(c, shard, 2 * cp, tp); }},
        {"parallelism.data_parallel_shard_degree", std::to_string(2 * shard),
         [&](Config& c) { on_more_ranks(c, 2 * shard, cp, tp); }},
        {"training.local_batch_size", std::to_string(batch),
         [&](Config& c) { c.training.global_batch_size = layout.global_batch, c.training.local_batch_size = batch; }},
        {"training.seq_len", std::to_string(seq), [&](Config& c) { c.training.seq_len = seq; }}};
    const Prefix prefix = compile_prefix(config, options);
    std::vector<Remedy> out;
    for (const Try& t : tries) {
        Config changed = config;
        t.change(changed);
        if (changed.training.local_batch_size < 1 || changed.training.seq_len < 1) continue;
        const bool same_model = changed.training.seq_len == config.training.seq_len;
        try {
            const auto compiled = compile(same_model ? prefix : compile_prefix(changed, options), changed, options);
            if (refusal_of(compiled)) continue;  // does not apply to this recipe
            const int64_t bytes = std::get<Compiled>(compiled).arena_bytes();
            if (bytes < total_bytes) out.push_back({t.key, t.value, bytes});
        } catch (const UserError&) {  // no kernel serves it
        }
    }
    std::stable_sort(out.begin(), out.end(), [](const Remedy& a, const Remedy& b) { return a.total_bytes < b.total_bytes; });
    return out;
}

std::string main_dtype(const ir::Program& p) {
    double most = -1;
    std::string dtype = "f32";
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            if (ops::rule(op.kind).collective) continue;
            const ops::CostKey key = ops::cost_key(p.mesh, r, op, 1);
            if (key.flops > most)
                most = key.flops, dtype = op.kind == ir::kScaledEinsum ? name_of(r.tensors[op.out[0]].dtype) : key.dtype;
        }
    }
    return dtype;
}

}  // namespace lockstep::compile
