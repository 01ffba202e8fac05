// What a flag's number may be. CLI11's own checks name the largest double, in 309 digits.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::cli {

inline CLI::Validator positive_number() {
    const auto check = [](const std::string& text) {
        double value = 0;
        return CLI::detail::lexical_cast(text, value) && value > 0 ? "" : fmt::format("{} must be a number above 0", text);
    };
    return {check, "POSITIVE"};
}

inline CLI::Validator nonnegative_number() {
    const auto check = [](const std::string& text) {
        double value = 0;
        return CLI::detail::lexical_cast(text, value) && value >= 0 ? "" : fmt::format("{} must be a number from 0", text);
    };
    return {check, "NONNEGATIVE"};
}

}  // namespace lockstep::cli
