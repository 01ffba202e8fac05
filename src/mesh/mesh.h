// The device mesh: named axes, cut into sub-axes, and the coordinates of ranks on them. The outermost axis is that of islands,
// which train copies of the model that differ and meet now and then (DiLoCo, arXiv 2311.08105); then come pipeline ranks (pp).
// What is said of `all` sub-axes and of `ranks` is said of one pipeline rank of an island, `world` is an island. A sub-axis is
// written axis:(pre)size as in Shardy: `pre` is the product of the sub-axes of the same axis before it. Axes of degree 1 have
// no sub-axis. Ranks are numbered row-major, the first sub-axis outermost.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::mesh {

enum class Axis { island, pp, dp_replicate, dp_shard, cp, tp };
constexpr std::array<Axis, 6> kAxes = {Axis::island, Axis::pp, Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp};
using Degrees = std::array<int64_t, kAxes.size()>;  // by axis
inline constexpr Degrees kNoAxes = [] {
    Degrees degrees{};
    degrees.fill(1);
    return degrees;
}();
std::string_view name_of(Axis axis);
std::string text(const Degrees& degrees);  // "dp_replicate 1 x dp_shard 2 x tp 2"; others only where they are above 1

struct SubAxis {
    Axis axis;
    int64_t pre, size;
    bool operator==(const SubAxis&) const = default;
};

// Indices into Mesh::sub_axes, major to minor. A set of sub-axes is such a list in ascending order.
using AxisList = std::vector<int>;

AxisList join(AxisList a, const AxisList& b);             // a followed by b
AxisList unite(const AxisList& a, const AxisList& b);     // sets: ascending, without repeats
AxisList subtract(const AxisList& a, const AxisList& b);  // a without the members of b, order kept
AxisList intersect(const AxisList& a, const AxisList& b);
bool meet(const AxisList& a, const AxisList& b);       // have they a member in common?
bool is_subset(const AxisList& a, const AxisList& b);  // is every member of a one of b?
bool contains(const AxisList& list, int sub_axis);
bool starts_with(const AxisList& list, const AxisList& prefix);

struct Mesh {
    Degrees degrees = {1, 1, 1, 1, 1, 1};
    std::vector<SubAxis> sub_axes;

    // `cuts`: for an axis, the sizes of leading parts at which it is cut, e.g. tp 6 cut at {3} gives 3 x 2.
    // The cuts of one axis must form a divisor chain, else InternalError (callers refuse such recipes by key).
    static Mesh build(const Degrees& degrees, const std::map<Axis, std::vector<int64_t>>& cuts);

    int64_t degree(Axis axis) const { return degrees[static_cast<size_t>(axis)]; }
    AxisList whole(Axis axis) const;
    AxisList all() const;         // of one pipeline rank of an island
    AxisList world() const;       // of an island
    int64_t ranks() const;        // of one pipeline rank of an island
    int64_t world_ranks() const;  // of all islands
    int64_t islands() const { return degree(Axis::island); }
    int64_t island_of(int64_t rank) const;
    int64_t pipeline_rank_of(int64_t rank) const;
    int64_t size(const AxisList& list) const;
    int64_t coordinate(int64_t rank, int sub_axis) const;
    int64_t index(int64_t rank, const AxisList& list) const;  // position of a rank along the list, major first
    std::vector<int64_t> group(int64_t rank,
                               const AxisList& list) const;  // the ranks that differ only along the list, by index
    std::string text(const AxisList& list) const;            // "tp" where all of tp is there in order, else "tp:(1)2,..."
    std::optional<AxisList> parse(std::string_view text) const;
    bool operator==(const Mesh&) const = default;
};

}  // namespace lockstep::mesh
