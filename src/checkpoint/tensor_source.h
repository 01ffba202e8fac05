// Tensors by name, wherever they lie: a file, a folder of files, the memory of a run, or another source under other names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/pieces.h"

namespace lockstep::checkpoint {

struct TensorSpec {
    std::string name;
    std::string dtype;           // "F32", "F64", "BF16", "I32", ... as in the file
    std::vector<int64_t> shape;  // row-major; empty: a scalar
};
int64_t elements_of(const TensorSpec& spec);

class TensorSource {
public:
    using Cursor = PieceReader::Cursor;  // of many small reads in order: the same one for each, one a thread

    virtual ~TensorSource() = default;
    virtual bool contains(const std::string& name) const = 0;
    virtual const TensorSpec& spec(const std::string& name) const = 0;  // of a tensor that is there
    // Elements begin .. begin + count, as spec() says. From several threads.
    virtual void read(const std::string& name, int64_t begin, int64_t count, void* data, Cursor& cursor) const = 0;
    // f(begin, count) for those stretches of the elements begin .. begin + count, ascending, that this process can read: all,
    // but of tensors that several processes hold.
    virtual void for_each_here(const std::string&, int64_t begin, int64_t count, OfStretch f) const { f(begin, count); }

    // The same in another float type, some elements at a time: memory does not grow with the tensor.
    void read_as(const std::string& name, int64_t begin, int64_t count, std::string_view dtype, void* data, Cursor& cursor) const;
};

}  // namespace lockstep::checkpoint
