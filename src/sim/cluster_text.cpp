// A cluster as the text of its file, and the list of a file's keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/dtype.h"
#include "sim/catalog_file.h"
#include "sim/cluster_keys.h"

namespace lockstep::sim {
namespace {

// What [[ops]] says, and [[module.ops]] where the module runs. Other kernels' rates are in [[catalog]].
std::string print_rates(const Cluster& c) {
    std::string of_ops, of_module;
    for (const auto& [of, rate] : c.costs.kernel_rates) {
        const auto& [op, kernel] = of;
        const std::string text = print_rate(rate);
        if (text.empty()) continue;
        RatedKernels of_table{{op}, op, kernel, c.module.assumed.contains(of)};
        if (kernel.empty()) of_ops += "\n[[ops]]\n" + print_fields(kOps, of_table) + text;
        else if (c.runs_module()) of_module += "\n[[module.ops]]\n" + print_fields(kModuleOps, of_table) + text;
    }
    return of_ops + of_module;
}

bool takes_time(const Host& h) { return h.launch_s + h.blocking_s + h.microbatch_s + h.step_s + h.lost_per_doubling > 0; }

std::string print_memory(StackMemory& m) {
    std::string out = "\n[memory]\n" + print_fields(kMemory, m);
    if (!m.saved_bytes.empty()) out += "\n[memory.saved_bytes]\n";
    for (const auto& [op, bytes] : m.saved_bytes) out += fmt::format("{} = {:.4g}\n", op, bytes);
    return out;
}

// One file is all parts: what is known of the least known one.
std::string print_runs(std::vector<Part>& parts) {
    Part* least = nullptr;
    for (Part& p : parts) {
        if (p.kind != Part::Kind::Stack && (!least || p.sources < least->sources)) least = &p;
    }
    return least && least->runs > 0 ? "\n[runs]\n" + print_fields(kRuns, *least) : "";
}

void describe_rows(std::vector<ClusterKey>& out, const char* table, std::span<const Valued> fields) {
    for (const Valued& f : fields) out.push_back({table, f.key->name, values_text(*f.key, f.value), f.key->help});
}

template <class S, size_t n>
void describe(std::vector<ClusterKey>& out, const char* table, const Field<S> (&fields)[n]) {
    S none;
    describe_rows(out, table, valued(fields, none, none));
}

}  // namespace

std::string print(const Cluster& cluster) {
    Cluster c = cluster;
    ops::CostTable& t = c.costs;
    OtherKeys other;
    if (c.instruction_sets) other.instruction_sets = words_of(*c.instruction_sets);
    std::string out = print_fields(kTop, c);
    out += "\n[machine]\n" + print_fields(kMachine, c) + print_fields(kMachineOther, other);
    out += "\n[rates]  # lists: by 1, 2, ... threads together\n" + print_fields(kRates, c);
    out += "\n[rates.flops_per_s]\n";
    for (const auto& [dtype, rates] : t.flops_per_s) out += fmt::format("{} = [{:.10g}]\n", dtype, fmt::join(rates, ", "));
    if (c.hosts.ranks > 0) out += "\n[hosts]\n" + print_fields(kHosts, c.hosts);
    for (ops::CacheLevel& l : t.caches) out += "\n[[caches]]\n" + print_fields(kCaches, l);
    for (LinkLevel& l : c.links) out += "\n[[links]]\n" + print_fields(kLinks, l);
    if (takes_time(c.host)) out += "\n[host]\n" + print_fields(kHost, c.host);
    if (!c.module.name.empty()) out += "\n[module]\n" + print_fields(kModule, c.module);
    if (!c.module.name.empty() && takes_time(c.module.host)) out += print_fields(kHost, c.module.host);
    for (AttentionRate& a : c.attention) out += "\n[[attention]]\n" + print_fields(kAttention, a) + print_rate(a.rate);
    if (!c.stack.name.empty()) out += "\n[stack]\n" + print_fields(kStack, c.stack);
    if (c.stack.memory.is_described()) out += print_memory(c.stack.memory);
    if (c.measured.runs > 0) out += "\n[measured]\n" + print_fields(kMeasured, c.measured);
    out += print_runs(c.parts) + print_catalog(c.catalog) + print_rates(c);
    if (!t.collectives.empty()) out += "\n";
    for (ops::CollectiveRow& r : t.collectives) out += "[[collectives]]\n" + print_fields(kCollectives, r);
    for (ops::CostRow& r : t.rows) out += "[[kernels]]\n" + print_fields(kKernels, r);
    return out;
}

std::vector<ClusterKey> cluster_keys() {
    std::vector<ClusterKey> out;
    describe(out, "top level", kTop);
    describe(out, "[machine]", kMachine), describe(out, "[machine]", kMachineOther);
    describe(out, "[machine]", kKernelsKey), describe(out, "[machine]", kClassKey), describe(out, "[machine]", kChipKey);
    describe(out, "[rates]", kRates), describe(out, "[rates.flops_per_s]", kRatesOfType);
    describe(out, "[[links]]", kLinks), describe(out, "[hosts]", kHosts), describe(out, "[[caches]]", kCaches);
    describe(out, "[host] and [module]", kHost), describe(out, "[module]", kModule);
    describe(out, "[[catalog]]", kCatalog), describe(out, "[[catalog]]", kCatalogTypes),
        describe(out, "[[catalog]]", kCatalogUse);
    describe(out, "[[catalog.workspace]]", kWorkspace);
    describe(out, "[[ops]]", kOps), describe(out, "[[module.ops]]", kModuleOps);
    describe(out, "[[attention]]", kAttention);
    const char* const rates = "[[catalog]], [[ops]], [[module.ops]] and [[attention]]";
    describe(out, rates, kRateShares), describe(out, rates, kRateFactors);
    describe(out, "ramp, in these tables", kRamp), describe(out, "tiles, in these tables", kTiles);
    describe(out, "[stack]", kStack), describe(out, "[stack]", kOnKey);
    describe(out, "[memory]", kMemory), describe(out, "[memory.saved_bytes]", kSavedByOp);
    describe(out, "[[collectives]]", kCollectives), describe(out, "[[kernels]]", kKernels);
    describe(out, "[measured]", kMeasured), describe(out, "[runs]", kRuns), describe(out, "[[constants]]", kConstants);
    return out;
}

}  // namespace lockstep::sim
