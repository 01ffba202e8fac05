// What a JSON library says of a text that it cannot read, without its own name of the error: "[json.exception.parse_error.101] ".
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace lockstep {

inline std::string json_reason(const std::exception& e) {
    const std::string_view text = e.what();
    const size_t end = text.starts_with("[json.") ? text.find("] ") : std::string_view::npos;
    return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

}  // namespace lockstep
