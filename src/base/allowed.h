// Which values a key or a flag may have: a range of numbers, or words. What is refused and what help prints as the range come
// from the same data, so they cannot differ. Keys of recipes, of models and of cluster files are declared with it. It holds
// pointers to literals and functions only, so that tables of keys are constant data.
#pragma once

#include <array>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct Allowed {
    // Numbers. NaN and infinity are never allowed.
    double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
    bool open_least = false, open_most = false;  // the bound itself is not allowed
    std::optional<double> also;                  // one more value, outside of the range

    // Text. Neither words nor a form: any text.
    std::array<const char*, 8> literals = {};  // words, the first `literal_count` ones; "" prints as "empty"
    size_t literal_count = 0;
    std::vector<std::string> (*listed)() = nullptr;  // words that a function lists, in place of literals
    const char* form = "";                           // what text may be that is none of the words: "a number of data ranks"
    bool (*has_form)(const std::string& text) = nullptr;
    bool any_case = false;  // upper and lower case are the same

    const char* advice = "";  // ends a refusal: what to do instead

    constexpr Allowed or_value(double value) const {
        Allowed a = *this;
        a.also = value;
        return a;
    }
    constexpr Allowed or_form(const char* what, bool (*fits)(const std::string&)) const {
        Allowed a = *this;
        a.form = what, a.has_form = fits;
        return a;
    }
    constexpr Allowed with_any_case() const {
        Allowed a = *this;
        a.any_case = true;
        return a;
    }
    constexpr Allowed advise(const char* what) const {
        Allowed a = *this;
        a.advice = what;
        return a;
    }

    std::vector<std::string> words() const;
    bool restricts_text() const { return literal_count > 0 || listed || has_form; }
    // "from 0 to 1, or -1"; "linear, sqrt or cosine"; empty: any text. For numbers without bounds: "a finite number".
    std::string text_of_numbers() const;
    std::string text_of_words() const;
    // What a value must be instead, with the nearest word and the advice; empty where it is allowed.
    std::string objection(double value) const;
    std::string objection(const std::string& value) const;
};

constexpr Allowed from_to(double least, double most) {
    Allowed a;
    a.least = least, a.most = most;
    return a;
}
// Without `least` itself.
constexpr Allowed above_to(double least, double most) {
    Allowed a = from_to(least, most);
    a.open_least = true;
    return a;
}
// Without `most` itself.
constexpr Allowed from_below(double least, double most) {
    Allowed a = from_to(least, most);
    a.open_most = true;
    return a;
}
constexpr Allowed one_of(std::initializer_list<const char*> words) {
    Allowed a;
    for (const char* word : words) a.literals.at(a.literal_count++) = word;
    return a;
}
constexpr Allowed one_of(std::vector<std::string> (*listed)()) {
    Allowed a;
    a.listed = listed;
    return a;
}
constexpr Allowed of_form(const char* form, bool (*has_form)(const std::string&)) { return Allowed().or_form(form, has_form); }

}  // namespace lockstep
