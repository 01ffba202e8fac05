// Whole tensors, and the parts of them that ranks hold.
#pragma once

#include <string>
#include <vector>

#include "ir/program.h"
#include "meaning/machine.h"

namespace lockstep::meaning {

struct Array {
    std::vector<int64_t> sizes;
    Values values;
};

using ByRank = std::vector<Values>;

// An array of one value everywhere.
Array filled(std::vector<int64_t> sizes, double value);
// Of the whole tensor.
std::vector<int64_t> sizes_of(const ir::Routine& routine, const ir::Tensor& tensor);

// How a tensor of these sizes lies on the ranks of a mesh.
struct Lying {
    const mesh::Mesh* mesh;
    std::vector<int64_t> sizes;
    ir::Placement placement;
};

// What each rank holds of the array. Elements past the array's own sizes are padding, 0. Of a sum that is still partial the first
// of the ranks that share it holds all, the others 0.
ByRank cut_up(const Array& whole, const Lying& lying);

// The array of `sizes` that the parts are. Partial sums are taken. `differ` becomes true where ranks that hold the same hold
// different values.
Array put_together(const ByRank& parts, const Lying& lying, const std::vector<int64_t>& sizes, bool& differ);

// Its first elements along each dim. is_zero becomes false where the others are not 0.
Array first_of(const Array& padded, const std::vector<int64_t>& sizes, bool& is_zero);

}  // namespace lockstep::meaning
