// JSON as text, of files that may be damaged, where nlohmann's own ways could end the program. Its parser and printer are compiled
// once, in json.cpp, for nlohmann::json and nlohmann::ordered_json.
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

// A text that parse_json refuses: what() is for a message, byte() where it went wrong, from 1; 0: unknown.
class JsonError : public std::runtime_error {
public:
    JsonError(const std::string& what, size_t byte) : std::runtime_error(what), byte_(byte) {}
    size_t byte() const { return byte_; }

private:
    size_t byte_;
};

// nlohmann reads any depth, but copies, comparisons and dump() call themselves once a level: a hundred thousand brackets would
// use up the stack. Does the text go deeper than any file that Lockstep reads?
inline constexpr int kDeepestJson = 64;
bool is_deep(std::string_view json);
// Python reads and writes NaN, Infinity and -Infinity, which are no JSON: the text with `instead` in their places.
std::string without_nonfinite(std::string_view json, std::string_view instead);

// How JSON of a user is read in all of Lockstep: what is nested too deep is left out. Comments are "//" and "/* */". Throws
// JsonError.
enum class JsonComments { Refused, Skipped };
template <class Json>
Json parse_json(std::string_view text, JsonComments comments = JsonComments::Refused);
// The same of a text that may be anything: is_discarded() where it is no JSON.
template <class Json>
Json json_or_discarded(std::string_view text);
// Bytes that are no UTF-8 are replaced. indent -1: one line.
template <class Json>
std::string json_text(const Json& value, int indent = -1);
// As CBOR, which ranks send each other: numbers keep their bits.
template <class Json>
std::string cbor_of(const Json& value);
template <class Json>
Json json_of_cbor(std::string_view bytes);

// get<int64_t>() would cut 1.5 off, and 1e300 has no int64_t at all.
template <class Json>
int64_t whole_number(const Json& value) {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.template get<uint64_t>() > INT64_MAX))
        throw std::runtime_error(json_text(value).substr(0, 40) + " is in it where a whole number belongs");
    return value.template get<int64_t>();
}

}  // namespace lockstep
