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

void require_ops(const Reader& row, const ops::DescribedKernel& k) {
    std::vector<std::string> known;
    for (const ops::OpRule& r : ops::all_rules()) {
        if (!r.collective) known.emplace_back(r.name);
    }
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

std::vector<ops::DescribedKernel> read_catalog(Reader& top, const std::string& origin) {
    const Allowed share = above_to(0, 1);
    const std::vector<std::string> types = [] {
        std::vector<std::string> names;
        for (const Dtype t : kDtypes) names.emplace_back(name_of(t));
        return names;
    }();
    std::vector<ops::DescribedKernel> kernels;
    read_each(top, "catalog", origin, [&](Reader& row) {
        ops::DescribedKernel k;
        std::vector<std::string> stored;
        row.take("kernel", k.kernel, of_form("a name of lower-case letters, digits, . and _", is_kernel_name));
        row.take("ops", k.ops, Allowed{}), row.take("types", stored, one_of(types));
        for (const std::string& type : stored) k.types.push_back(*dtype_from(type));
        row.take("only_products", k.only_products), row.take("in_place", k.in_place);
        row.take("accumulates", k.accumulates, from_to(0, 63));
        row.take("product_efficiency", k.efficiency.product, share);
        row.take("bandwidth_efficiency", k.efficiency.bandwidth, share);
        read_each(row, "workspace", origin, [&](Reader& term) {
            ops::WorkspaceTerm t;
            term.take("bytes", t.bytes, above_to(0, 0x1p40)), term.take("per", t.per, one_of(ops::workspace_sizes()));
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
        if (k.efficiency.product > 0) out += fmt::format("product_efficiency = {:.4g}\n", k.efficiency.product);
        if (k.efficiency.bandwidth > 0) out += fmt::format("bandwidth_efficiency = {:.4g}\n", k.efficiency.bandwidth);
        std::vector<std::string> terms;
        for (const ops::WorkspaceTerm& t : k.workspace)
            terms.push_back(fmt::format("{{ bytes = {:.10g}{}{} }}", t.bytes, t.per.empty() ? "" : ", per = " + quoted(t.per),
                                        t.only_grouped ? ", only_grouped = true" : ""));
        if (!terms.empty()) out += fmt::format("workspace = [{}]\n", fmt::join(terms, ", "));
    }
    return out;
}

}  // namespace lockstep::sim
