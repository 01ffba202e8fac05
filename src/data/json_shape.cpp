#include "data/json_shape.h"

#include "data/utf8.h"

namespace lockstep::data {
namespace {

// What follows the first object, which begins at `begin` and ends at `end`.
JsonShape::Kind kind_behind(std::string_view head, bool is_whole, size_t begin, size_t end) {
    const size_t next = skip_json_space(head, end);
    if (next == head.size() && !is_whole) return JsonShape::Kind::more;
    const bool nothing_follows = next == head.size();
    const bool is_one_line = head.substr(begin, end - begin).find('\n') == std::string_view::npos;
    const std::string_view between = head.substr(end, next - end);
    const bool has_only_returns = between.find('\r') != std::string_view::npos && between.find('\n') == std::string_view::npos;
    if (!nothing_follows && head[next] != '{') {
        // "{..}, {..}" are meant to be objects: the refusal says what is wrong.
        const size_t behind_comma = head[next] == ',' ? skip_json_space(head, next + 1) : head.size();
        return is_one_line && behind_comma < head.size() && head[behind_comma] == '{' ? JsonShape::Kind::lines
                                                                                      : JsonShape::Kind::none;
    }
    return is_one_line && (nothing_follows || !has_only_returns) ? JsonShape::Kind::lines : JsonShape::Kind::values;
}

}  // namespace

JsonShape json_shape(std::string_view head, bool is_whole, const FieldPath& field) {
    const size_t first = skip_json_space(head, byte_order_mark_bytes(head));
    if (first == head.size()) return {is_whole ? JsonShape::Kind::none : JsonShape::Kind::more};
    if (head[first] != '{' && head[first] != '[') return {};
    const bool is_list = head[first] == '[';
    const size_t begin = is_list ? skip_json_space(head, first + 1) : first;
    if (begin == head.size()) return {is_whole ? JsonShape::Kind::none : JsonShape::Kind::more};
    if (head[begin] != '{') return {};
    const JsonField found = read_json_value(head, begin, field);
    if (found.kind == JsonField::Kind::not_json)
        return {found.is_cut && !is_whole ? JsonShape::Kind::more : JsonShape::Kind::none};
    const bool has_field = found.kind == JsonField::Kind::text || found.kind == JsonField::Kind::null;
    return {is_list ? JsonShape::Kind::values : kind_behind(head, is_whole, begin, found.end), has_field};
}

ObjectLines object_lines(std::string_view head, bool is_whole, const FieldPath& field) {
    ObjectLines lines;
    while (!head.empty()) {
        const size_t end = head.find('\n');
        if (end == std::string_view::npos && !is_whole) break;
        std::string_view line = head.substr(0, end);
        head.remove_prefix(end == std::string_view::npos ? head.size() : end + 1);
        line.remove_prefix(byte_order_mark_bytes(line));
        const size_t first = skip_json_space(line, 0);
        if (first == line.size()) continue;
        ++lines.all;
        if (line[first] != '{') continue;
        const JsonField::Kind kind = read_json_line(line, field).kind;
        lines.objects += kind == JsonField::Kind::text || kind == JsonField::Kind::null;
    }
    return lines;
}

}  // namespace lockstep::data
