#include "report/float8_shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "compile/recipe.h"
#include "report/run_files.h"

namespace lockstep::report {
namespace {

using Json = nlohmann::ordered_json;

struct Operand {
    std::vector<double> amax;  // a value a step
    int64_t elements = 0, flushed = 0, clipped = 0;

    double share(int64_t of) const { return elements > 0 ? static_cast<double>(of) / static_cast<double>(elements) : 0; }
    double lost() const { return share(flushed) + share(clipped); }
};

// "layers.0.feed_forward.w1+w3" -> both names.
std::vector<std::string> names_of(const std::string& layer) {
    const size_t dot = layer.rfind('.');
    const std::string folder = dot == std::string::npos ? "" : layer.substr(0, dot + 1);
    std::vector<std::string> out;
    for (size_t at = folder.size(); at < layer.size();) {
        const size_t end = std::min(layer.find('+', at), layer.size());
        out.push_back(folder + layer.substr(at, end - at));
        at = end + 1;
    }
    return out;
}

bool is_share(const Json& s) {
    const auto is_count = [&](const char* name) {
        return s.contains(name) && s[name].is_number_integer() && s[name].get<double>() >= 0 && s[name].get<double>() < 1e15;
    };
    return s.is_object() && s.contains("layer") && s["layer"].is_string() && s.contains("operand") && s["operand"].is_string() &&
           s.contains("amax") && (s["amax"].is_number() || s["amax"].is_null()) && is_count("elements") && is_count("flushed") &&
           is_count("clipped");
}
bool is_counted_step(const Json& line) {
    return line.contains("shares") && line["shares"].is_array() &&
           std::all_of(line["shares"].begin(), line["shares"].end(), is_share);
}

// Of the run's recipe: the table of its converter, and the filters that it has.
std::pair<std::string, std::vector<std::string>> filters_of(const std::string& folder) {
    const std::string tables[] = {"quantize.linear.float8", "quantize.linear.mx"};
    try {
        const compile::Recipe recipe = compile::Recipe::from_file(folder + "/recipe.toml");
        for (const std::string& converter : recipe.list("model.converters")) {
            const std::string& table = tables[converter.ends_with("mx") ? 1 : 0];
            return {table, recipe.list(table + ".filter_fqns")};
        }
    } catch (const UserError&) {  // of another version, or damaged
    }
    return {tables[0], {}};
}

}  // namespace

Json float8_shares_of(const std::string& folder) {
    const std::string file = folder + "/float8.jsonl";
    if (!std::filesystem::is_regular_file(file)) return nullptr;
    std::map<std::pair<std::string, std::string>, Operand> all;
    const std::vector<Json> steps = step_lines(file, is_counted_step);
    for (const Json& line : steps) {
        for (const Json& s : line["shares"]) {
            Operand& o = all[{s["layer"].get<std::string>(), s["operand"].get<std::string>()}];
            if (s["amax"].is_number()) o.amax.push_back(s["amax"].get<double>());
            o.elements += s["elements"].get<int64_t>(), o.flushed += s["flushed"].get<int64_t>(),
                o.clipped += s["clipped"].get<int64_t>();
        }
    }
    if (all.empty()) return nullptr;
    std::vector<std::pair<double, Json>> operands;  // by what is lost
    std::set<std::string> lossy;
    for (auto& [at, o] : all) {
        std::vector<double>& sizes = o.amax;
        std::sort(sizes.begin(), sizes.end());
        const auto amax = [&sizes](size_t i) { return sizes.empty() ? Json() : Json(sizes[i]); };
        operands.emplace_back(o.lost(), Json{{"layer", at.first},
                                             {"operand", at.second},
                                             {"amax_least", amax(0)},
                                             {"amax_median", amax(sizes.size() / 2)},
                                             {"amax_largest", amax(std::max<size_t>(sizes.size(), 1) - 1)},
                                             {"flushed", o.share(o.flushed)},
                                             {"clipped", o.share(o.clipped)}});
        if (o.lost() <= kMuchLost) continue;
        for (const std::string& name : names_of(at.first)) lossy.insert(name);
    }
    std::stable_sort(operands.begin(), operands.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    Json list = Json::array();
    for (auto& operand : operands) list.push_back(std::move(operand.second));
    auto [table, filters] = filters_of(folder);
    if (lossy.empty()) filters.clear();
    for (const std::string& name : lossy) {
        if (std::find(filters.begin(), filters.end(), name) == filters.end()) filters.push_back(name);
    }
    return {{"steps", steps.size()}, {"operands", list}, {"table", table}, {"filter_fqns", filters}};
}

std::string float8_text(const Json& shares) {
    if (shares.is_null()) return "";
    std::string out = fmt::format("float8, counted in {} steps\n", shares["steps"].get<int64_t>());
    size_t width = 5;
    for (const Json& o : shares["operands"]) width = std::max(width, o["layer"].get_ref<const std::string&>().size());
    out += fmt::format("  {:<{}}  {:<26}  {:>10}  {:>10}  {:>10}  {:>8}  {:>8}\n", "layer", width, "operand", "amax least",
                       "median", "largest", "flushed", "clipped");
    const auto number = [](const Json& x) { return x.is_number() ? fmt::format("{:.4g}", x.get<double>()) : std::string("-"); };
    const auto share = [](const Json& x) { return fmt::format("{:.3g} %", 100 * x.get<double>()); };
    for (const Json& o : shares["operands"])
        out += fmt::format("  {:<{}}  {:<26}  {:>10}  {:>10}  {:>10}  {:>8}  {:>8}\n", o["layer"].get<std::string>(), width,
                           o["operand"].get<std::string>(), number(o["amax_least"]), number(o["amax_median"]),
                           number(o["amax_largest"]), share(o["flushed"]), share(o["clipped"]));
    if (shares["filter_fqns"].empty()) return out;
    out += fmt::format(
        "  More than {:g} % of an operand becomes zero or is clipped in some layers. To leave them as they are, have in the "
        "recipe:\n",
        100 * kMuchLost);
    return out + fmt::format("    [{}]\n    filter_fqns = {}\n", shares["table"].get<std::string>(),
                             compile::text_of(compile::Value(shares["filter_fqns"].get<std::vector<std::string>>())));
}

}  // namespace lockstep::report
