// JSON of a file that may be damaged, where nlohmann's own ways could end the program.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

// What nlohmann says of a text that it cannot read, without its own name of the error: "[json.exception.parse_error.101] ".
inline std::string json_reason(const std::exception& e) {
    const std::string_view text = e.what();
    const size_t end = text.starts_with("[json.") ? text.find("] ") : std::string_view::npos;
    return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

// For Json::parse(text, is_shallow<Json>, ...): leaves out what stands more deeply than any file of Lockstep goes. Copies,
// comparisons and dump() call themselves once a level, so a hundred thousand brackets would use up the stack.
template <class Json>
bool is_shallow(int depth, typename Json::parse_event_t, Json&) {
    constexpr int kDeepest = 64;
    return depth <= kDeepest;
}

// get<int64_t>() would cut 1.5 off, and 1e300 has no int64_t at all.
template <class Json>
int64_t whole_number(const Json& value) {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.template get<uint64_t>() > INT64_MAX))
        throw std::runtime_error(value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40) +
                                 " stands in it where a whole number belongs");
    return value.template get<int64_t>();
}

}  // namespace lockstep
