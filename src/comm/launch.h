// Compares the launches of the members of a group: may each member make its requests, and are all launches the same? Every
// transport uses these checks and their messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

using Requests = std::span<const Request>;

// What members must agree on in a request, as plain bytes without padding. A send and its receive have the same.
struct Shape {
    int32_t kind, type, op, algorithm;  // op: 0 where nothing is reduced; algorithm: 0 for none
    int32_t by, root;
    int64_t outer, dim, inner, outer_out;
};
Shape shape_of(const Request& request);
Request request_of(const Shape& shape);  // without buffers

bool same_shapes(Requests a, Requests b);
// A hash of the shapes. Different shapes have the same hash with a probability of 2^-64.
uint64_t digest_of(Requests launch);

// Names the first request at which the launches of two members differ. `first` is that of position 0 and `other` that of the
// first position that differs from it, so that every member makes the same text.
std::string mismatch(const std::vector<int>& ranks, int channel, Requests first, int position, Requests other);

// The most sends in a launch, so that its shapes fit in a message of known size.
inline constexpr size_t kSendsInALaunch = 64;

// Of a launch that is not refused: Send, Recv or Wait; nothing if it is symmetric.
std::optional<Collective> one_sided(Requests launch);

// Why the member at `position` of `members` may not launch this, or "" if it may. in_flight: launches of sends of this member
// that it has not waited for.
std::string refusal(int channel, Requests launch, int position, int members, uint32_t in_flight);

// The same as a message of this rank, for its error and those of the others.
std::optional<std::string> wrong_launch(int rank, int channel, Requests launch, int position, int members, uint32_t in_flight);

// Throws InternalError unless the group's ranks are distinct and below `ranks`. They may be in any order.
void require_group(const std::vector<int>& group, int ranks);
// Of a rank in a group. InternalError: it is not in it.
int position_in(const std::vector<int>& group, int rank);

}  // namespace lockstep::comm
