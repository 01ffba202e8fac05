// The device mesh of one pipeline stage: named axes, cut into sub-axes, and the coordinates of ranks on them.
// A sub-axis is written axis:(pre)size as in Shardy: `pre` is the product of the sub-axes of the same axis before it.
// Axes of degree 1 have no sub-axis. Ranks are numbered row-major, the first sub-axis outermost.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::mesh {

enum class Axis { dp_replicate, dp_shard, cp, tp };
constexpr std::array<Axis, 4> kAxes = {Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp};
std::string_view name_of(Axis axis);

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
bool contains(const AxisList& list, int sub_axis);
bool starts_with(const AxisList& list, const AxisList& prefix);

struct Mesh {
    std::array<int64_t, 4> degrees = {1, 1, 1, 1};
    std::vector<SubAxis> sub_axes;

    // `cuts`: for an axis, the sizes of leading parts at which it is cut, e.g. tp 6 cut at {3} gives 3 x 2.
    // The cuts of one axis must form a divisor chain, else InternalError (callers refuse such recipes by key).
    static Mesh build(const std::array<int64_t, 4>& degrees, const std::map<Axis, std::vector<int64_t>>& cuts);

    int64_t degree(Axis axis) const { return degrees[static_cast<size_t>(axis)]; }
    int64_t ranks() const;
    AxisList whole(Axis axis) const;
    AxisList all() const;
    int64_t size(const AxisList& list) const;
    int64_t coordinate(int64_t rank, int sub_axis) const;
    int64_t index(int64_t rank, const AxisList& list) const;               // position of a rank along the list, major first
    std::vector<int64_t> group(int64_t rank, const AxisList& list) const;  // the ranks that differ only along the list, by index
    std::string text(const AxisList& list) const;  // "tp" where all of tp stands in order, else "tp:(1)2,..."
    std::optional<AxisList> parse(std::string_view text) const;
    bool operator==(const Mesh&) const = default;
};

}  // namespace lockstep::mesh
