// Where data lie in the buffers that a routine's ports bind, as the finished program says it: parameters and gradients at the
// places of their unit, states at those of their segments, a frame as the routine lays it out that writes it.
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
// are the parameters' alone: what lies between them nobody has written.
std::vector<Bytes> arriving_bytes(const ir::Program& program, const ir::Routine& routine, const ir::Tensor& tensor);

// Does each call bind the next slice of the port's buffer? Else it binds the buffer's beginning.
bool is_sliced(const ir::Routine& routine, int port);

// Empty, or the first tensor of a port that lies elsewhere than unit, state or port say. Requires what ops/verify.h proves.
std::string wrong_layout(const ir::Program& program, const ir::Routine& routine);

// Empty, or the first tensor of a frame that a routine reads elsewhere, or otherwise, than another one writes it.
std::string wrong_frame(const ir::Program& program, const ir::Routine& reader, int reader_port, const ir::Routine& writer,
                        int writer_port);

}  // namespace lockstep::check
