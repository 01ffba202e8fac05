#include "base/json.h"

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

size_t end_of_string(std::string_view text, size_t at) {  // at: behind the quotation mark that opens it
    while ((at = text.find_first_of("\"\\", at)) != std::string_view::npos && text[at] == '\\') at += 2;
    return at == std::string_view::npos || at >= text.size() ? text.size() : at + 1;
}

size_t end_of_comment(std::string_view text, size_t at) {  // at: behind the slash; the next character otherwise
    const bool line = text.substr(at, 1) == "/", block = text.substr(at, 1) == "*";
    if (!line && !block) return at;
    const size_t end = text.find(line ? "\n" : "*/", at + 1);
    return end == std::string_view::npos ? text.size() : end + (line ? 1 : 2);
}

}  // namespace

bool is_deep(std::string_view json) {
    int depth = 0;
    for (size_t at = 0; at < json.size();) {
        switch (json[at++]) {
            case '"': at = end_of_string(json, at); break;
            case '/': at = end_of_comment(json, at); break;
            case '[':
            case '{':
                if (++depth > kDeepestJson) return true;
                break;
            case ']':
            case '}': depth -= depth > 0; break;
            default: break;
        }
    }
    return false;
}

std::string without_nonfinite(std::string_view json, std::string_view instead) {
    std::string out;
    for (size_t at = 0; at < json.size();) {
        size_t length = 1;
        if (json[at] == '"') {
            length = end_of_string(json, at + 1) - at;
        } else {
            for (const std::string_view name : {"-Infinity", "Infinity", "NaN"}) {
                if (!json.substr(at).starts_with(name)) continue;
                length = 0, at += name.size();
                out += instead;
                break;
            }
        }
        out += json.substr(at, length);
        at += length;
    }
    return out;
}

namespace {

// For Json::parse: leaves out what is too deep.
template <class Json>
bool is_shallow(int depth, typename Json::parse_event_t, Json&) {
    return depth <= kDeepestJson;
}

}  // namespace

template <class Json>
Json parse_json(std::string_view text, JsonComments comments) {
    const bool skips = comments == JsonComments::Skipped;
    try {  // the callback costs time
        return is_deep(text) ? Json::parse(text, is_shallow<Json>, true, skips) : Json::parse(text, nullptr, true, skips);
    } catch (const typename Json::parse_error& e) {
        throw JsonError(json_reason(e), e.byte);
    } catch (const typename Json::exception& e) {  // a number that no double holds
        throw JsonError(json_reason(e), 0);
    }
}

template <class Json>
Json json_or_discarded(std::string_view text) {
    return is_deep(text) ? Json::parse(text, is_shallow<Json>, false) : Json::parse(text, nullptr, false);
}

template <class Json>
std::string json_text(const Json& value, int indent) {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

template <class Json>
std::string cbor_of(const Json& value) {
    std::string out;
    Json::to_cbor(value, out);
    return out;
}

template <class Json>
Json json_of_cbor(std::string_view bytes) {
    return Json::from_cbor(bytes);
}

template nlohmann::json parse_json(std::string_view, JsonComments);
template nlohmann::ordered_json parse_json(std::string_view, JsonComments);
template nlohmann::json json_or_discarded(std::string_view);
template nlohmann::ordered_json json_or_discarded(std::string_view);
template std::string json_text(const nlohmann::json&, int);
template std::string json_text(const nlohmann::ordered_json&, int);
template std::string cbor_of(const nlohmann::json&);
template nlohmann::json json_of_cbor(std::string_view);

}  // namespace lockstep
