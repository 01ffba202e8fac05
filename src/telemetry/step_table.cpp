#include "telemetry/step_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "telemetry/console.h"
#include "telemetry/wrap.h"

namespace lockstep::telemetry {
namespace {

constexpr int64_t kLinesBetweenHeadings = 20;

struct Column {
    std::string heading, value;
    int width;
    int rank;  // the higher, the sooner left out
};

std::string with_digits(double x, int digits) {  // of a column of `digits` and a point
    for (int after = digits - 1; after > 0; --after) {
        const std::string text = fmt::format("{:.{}f}", x, after);
        if (static_cast<int>(text.size()) <= digits + 1) return text;
    }
    return fmt::format("{:.2g}", x);
}

std::string memory_text(double bytes) {
    const double gib = bytes / (1 << 30);
    return gib < 1000 ? with_digits(gib, 4) + "GiB" : with_digits(gib / 1024, 4) + "TiB";
}

struct Unit {
    double flops_per_s;
    const char* name;
};
constexpr Unit kUnits[] = {{1e15, "PFLOP/s"}, {1e12, "TFLOP/s"}, {1e9, "GFLOP/s"}, {1e6, "MFLOP/s"}};

const Unit& unit_of(double flops_per_s) {
    for (const Unit& u : kUnits) {
        if (flops_per_s >= u.flops_per_s) return u;
    }
    return kUnits[3];
}

}  // namespace

std::vector<std::string> StepTable::lines(const StepLine& s, int columns) {
    if (unit_ == 0) unit_ = unit_of(s.flops_per_s).flops_per_s;
    const Unit& unit = unit_of(unit_);
    const int step_width = std::max(9, 2 * static_cast<int>(std::to_string(steps_).size()) + 1);
    std::vector<Column> all = {
        {"step", fmt::format("{}/{}", s.step, steps_), step_width, 0},
        {"loss", with_digits(s.loss, 6), 7, 1},
        {"norm", with_digits(s.grad_norm, 5), 6, 4},
        {"lr", fmt::format("{:.2e}", s.lr), 8, 5},
        {"tok/s", short_count(s.tokens_per_s), 6, 2},
        {unit.name, short_count(s.flops_per_s / unit.flops_per_s), 7, 6},
        {"MFU", s.mfu < 0 ? "" : fmt::format("{:.1f}%", 100 * s.mfu), 5, 7},
        {"memory", memory_text(s.memory_bytes), 8, 8},
        {"time left", short_duration(s.left_s), 9, 3},
    };
    if (s.mfu < 0) std::erase_if(all, [](const Column& c) { return c.heading == "MFU"; });
    const auto width = [&] {
        int sum = -1;
        for (const Column& c : all) sum += c.width + 1;
        return sum;
    };
    while (width() > columns && all.size() > 2)
        all.erase(std::max_element(all.begin(), all.end(), [](const Column& a, const Column& b) { return a.rank < b.rank; }));
    std::string heading, line;
    for (const Column& c : all) {
        heading += fmt::format("{}{:>{}}", heading.empty() ? "" : " ", c.heading, c.width);
        line += fmt::format("{}{:>{}}", line.empty() ? "" : " ", c.value, c.width);
    }
    std::vector<std::string> out;
    if (printed_ % kLinesBetweenHeadings == 0) out.push_back(heading);
    out.push_back(line);
    ++printed_;
    return out;
}

void StepTable::print(const StepLine& s) {
    nlohmann::ordered_json values = {{"step", s.step},
                                     {"steps", steps_},
                                     {"loss", s.loss},
                                     {"grad_norm", s.grad_norm},
                                     {"lr", s.lr},
                                     {"tokens_per_s", s.tokens_per_s},
                                     {"flops_per_s", s.flops_per_s},
                                     {"memory_bytes", s.memory_bytes},
                                     {"left_s", s.left_s}};
    if (s.mfu >= 0) values["mfu"] = s.mfu;
    if (!console_shows_text()) return info(fmt::format("step {} of {}", s.step, steps_), values);
    for (const std::string& line : lines(s, console_columns())) info(line, nullptr);
}

}  // namespace lockstep::telemetry
