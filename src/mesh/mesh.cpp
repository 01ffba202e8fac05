#include "mesh/mesh.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace lockstep::mesh {

std::string_view name_of(Axis axis) {
    constexpr std::array<std::string_view, kAxes.size()> names = {"island", "pp", "dp_replicate", "dp_shard", "cp", "tp"};
    return names[static_cast<size_t>(axis)];
}

std::string text(const Degrees& degrees) {
    std::string text;
    for (Axis a : kAxes) {
        const int64_t degree = degrees[static_cast<size_t>(a)];
        const bool optional = a == Axis::island || a == Axis::pp || a == Axis::cp;
        if (!optional || degree > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(a), degree);
    }
    return text;
}

bool contains(const AxisList& list, int sub_axis) { return std::find(list.begin(), list.end(), sub_axis) != list.end(); }

bool starts_with(const AxisList& list, const AxisList& prefix) {
    return list.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), list.begin());
}

AxisList join(AxisList a, const AxisList& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

AxisList unite(const AxisList& a, const AxisList& b) {
    AxisList out;
    out.reserve(a.size() + b.size());
    out.insert(out.end(), a.begin(), a.end());
    out.insert(out.end(), b.begin(), b.end());
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

AxisList subtract(const AxisList& a, const AxisList& b) {
    AxisList out;
    for (int x : a) {
        if (!contains(b, x)) out.push_back(x);
    }
    return out;
}

AxisList intersect(const AxisList& a, const AxisList& b) {
    AxisList out;
    for (int x : a) {
        if (contains(b, x)) out.push_back(x);
    }
    return out;
}

bool meet(const AxisList& a, const AxisList& b) {
    return std::any_of(a.begin(), a.end(), [&](int x) { return contains(b, x); });
}

bool is_subset(const AxisList& a, const AxisList& b) {
    return std::all_of(a.begin(), a.end(), [&](int x) { return contains(b, x); });
}

Mesh Mesh::build(const Degrees& degrees, const std::map<Axis, std::vector<int64_t>>& cuts) {
    Mesh mesh;
    mesh.degrees = degrees;
    for (Axis axis : kAxes) {
        ensure(mesh.degree(axis) >= 1, fmt::format("mesh: {} of degree {}", name_of(axis), mesh.degree(axis)));
        std::vector<int64_t> borders = {1, mesh.degree(axis)};
        if (auto it = cuts.find(axis); it != cuts.end()) borders.insert(borders.end(), it->second.begin(), it->second.end());
        std::sort(borders.begin(), borders.end());
        borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
        for (size_t i = 0; i + 1 < borders.size(); ++i) {
            ensure(borders[i + 1] % borders[i] == 0,
                   fmt::format("mesh: cuts {} and {} of {} do not divide each other", borders[i], borders[i + 1], name_of(axis)));
            mesh.sub_axes.push_back({axis, borders[i], borders[i + 1] / borders[i]});
        }
    }
    return mesh;
}

int64_t Mesh::ranks() const { return size(all()); }

int64_t Mesh::world_ranks() const { return size(world()) * islands(); }

int64_t Mesh::island_of(int64_t rank) const { return rank / size(world()); }

int64_t Mesh::pipeline_rank_of(int64_t rank) const { return rank / ranks() % degree(Axis::pp); }

AxisList Mesh::whole(Axis axis) const {
    AxisList out;
    for (size_t i = 0; i < sub_axes.size(); ++i) {
        if (sub_axes[i].axis == axis) out.push_back(static_cast<int>(i));
    }
    return out;
}

AxisList Mesh::all() const { return subtract(world(), whole(Axis::pp)); }

AxisList Mesh::world() const {
    AxisList out;
    for (size_t i = 0; i < sub_axes.size(); ++i) {
        if (sub_axes[i].axis != Axis::island) out.push_back(static_cast<int>(i));
    }
    return out;
}

int64_t Mesh::size(const AxisList& list) const {
    int64_t n = 1;
    for (int a : list) n *= sub_axes[a].size;
    return n;
}

int64_t Mesh::coordinate(int64_t rank, int sub_axis) const {
    for (int i = static_cast<int>(sub_axes.size()) - 1; i > sub_axis; --i) rank /= sub_axes[i].size;
    return rank % sub_axes[sub_axis].size;
}

int64_t Mesh::index(int64_t rank, const AxisList& list) const {
    int64_t i = 0;
    for (int a : list) i = i * sub_axes[a].size + coordinate(rank, a);
    return i;
}

std::vector<int64_t> Mesh::group(int64_t rank, const AxisList& list) const {
    std::vector<int64_t> stride(sub_axes.size(), 1);  // between ranks whose coordinates on a sub-axis differ by one
    for (size_t a = sub_axes.size(); a-- > 1;) stride[a - 1] = stride[a] * sub_axes[a].size;
    std::vector<int64_t> members = {rank};
    for (int a : list) members[0] -= coordinate(rank, a) * stride[a];
    for (int a : list) {
        std::vector<int64_t> more;
        for (int64_t m : members) {
            for (int64_t k = 0; k < sub_axes[a].size; ++k) more.push_back(m + k * stride[a]);
        }
        members = std::move(more);
    }
    return members;
}

std::string Mesh::text(const AxisList& list) const {
    std::string out;
    for (size_t i = 0; i < list.size();) {
        const SubAxis& sub = sub_axes[list[i]];
        const AxisList axis = whole(sub.axis);
        const AxisList tail(list.begin() + static_cast<long>(i), list.end());
        const bool is_whole = starts_with(tail, axis);
        if (!out.empty()) out += ",";
        out += is_whole ? std::string(name_of(sub.axis)) : fmt::format("{}:({}){}", name_of(sub.axis), sub.pre, sub.size);
        i += is_whole ? axis.size() : 1;
    }
    return out;
}

std::optional<AxisList> Mesh::parse(std::string_view text) const {
    AxisList out;
    for (bool more = !text.empty(); more;) {
        const size_t comma = text.find(',');
        const std::string_view word = text.substr(0, comma);
        more = comma != std::string_view::npos;
        if (more) text.remove_prefix(comma + 1);
        AxisList found;
        for (Axis axis : kAxes) {
            if (name_of(axis) == word) found = whole(axis);
        }
        for (size_t i = 0; i < sub_axes.size() && found.empty(); ++i) {
            const SubAxis& s = sub_axes[i];
            if (word == fmt::format("{}:({}){}", name_of(s.axis), s.pre, s.size)) found = {static_cast<int>(i)};
        }
        if (found.empty() || out.size() + found.size() > sub_axes.size()) return std::nullopt;
        out = join(out, found);
    }
    return out;
}

}  // namespace lockstep::mesh
