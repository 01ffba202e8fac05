#include "report/float8_shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "report/run_files.h"

namespace lockstep::report {
namespace {

using Json = nlohmann::ordered_json;

struct Operand {
    std::vector<double> amax;  // a value a step
    int64_t elements = 0, flushed = 0, clipped = 0;

    double share(int64_t of) const { return elements > 0 ? static_cast<double>(of) / static_cast<double>(elements) : 0; }
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

}  // namespace

Json float8_shares_of(const std::string& folder) {
    const std::string file = folder + "/float8.jsonl";
    if (!std::filesystem::is_regular_file(file)) return nullptr;
    std::map<std::pair<std::string, std::string>, Operand> all;
    const std::vector<Json> steps = step_lines(file);
    for (const Json& line : steps) {
        for (const Json& s : line.value("shares", Json::array())) {
            if (!s.is_object() || !s.contains("layer") || !s.contains("operand")) continue;
            Operand& o = all[{s["layer"].get<std::string>(), s["operand"].get<std::string>()}];
            if (s.value("amax", Json()).is_number()) o.amax.push_back(s["amax"].get<double>());
            o.elements += s.value("elements", int64_t{0}), o.flushed += s.value("flushed", int64_t{0}),
                o.clipped += s.value("clipped", int64_t{0});
        }
    }
    if (all.empty()) return nullptr;
    std::vector<Json> operands;
    std::set<std::string> filters;
    for (auto& entry : all) {
        const std::pair<std::string, std::string>& at = entry.first;
        Operand& o = entry.second;
        std::sort(o.amax.begin(), o.amax.end());
        const auto amax = [&](size_t i) { return o.amax.empty() ? Json() : Json(o.amax[i]); };
        operands.push_back({{"layer", at.first},
                            {"operand", at.second},
                            {"amax_least", amax(0)},
                            {"amax_median", amax(o.amax.size() / 2)},
                            {"amax_largest", amax(std::max<size_t>(o.amax.size(), 1) - 1)},
                            {"flushed", o.share(o.flushed)},
                            {"clipped", o.share(o.clipped)}});
        if (o.share(o.flushed) <= kMuchFlushed) continue;
        for (const std::string& name : names_of(at.first)) filters.insert(name);
    }
    std::stable_sort(operands.begin(), operands.end(),
                     [](const Json& a, const Json& b) { return a["flushed"].get<double>() > b["flushed"].get<double>(); });
    return {{"steps", steps.size()}, {"operands", operands}, {"filter_fqns", filters}};
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
        "  More than {:g} % of an operand becomes zero in these layers. To leave them as they are, add to the recipe:\n",
        100 * kMuchFlushed);
    return out + fmt::format("    filter_fqns = {}\n", shares["filter_fqns"].dump());
}

}  // namespace lockstep::report
