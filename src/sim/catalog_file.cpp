#include "sim/catalog_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/rule.h"

namespace lockstep::sim {
namespace {

bool is_kernel_name(const std::string& text) {
    const auto is_part = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; };
    return !text.empty() && text[0] >= 'a' && text[0] <= 'z' && std::all_of(text.begin(), text.end(), is_part);
}

std::vector<std::string> names_of_dtypes() {
    std::vector<std::string> names;
    for (const Dtype t : kDtypes) names.emplace_back(name_of(t));
    return names;
}

void require_ops(const Reader& row, const ops::DescribedKernel& k) {
    const std::vector<std::string> known = ops_with_kernels();
    for (const std::string& op : k.ops) {
        const std::string quoted = fmt::format("\"{}\"", op);
        if (std::find(known.begin(), known.end(), op) == known.end())
            row.refuse("cluster.unknown_op", "ops", quoted,
                       fmt::format("no kernel runs such an op; the nearest is {}", nearest_key(op, known)));
        const int results = ops::rule(op).results;
        if (k.accumulates >= 0 && results >= 0 && k.accumulates >= results)
            row.refuse("cluster.out_of_range", "accumulates", std::to_string(k.accumulates),
                       fmt::format("{} has {} result{}; they count from 0", op, results, results == 1 ? "" : "s"));
    }
}

}  // namespace

std::vector<std::string> ops_with_kernels() {
    std::vector<std::string> known;
    for (const ops::OpRule& r : ops::all_rules()) {
        if (!r.collective) known.emplace_back(r.name);
    }
    return known;
}

Allowed kernel_names() { return of_form("a name of lower-case letters, digits, . and _", is_kernel_name); }

void read_rate(Reader& row, const std::string& origin, ops::KernelRate& rate) {
    const Allowed share = above_to(0, 1), factor = above_to(0, 100), size = above_to(0, 1 << 20);
    row.take("product_efficiency", rate.product, share), row.take("of_products", rate.of_products, share);
    row.take("bandwidth_efficiency", rate.bandwidth, share);
    if (const toml::table* ramps = row.table("ramp")) {
        Reader by_size(*ramps, "ramp.", origin);
        for (const std::string& name : ops::size_names()) {
            double half = 0;
            by_size.take(name.c_str(), half, size);
            if (half <= 0) continue;
            std::erase_if(rate.ramps, [&](const ops::Ramp& r) { return r.size == name; });
            rate.ramps.push_back({name, half});
        }
        by_size.finish();
    }
    std::vector<ops::Tile> tiles;
    read_each(row, "tiles", origin, [&](Reader& tile) {
        ops::Tile t;
        tile.take("rows", t.rows, size), tile.take("columns", t.columns, size), tile.take("share", t.share, share);
        if (t.rows <= 0 || t.columns <= 0) tile.incomplete("rows", "a tile needs rows and columns");
        tiles.push_back(t);
    });
    if (!tiles.empty()) rate.tiles = std::move(tiles);
    row.take("wave_exponent", rate.wave_exponent, from_to(0, 4));
    row.take("aligned_to", rate.aligned_to, size), row.take("unaligned", rate.unaligned, share);
    row.take("flops", rate.flops, factor), row.take("traffic", rate.traffic, factor);
    row.take("score_bytes", rate.score_bytes, from_to(0, 1000));
}

std::string print_rate(const ops::KernelRate& rate) {
    const ops::KernelRate none;
    std::string out;
    const auto line = [&](const char* key, double value, double without) {
        if (value != without) out += fmt::format("{} = {:.4g}\n", key, value);
    };
    line("product_efficiency", rate.product, none.product), line("of_products", rate.of_products, none.of_products);
    line("bandwidth_efficiency", rate.bandwidth, none.bandwidth);
    std::vector<std::string> parts;
    for (const ops::Ramp& r : rate.ramps) parts.push_back(fmt::format("{} = {:.4g}", r.size, r.half));
    if (!parts.empty()) out += fmt::format("ramp = {{ {} }}\n", fmt::join(parts, ", "));
    parts.clear();
    for (const ops::Tile& t : rate.tiles)
        parts.push_back(fmt::format("{{ rows = {}, columns = {}, share = {:.4g} }}", t.rows, t.columns, t.share));
    if (!parts.empty()) out += fmt::format("tiles = [{}]\n", fmt::join(parts, ", "));
    line("wave_exponent", rate.wave_exponent, none.wave_exponent);
    line("aligned_to", rate.aligned_to, none.aligned_to), line("unaligned", rate.unaligned, none.unaligned);
    line("flops", rate.flops, none.flops), line("traffic", rate.traffic, none.traffic);
    line("score_bytes", rate.score_bytes, none.score_bytes);
    return out;
}

std::vector<ops::DescribedKernel> read_catalog(Reader& top, const std::string& origin) {
    std::vector<ops::DescribedKernel> kernels;
    read_each(top, "catalog", origin, [&](Reader& row) {
        ops::DescribedKernel k;
        std::vector<std::string> stored;
        row.take("kernel", k.kernel, kernel_names());
        row.take("ops", k.ops, Allowed{}), row.take("types", stored, one_of(names_of_dtypes));
        for (const std::string& type : stored) k.types.push_back(*dtype_from(type));
        row.take("only_products", k.only_products), row.take("in_place", k.in_place);
        row.take("accumulates", k.accumulates, from_to(0, 63));
        read_rate(row, origin, k.rate);
        read_each(row, "workspace", origin, [&](Reader& term) {
            ops::WorkspaceTerm t;
            term.take("bytes", t.bytes, above_to(0, 0x1p40)),
                term.take("per", t.per, one_of([] { return ops::workspace_sizes(); }));
            term.take("only_grouped", t.only_grouped);
            if (t.bytes <= 0) term.incomplete("bytes", "a term of catalog.workspace needs bytes");
            k.workspace.push_back(std::move(t));
        });
        if (k.kernel.empty()) row.incomplete("kernel", "a [[catalog]] table needs kernel, its name in programs");
        if (k.ops.empty()) row.incomplete("ops", "a [[catalog]] table needs ops, the kinds of op that the kernel runs");
        require_ops(row, k);
        kernels.push_back(std::move(k));
    });
    return kernels;
}

std::string print_catalog(const std::vector<ops::DescribedKernel>& kernels) {
    const auto quoted = [](const std::vector<std::string>& words) { return fmt::format("[\"{}\"]", fmt::join(words, "\", \"")); };
    std::string out;
    for (const ops::DescribedKernel& k : kernels) {
        out += fmt::format("\n[[catalog]]\nkernel = \"{}\"\nops = {}\n", k.kernel, quoted(k.ops));
        std::vector<std::string> types;
        for (const Dtype t : k.types) types.emplace_back(name_of(t));
        if (!types.empty()) out += fmt::format("types = {}\n", quoted(types));
        if (k.only_products) out += "only_products = true\n";
        if (k.accumulates >= 0) out += fmt::format("accumulates = {}\n", k.accumulates);
        if (k.in_place) out += "in_place = true\n";
        out += print_rate(k.rate);
        std::vector<std::string> terms;
        for (const ops::WorkspaceTerm& t : k.workspace)
            terms.push_back(fmt::format("{{ bytes = {:.10g}{}{} }}", t.bytes, t.per.empty() ? "" : ", per = " + quoted(t.per),
                                        t.only_grouped ? ", only_grouped = true" : ""));
        if (!terms.empty()) out += fmt::format("workspace = [{}]\n", fmt::join(terms, ", "));
    }
    return out;
}

}  // namespace lockstep::sim
