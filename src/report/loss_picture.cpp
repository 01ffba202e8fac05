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

// Where values are in the picture, and the lines and numbers behind the curves.
class Frame {
public:
    explicit Frame(const std::vector<const std::vector<Point>*>& curves) {
        double low = INFINITY, high = -INFINITY;
        for (const auto* points : curves) {
            for (const Point& p : *points) low = std::min(low, p.y), high = std::max(high, p.y), last_ = std::max(last_, p.x);
        }
        step_y_ = tick(high - low, 5), bottom_ = std::floor(low / step_y_) * step_y_;
        top_ = std::max(std::ceil(high / step_y_) * step_y_, bottom_ + step_y_);
    }
    double x(double v) const { return kLeft + (kWidth - kLeft - kRight) * v / last_; }
    double y(double v) const { return kTop + (kHeight - kTop - kBottom) * (top_ - v) / (top_ - bottom_); }
    double last() const { return last_; }

    std::string grid() const {
        std::string out;
        const int digits = step_y_ < 0.1 ? 2 : step_y_ < 1 ? 1 : 0;
        for (double v = bottom_; v <= top_ + step_y_ / 2; v += step_y_)
            out += fmt::format(
                "<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
                "text-anchor=\"end\">{:.{}f}</text>\n",
                kLeft, y(v), kWidth - kRight, kLeft - 8, y(v) + 4, v, digits);
        const double step_x = std::max(1.0, tick(last_, 8));
        for (double v = 0; v <= last_ + 0.5; v += step_x)
            out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.0f}</text>\n", x(v),
                               kHeight - kBottom + 20, v);
        return out +
               fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">step</text>\n", kWidth - kRight, kHeight - 6);
    }
    std::string curve(const std::string& classes, const std::vector<Point>& points, const std::string& dashes = "") const {
        if (points.empty()) return "";
        std::string line;
        for (size_t i = 0; i < points.size(); ++i)
            line += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x(points[i].x), y(points[i].y));
        return fmt::format("<path class=\"curve {}\"{} d=\"{}\"/>\n", classes,
                           dashes.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dashes), line);
    }

private:
    double last_ = 1, step_y_ = 1, bottom_ = 0, top_ = 1;
};

std::string opening(double height, const std::string& title, const std::string& style) {
    return fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-labelledby="t">
<title id="t">{2}</title>
<style>
text {{ font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a; }}
.grid {{ stroke: #d0d7de; stroke-width: 1; }} .curve {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #9da7b3; }} .grid {{ stroke: #30363d; }} }}
{3}</style>
)",
        kWidth, height, title, style);
}

std::string as_markup(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '<') out += "&lt;";
        else if (c == '&') out += "&amp;";
        else if (static_cast<unsigned char>(c) >= ' ') out += c;
    }
    return out;
}

void require_steps(const Json& run, const std::vector<Point>& train) {
    if (train.empty())
        throw UserError("report.no_steps", "--svg",
                        fmt::format("{}: no step was logged, so there is no loss to draw", run["folder"].get<std::string>()));
}

// Okabe and Ito's palette on a light and a dark page.
constexpr std::pair<const char*, const char*> kColours[] = {{"#0072b2", "#56b4e9"}, {"#d55e00", "#e69f00"},
                                                            {"#009e73", "#2fc79a"}, {"#a8477d", "#dd93bd"},
                                                            {"#8d6d00", "#f0e442"}, {"#444c55", "#c5ccd3"}};
constexpr const char* kDashes[] = {"", "7 4", "2 3"};

}  // namespace

std::string loss_picture(const Json& run) {
    const std::vector<Point> train = points_of(run["metrics"], "loss"), heldout = points_of(run["metrics"], "heldout");
    require_steps(run, train);
    const Frame frame({&train, &heldout});
    std::string out = opening(
        kHeight,
        fmt::format("Loss over {:.0f} steps: training from {:.2f} to {:.2f}{}", frame.last(), train.front().y, train.back().y,
                    heldout.empty() ? "" : fmt::format(", held-out at the end {:.2f}", heldout.back().y)),
        R"(.train { stroke: #0072b2; } .held { stroke: #d55e00; } .train-dot { fill: #0072b2; } .held-dot { fill: #d55e00; }
@media (prefers-color-scheme: dark) { .train { stroke: #56b4e9; } .held { stroke: #e69f00; } .train-dot { fill: #56b4e9; }
.held-dot { fill: #e69f00; } }
)");
    out += frame.grid() + frame.curve("train", train);
    const auto diamond = [](double cx, double cy) {
        return fmt::format("<path class=\"held-dot\" d=\"M{0:.1f} {1:.1f}l5 5l-5 5l-5 -5z\"/>", cx, cy - 5);
    };
    out += frame.curve("held", heldout, "6 4");
    for (const Point& p : heldout) out += diamond(frame.x(p.x), frame.y(p.y)) + "\n";
    out += fmt::format(
        "<circle class=\"train-dot\" cx=\"{0:.1f}\" cy=\"20\" r=\"5\"/><text x=\"{1:.1f}\" y=\"24\">training loss</text>\n",
        kLeft + 5, kLeft + 16);
    if (!heldout.empty())
        out += diamond(kLeft + 125, 20) + fmt::format("<text x=\"{:.1f}\" y=\"24\">held-out loss</text>\n", kLeft + 136);
    return out + "</svg>\n";
}

std::string loss_picture(const std::vector<Json>& runs) {
    constexpr double kLine = 20;
    const auto colours = std::size(kColours);
    std::vector<std::vector<Point>> curves;
    std::vector<const std::vector<Point>*> all;
    for (const Json& run : runs) {
        curves.push_back(points_of(run["metrics"], "loss"));
        require_steps(run, curves.back());
    }
    for (const auto& points : curves) all.push_back(&points);
    const Frame frame(all);
    std::string style, dark;
    for (size_t i = 0; i < std::min(colours, runs.size()); ++i) {
        style += fmt::format(".r{} {{ stroke: {}; }}\n", i, kColours[i].first);
        dark += fmt::format(".r{} {{ stroke: {}; }} ", i, kColours[i].second);
    }
    std::string out = opening(kHeight + kLine * static_cast<double>(runs.size()),
                              fmt::format("Training loss of {} runs over {:.0f} steps", runs.size(), frame.last()),
                              fmt::format("{}@media (prefers-color-scheme: dark) {{ {}}}\n", style, dark));
    out += frame.grid();
    for (size_t i = 0; i < runs.size(); ++i) {
        const std::string classes = fmt::format("r{}", i % colours);
        const char* const dashes = kDashes[i / colours % std::size(kDashes)];
        const double y = kHeight + kLine * static_cast<double>(i);
        out += frame.curve(classes, curves[i], dashes);
        out +=
            fmt::format("<path class=\"curve {}\"{} d=\"M{:.1f} {:.1f}h30\"/><text x=\"{:.1f}\" y=\"{:.1f}\">{}: {:.4f}</text>\n",
                        classes, *dashes ? fmt::format(" stroke-dasharray=\"{}\"", dashes) : "", kLeft, y, kLeft + 40, y + 4,
                        as_markup(runs[i]["folder"]), curves[i].back().y);
    }
    return out + "</svg>\n";
}

}  // namespace lockstep::report
