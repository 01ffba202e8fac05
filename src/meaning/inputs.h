// What blocks are tried on: drawn from a name and an index, so that a program has one verdict.
#pragma once

#include <map>
#include <string_view>

#include "meaning/arrays.h"
#include "meaning/small.h"

namespace lockstep::meaning {

// Normal draws of this standard deviation.
Array drawn(std::string_view name, std::vector<int64_t> sizes, double std);

struct InputOptions {
    int64_t vocab = 1;          // tokens are below it
    int64_t positions = 0;      // of a model that learns them; 0: any
    int64_t window = 0;         // of attention; 0: none
    bool one_document = false;  // has every sequence one document?
    int64_t head_tail = 1;      // ranks over which sequences are in head-tail order
    int64_t stride = 1;         // tokens of the program for each one of a small sequence
};

// The loader's, [batch, seq], by role. Positions lie as far apart as those of the program; where there is a window some are just
// within it, and some just beyond. A fifth of the targets is masked.
std::map<ir::PortRole, Array> inputs_of(int64_t batch, int64_t seq, const InputOptions& options);

}  // namespace lockstep::meaning
