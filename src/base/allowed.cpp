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

Allowed from_to(double least, double most) {
    Allowed a;
    a.least = least, a.most = most;
    return a;
}

Allowed above_to(double least, double most) {
    Allowed a = from_to(least, most);
    a.open_least = true;
    return a;
}

Allowed from_below(double least, double most) {
    Allowed a = from_to(least, most);
    a.open_most = true;
    return a;
}

Allowed one_of(std::vector<std::string> words) {
    Allowed a;
    a.words = std::move(words);
    return a;
}

Allowed of_form(const std::string& form, bool (*has_form)(const std::string&)) { return Allowed().or_form(form, has_form); }

Allowed Allowed::or_value(double value) const {
    Allowed a = *this;
    a.also = value;
    return a;
}

Allowed Allowed::or_form(const std::string& what, bool (*fits)(const std::string&)) const {
    Allowed a = *this;
    a.form = what, a.has_form = fits;
    return a;
}

Allowed Allowed::with_any_case() const {
    Allowed a = *this;
    a.any_case = true;
    return a;
}

Allowed Allowed::advise(const std::string& what) const {
    Allowed a = *this;
    a.advice = what;
    return a;
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
    for (const std::string& w : words) parts.push_back(w.empty() ? "empty" : w);
    if (has_form) parts.push_back(form);
    std::string text;
    for (size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : i + 1 == parts.size() ? " or " : ", ") + parts[i];
    return text;
}

std::string Allowed::objection(double value) const {
    if (also && value == *also) return "";
    const bool inside =
        std::isfinite(value) && (open_least ? value > least : value >= least) && (open_most ? value < most : value <= most);
    return inside ? "" : "must be " + text_of_numbers() + (advice.empty() ? "" : "; " + advice);
}

std::string Allowed::objection(const std::string& value) const {
    if (!restricts_text() || (has_form && has_form(value))) return "";
    const auto same = [&](const std::string& word) { return any_case ? lower(word) == lower(value) : word == value; };
    if (std::any_of(words.begin(), words.end(), same)) return "";
    const std::string close = nearest_if_close(value, words);
    return "must be " + text_of_words() + (close.empty() ? "" : "; the nearest is " + close) +
           (advice.empty() ? "" : "; " + advice);
}

}  // namespace lockstep
