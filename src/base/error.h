// What may go wrong, in two kinds.
// UserError: caused by recipe, data, flags, files or machine. Says what was wrong, which value, where it came from and
//   what to change. Every id occurs in a test (tests/base/user_error_ids_test.cpp fails on one that does not).
// InternalError: a broken invariant of ours. Names the pass, routine or op.
// What is expected to happen (does not fit, a backend lacks an op) is a return value, never an exception.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

// The id of a refusal on which code branches: one constant for who raises it and who asks.
struct ErrorId {
    std::string_view text;
    constexpr operator std::string_view() const { return text; }
};

class UserError : public std::runtime_error {
public:
    // id: a stable dotted name such as "recipe.unknown_key". key: the recipe key, flag or file to change; may be empty.
    UserError(std::string_view id, std::string key, const std::string& message)
        : std::runtime_error(with_visible_nul(message)), id_(id), key_(std::move(key)) {}
    const std::string& id() const { return id_; }
    bool is(ErrorId id) const { return id_ == id.text; }
    // What it is about, the id up to the dot: "recipe".
    std::string_view area() const { return std::string_view(id_).substr(0, id_.find('.')); }
    const std::string& key() const { return key_; }

private:
    // what() ends at the first NUL, and a value from outside may hold one.
    static std::string with_visible_nul(std::string text) {
        for (size_t at; (at = text.find('\0')) != std::string::npos;) text.replace(at, 1, "\\0");
        return text;
    }

    std::string id_, key_;
};

class InternalError : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

// Throws InternalError with `what` where the invariant does not hold.
inline void ensure(bool holds, std::string_view what) {
    if (!holds) throw InternalError(std::string(what));
}

}  // namespace lockstep
