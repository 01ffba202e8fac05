// The order of a sequence's tokens over context ranks. With head-tail order, n ranks have equal work under a causal mask: the
// sequence is cut into 2 n chunks, and rank r has chunks r and 2 n - 1 - r (zigzag of ring flash attention; the load balancer
// `headtail` of PyTorch's context parallelism).
#pragma once

#include <cstdint>

namespace lockstep::mesh {

// The position in the sequence of its j-th token in this order. `seq` is a multiple of 2 `n`; n = 1 is the plain order.
constexpr int64_t position_of(int64_t seq, int64_t n, int64_t j) {
    if (n == 1) return j;
    const int64_t chunk = seq / (2 * n), rank = j / (2 * chunk), within = j % (2 * chunk);
    return within < chunk ? rank * chunk + within : (2 * n - 2 - rank) * chunk + within;
}

}  // namespace lockstep::mesh
