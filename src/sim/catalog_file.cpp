#include "sim/catalog_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/rule.h"
#include "sim/catalog_keys.h"

namespace lockstep::sim {
namespace {

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

// "{ rows = 128, columns = 256 }, .." of each of `items`.
template <class S, size_t n>
std::string inline_tables(const Field<S> (&fields)[n], std::vector<S>& items) {
    S none;
    std::vector<std::string> tables;
    for (S& item : items) tables.push_back(fmt::format("{{ {} }}", fmt::join(printed_fields(valued(fields, item, none)), ", ")));
    return fmt::format("{}", fmt::join(tables, ", "));
}

}  // namespace

std::vector<std::string> ops_with_kernels() {
    std::vector<std::string> known;
    for (const ops::OpRule& r : ops::all_rules()) {
        if (!r.collective) known.emplace_back(r.name);
    }
    return known;
}

std::vector<std::string> names_of_dtypes() {
    std::vector<std::string> names;
    for (const Dtype t : kDtypes) names.emplace_back(name_of(t));
    return names;
}

bool is_kernel_name(const std::string& text) {
    const auto is_part = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; };
    return !text.empty() && text[0] >= 'a' && text[0] <= 'z' && std::all_of(text.begin(), text.end(), is_part);
}

void read_rate(Reader& row, const std::string& origin, ops::KernelRate& rate) {
    read_fields(row, kRateShares, rate);
    if (const toml::table* ramps = row.table("ramp")) {
        Reader by_size(*ramps, "ramp.", origin);
        for (const std::string& name : ops::size_names()) {
            double half = 0;
            by_size.take(name.c_str(), half, kRamp[0].key.allowed);
            if (half <= 0) continue;
            std::erase_if(rate.ramps, [&](const ops::Ramp& r) { return r.size == name; });
            rate.ramps.push_back({name, half});
        }
        by_size.finish();
    }
    std::vector<ops::Tile> tiles;
    read_each(row, "tiles", origin, [&](Reader& tile) {
        ops::Tile t;
        read_fields(tile, kTiles, t);
        if (t.rows <= 0 || t.columns <= 0) tile.incomplete("rows", "a tile needs rows and columns");
        tiles.push_back(t);
    });
    if (!tiles.empty()) rate.tiles = std::move(tiles);
    read_fields(row, kRateFactors, rate);
}

std::string print_rate(ops::KernelRate rate) {
    std::string out = print_fields(kRateShares, rate);
    std::vector<std::string> ramps;
    for (const ops::Ramp& r : rate.ramps) ramps.push_back(fmt::format("{} = {:.4g}", r.size, r.half));
    if (!ramps.empty()) out += fmt::format("ramp = {{ {} }}\n", fmt::join(ramps, ", "));
    if (!rate.tiles.empty()) out += fmt::format("tiles = [{}]\n", inline_tables(kTiles, rate.tiles));
    return out + print_fields(kRateFactors, rate);
}

std::vector<ops::DescribedKernel> read_catalog(Reader& top, const std::string& origin) {
    std::vector<ops::DescribedKernel> kernels;
    read_each(top, "catalog", origin, [&](Reader& row) {
        ops::DescribedKernel k;
        StoredTypes stored;
        read_fields(row, kCatalog, k), read_fields(row, kCatalogTypes, stored), read_fields(row, kCatalogUse, k);
        for (const std::string& type : stored.types) k.types.push_back(*dtype_from(type));
        read_rate(row, origin, k.rate);
        read_each(row, "workspace", origin, [&](Reader& term) {
            ops::WorkspaceTerm t;
            read_fields(term, kWorkspace, t);
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
    std::string out;
    for (ops::DescribedKernel k : kernels) {
        StoredTypes stored;
        for (const Dtype t : k.types) stored.types.emplace_back(name_of(t));
        out += "\n[[catalog]]\n" + print_fields(kCatalog, k) + print_fields(kCatalogTypes, stored) +
               print_fields(kCatalogUse, k) + print_rate(k.rate);
        if (!k.workspace.empty()) out += fmt::format("workspace = [{}]\n", inline_tables(kWorkspace, k.workspace));
    }
    return out;
}

}  // namespace lockstep::sim
