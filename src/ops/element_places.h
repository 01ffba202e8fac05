// Where the elements of a flat segment are in whole parameters, for ops that draw a number for each element (seed), so that
// draws depend on no layout. Attributes of such an op:
//   shards  the sub-axes that shard the parameters of the segment
//   places  the numbers of each parameter, one parameter after the other, in the order of the segment:
//     begin   its first element in the segment as a rank has it, before the optimizer splits it
//     stream  of its random numbers, by its name; the layer is the call's instance
//     run, rows, stride, far  where its elements are in the whole parameter, row-major: the rank's are in runs of `run`
//       neighbours. `rows` runs begin `stride` apart, and the first ones of such groups `far` apart
//     and for each of `shards` by how much the first element moves from one rank along it to the next
// What is between parameters has no meaning, and is drawn for, too.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace lockstep::ops {

struct ElementPlace {
    int64_t begin = 0, stream = 0, run = 1, rows = 1, stride = 1, far = 1;
    std::vector<int64_t> steps;  // by shard

    // Of the rank's element j, counted from the parameter's first, how far it is from there in the whole parameter.
    int64_t index(int64_t j) const { return j / run / rows * far + j / run % rows * stride + j % run; }
};

struct ElementPlaces {
    ir::AxisList shards;
    std::vector<ElementPlace> of;  // by parameter

    void put(ir::Attrs& attrs) const;
};

// Are the attributes those of places, in ascending order?
bool are_places(const ir::Op& op);
ElementPlaces element_places(const ir::Op& op);

}  // namespace lockstep::ops
