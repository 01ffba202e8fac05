#include "base/nearest.h"

#include <algorithm>

namespace lockstep {
namespace {

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return out;
}

std::vector<std::string> words_of(std::string_view name) {
    std::vector<std::string> out(1);
    for (const char c : name) {
        if (c == '_' || c == '-') out.emplace_back();
        else out.back() += c;
    }
    std::sort(out.begin(), out.end());
    return out;
}

std::string joined(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& w : words) out += w + "_";
    return out;
}

std::string initials(std::string_view name) {
    std::string out(name.substr(0, 1));
    for (size_t i = 1; i < name.size(); ++i) {
        if (name[i - 1] == '_' || name[i - 1] == '-') out += name[i];
    }
    return out;
}

std::string one_word(std::string_view key) {
    std::string out(key);
    std::replace(out.begin(), out.end(), '.', '_');
    return out;
}

// Between the last parts of two keys.
size_t distance_of_names(std::string_view given, std::string_view known) {
    if (given == known) return 0;
    const std::vector<std::string> a = words_of(given), b = words_of(known);
    if (std::includes(b.begin(), b.end(), a.begin(), a.end())) return b.size() - a.size();
    if (a.size() > 1 && initials(given) == known) return 1;  // learning_rate: lr
    return std::min(edit_distance(given, known), edit_distance(joined(a), joined(b)));
}

size_t distance_of_keys(std::string_view given, std::string_view known) {
    const auto split = [](std::string_view key) {
        const size_t dot = key.rfind('.');
        return dot == std::string_view::npos ? std::pair{std::string_view(), key}
                                             : std::pair{key.substr(0, dot), key.substr(dot + 1)};
    };
    const auto [section, name] = split(given);
    const auto [known_section, known_name] = split(known);
    constexpr size_t kOtherSection = 3;  // the name counts more: optimizer.steps means training.steps, not optimizer.eps
    if (section.empty() && joined(words_of(given)) == joined(words_of(one_word(known)))) return 0;  // training-steps
    return 2 * distance_of_names(name, known_name) +
           (section.empty() ? 0 : std::min(kOtherSection, edit_distance(section, known_section)));
}

template <class Distance>
const std::string& least(const std::vector<std::string>& known, const Distance& distance) {
    std::vector<size_t> distances;
    for (const std::string& k : known) distances.push_back(distance(k));
    return known[static_cast<size_t>(std::min_element(distances.begin(), distances.end()) - distances.begin())];
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0]++;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
        }
    }
    return row.back();
}

const std::string& nearest(std::string_view word, const std::vector<std::string>& known) {
    const std::string w = lower(word);
    return least(known, [&](const std::string& k) { return edit_distance(w, lower(k)); });
}

std::string nearest_if_close(std::string_view word, const std::vector<std::string>& known) {
    if (word.empty() || known.empty()) return "";
    const std::string& best = nearest(word, known);
    return 2 * edit_distance(lower(word), lower(best)) <= std::max(word.size(), best.size()) ? best : "";
}

const std::string& nearest_key(std::string_view key, const std::vector<std::string>& known) {
    const std::string k = lower(key.substr(0, 200));
    return least(known, [&](const std::string& other) { return distance_of_keys(k, other); });
}

}  // namespace lockstep
