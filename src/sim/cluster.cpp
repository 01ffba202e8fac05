#include "sim/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shipped.h"
#include "base/text_file.h"
#include "compile/file_kind.h"
#include "sim/catalog_file.h"
#include "sim/reader.h"

namespace lockstep::sim {
namespace {

// Numbers that a machine can have. Bounds only keep what is computed from them finite.
const Allowed kCount = from_to(1, 1 << 20), kBytes = from_to(0, 0x1p50), kRate = above_to(0, 1e24), kSeconds = from_to(0, 3600),
              kHours = from_to(0, 1e9), kShare = from_to(0, 1), kEfficiency = above_to(0, 1), kAmount = from_to(0, 1e24);

void read_rows(Reader& top, const std::string& origin, ops::CostTable& t) {
    read_each(top, "kernels", origin, [&](Reader& row) {
        ops::CostRow r;
        row.take("op", r.key.op), row.take("kernel", r.key.kernel), row.take("dtype", r.key.dtype);
        row.take("variant", r.key.variant), row.take("threads", r.key.threads, kCount), row.take("sizes", r.key.sizes, kAmount);
        row.take("flops", r.key.flops, kAmount), row.take("bytes", r.key.bytes, kAmount);
        const Allowed time = above_to(0, 1e6);
        row.take("warm_s", r.warm_s, time), row.take("cold_s", r.cold_s, time), row.take("crowded_s", r.crowded_s, time);
        t.rows.push_back(std::move(r));
    });
    read_each(top, "collectives", origin, [&](Reader& row) {
        ops::CollectiveRow r;
        r.core_s = -1;  // not given: all of it
        row.take("op", r.op), row.take("members", r.members, kCount), row.take("block_bytes", r.block_bytes, kAmount);
        row.take("time_s", r.time_s, kSeconds), row.take("core_s", r.core_s, kSeconds);
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
        refuse("machine.instruction_sets", "machine.instruction_sets is of processors; kernels of devices stand in [[catalog]]");
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
            refuse("links.ranks", fmt::format("links.ranks = {}: [[links]] stand in the order of their ranks, and only the last "
                                              "has 0, which joins any number",
                                              l.ranks));
    }
    for (const ops::CostRow& r : c.costs.rows) {
        if (r.warm_s <= 0 || r.cold_s <= 0 || r.crowded_s <= 0)
            refuse("kernels", fmt::format("the row of {} ({}) needs warm_s, cold_s and crowded_s", r.key.op, r.key.kernel));
    }
}

std::string list(const std::vector<double>& values) {
    std::string out;
    for (double v : values) out += fmt::format("{}{:.10g}", out.empty() ? "" : ", ", v);
    return "[" + out + "]";
}

void read_machine(Reader& r, Cluster& c) {
    r.take("devices", c.devices), r.take("cores", c.costs.cores, kCount);
    r.take("memory_bytes", c.memory_bytes, kBytes), r.take("reserve_bytes", c.reserve_bytes, kBytes);
    double mtbf_hours = 0;  // read by mtbf_hours_of
    r.take("mtbf_hours", mtbf_hours, kHours);
    std::vector<std::string> words;
    r.take("instruction_sets", words, one_of([] { return instruction_set_words(); }));
    if (words.empty()) return;
    c.instruction_sets = instruction_sets_from(words);
    if (!c.instruction_sets)
        r.refuse("cluster.instruction_sets", "instruction_sets", fmt::format("{}", fmt::join(words, ", ")),
                 "give one of baseline, avx2 and avx512; avx512_bf16 and fast_avx512_bf16 (AMD) exclude each other and need "
                 "avx512, and amx needs one of them");
}

void read_rates(Reader& r, const std::string& origin, ops::CostTable& costs) {
    r.take("bytes_per_s", costs.bytes_per_s, kRate), r.take("op_overhead_s", costs.op_overhead_s, kSeconds);
    r.take("step_overhead_s", costs.step_overhead_s, kSeconds);
    r.take("product_efficiency", costs.product_efficiency, kEfficiency);
    r.take("bandwidth_efficiency", costs.bandwidth_efficiency, kEfficiency);
    r.take("processors", costs.processors, kCount);
    if (const toml::table* flops = r.table("flops_per_s")) {
        Reader by_dtype(*flops, "rates.flops_per_s.", origin);
        for (const Dtype dtype : kFloatDtypes) {
            std::vector<double> rates;
            const std::string name(name_of(dtype));
            by_dtype.take(name.c_str(), rates, kRate);
            if (!rates.empty()) costs.flops_per_s[name] = std::move(rates);
        }
        by_dtype.finish();
    }
}

void read_hosts(Reader& r, Hosts& h) {
    h.ranks = -1;  // to be given
    r.take("ranks", h.ranks, kCount), r.take("ranks_per_process", h.ranks_per_process, kCount);
    r.take("share_cores", h.share_cores), r.take("bandwidth_bytes_per_s", h.link.bandwidth_bytes_per_s, kRate);
    r.take("latency_s", h.link.latency_s, kSeconds), r.take("core_s_per_byte", h.core_s_per_byte, kShare);
    r.take("process_bytes_per_s", h.process_bytes_per_s, kRate);
    r.take("process_latency_s", h.process_latency_s, kSeconds), r.take("polling", h.polling, kShare);
}

void read_link(Reader& row, LinkLevel& l) {
    row.take("ranks", l.ranks, from_to(0, 1 << 20)), row.take("bandwidth_bytes_per_s", l.link.bandwidth_bytes_per_s, kRate);
    row.take("latency_s", l.link.latency_s, kSeconds), row.take("ports", l.ports, kCount);
    row.take("efficiency", l.efficiency, kEfficiency), row.take("message_efficiency", l.message_efficiency, kEfficiency);
    row.take("group_bytes_per_s", l.group_bytes_per_s, kRate);
    row.take("crowded_beyond", l.crowded_beyond, kCount), row.take("crowding", l.crowding, from_to(0, 2));
    row.take("trees", l.trees), row.take("in_switch", l.in_switch);
}

void read_host(Reader& r, Host& h) {
    r.take("launch_s", h.launch_s, kSeconds), r.take("blocking_s", h.blocking_s, kSeconds);
    r.take("microbatch_s", h.microbatch_s, kSeconds), r.take("step_s", h.step_s, kSeconds);
    r.take("lost_per_doubling", h.lost_per_doubling, kShare);
}

void read_measured(Reader& r, Measured& m) {
    r.take("multiplier", m.multiplier, above_to(0, 100)), r.take("spread", m.spread, above_to(0, 10));
    r.take("runs", m.runs, kCount);
    if (m.runs > 0 && m.spread <= 0) r.incomplete("spread", "[measured] needs spread, the deviation that is left");
}

void read_stack(Reader& r, Stack& s) {
    std::string base;
    r.take("on", base), r.take("name", s.name), r.take("description", s.description), r.take("reduces_last", s.reduces_last);
    r.take("transfers_block", s.transfers_block), r.take("merged_products", s.merged_products);
    r.take("broadcast_s", s.broadcast_s, kSeconds), r.take("split_sends", s.split_sends),
        r.take("whole_recompute", s.whole_recompute), r.take("whole_logits", s.whole_logits);
}

void read_memory(Reader& r, const std::string& origin, StackMemory& m) {
    const Allowed bytes = from_to(0, 64), all = from_to(0, 0x1p50);
    r.take("gradient_bytes", m.gradient_bytes, above_to(0, 64)), r.take("sum_bytes", m.sum_bytes, bytes);
    r.take("logit_bytes", m.logit_bytes, bytes);
    r.take("score_bytes", m.score_bytes, bytes), r.take("mask_bytes", m.mask_bytes, bytes);
    r.take("saves_gathered", m.saves_gathered), r.take("policy_keeps_last", m.policy_keeps_last);
    r.take("splits_optimizer", m.splits_optimizer), r.take("keeps_gathered", m.keeps_gathered);
    r.take("gathered_layers", m.gathered_layers, from_to(1, 1000));
    r.take("gathered_bytes", m.gathered_bytes, all), r.take("bucket_bytes", m.bucket_bytes, all);
    r.take("reserve", m.reserve, from_to(0, 1));
    if (const toml::table* t = r.table("saved_bytes")) {
        Reader of(*t, "memory.saved_bytes.", origin);
        for (const std::string& op : ops_with_kernels()) {
            double of_element = 0;
            of.take(op.c_str(), of_element, bytes);
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

// [[ops]]: rates of ops, whichever kernel runs them.
void read_ops(Reader& top, const std::string& origin, ops::KernelRates& rates) {
    read_each(top, "ops", origin, [&](Reader& row) {
        std::vector<std::string> ops;
        row.take("ops", ops, one_of(ops_with_kernels));
        if (ops.empty()) row.incomplete("ops", "an [[ops]] table needs ops, the kinds of op whose rate it gives");
        for (const std::string& op : ops) {
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
    r.take("name", m.name, one_of({"cuda"}));
    r.take("compute_capability", m.compute_capability, from_to(80, 1000));
    read_host(r, m.host);
    read_each(r, "ops", origin, [&](Reader& row) {
        std::string op, kernel;
        row.take("op", op, one_of(ops_with_kernels)), row.take("kernel", kernel, kernel_names());
        if (op.empty() || kernel.empty()) row.incomplete("op", "a [[module.ops]] table needs op and kernel");
        const auto of_any = rates.find({op, ""});
        ops::KernelRate rate = of_any == rates.end() ? ops::KernelRate() : of_any->second;
        change_rate(row, origin, rate);
        rates[{op, kernel}] = rate;
    });
    r.finish();
}

std::vector<Constant> read_constants(Reader& top, const std::string& origin) {
    std::vector<Constant> out;
    const Allowed value = from_to(0, 1e24);
    read_each(top, "constants", origin, [&](Reader& row) {
        Constant c;
        row.take("key", c.key), row.take("prior", c.prior, above_to(0, 1e24)), row.take("spread", c.spread, above_to(0, 10));
        row.take("low", c.low, value), row.take("high", c.high, value), row.take("runs", c.runs, from_to(0, 1 << 20));
        if (c.key.empty() || c.prior <= 0 || c.spread <= 0)
            row.incomplete("key", "a [[constants]] table needs key, prior and spread");
        out.push_back(std::move(c));
    });
    return out;
}

Part read_part(Reader& top, const Source& source) {
    Part part{Part::Kind::Network, "", source.path};
    if (source.of == Source::Of::Chip) part.kind = Part::Kind::Chip;
    if (source.of == Source::Of::Stack) part.kind = Part::Kind::Stack;
    if (const toml::table* t = top.table("runs")) {
        Reader r(*t, "runs.", source.path);
        r.take("count", part.runs, kCount), r.take("sources", part.sources, kCount);
        r.finish();
    }
    return part;
}

void read_source(Cluster& c, const Source& source) {
    const std::string& origin = source.path;
    Reader top(source.tables, "", origin);
    if (const toml::table* t = top.table("machine")) {
        Reader r(*t, "machine.", origin);
        std::string base;
        if (source.of != Source::Of::Stack) r.take("kernels", base);
        if (source.of == Source::Of::Cluster) r.take("chip", base);
        read_machine(r, c);
        r.finish();
    }
    if (source.of != Source::Of::Stack)
        top.take("name", c.name), top.take("description", c.description), top.take("declared", c.declared);
    read_constants(top, origin);
    if (const toml::table* t = top.table("rates")) {
        Reader r(*t, "rates.", origin);
        read_rates(r, origin, c.costs);
        r.take("beside_collective", c.beside_collective, kEfficiency);
        r.finish();
    }
    if (const toml::table* t = top.table("hosts")) {
        Reader r(*t, "hosts.", origin);
        read_hosts(r, c.hosts);
        r.finish();
    }
    if (const toml::table* t = top.table("host")) {
        Reader r(*t, "host.", origin);
        read_host(r, c.host);
        r.finish();
    }
    ops::KernelRates of_module;  // taken below, where all other rates are known
    read_module(top, origin, c.module, of_module);
    if (const toml::table* t = top.table("measured")) {
        Reader r(*t, "measured.", origin);
        read_measured(r, c.measured);
        r.finish();
    }
    if (const toml::table* t = top.table("stack")) {
        Reader r(*t, "stack.", origin);
        read_stack(r, c.stack);
        r.finish();
    }
    if (const toml::table* t = top.table("memory")) {
        Reader r(*t, "memory.", origin);
        read_memory(r, origin, c.stack.memory);
        r.finish();
    }
    read_each(top, "links", origin, [&](Reader& row) { read_link(row, c.links.emplace_back()); });
    read_each(top, "caches", origin, [&](Reader& row) {
        ops::CacheLevel l;
        row.take("bytes", l.bytes, above_to(0, 0x1p50)), row.take("cores", l.cores, kCount);
        row.take("price_beyond", l.price_beyond, kShare);
        c.costs.caches.push_back(l);
    });
    read_rows(top, origin, c.costs);
    std::vector<ops::DescribedKernel> own = read_catalog(top, origin);
    c.catalog.insert(c.catalog.begin(), own.begin(), own.end());  // before the chip's: the first that serves is taken
    for (auto& [kernel, rate] : ops::rates_of(own)) c.costs.kernel_rates[kernel] = rate;
    read_ops(top, origin, c.costs.kernel_rates);
    Part part = read_part(top, source);
    top.finish();
    if (source.of == Source::Of::Kernels) return;
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

// After what it builds on.
void add_with_bases(std::vector<Source>& out, Source source, int depth) {
    for (const auto& [section, key] : {std::pair{"machine", "kernels"}, {"machine", "chip"}, {"stack", "on"}}) {
        if (key == std::string_view("chip") && source.of != Source::Of::Cluster) continue;  // a chip has no chip
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
        const auto of = source.of == Source::Of::Stack       ? Source::Of::Stack
                        : key == std::string_view("kernels") ? Source::Of::Kernels
                                                             : Source::Of::Chip;
        add_with_bases(out, {of, path, parse(file.text, path)}, depth - 1);
    }
    out.push_back(std::move(source));
}

std::vector<Source> with_bases(Source source) {
    std::vector<Source> out;
    add_with_bases(out, std::move(source), 3);
    return out;
}

}  // namespace

std::vector<Source> read_sources(const std::string& path, const char* asked_by, const std::string& stack) {
    std::vector<Source> out = with_bases(read_source_of(Source::Of::Cluster, path, asked_by));
    if (!stack.empty()) add_with_bases(out, read_source_of(Source::Of::Stack, stack, "cluster.stack"), 3);
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

namespace {

std::string print_link(const LinkLevel& l) {
    std::string out = fmt::format("\n[[links]]\nranks = {}\nbandwidth_bytes_per_s = {:.6g}\nlatency_s = {:.4g}\n", l.ranks,
                                  l.link.bandwidth_bytes_per_s, l.link.latency_s);
    if (l.ports > 0) out += fmt::format("ports = {}\n", l.ports);
    if (l.efficiency < 1) out += fmt::format("efficiency = {:.4g}\n", l.efficiency);
    if (l.message_efficiency > 0) out += fmt::format("message_efficiency = {:.4g}\n", l.message_efficiency);
    if (l.group_bytes_per_s > 0) out += fmt::format("group_bytes_per_s = {:.6g}\n", l.group_bytes_per_s);
    if (l.crowding > 0) out += fmt::format("crowded_beyond = {}\ncrowding = {:.4g}\n", l.crowded_beyond, l.crowding);
    if (l.trees) out += "trees = true\n";
    if (l.in_switch) out += "in_switch = true\n";
    return out;
}

std::string print_host(const std::string& head, const Host& h) {
    if (h.launch_s + h.blocking_s + h.microbatch_s + h.step_s + h.lost_per_doubling <= 0) return "";
    return head + fmt::format(
                      "launch_s = {:.4g}\nblocking_s = {:.4g}\nmicrobatch_s = {:.4g}\nstep_s = {:.4g}\n"
                      "lost_per_doubling = {:.4g}\n",
                      h.launch_s, h.blocking_s, h.microbatch_s, h.step_s, h.lost_per_doubling);
}
std::string print_module(const Module& m) {
    if (m.name.empty()) return "";
    return fmt::format("\n[module]\nname = \"{}\"\ncompute_capability = {}\n", m.name, m.compute_capability) +
           print_host("", m.host);
}

std::string print_memory(const StackMemory& m) {
    if (!m.is_described()) return "";
    std::string out = fmt::format(
        "\n[memory]\ngradient_bytes = {:.4g}\nsum_bytes = {:.4g}\nlogit_bytes = {:.4g}\nscore_bytes = {:.4g}\nmask_bytes = "
        "{:.4g}\nsaves_gathered = "
        "{}\npolicy_keeps_last = {}\nsplits_optimizer = {}\nkeeps_gathered = {}\ngathered_layers = {:.4g}\ngathered_bytes = "
        "{:.10g}\nbucket_bytes = "
        "{:.10g}\nreserve = {:.4g}\n",
        m.gradient_bytes, m.sum_bytes, m.logit_bytes, m.score_bytes, m.mask_bytes, m.saves_gathered, m.policy_keeps_last,
        m.splits_optimizer, m.keeps_gathered, m.gathered_layers, m.gathered_bytes, m.bucket_bytes, m.reserve);
    if (!m.saved_bytes.empty()) out += "\n[memory.saved_bytes]\n";
    for (const auto& [op, bytes] : m.saved_bytes) out += fmt::format("{} = {:.4g}\n", op, bytes);
    return out;
}

// What [[ops]] says, and [[module.ops]] where the module runs. Other kernels' rates stand in [[catalog]].
std::string print_rates(const Cluster& c) {
    std::string of_ops, of_module;
    for (const auto& [of, rate] : c.costs.kernel_rates) {
        const auto& [op, kernel] = of;
        const std::string text = print_rate(rate);
        if (text.empty()) continue;
        if (kernel.empty()) of_ops += fmt::format("\n[[ops]]\nops = [\"{}\"]\n{}", op, text);
        else if (c.runs_module())
            of_module += fmt::format("\n[[module.ops]]\nop = \"{}\"\nkernel = \"{}\"\n{}", op, kernel, text);
    }
    return of_ops + of_module;
}

std::string print_stack(const Stack& s) {
    if (s.name.empty()) return "";
    return fmt::format(
        "\n[stack]\nname = \"{}\"\ndescription = \"{}\"\nreduces_last = {}\ntransfers_block = {}\nmerged_products = "
        "{}\nbroadcast_s = {:.4g}\nsplit_sends = {}\nwhole_recompute = {}\n"
        "whole_logits = {}\n",
        s.name, s.description, s.reduces_last, s.transfers_block, s.merged_products, s.broadcast_s, s.split_sends,
        s.whole_recompute, s.whole_logits);
}

// One file is all parts: what is known of the least known one.
std::string print_runs(const std::vector<Part>& parts) {
    const Part* least = nullptr;
    for (const Part& p : parts) {
        if (p.kind != Part::Kind::Stack && (!least || p.sources < least->sources)) least = &p;
    }
    if (!least || least->runs == 0) return "";
    return fmt::format("\n[runs]\ncount = {}\nsources = {}\n", least->runs, least->sources);
}

}  // namespace

std::string print(const Cluster& c) {
    std::string out = fmt::format("name = \"{}\"\ndescription = \"{}\"\ndeclared = {}\n", c.name, c.description, c.declared);
    const ops::CostTable& t = c.costs;
    out += fmt::format("\n[machine]\ndevices = {}\ncores = {}\nmemory_bytes = {}\nreserve_bytes = {}\n", c.devices, t.cores,
                       c.memory_bytes, c.reserve_bytes);
    if (c.instruction_sets)
        out += fmt::format("instruction_sets = [\"{}\"]\n", fmt::join(words_of(*c.instruction_sets), "\", \""));
    out += fmt::format(
        "\n[rates]  # lists: by 1, 2, ... threads together\nbytes_per_s = {}\nop_overhead_s = {:.4g}\nstep_overhead_s = {:.4g}\n",
        list(t.bytes_per_s), t.op_overhead_s, t.step_overhead_s);
    out +=
        fmt::format("product_efficiency = {:.4g}\nbandwidth_efficiency = {:.4g}\n", t.product_efficiency, t.bandwidth_efficiency);
    if (t.processors > 0) out += fmt::format("processors = {}\n", t.processors);
    if (c.beside_collective < 1) out += fmt::format("beside_collective = {:.4g}\n", c.beside_collective);
    out += "\n[rates.flops_per_s]\n";
    for (const auto& [dtype, rates] : t.flops_per_s) out += fmt::format("{} = {}\n", dtype, list(rates));
    if (const Hosts& h = c.hosts; h.ranks > 0) {
        const auto rate = [](const char* key, double value) {  // 0: not known
            return value > 0 ? fmt::format("{} = {:.6g}\n", key, value) : "";
        };
        out += fmt::format(
            "\n[hosts]\nranks = {}\nranks_per_process = {}\nshare_cores = {}\n{}latency_s = {:.4g}\ncore_s_per_byte = "
            "{:.4g}\n{}process_latency_s = {:.4g}\npolling = {:.4g}\n",
            h.ranks, h.ranks_per_process, h.share_cores, rate("bandwidth_bytes_per_s", h.link.bandwidth_bytes_per_s),
            h.link.latency_s, h.core_s_per_byte, rate("process_bytes_per_s", h.process_bytes_per_s), h.process_latency_s,
            h.polling);
    }
    for (const ops::CacheLevel& l : t.caches)
        out += fmt::format("\n[[caches]]\nbytes = {}\ncores = {}\nprice_beyond = {:.4g}\n", l.bytes, l.cores, l.price_beyond);
    for (const LinkLevel& l : c.links) out += print_link(l);
    out += print_host("\n[host]\n", c.host) + print_module(c.module) + print_stack(c.stack) + print_memory(c.stack.memory);
    if (const Measured& m = c.measured; m.runs > 0)
        out += fmt::format("\n[measured]\nmultiplier = {:.4g}\nspread = {:.4g}\nruns = {}\n", m.multiplier, m.spread, m.runs);
    out += print_runs(c.parts);
    out += print_catalog(c.catalog) + print_rates(c);
    if (!t.collectives.empty()) out += "\n";
    for (const ops::CollectiveRow& r : t.collectives)
        out += fmt::format("[[collectives]]\nop = \"{}\"\nmembers = {}\nblock_bytes = {:.0f}\ntime_s = {:.4g}\ncore_s = {:.4g}\n",
                           r.op, r.members, r.block_bytes, r.time_s, r.core_s);
    for (const ops::CostRow& r : t.rows)
        out += fmt::format(
            "[[kernels]]\nop = \"{}\"\nkernel = \"{}\"\ndtype = \"{}\"\nvariant = \"{}\"\nthreads = {}\nsizes = {}\nflops = "
            "{:.10g}\nbytes = {:.10g}\nwarm_s = {:.4g}\ncold_s = {:.4g}\ncrowded_s = {:.4g}\n",
            r.key.op, r.key.kernel, r.key.dtype, r.key.variant, r.key.threads, list(r.key.sizes), r.key.flops, r.key.bytes,
            r.warm_s, r.cold_s, r.crowded_s);
    return out;
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
