#include "interop/shell_state.h"

namespace lockstep::interop {

std::vector<Text> Variable::values() const {
    std::vector<Text> out;
    for (const auto& [index, text] : items) out.push_back(text);
    for (const auto& [key, text] : table) out.push_back(text);
    return out;
}

size_t Variable::size() const {
    size_t n = 0;
    for (const auto& [index, text] : items) n += text.size() + 1;
    for (const auto& [key, text] : table) n += key.size() + text.size() + 1;
    return n;
}

bool Variable::operator==(const Variable& other) const {
    const bool same_why = (!why && !other.why) || (why && other.why && *why == *other.why);
    return shape == other.shape && items == other.items && table == other.table && same_why && is_integer == other.is_integer &&
           refers_to == other.refers_to;
}

const Variable* State::find(const std::string& name) const {
    const auto found = variables.find(name);
    if (found == variables.end()) return nullptr;
    if (found->second->refers_to.empty()) return found->second.get();
    const auto target = variables.find(target_of(name));
    return target == variables.end() ? nullptr : target->second.get();
}

std::string State::target_of(const std::string& name) const {
    std::string out = name;
    constexpr int kMost = 8;
    for (int i = 0; i < kMost; ++i) {
        const auto found = variables.find(out);
        if (found == variables.end() || found->second->refers_to.empty()) break;
        out = found->second->refers_to;
    }
    return out;
}

namespace {

template <class Map>
std::set<std::string> shell_names_of(const Map& a, const Map& b) {
    std::set<std::string> out;
    for (const auto& [name, ignored] : a) out.insert(name);
    for (const auto& [name, ignored] : b) out.insert(name);
    return out;
}

}  // namespace

State merge(const State& a, const State& b, const std::function<Text::Why(const std::string&, Place)>& why_of) {
    State out = a;
    for (const std::string& name : shell_names_of(a.variables, b.variables)) {
        const Variable *x = a.find(name), *y = b.find(name);
        if (x == y || (x && y && *x == *y)) continue;
        auto either = std::make_shared<Variable>();
        either->shape = x ? x->shape : y->shape;
        either->is_exported = (x && x->is_exported) || (y && y->is_exported);
        either->place = y ? y->place : x->place;
        either->why = why_of(name, x && y && x->place.line > y->place.line ? x->place : either->place);
        out.variables[name] = either;
    }
    for (const std::string& name : shell_names_of(a.files, b.files)) {
        const auto x = a.files.find(name), y = b.files.find(name);
        const Text* const in_a = x == a.files.end() ? nullptr : x->second.get();
        const Text* const in_b = y == b.files.end() ? nullptr : y->second.get();
        if (x != a.files.end() && y != b.files.end() && (in_a == in_b || (in_a && in_b && *in_a == *in_b))) continue;
        const Place place = in_a ? in_a->place() : in_b ? in_b->place() : Place();
        out.files[name] = std::make_shared<const Text>(Text::unknown("?", place, why_of(name, place)));
    }
    for (const std::string& name : shell_names_of(a.functions, b.functions)) {
        const auto x = a.functions.find(name), y = b.functions.find(name);
        if (x == a.functions.end() || y == b.functions.end() || x->second != y->second) out.functions[name] = nullptr;
    }
    if (a.arguments != b.arguments && !out.arguments_why) out.arguments_why = why_of("$1", a.folder.place());
    if (!out.arguments_why) out.arguments_why = b.arguments_why;
    if (!(a.folder == b.folder)) out.folder = Text::unknown("$(pwd)", a.folder.place(), why_of("$PWD", a.folder.place()));
    for (size_t i = 0; i < std::min(a.kept.size(), b.kept.size()); ++i) {
        const Place place = a.kept[i].place();
        if (!(a.kept[i] == b.kept[i])) out.kept[i] = Text::unknown("$(...)", place, why_of("$(...)", place));
    }
    if (a.status != b.status) {
        out.status = std::nullopt;
        if (!out.status_why) out.status_why = b.status_why ? b.status_why : why_of("$?", {});
    }
    return out;
}

}  // namespace lockstep::interop
