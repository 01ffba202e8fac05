// The picture of `lockstep report --svg`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "report/run_files.h"
#include "telemetry/wrap.h"

namespace lockstep::report {
namespace {

using Json = nlohmann::ordered_json;

struct Point {
    double x, y;
};

constexpr double kWidth = 760, kHeight = 340, kLeft = 56, kRight = 20, kTop = 42, kBottom = 44;

std::vector<Point> points_of(const Json& metrics, const char* column) {
    std::vector<Point> out;
    for (size_t i = 0; i < metrics["step"].size(); ++i)
        if (metrics[column][i].is_number()) out.push_back({metrics["step"][i].get<double>(), metrics[column][i].get<double>()});
    return out;
}

// 1, 2 or 5 times a power of ten: about `count` steps to the range.
double tick(double range, int count) {
    const double raw = std::max(range, 1e-9) / count, power = std::pow(10, std::floor(std::log10(raw)));
    for (double m : {1.0, 2.0, 5.0}) {
        if (m * power >= raw) return m * power;
    }
    return 10 * power;
}

}  // namespace

std::string loss_picture(const Json& run) {
    const std::vector<Point> train = points_of(run["metrics"], "loss"), heldout = points_of(run["metrics"], "heldout");
    if (train.empty())
        throw UserError("report.no_steps", "--svg",
                        fmt::format("{}: no step was logged, so there is no loss to draw", run["folder"].get<std::string>()));
    double low = train[0].y, high = train[0].y;
    for (const auto* points : {&train, &heldout}) {
        for (const Point& p : *points) low = std::min(low, p.y), high = std::max(high, p.y);
    }
    const double step_y = tick(high - low, 5), bottom = std::floor(low / step_y) * step_y,
                 top = std::max(std::ceil(high / step_y) * step_y, bottom + step_y), last = std::max(train.back().x, 1.0);
    const auto x = [&](double v) { return kLeft + (kWidth - kLeft - kRight) * v / last; };
    const auto y = [&](double v) { return kTop + (kHeight - kTop - kBottom) * (top - v) / (top - bottom); };
    std::string out = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-labelledby="t">
<title id="t">Loss over {2:.0f} steps: training from {3:.2f} to {4:.2f}{5}</title>
<style>
text {{ font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a; }}
.grid {{ stroke: #d0d7de; stroke-width: 1; }} .train {{ stroke: #0072b2; }} .held {{ stroke: #d55e00; }}
.curve {{ fill: none; stroke-width: 2; stroke-linejoin: round; }} .train-dot {{ fill: #0072b2; }} .held-dot {{ fill: #d55e00; }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #9da7b3; }} .grid {{ stroke: #30363d; }}
.train {{ stroke: #56b4e9; }} .held {{ stroke: #e69f00; }} .train-dot {{ fill: #56b4e9; }} .held-dot {{ fill: #e69f00; }} }}
</style>
)",
        kWidth, kHeight, last, train.front().y, train.back().y,
        heldout.empty() ? "" : fmt::format(", held-out at the end {:.2f}", heldout.back().y));
    const int digits = step_y < 0.1 ? 2 : step_y < 1 ? 1 : 0;
    for (double v = bottom; v <= top + step_y / 2; v += step_y)
        out += fmt::format(
            "<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
            "text-anchor=\"end\">{:.{}f}</text>\n",
            kLeft, y(v), kWidth - kRight, kLeft - 8, y(v) + 4, v, digits);
    const double step_x = std::max(1.0, tick(last, 8));
    for (double v = 0; v <= last + 0.5; v += step_x)
        out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.0f}</text>\n", x(v), kHeight - kBottom + 20,
                           v);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">step</text>\n", kWidth - kRight, kHeight - 6);
    std::string line;
    for (size_t i = 0; i < train.size(); ++i)
        line += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x(train[i].x), y(train[i].y));
    out += fmt::format("<path class=\"curve train\" d=\"{}\"/>\n", line);
    const auto diamond = [](double cx, double cy) {
        return fmt::format("<path class=\"held-dot\" d=\"M{0:.1f} {1:.1f}l5 5l-5 5l-5 -5z\"/>", cx, cy - 5);
    };
    line.clear();
    for (size_t i = 0; i < heldout.size(); ++i)
        line += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x(heldout[i].x), y(heldout[i].y));
    if (!heldout.empty()) out += fmt::format("<path class=\"curve held\" stroke-dasharray=\"6 4\" d=\"{}\"/>\n", line);
    for (const Point& p : heldout) out += diamond(x(p.x), y(p.y)) + "\n";
    out += fmt::format(
        "<circle class=\"train-dot\" cx=\"{0:.1f}\" cy=\"20\" r=\"5\"/><text x=\"{1:.1f}\" y=\"24\">training loss</text>\n",
        kLeft + 5, kLeft + 16);
    if (!heldout.empty())
        out += diamond(kLeft + 125, 20) + fmt::format("<text x=\"{:.1f}\" y=\"24\">held-out loss</text>\n", kLeft + 136);
    return out + "</svg>\n";
}

}  // namespace lockstep::report
