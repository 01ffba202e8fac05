// Where data lie in the buffers that a routine's ports bind, as the finished program says it: parameters and gradients at the
// places of their unit, states at those of their segments.
#pragma once

#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::check {

struct Bytes {
    int64_t begin = 0, end = 0;
    bool operator==(const Bytes&) const = default;
};

// Is [begin, begin + bytes) a part of [0, size)? Right for any numbers.
inline bool is_inside(int64_t begin, int64_t bytes, int64_t size) {
    return begin >= 0 && bytes >= 0 && begin <= size && bytes <= size - begin;
}

// The bytes of a tensor of a port within that port.
Bytes bytes_in_port(const ir::Program& program, const ir::Routine& routine, const ir::Tensor& tensor);

// The bytes of a tensor of a port that hold something when a call reads it. Of flat gradients that have not been reduced these
// are only the parameters': nobody has written what lies between them.
std::vector<Bytes> arriving_bytes(const ir::Program& program, const ir::Routine& routine, const ir::Tensor& tensor);

// Does each call bind the next slice of the port's buffer? Else it binds the buffer's beginning.
bool is_sliced(const ir::Routine& routine, int port);

// Empty, or the first tensor of a port that lies elsewhere than unit, state or port say. Requires what ops/verify.h proves.
std::string wrong_layout(const ir::Program& program, const ir::Routine& routine);

// Empty, or the first tensor of a port that is elsewhere, or another, than the tensor of that source in another routine's port.
// Of frames, which lie as their writer lays them out, and of states of a block.
std::string disagreement(const ir::Program& program, const ir::Routine& routine, int port, const ir::Routine& other,
                         int other_port);

}  // namespace lockstep::check
