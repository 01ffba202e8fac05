#include "sim/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shipped.h"
#include "base/text_file.h"
#include "compile/file_kind.h"
#include "sim/catalog_file.h"
#include "sim/cluster_keys.h"

namespace lockstep::sim {
namespace {

void read_rows(Reader& top, const std::string& origin, ops::CostTable& t) {
    read_each(top, "kernels", origin, [&](Reader& row) { read_fields(row, kKernels, t.rows.emplace_back()); });
    read_each(top, "collectives", origin, [&](Reader& row) {
        ops::CollectiveRow r;
        r.core_s = -1;  // not given: all of it
        read_fields(row, kCollectives, r);
        if (r.core_s < 0) r.core_s = r.time_s;
        if (r.op == "transfer") r.op = "recv";  // as older files call it
        t.collectives.push_back(std::move(r));
    });
}

void require_sound(const Cluster& c, const std::string& origin) {
    const auto refuse = [&](const char* key, const std::string& what) {
        throw UserError("cluster.incomplete", key, fmt::format("{}: {}", origin, what));
    };
    if (!c.costs.flops_per_s.contains("f32") || c.costs.bytes_per_s.empty())
        refuse("rates.flops_per_s", "a cluster needs [rates.flops_per_s] with at least f32, and rates.bytes_per_s");
    if (c.memory_bytes > 0 && c.reserve_bytes >= c.memory_bytes)
        refuse("machine.reserve_bytes", fmt::format("machine.reserve_bytes = {}: must be less than machine.memory_bytes = {}",
                                                    c.reserve_bytes, c.memory_bytes));
    double price = 0;
    for (const ops::CacheLevel& l : c.costs.caches) {
        if (!(l.bytes > 0)) refuse("caches", "[[caches]] need bytes");
        if (l.price_beyond < price)
            refuse("caches", fmt::format("caches.price_beyond = {}: must not be below that of the cache before, {}",
                                         l.price_beyond, price));
        price = l.price_beyond;
    }
    if (!c.catalog.empty() && !c.devices)
        refuse("catalog",
               "[[catalog]] lists kernels of devices: machine.devices = true; a processor has machine.instruction_sets");
    if (c.instruction_sets && c.devices)
        refuse("machine.instruction_sets", "machine.instruction_sets is of processors; kernels of devices are in [[catalog]]");
    if (!c.module.name.empty() && !c.devices) refuse("module", "[module] names what runs on devices: machine.devices = true");
    const Hosts& h = c.hosts;
    if (h.ranks > 0 && c.devices) refuse("hosts.ranks", "[hosts] is of ranks without devices; devices have [[links]]");
    if (h.ranks < 0) refuse("hosts.ranks", "[hosts] needs ranks, the number of ranks of a host");
    if (h.ranks > 0 && h.ranks % h.ranks_per_process != 0)
        refuse("hosts.ranks_per_process",
               fmt::format("hosts.ranks_per_process = {}: must divide hosts.ranks = {}", h.ranks_per_process, h.ranks));
    if (c.devices && !c.links.empty() && c.links.back().ranks != 0)
        refuse("links", "the last of [[links]] has ranks = 0 and joins any number of devices");
    for (size_t i = 0; i < c.links.size(); ++i) {
        const LinkLevel& l = c.links[i];
        if (l.link.bandwidth_bytes_per_s <= 0) refuse("links.bandwidth_bytes_per_s", "[[links]] need bandwidth_bytes_per_s");
        const bool last = i + 1 == c.links.size();
        if (!last && (l.ranks == 0 || (c.links[i + 1].ranks != 0 && c.links[i + 1].ranks <= l.ranks)))
            refuse("links.ranks", fmt::format("links.ranks = {}: [[links]] are in the order of their ranks, and only the last "
                                              "has 0, which joins any number",
                                              l.ranks));
    }
    for (const ops::CostRow& r : c.costs.rows) {
        if (r.warm_s <= 0 || r.cold_s <= 0 || r.crowded_s <= 0)
            refuse("kernels", fmt::format("the row of {} ({}) needs warm_s, cold_s and crowded_s", r.key.op, r.key.kernel));
    }
}

void read_machine(Reader& r, Source::Of of, Cluster& c) {
    OtherKeys other;
    if (of != Source::Of::Stack) read_fields(r, kKernelsKey, other), read_fields(r, kClassKey, other);
    if (of == Source::Of::Cluster) read_fields(r, kChipKey, other);
    read_fields(r, kMachine, c), read_fields(r, kMachineOther, other);
    const std::vector<std::string>& words = other.instruction_sets;
    if (words.empty()) return;
    c.instruction_sets = instruction_sets_from(words);
    if (!c.instruction_sets)
        r.refuse("cluster.instruction_sets", "instruction_sets", fmt::format("{}", fmt::join(words, ", ")),
                 "give one of baseline, avx2 and avx512; avx512_bf16 and fast_avx512_bf16 (AMD) exclude each other and need "
                 "avx512, and amx needs one of them");
}

void read_rates(Reader& r, const std::string& origin, Cluster& c) {
    read_fields(r, kRates, c);
    const toml::table* flops = r.table("flops_per_s");
    if (!flops) return;
    Reader by_dtype(*flops, "rates.flops_per_s.", origin);
    std::set<std::string> names;
    for (const Dtype dtype : kDtypes) {
        if (is_float(dtype) || is_float8(dtype)) names.insert(ops::rates_name(dtype));
    }
    for (const std::string& name : names) {
        std::vector<double> rates;
        by_dtype.take(name.c_str(), rates, kRatesOfType[0].key.allowed);
        if (!rates.empty()) c.costs.flops_per_s[name] = std::move(rates);
    }
    by_dtype.finish();
}

void read_hosts(Reader& r, Hosts& h) {
    h.ranks = -1;  // to be given
    read_fields(r, kHosts, h);
}

void read_measured(Reader& r, Measured& m) {
    read_fields(r, kMeasured, m);
    if (m.runs > 0 && m.spread <= 0) r.incomplete("spread", "[measured] needs spread, the deviation that is left");
}

void read_memory(Reader& r, const std::string& origin, StackMemory& m) {
    read_fields(r, kMemory, m);
    if (const toml::table* t = r.table("saved_bytes")) {
        Reader of(*t, "memory.saved_bytes.", origin);
        for (const std::string& op : ops_with_kernels()) {
            double of_element = 0;
            of.take(op.c_str(), of_element, kSavedByOp[0].key.allowed);
            if (of_element > 0) m.saved_bytes[op] = of_element;
        }
        of.finish();
    }
    if (!m.is_described()) r.incomplete("gradient_bytes", "[memory] needs gradient_bytes, those of a parameter's gradient");
}

// What a row says of a rate, on top of what it was. One share of products takes the place of the other.
void change_rate(Reader& row, const std::string& origin, ops::KernelRate& rate) {
    ops::KernelRate own;
    read_rate(row, origin, own);
    if (own.of_products > 0 || own.product > 0) rate.product = 0, rate.of_products = 0;
    read_rate(row, origin, rate);
}

bool is_of(const AttentionRate& a, const std::string& kernel, const std::string& op) { return a.kernel == kernel && a.op == op; }

// [[attention]]: a row changes that of the same kernel and op in an earlier file.
void read_attention(Reader& top, const std::string& origin, std::vector<AttentionRate>& rates) {
    read_each(top, "attention", origin, [&](Reader& row) {
        AttentionRate of_table;
        read_fields(row, kAttention, of_table);
        if (of_table.kernel.empty() || of_table.op.empty())
            row.incomplete("kernel", "an [[attention]] table needs kernel and op");
        auto at = std::find_if(rates.begin(), rates.end(), [&](const auto& a) { return is_of(a, of_table.kernel, of_table.op); });
        if (at == rates.end()) at = rates.insert(at, {of_table.kernel, of_table.op, 0, {}});
        ops::KernelRate own;
        read_rate(row, origin, own);
        if (own.of_products > 0 || own.product > 0) at->flops_per_s = 0;
        change_rate(row, origin, at->rate);
        if (of_table.flops_per_s > 0) at->flops_per_s = of_table.flops_per_s;
    });
}

// Of the rates that kernels reach by themselves, the share that they reach in a step: that of products.
double in_a_step(const Cluster& c) {
    const auto products = c.costs.kernel_rates.find({std::string(ir::kEinsum), ""});
    return products != c.costs.kernel_rates.end() && products->second.of_products > 0 ? products->second.of_products : 1;
}

// What runs attention in a stack that says so; chips without any [[attention]] keep what [[ops]] says.
void take_attention(Reader& stack, Cluster& c) {
    if (c.attention.empty() || c.stack.attention.empty()) return;
    for (const char* op : {"attention", "attention_backward"}) {
        const auto at = std::find_if(c.attention.begin(), c.attention.end(),
                                     [&](const AttentionRate& a) { return is_of(a, c.stack.attention, op); });
        if (at == c.attention.end()) {
            std::vector<std::string> known;
            for (const AttentionRate& a : c.attention) {
                if (a.op == op) known.push_back(a.kernel);
            }
            stack.refuse("cluster.unknown_attention", "attention", fmt::format("\"{}\"", c.stack.attention),
                         fmt::format("no file of {} has an [[attention]] table of such a kernel for {}; they have {}", c.name, op,
                                     fmt::join(known, ", ")));
        }
        ops::KernelRate rate = at->rate;
        const double peak = ops::flops_roof(c.costs, "bf16", 1);
        if (at->flops_per_s > 0 && peak > 0)
            rate.of_products = 0, rate.product = std::min(1.0, in_a_step(c) * at->flops_per_s / peak);
        const bool is_forward = op == ir::kAttention;
        for (const std::string_view name :
             {std::string_view(op), is_forward ? ir::kAttentionBlock : ir::kAttentionBlockBackward}) {
            std::erase_if(c.costs.kernel_rates, [&](const auto& of) { return of.first.first == name; });
            c.costs.kernel_rates[{std::string(name), ""}] = rate;
        }
    }
}

// [[ops]]: rates of ops, whichever kernel runs them.
void read_ops(Reader& top, const std::string& origin, ops::KernelRates& rates) {
    read_each(top, "ops", origin, [&](Reader& row) {
        RatedKernels of_table;
        read_fields(row, kOps, of_table);
        if (of_table.ops.empty()) row.incomplete("ops", "an [[ops]] table needs ops, the kinds of op whose rate it gives");
        for (const std::string& op : of_table.ops) {
            rates.try_emplace({op, ""});
            for (auto& [of, rate] : rates) {
                if (of.first == op) change_rate(row, origin, rate);
            }
        }
    });
}

// [module], with [[module.ops]]: rates of single kernels, on top of those of [[ops]].
void read_module(Reader& top, const std::string& origin, Module& m, ops::KernelRates& rates) {
    const toml::table* table = top.table("module");
    if (!table) return;
    Reader r(*table, "module.", origin);
    read_fields(r, kModule, m), read_fields(r, kHost, m.host);
    read_each(r, "ops", origin, [&](Reader& row) {
        RatedKernels of_table;
        read_fields(row, kModuleOps, of_table);
        const auto& [ops, op, kernel, assumed] = of_table;
        if (op.empty() || kernel.empty()) row.incomplete("op", "a [[module.ops]] table needs op and kernel");
        const auto of_any = rates.find({op, ""});
        ops::KernelRate rate = of_any == rates.end() ? ops::KernelRate() : of_any->second;
        change_rate(row, origin, rate);
        rates[{op, kernel}] = rate;
        if (assumed) m.assumed.insert({op, kernel});
        else m.assumed.erase({op, kernel});
    });
    r.finish();
}

std::vector<Constant> read_constants(Reader& top, const std::string& origin) {
    std::vector<Constant> out;
    read_each(top, "constants", origin, [&](Reader& row) {
        Constant c;
        read_fields(row, kConstants, c);
        if (c.key.empty() || c.prior <= 0 || c.spread <= 0)
            row.incomplete("key", "a [[constants]] table needs key, prior and spread");
        out.push_back(std::move(c));
    });
    return out;
}

// One table of the file.
void read_table(Reader& top, const char* name, const std::string& origin, const auto& read) {
    const toml::table* table = top.table(name);
    if (!table) return;
    Reader r(*table, fmt::format("{}.", name), origin);
    read(r);
    r.finish();
}

// A level changes that of as many ranks in an earlier file.
void read_links(Reader& top, const std::string& origin, std::vector<LinkLevel>& links) {
    const size_t earlier = links.size();
    read_each(top, "links", origin, [&](Reader& row) {
        LinkLevel own;
        read_fields(row, kLinks, own);
        const auto end = links.begin() + static_cast<std::ptrdiff_t>(earlier);
        const auto at = std::find_if(links.begin(), end, [&](const LinkLevel& l) { return l.ranks == own.ranks; });
        if (at == end) links.push_back(own);
        else read_fields(row, kLinks, *at);
    });
}

Part read_part(Reader& top, const Source& source) {
    Part part{Part::Kind::Network, "", source.path};
    if (source.of == Source::Of::Chip) part.kind = Part::Kind::Chip;
    if (source.of == Source::Of::Stack) part.kind = Part::Kind::Stack;
    read_table(top, "runs", source.path, [&](Reader& r) { read_fields(r, kRuns, part); });
    return part;
}

void read_source(Cluster& c, const Source& source) {
    const std::string& origin = source.path;
    Reader top(source.tables, "", origin);
    read_table(top, "machine", origin, [&](Reader& r) { read_machine(r, source.of, c); });
    Cluster of_class;  // its name is not the machine's
    if (source.of != Source::Of::Stack) read_fields(top, kTop, source.of == Source::Of::Class ? of_class : c);
    read_constants(top, origin);
    read_attention(top, origin, c.attention);
    read_table(top, "rates", origin, [&](Reader& r) { read_rates(r, origin, c); });
    read_table(top, "hosts", origin, [&](Reader& r) { read_hosts(r, c.hosts); });
    read_table(top, "host", origin, [&](Reader& r) { read_fields(r, kHost, c.host); });
    ops::KernelRates of_module;  // taken below, where all other rates are known
    read_module(top, origin, c.module, of_module);
    read_table(top, "measured", origin, [&](Reader& r) { read_measured(r, c.measured); });
    read_table(top, "stack", origin, [&](Reader& r) {
        OtherKeys other;
        read_fields(r, kOnKey, other), read_fields(r, kStack, c.stack);
        if (source.tables["stack"]["attention"]) take_attention(r, c);
    });
    read_table(top, "memory", origin, [&](Reader& r) { read_memory(r, origin, c.stack.memory); });
    read_links(top, origin, c.links);
    read_each(top, "caches", origin, [&](Reader& row) { read_fields(row, kCaches, c.costs.caches.emplace_back()); });
    read_rows(top, origin, c.costs);
    std::vector<ops::DescribedKernel> own = read_catalog(top, origin);
    c.catalog.insert(c.catalog.begin(), own.begin(), own.end());  // before the chip's: the first that serves is taken
    for (auto& [kernel, rate] : ops::rates_of(own)) c.costs.kernel_rates[kernel] = rate;
    read_ops(top, origin, c.costs.kernel_rates);
    Part part = read_part(top, source);
    top.finish();
    if (source.of == Source::Of::Kernels || source.of == Source::Of::Class) return;
    part.name = part.kind == Part::Kind::Stack ? c.stack.name : c.name;
    // A stack that comes on top of another one is the one that ran.
    std::erase_if(c.parts, [&](const Part& p) { return p.kind == part.kind; });
    c.parts.push_back(std::move(part));
}

toml::table parse(const std::string& text, const std::string& origin) {
    try {
        return parse_toml(text);
    } catch (const toml::parse_error& e) {
        throw UserError("cluster.syntax", "--cluster",
                        fmt::format("{}, line {}: {}", origin, e.source().begin.line, e.description()));
    }
}

Source read_source_of(Source::Of of, const std::string& named, const char* asked_by) {
    const bool is_stack = of == Source::Of::Stack;
    const Shipped kind = is_stack ? Shipped::Stacks : Shipped::Clusters;
    const std::string path = file_or_shipped(kind, named);
    const TextFile file = read_text_file(path);
    if (!file.is_readable()) {
        const std::string nearest = nearest_shipped(kind, named);
        throw UserError(
            "cluster.cannot_read", asked_by,
            fmt::format("{} {}: cannot be read ({}); give the path of a {}, or a name that `lockstep clusters` lists{}", asked_by,
                        named, file.reason,
                        is_stack ? "stack's file, such as those in clusters/stacks/" : "cluster file, such as those in clusters/",
                        nearest.empty() ? "" : ", such as " + nearest));
    }
    return {of, path, parse(file.text, path)};
}

// Files that build on each other, at most.
constexpr int kMostBases = 6;

// After what it builds on.
void add_with_bases(std::vector<Source>& out, Source source, int depth) {
    for (const auto& [section, key] :
         {std::pair{"machine", "kernels"}, {"machine", "class"}, {"machine", "chip"}, {"machine", "on"}, {"stack", "on"}}) {
        const std::string_view name = key, of_table = section;
        const bool of_cluster = name == "chip" || (name == "on" && of_table == "machine");
        if (of_cluster && source.of != Source::Of::Cluster) continue;  // a chip has no chip
        const toml::table* table = source.tables[section].as_table();
        const auto named = table ? (*table)[key].value<std::string>() : std::nullopt;
        if (!named || named->empty()) continue;
        const std::string path = (std::filesystem::path(source.path).parent_path() / *named).lexically_normal().string();
        const TextFile file = read_text_file(path);
        if (!file.is_readable())
            Reader(*table, std::string(section) + ".", source.path)
                .refuse("cluster.cannot_read", key, *named,
                        fmt::format("{} cannot be read ({}); its path begins in the folder of this file", path, file.reason));
        if (depth == 0)
            Reader(*table, std::string(section) + ".", source.path)
                .refuse("cluster.incomplete", key, *named, "files name each other");
        const auto of = source.of == Source::Of::Stack ? Source::Of::Stack
                        : name == "kernels"            ? Source::Of::Kernels
                        : name == "class"              ? Source::Of::Class
                        : name == "on"                 ? Source::Of::Cluster
                                                       : Source::Of::Chip;
        add_with_bases(out, {of, path, parse(file.text, path)}, depth - 1);
    }
    out.push_back(std::move(source));
}

std::vector<Source> with_bases(Source source) {
    std::vector<Source> out;
    add_with_bases(out, std::move(source), kMostBases);
    return out;
}

}  // namespace

std::vector<Source> read_sources(const std::string& path, const char* asked_by, const std::string& stack) {
    std::vector<Source> out = with_bases(read_source_of(Source::Of::Cluster, path, asked_by));
    if (!stack.empty()) add_with_bases(out, read_source_of(Source::Of::Stack, stack, "cluster.stack"), kMostBases);
    return out;
}

std::vector<Constant> constants_of(const Source& source) {
    Reader top(source.tables, "", source.path);
    return read_constants(top, source.path);
}

Cluster cluster_of(const std::vector<Source>& sources) {
    Cluster c;
    std::string origin;
    for (const Source& s : sources) {
        if (s.of == Source::Of::Cluster) origin = s.path;
        read_source(c, s);
        if (!c.catalog.empty() && c.catalog_name.empty()) c.catalog_name = c.name;
    }
    if (c.runs_module()) {
        for (const Source& s : sources) {
            Reader top(s.tables, "", s.path);
            read_module(top, s.path, c.module, c.costs.kernel_rates);
        }
        if (c.module.host.launch_s > 0) c.host = c.module.host;
    }
    // One H100 has run Lockstep's own kernels (docs/gpu.md).
    const int64_t own = c.runs_module() ? 1 : 0;
    if (c.stack.name.empty()) c.parts.push_back({Part::Kind::Stack, "Lockstep", "", own, own});
    if (!c.devices) c.parts.clear();
    require_sound(c, origin);
    return c;
}

std::vector<std::string> attention_kernels() { return {"unfused", "triton", "flash1", "flash2", "flash3", "vendor"}; }

std::string_view name_of(Part::Kind kind) {
    switch (kind) {
        case Part::Kind::Chip: return "chip";
        case Part::Kind::Network: return "network";
        case Part::Kind::Stack: return "stack";
    }
    return "";
}

Cluster parse_cluster(const std::string& text, const std::string& origin) {
    return cluster_of(with_bases({Source::Of::Cluster, origin, parse(text, origin)}));
}

Cluster read_cluster(const std::string& path, const char* asked_by, const std::string& stack) {
    try {
        return cluster_of(read_sources(path, asked_by, stack));
    } catch (const UserError& e) {
        const UserError error = compile::with_kind(e, read_text_file(path).text, path, compile::kClusterKind);
        if (stack.empty()) throw error;
        throw compile::with_kind(error, read_text_file(stack).text, stack, compile::kStackKind);
    }
}

int64_t ranks_sharing_cores(const Cluster& cluster, int64_t ranks) {
    return cluster.hosts.ranks > 0 && !cluster.hosts.share_cores ? std::min(ranks, cluster.hosts.ranks) : ranks;
}

mesh::Topology topology_of(const Cluster& cluster, int64_t ranks) {
    const Hosts& h = cluster.hosts;
    return h.ranks > 0 ? mesh::even_hosts(ranks, h.ranks, h.ranks_per_process) : mesh::Topology{};
}

GroupLink link_of(const Cluster& cluster, const std::vector<int64_t>& members, int64_t ranks, bool message) {
    GroupLink out;
    double slowest = std::numeric_limits<double>::infinity();
    int64_t below = 1;  // ranks of a block of the level below
    for (size_t i = 0; i < cluster.links.size(); ++i) {
        const LinkLevel& l = cluster.links[i];
        out.level = i;
        const auto blocks = [&](int64_t size) {
            if (size == 0) return int64_t{1};
            std::vector<int64_t> of;
            for (const int64_t m : members) of.push_back(m / size);
            std::sort(of.begin(), of.end());
            return static_cast<int64_t>(std::unique(of.begin(), of.end()) - of.begin());
        };
        const int64_t crossed = blocks(below);
        if (crossed > 1) {
            const double in_block = static_cast<double>(members.size()) / static_cast<double>(crossed);
            const auto present = static_cast<double>(std::min(below, ranks));
            const double ports = l.ports > 0 ? static_cast<double>(l.ports) : present;
            const double share = message && l.message_efficiency > 0 ? l.message_efficiency : l.efficiency;
            double rate = l.link.bandwidth_bytes_per_s * share * ports * std::min(1.0, in_block / present);
            if (l.group_bytes_per_s > 0 && !message) rate = std::min(rate, l.group_bytes_per_s);
            const bool joins_hosts = i + 1 == cluster.links.size();
            if (const double most = cluster.stack.group_bytes_per_s; most > 0 && joins_hosts && !message)
                rate = std::min(rate, most);
            if (l.crowding > 0 && !message && static_cast<double>(ranks) > l.crowded_beyond)
                rate *= std::pow(static_cast<double>(ranks) / l.crowded_beyond, -l.crowding);
            slowest = std::min(slowest, rate);
            out.link.latency_s = std::max(out.link.latency_s, l.link.latency_s);
        }
        if (blocks(l.ranks) == 1) break;
        below = l.ranks;
    }
    out.link.bandwidth_bytes_per_s = std::isfinite(slowest) ? slowest : 0;
    return out;
}

double collective_s(const Cluster& cluster, const GroupLink& link, mesh::Collective kind, int64_t members,
                    const mesh::RingTraffic& traffic) {
    const double ring_s = traffic.time_s(link.link);
    if (kind != mesh::Collective::AllReduce || members <= 2) return ring_s;
    const LinkLevel& level = cluster.links[link.level];
    const auto n = static_cast<double>(members);
    const double bytes = traffic.bytes / (2 * (n - 1) / n);  // of what is summed
    double best = ring_s;
    // Up a tree and down again, in pieces that follow each other.
    if (level.trees) best = std::min(best, mesh::RingTraffic{2 * bytes, 2 * std::ceil(std::log2(n))}.time_s(link.link));
    if (level.in_switch) best = std::min(best, mesh::RingTraffic{bytes, 2}.time_s(link.link));
    return best;
}

}  // namespace lockstep::sim
