// Which values a key or a flag may have: a range of numbers, or words. What is refused and what help prints as the range come
// from the same data, so they cannot differ. Keys of recipes, of models and of cluster files are declared with it.
#pragma once

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
    std::vector<std::string> words;  // "" prints as "empty"
    std::string form;                // what text may be that is none of the words: "a number of data ranks"
    bool (*has_form)(const std::string& text) = nullptr;
    bool any_case = false;  // upper and lower case are the same

    std::string advice;  // ends a refusal: what to do instead

    Allowed or_value(double value) const;
    Allowed or_form(const std::string& form, bool (*has_form)(const std::string&)) const;
    Allowed with_any_case() const;
    Allowed advise(const std::string& advice) const;

    bool restricts_text() const { return !words.empty() || has_form; }
    // "from 0 to 1, or -1"; "linear, sqrt or cosine"; empty: any text. For numbers without bounds: "a finite number".
    std::string text_of_numbers() const;
    std::string text_of_words() const;
    // What a value must be instead, with the nearest word and the advice; empty where it is allowed.
    std::string objection(double value) const;
    std::string objection(const std::string& value) const;
};

Allowed from_to(double least, double most);
Allowed above_to(double least, double most);    // without `least` itself
Allowed from_below(double least, double most);  // without `most` itself
Allowed one_of(std::vector<std::string> words);
Allowed of_form(const std::string& form, bool (*has_form)(const std::string&));

}  // namespace lockstep
