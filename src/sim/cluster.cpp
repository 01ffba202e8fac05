#include "sim/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/dtype.h"
#include "base/error.h"
#include "base/text_file.h"
#include "sim/catalog_file.h"
#include "sim/reader.h"

namespace lockstep::sim {
namespace {

// Numbers that a machine can have. Bounds only keep what is computed from them finite.
const Allowed kCount = from_to(1, 1 << 20), kBytes = from_to(0, 0x1p50), kRate = above_to(0, 1e24), kSeconds = from_to(0, 3600),
              kShare = from_to(0, 1), kEfficiency = above_to(0, 1), kAmount = from_to(0, 1e24);

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
    const Hosts& h = c.hosts;
    if (h.ranks > 0 && c.devices) refuse("hosts.ranks", "[hosts] is of ranks without devices; devices have [[links]]");
    if (h.ranks < 0) refuse("hosts.ranks", "[hosts] needs ranks, the number of ranks of a host");
    if (h.ranks > 0 && h.ranks % h.ranks_per_process != 0)
        refuse("hosts.ranks_per_process",
               fmt::format("hosts.ranks_per_process = {}: must divide hosts.ranks = {}", h.ranks_per_process, h.ranks));
    if (c.devices && (c.links.empty() || c.links.back().ranks != 0))
        refuse("links", "devices need [[links]]; the last has ranks = 0 and joins any number");
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

void read_chip(Cluster& c, Reader& machine, const std::string& chip, const std::string& origin);

void read_machine(Reader& r, Cluster& c) {
    r.take("devices", c.devices), r.take("cores", c.costs.cores, kCount);
    r.take("memory_bytes", c.memory_bytes, kBytes), r.take("reserve_bytes", c.reserve_bytes, kBytes);
    std::vector<std::string> words;
    r.take("instruction_sets", words, one_of(instruction_set_words()));
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
    if (const toml::table* flops = r.table("flops_per_s")) {
        Reader by_dtype(*flops, "rates.flops_per_s.", origin);
        for (const Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F64}) {
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

// A file, on top of what its chip says. A chip has no chip.
enum class FileOf { Cluster, Chip };
Cluster read_tables(const std::string& text, const std::string& origin, FileOf of) {
    toml::table root;
    try {
        root = toml::parse(text);
    } catch (const toml::parse_error& e) {
        throw UserError("cluster.syntax", "--cluster",
                        fmt::format("{}, line {}: {}", origin, e.source().begin.line, e.description()));
    }
    Cluster c;
    Reader top(root, "", origin);
    if (const toml::table* t = top.table("machine")) {
        Reader r(*t, "machine.", origin);
        std::string chip;
        if (of == FileOf::Cluster) r.take("chip", chip);
        if (!chip.empty()) read_chip(c, r, chip, origin);
        read_machine(r, c);
        r.finish();
    }
    top.take("name", c.name), top.take("description", c.description), top.take("declared", c.declared);
    if (const toml::table* t = top.table("rates")) {
        Reader r(*t, "rates.", origin);
        read_rates(r, origin, c.costs);
        r.finish();
    }
    if (const toml::table* t = top.table("hosts")) {
        Reader r(*t, "hosts.", origin);
        read_hosts(r, c.hosts);
        r.finish();
    }
    read_each(top, "links", origin, [&](Reader& row) {
        LinkLevel l;
        row.take("ranks", l.ranks, from_to(0, 1 << 20)), row.take("bandwidth_bytes_per_s", l.link.bandwidth_bytes_per_s, kRate);
        row.take("latency_s", l.link.latency_s, kSeconds);
        c.links.push_back(l);
    });
    read_each(top, "caches", origin, [&](Reader& row) {
        ops::CacheLevel l;
        row.take("bytes", l.bytes, above_to(0, 0x1p50)), row.take("cores", l.cores, kCount);
        row.take("price_beyond", l.price_beyond, kShare);
        c.costs.caches.push_back(l);
    });
    read_rows(top, origin, c.costs);
    std::vector<ops::DescribedKernel> own = read_catalog(top, origin);
    if (!own.empty() && c.catalog_name.empty()) c.catalog_name = c.name;
    c.catalog.insert(c.catalog.begin(), own.begin(), own.end());  // before the chip's: the first that serves is taken
    c.costs.efficiencies = ops::efficiencies_of(c.catalog);
    top.finish();
    return c;
}

void read_chip(Cluster& c, Reader& machine, const std::string& chip, const std::string& origin) {
    const std::string path = (std::filesystem::path(origin).parent_path() / chip).string();
    const TextFile file = read_text_file(path);
    if (!file.is_readable())
        machine.refuse("cluster.cannot_read", "chip", chip,
                       fmt::format("{} cannot be read ({}); its path begins in the folder of this file", path, file.reason));
    c = read_tables(file.text, path, FileOf::Chip);
}

}  // namespace

Cluster parse_cluster(const std::string& text, const std::string& origin) {
    Cluster c = read_tables(text, origin, FileOf::Cluster);
    require_sound(c, origin);
    return c;
}

Cluster read_cluster(const std::string& path, const char* asked_by) {
    const TextFile file = read_text_file(path);
    if (!file.is_readable())
        throw UserError("cluster.cannot_read", asked_by,
                        fmt::format("{} {}: cannot be read ({}); give the path of a cluster file, such as those in clusters/",
                                    asked_by, path, file.reason));
    return parse_cluster(file.text, path);
}

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
    out += fmt::format("product_efficiency = {:.4g}\nbandwidth_efficiency = {:.4g}\n\n[rates.flops_per_s]\n",
                       t.product_efficiency, t.bandwidth_efficiency);
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
    for (const LinkLevel& l : c.links)
        out += fmt::format("\n[[links]]\nranks = {}\nbandwidth_bytes_per_s = {:.6g}\nlatency_s = {:.4g}\n", l.ranks,
                           l.link.bandwidth_bytes_per_s, l.link.latency_s);
    out += print_catalog(c.catalog);
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

const LinkLevel& link_of(const Cluster& cluster, const std::vector<int64_t>& members) {
    const auto [least, most] = std::minmax_element(members.begin(), members.end());
    for (const LinkLevel& level : cluster.links) {
        if (level.ranks == 0 || *least / level.ranks == *most / level.ranks) return level;
    }
    return cluster.links.back();
}

}  // namespace lockstep::sim
