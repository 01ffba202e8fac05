// A block as its model defines it, at a small size on one rank: what it computes, and how that changes with what it reads.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "meaning/arrays.h"
#include "meaning/small.h"

namespace lockstep::meaning {

// What a block reads, by role or by key of a parameter.
struct Given {
    std::map<ir::PortRole, Array> inputs;  // of the loader, and x where the block has one
    std::map<std::string, Array> params;   // without padding
};

class ModelBlock {
public:
    // `routine`: the model's forward of the block. drops: with dropout, as in training.
    ModelBlock(const ir::Routine& routine, const Small& small, bool drops);

    const ir::Routine& routine() const { return machine_.routine(); }
    bool ends_in_logits() const { return logits_ >= 0; }
    // y, or logits. instance: which layer it is.
    Array run(const Given& given, int64_t instance);

private:
    ir::TensorId logits_, result_;
    Machine machine_;
};

// The sum of cross-entropies of targets that are not negative (masked), and how many those are.
struct Loss {
    double sum = 0;
    int64_t count = 0;
};
Loss loss_of(const Array& logits, const Array& targets);

}  // namespace lockstep::meaning
