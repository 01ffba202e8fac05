#include "base/allowed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/nearest.h"

namespace lockstep {
namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

}  // namespace

std::vector<std::string> Allowed::words() const {
    return listed ? listed() : std::vector<std::string>(literals.begin(), literals.begin() + literal_count);
}

std::string Allowed::text_of_numbers() const {
    const bool bounded_below = std::isfinite(least), bounded_above = std::isfinite(most);
    std::string text = "a finite number";
    if (bounded_below && bounded_above && !open_least && !open_most) text = fmt::format("from {} to {}", least, most);
    else if (bounded_below || bounded_above) {
        text = bounded_below ? fmt::format("{} {}", open_least ? "above" : "at least", least) : "";
        if (bounded_above) text += fmt::format("{}{} {}", text.empty() ? "" : " and ", open_most ? "below" : "at most", most);
    }
    return also ? fmt::format("{}, or {}", text, *also) : text;
}

std::string Allowed::text_of_words() const {
    std::vector<std::string> parts;
    for (const std::string& w : words()) parts.push_back(w.empty() ? "empty" : w);
    if (has_form) parts.push_back(form);
    std::string text;
    for (size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : i + 1 == parts.size() ? " or " : ", ") + parts[i];
    return text;
}

std::string Allowed::objection(double value) const {
    if (also && value == *also) return "";
    const bool inside =
        std::isfinite(value) && (open_least ? value > least : value >= least) && (open_most ? value < most : value <= most);
    return inside ? "" : "must be " + text_of_numbers() + (*advice ? fmt::format("; {}", advice) : "");
}

std::string Allowed::objection(const std::string& value) const {
    if (!restricts_text() || (has_form && has_form(value))) return "";
    const std::vector<std::string> known = words();
    const auto same = [&](const std::string& word) { return any_case ? lower(word) == lower(value) : word == value; };
    if (std::any_of(known.begin(), known.end(), same)) return "";
    const std::string close = nearest_if_close(value, known);
    return "must be " + text_of_words() + (close.empty() ? "" : "; the nearest is " + close) +
           (*advice ? fmt::format("; {}", advice) : "");
}

}  // namespace lockstep
