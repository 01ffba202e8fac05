// Sums and other reductions of several ranks' elements, on the host.
#pragma once

#include <nccl.h>

#include <string_view>
#include <vector>

namespace lockstep::fakes::cuda {

struct ElementType {
    std::string_view name;
    size_t bytes;  // 0: the fake does not know the type
};
ElementType element_type(ncclDataType_t type);
std::string_view name_of(ncclRedOp_t operation);  // empty: the fake does not know it

// out[i] from in[rank][i]. The ranks' elements are taken in their order, `first` first, and each partial result is stored in the
// type, as when it travels along a ring.
void reduce(ncclDataType_t type, ncclRedOp_t operation, const std::vector<const char*>& in, size_t count, size_t first,
            char* out);

}  // namespace lockstep::fakes::cuda
