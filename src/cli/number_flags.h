// What a flag's number may be. CLI11's own checks name the largest double, in 309 digits.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::cli {

inline CLI::Validator number_flag(bool (*fits)(double), const char* words, const char* type) {
    return {[=](const std::string& text) {
                double value = 0;
                return CLI::detail::lexical_cast(text, value) && fits(value) ? "" : fmt::format("{} must be a {}", text, words);
            },
            type};
}

inline CLI::Validator positive_number() {
    return number_flag([](double x) { return x > 0; }, "number above 0", "POSITIVE");
}

inline CLI::Validator nonnegative_number() {
    return number_flag([](double x) { return x >= 0; }, "number from 0", "NONNEGATIVE");
}

}  // namespace lockstep::cli
