// What parse.cpp reads a line of program text with.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/program.h"

namespace lockstep::ir {

// Larger numbers are of no program, and sums and products of these do not overflow.
inline constexpr int64_t kMostBytes = int64_t{1} << 48, kMostRanks = int64_t{1} << 31, kMostInstances = int64_t{1} << 20;

// Reads one line from left to right; every failure names the line and what was expected.
class Cursor {
public:
    Cursor(std::string_view line, int number) : rest_(line), number_(number) { skip(); }
    int line() const { return number_; }
    bool at_end() const { return rest_.empty(); }

    [[noreturn]] void fail(std::string_view expected) const {
        throw UserError("ir.syntax", "",
                        fmt::format("program text, line {}: expected {} at '{}'", number_, expected, rest_.substr(0, 40)));
    }
    bool accept(std::string_view token) {
        if (!rest_.starts_with(token)) return false;
        rest_.remove_prefix(token.size());
        skip();
        return true;
    }
    // A whole word, not a prefix of one.
    bool accept_word(std::string_view word) {
        if (!rest_.starts_with(word) || (rest_.size() > word.size() && is_name(rest_[word.size()]))) return false;
        return accept(word);
    }
    void expect(std::string_view token) {
        if (!accept(token)) fail(fmt::format("'{}'", token));
    }
    std::string name() {
        size_t n = 0;
        while (n < rest_.size() && is_name(rest_[n])) ++n;
        if (n == 0) fail("a name");
        return take(n);
    }
    std::string until(std::string_view stops) {
        const size_t n = std::min(rest_.find_first_of(stops), rest_.size());
        return take(n);
    }
    std::string rest() { return take(rest_.size()); }
    int64_t integer(int64_t least = -kMostBytes, int64_t most = kMostBytes) {
        const int64_t v = any_integer();
        if (v < least || v > most) fail(fmt::format("an integer between {} and {} instead of {}", least, most, v));
        return v;
    }
    int64_t any_integer() {
        int64_t v = 0;
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), v);
        if (error != std::errc()) fail("an integer");
        rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
        skip();
        return v;
    }
    double number() {
        double v = 0;
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), v);
        if (error != std::errc()) fail("a number");
        rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
        skip();
        return v;
    }
    Attr attribute() {
        if (accept("'")) {
            std::string s = until("'");
            expect("'");
            return s;
        }
        if (accept("[")) {
            std::vector<int64_t> list;
            while (!accept("]")) list.push_back(any_integer());
            return list;
        }
        const std::string_view word = rest_.substr(0, rest_.find_first_of(",} "));
        if (word.find_first_of(".en") != std::string_view::npos) return number();
        return any_integer();
    }

private:
    static bool is_name(char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("._@{}[]+-#").find(c) != std::string_view::npos;
    }
    std::string take(size_t n) {
        std::string s(rest_.substr(0, n));
        while (!s.empty() && s.back() == ' ') s.pop_back();
        rest_.remove_prefix(n);
        skip();
        return s;
    }
    void skip() {
        while (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
    }
    std::string_view rest_;
    int number_;
};

}  // namespace lockstep::ir
