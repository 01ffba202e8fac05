// Between a recipe's values and a Config's fields, for the table of keys: each type of field says what its default is as a
// value, which words it has, and how a value that the table allows is read. The rows of the table are constant data, so that
// they compile quickly.
#pragma once

#include <algorithm>
#include <concepts>
#include <span>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "compile/config.h"
#include "compile/recipe.h"

namespace lockstep::compile {

template <HasWords E>
std::vector<std::string> all_words() {
    std::vector<std::string> out;
    for (const auto& [word, value] : words_of(E{})) out.emplace_back(word);
    return out;
}
template <HasWords E>
E from_word(const std::string& text) {
    for (const auto& [word, value] : words_of(E{})) {
        if (word == text) return value;
    }
    throw InternalError("no such word: " + text);
}

// Types that are written in a recipe as they are.
template <class T>
concept Plain = std::same_as<T, bool> || std::same_as<T, int64_t> || std::same_as<T, double> || std::same_as<T, std::string> ||
    std::same_as<T, std::vector<std::string>> || std::same_as<T, std::vector<double>>;

template <Plain T>
Value to_value(const T& field) {
    return field;
}
template <Plain T>
void read(T& field, const Value& value) {
    field = std::get<T>(value);
}

template <HasWords E>
Value to_value(const E& field) {
    return word_of(field);
}
template <HasWords E>
void read(E& field, const Value& value) {
    field = from_word<E>(std::get<std::string>(value));
}

template <HasWords E>
Value to_value(const std::vector<E>& field) {
    std::vector<std::string> words;
    for (const E e : field) words.push_back(word_of(e));
    return words;
}
template <HasWords E>
void read(std::vector<E>& field, const Value& value) {
    field.clear();
    for (const std::string& word : std::get<std::vector<std::string>>(value)) field.push_back(from_word<E>(word));
}

Value to_value(const Dtype& field);
void read(Dtype& field, const Value& value);
Value to_value(const OptionalDtype& field);
void read(OptionalDtype& field, const Value& value);
Value to_value(const Dataset& field);
void read(Dataset& field, const Value& value);
Value to_value(const Split& field);
void read(Split& field, const Value& value);
Value to_value(const Selective& field);
void read(Selective& field, const Value& value);
Value to_value(const Duration& field);
void read(Duration& field, const Value& value);
Value to_value(const Names& field);
void read(Names& field, const Value& value);

template <auto section, auto field>
Value value_of_field(const Config& config) {
    return to_value(config.*section.*field);
}
template <auto section, auto field>
void read_into_field(Config& config, const Value& value) {
    read(config.*section.*field, value);
}

// A row of the table of keys: constant data.
struct KeyRow {
    const char* name;
    std::variant<bool, int64_t, const char*, Value (*)(const Config& defaults)> default_value;
    KeyStatus status;
    const char* help;
    Allowed allowed = {};
    void (*put)(Config&, const Value&) = nullptr;
    Tried tried = {};

    constexpr KeyRow of_step(Tried what) const {
        KeyRow row = *this;
        row.tried = what;
        return row;
    }
};

// The row of a key that acts. It has a field, and the field's default is the key's.
template <auto section, auto field>
constexpr KeyRow acts(const char* name, const char* help, Allowed allowed = {}) {
    using T = std::remove_cvref_t<decltype(std::declval<Config&>().*section.*field)>;
    if constexpr (HasWords<T>) allowed = one_of(all_words<T>);
    if constexpr (!Plain<T> && requires { typename T::value_type; }) {
        if constexpr (HasWords<typename T::value_type>) allowed = one_of(all_words<typename T::value_type>);
    }
    return {name, value_of_field<section, field>, KeyStatus::Acts, help, allowed, read_into_field<section, field>};
}

// In the order of the table.
std::span<const KeyRow> keys_of_training();  // from [job] to [training]
std::span<const KeyRow> keys_of_layout();    // [parallelism], [partition]
std::span<const KeyRow> keys_of_runs();      // from [checkpoint] on

bool is_count(const std::string& text);  // 1 or more

}  // namespace lockstep::compile
