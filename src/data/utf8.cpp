#include "data/utf8.h"

#include "data/unicode.h"

namespace lockstep::data {

InvalidUtf8 invalid_utf8(std::string_view text) {
    InvalidUtf8 found;
    size_t at = valid_utf8_prefix_bytes(text);
    while (at < text.size()) {
        if (found.bytes++ == 0) found.first_at = at;
        ++at;
        at += valid_utf8_prefix_bytes(text.substr(at));
    }
    return found;
}

std::string with_replacements(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 16);
    while (!text.empty()) {
        const size_t valid = valid_utf8_prefix_bytes(text);
        out += text.substr(0, valid);
        text.remove_prefix(valid);
        if (text.empty()) break;
        out += "\xEF\xBF\xBD";
        text.remove_prefix(1);
    }
    return out;
}

}  // namespace lockstep::data
