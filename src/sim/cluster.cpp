#include "sim/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/allowed.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/text_file.h"
#include "base/toml.h"

namespace lockstep::sim {
namespace {

// Numbers that a machine can have. Bounds only keep what is computed from them finite.
const Allowed kCount = from_to(1, 1 << 20), kBytes = from_to(0, 0x1p50), kRate = above_to(0, 1e24), kSeconds = from_to(0, 3600),
              kShare = from_to(0, 1), kEfficiency = above_to(0, 1), kAmount = from_to(0, 1e24);

// Reads tables and refuses, with its line, what it does not know by name and what is out of its range.
class Reader {
public:
    Reader(const toml::table& table, std::string where, std::string origin)
        : table_(table), where_(std::move(where)), origin_(std::move(origin)) {}

    template <class T>
    void take(const char* key, T& value) {
        const toml::node* node = find(key);
        if (!node) return;
        if (const auto got = node->value<T>()) value = *got;
        else wrong(key, *node);
    }
    template <class T>
    void take(const char* key, T& value, const Allowed& allowed) {
        const toml::node* node = find(key);
        if (!node) return;
        const auto got = node->value<std::conditional_t<std::is_integral_v<T>, int64_t, T>>();
        if (!got) wrong(key, *node);
        require(key, *node, static_cast<double>(*got), allowed);
        value = static_cast<T>(*got);
    }
    void take(const char* key, std::vector<double>& values, const Allowed& allowed) {
        const toml::node* node = find(key);
        if (!node) return;
        const toml::array* list = node->as_array();
        if (!list || list->empty()) wrong(key, *node);
        for (const toml::node& item : *list) {
            const auto got = item.value<double>();
            if (!got) wrong(key, item);
            require(key, item, *got, allowed);
            values.push_back(*got);
        }
    }
    const toml::table* table(const char* key) {
        const toml::node* node = find(key);
        if (node && !node->is_table()) wrong(key, *node);
        return node ? node->as_table() : nullptr;
    }
    const toml::array* array(const char* key) {
        const toml::node* node = find(key);
        if (node && !node->is_array()) wrong(key, *node);
        return node ? node->as_array() : nullptr;
    }
    void finish() const {
        for (const auto& [key, node] : table_) {
            const std::string name(key.str());
            if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
                throw UserError("cluster.unknown_key", where_ + name,
                                fmt::format("{}, line {}: a cluster file has no key {}{}; the nearest is {}{} (known here: {})",
                                            origin_, node.source().begin.line, where_, name, where_, nearest_key(name, known_),
                                            fmt::join(known_, ", ")));
            }
        }
    }
    [[noreturn]] void wrong(const char* key, const toml::node& node) const {
        throw UserError(
            "cluster.value", where_ + key,
            fmt::format("{}, line {}: {}{} has a value of the wrong type", origin_, node.source().begin.line, where_, key));
    }

private:
    void require(const char* key, const toml::node& node, double value, const Allowed& allowed) const {
        if (const std::string objection = allowed.objection(value); !objection.empty())
            throw UserError(
                "cluster.out_of_range", where_ + key,
                fmt::format("{}, line {}: {}{} = {}: {}", origin_, node.source().begin.line, where_, key, value, objection));
    }
    const toml::node* find(const char* key) {
        known_.emplace_back(key);
        return table_.get(key);
    }
    const toml::table& table_;
    const std::string where_, origin_;
    std::vector<std::string> known_;
};

void read_each(Reader& reader, const char* key, const std::string& origin, const auto& read) {
    const toml::array* list = reader.array(key);
    if (!list) return;
    for (const toml::node& item : *list) {
        if (!item.is_table()) reader.wrong(key, item);
        Reader row(*item.as_table(), std::string(key) + ".", origin);
        read(row);
        row.finish();
    }
}

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

}  // namespace

Cluster parse_cluster(const std::string& text, const std::string& origin) {
    toml::table root;
    try {
        root = toml::parse(text);
    } catch (const toml::parse_error& e) {
        throw UserError("cluster.syntax", "--cluster",
                        fmt::format("{}, line {}: {}", origin, e.source().begin.line, e.description()));
    }
    Cluster c;
    Reader top(root, "", origin);
    top.take("name", c.name), top.take("description", c.description), top.take("declared", c.declared);
    if (const toml::table* t = top.table("machine")) {
        Reader r(*t, "machine.", origin);
        r.take("devices", c.devices), r.take("cores", c.costs.cores, kCount);
        r.take("memory_bytes", c.memory_bytes, kBytes), r.take("reserve_bytes", c.reserve_bytes, kBytes);
        r.finish();
    }
    if (const toml::table* t = top.table("rates")) {
        Reader r(*t, "rates.", origin);
        r.take("bytes_per_s", c.costs.bytes_per_s, kRate), r.take("op_overhead_s", c.costs.op_overhead_s, kSeconds);
        r.take("step_overhead_s", c.costs.step_overhead_s, kSeconds);
        r.take("product_efficiency", c.costs.product_efficiency, kEfficiency);
        r.take("bandwidth_efficiency", c.costs.bandwidth_efficiency, kEfficiency);
        if (const toml::table* flops = r.table("flops_per_s")) {
            Reader by_dtype(*flops, "rates.flops_per_s.", origin);
            for (const Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F64}) {
                std::vector<double> rates;
                const std::string name(name_of(dtype));
                by_dtype.take(name.c_str(), rates, kRate);
                if (!rates.empty()) c.costs.flops_per_s[name] = std::move(rates);
            }
            by_dtype.finish();
        }
        r.finish();
    }
    if (const toml::table* t = top.table("hosts")) {
        c.hosts.ranks = -1;  // to be given
        Reader r(*t, "hosts.", origin);
        r.take("ranks", c.hosts.ranks, kCount), r.take("ranks_per_process", c.hosts.ranks_per_process, kCount);
        r.take("share_cores", c.hosts.share_cores), r.take("bandwidth_bytes_per_s", c.hosts.link.bandwidth_bytes_per_s, kRate);
        r.take("latency_s", c.hosts.link.latency_s, kSeconds), r.take("core_s_per_byte", c.hosts.core_s_per_byte, kShare);
        r.take("process_bytes_per_s", c.hosts.process_bytes_per_s, kRate);
        r.take("process_latency_s", c.hosts.process_latency_s, kSeconds), r.take("looking", c.hosts.looking, kShare);
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
    top.finish();
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
            "{:.4g}\n{}process_latency_s = {:.4g}\nlooking = {:.4g}\n",
            h.ranks, h.ranks_per_process, h.share_cores, rate("bandwidth_bytes_per_s", h.link.bandwidth_bytes_per_s),
            h.link.latency_s, h.core_s_per_byte, rate("process_bytes_per_s", h.process_bytes_per_s), h.process_latency_s,
            h.looking);
    }
    for (const ops::CacheLevel& l : t.caches)
        out += fmt::format("\n[[caches]]\nbytes = {}\ncores = {}\nprice_beyond = {:.4g}\n", l.bytes, l.cores, l.price_beyond);
    for (const LinkLevel& l : c.links)
        out += fmt::format("\n[[links]]\nranks = {}\nbandwidth_bytes_per_s = {:.6g}\nlatency_s = {:.4g}\n", l.ranks,
                           l.link.bandwidth_bytes_per_s, l.link.latency_s);
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
