#include "base/json.h"

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

}  // namespace lockstep
