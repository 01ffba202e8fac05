#include "telemetry/wrap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::telemetry {

int columns_of(std::string_view text) {
    return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

namespace {

void wrap_line(std::string_view line, int columns, std::vector<std::string>& out) {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    std::string now(line.substr(0, indent));
    bool empty = true;
    for (size_t at = indent; at < line.size();) {
        const size_t word = line.find_first_not_of(' ', at), end = std::min(line.find(' ', word), line.size());
        if (word == std::string_view::npos) break;
        const std::string_view gap = empty ? std::string_view() : line.substr(at, word - at),
                               text = line.substr(word, end - word);
        if (!empty && columns_of(now) + columns_of(gap) + columns_of(text) > columns) {
            out.push_back(now);
            now = std::string(indent, ' ');
        } else {
            now += gap;
        }
        now += text;
        empty = false;
        at = end;
    }
    out.push_back(now);
}

}  // namespace

std::vector<std::string> wrap(std::string_view text, int columns) {
    std::vector<std::string> out;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        wrap_line(text.substr(begin, end - begin), columns, out);
        begin = end + 1;
    }
    return out;
}

std::string short_duration(double seconds) {
    if (!(seconds >= 0)) return "";
    if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
    const auto s = static_cast<int64_t>(std::min(seconds, 1e9) + 0.5);
    if (s < 60) return fmt::format("{}s", s);
    if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
    if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
    return fmt::format("{}d{:02}h", s / 86400, s % 86400 / 3600);
}

std::string short_count(double count) {
    if (!std::isfinite(count)) return "-";
    if (count < 9.995) return fmt::format("{:.2f}", count);
    if (count < 99.95) return fmt::format("{:.1f}", count);
    if (count < 9999.5) return grouped(std::llround(count));
    constexpr std::array<char, 4> kUnits = {'k', 'M', 'G', 'T'};
    size_t unit = 0;
    for (count /= 1000; count >= 999.5 && unit + 1 < kUnits.size(); count /= 1000) ++unit;
    return fmt::format("{:.{}f}{}", count, count < 9.995 ? 2 : count < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string gib(int64_t bytes) { return fmt::format("{:.3f} GiB", static_cast<double>(bytes) / (1 << 30)); }

std::string grouped(int64_t count) {
    const std::string digits = std::to_string(count);
    std::string text;
    for (size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0) text += ',';
        text += digits[i];
    }
    return text;
}

std::string plural(int64_t count, std::string_view noun) {
    const bool es = noun.ends_with("s") || noun.ends_with("x") || noun.ends_with("ch");
    return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : es ? "es" : "s");
}

}  // namespace lockstep::telemetry
