// Whether the members of a group launched the same: what every transport compares, and what it says where they did not.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

using Requests = std::span<const Request>;

// What members must agree on in a request, as 40 plain bytes without padding.
struct Shape {
    int32_t kind, type, op, zero;  // op: 0 where nothing is reduced
    int64_t outer, dim, inner;
};
Shape shape_of(const Request& request);
Request request_of(const Shape& shape);  // without buffers

bool same_shapes(Requests a, Requests b);
// Of the shapes, equal for equal ones; different ones have the same with a chance of 2^-64.
uint64_t digest_of(Requests launch);

// Names the first request at which the launches of two members differ. `first` is that of position 0 and `other` that of the
// first position that differs from it, so that the text is the same whoever makes it.
std::string mismatch(const std::vector<int>& ranks, int channel, Requests first, int position, Requests other);

// Why the member at `position` of `members` may not launch this, or "" if it may.
std::string refusal(int channel, Requests launch, int position, int members);

}  // namespace lockstep::comm
