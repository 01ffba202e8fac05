// The keys of one table of a cluster file as rows of constant data. By the same rows a table is read, printed and described.
#pragma once

#include <array>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/allowed.h"
#include "sim/reader.h"

namespace lockstep::sim {

using FieldPtr = std::variant<bool*, int*, int64_t*, double*, std::string*, std::vector<double>*, std::vector<std::string>*>;

enum class Printed { Always, UnlessDefault, WithNext, Never };  // WithNext: where the next row is

struct Key {
    const char* name;
    const char* help;      // with its unit
    Allowed allowed = {};  // of a list: each item
    Printed printed = Printed::Always;
    const char* format = "{:.4g}";  // of a double
};

template <class S>
struct Field {
    Key key;
    FieldPtr (*of)(S&);
};

template <class T, class S>
std::type_identity<S> struct_of(T S::*);

// The row of a member, or of a member of a member: field<&LinkLevel::link, &mesh::Link::latency_s>("latency_s", ..).
template <auto member, auto... inner>
constexpr auto field(const char* name, const char* help, Allowed allowed = {}, Printed printed = Printed::Always,
                     const char* format = "{:.4g}") {
    using S = typename decltype(struct_of(member))::type;
    return Field<S>{{name, help, allowed, printed, format}, [](S& s) -> FieldPtr { return &((s.*member).*....*inner); }};
}

// UserError cluster.*.
void read_field(Reader& r, const Key& key, FieldPtr value);
// "a number from 0 to 1".
std::string values_text(const Key& key, FieldPtr type);

// A key with its value and the value that it has by default.
struct Valued {
    const Key* key;
    FieldPtr value, by_default;
};
// "latency_s = 1e-05", of those that are printed.
std::vector<std::string> printed_fields(std::span<const Valued> fields);
std::string lines_of(std::span<const Valued> fields);

template <class S, size_t n>
void read_fields(Reader& r, const Field<S> (&fields)[n], S& s) {
    for (const Field<S>& f : fields) read_field(r, f.key, f.of(s));
}

template <class S, size_t n>
std::array<Valued, n> valued(const Field<S> (&fields)[n], S& s, S& none) {
    std::array<Valued, n> out;
    for (size_t i = 0; i < n; ++i) out[i] = {&fields[i].key, fields[i].of(s), fields[i].of(none)};
    return out;
}

template <class S, size_t n>
std::string print_fields(const Field<S> (&fields)[n], S& s) {
    S none;
    return lines_of(valued(fields, s, none));
}

}  // namespace lockstep::sim
