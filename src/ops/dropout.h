// Dropout: ops that have the attributes
//   dropout  the probability with which an element becomes zero; the others are divided by 1 - dropout
//   rng_key  which place of the model this is (clones of the op keep it)
// and, as their last operand, the noise of each token: the loader's input `noise` [batch, seq]. The mask is a function of that,
// of rng_key, of the layer (the call's instance) and of the global index (base/random.h), in integer arithmetic: every layout,
// recomputation and kernel draws the same one. Kinds: dropout, bias_dropout_add, attention and attention_backward.
#pragma once

#include "ops/rule.h"

namespace lockstep::ops {

inline bool has_dropout(const Op& op) { return op.attrs.contains("dropout"); }

// The attributes of a place, by its name.
ir::Attrs dropout_attrs(double probability, std::string_view place);

// The routine as evaluation runs it: nothing is dropped.
void remove_dropout(Routine& routine);

}  // namespace lockstep::ops
