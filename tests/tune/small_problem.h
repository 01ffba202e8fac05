// What the tests of `tune` search: small enough that every layout is planned in seconds.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compile/recipe.h"
#include "sim/cluster.h"
#include "tune/search.h"

namespace lockstep::testing {

// Two hosts of four devices, slow enough that compute, links and memory all matter to a small model.
inline const char* kSmallDevices = R"(name = "small"
description = "eight small devices"
declared = true
[machine]
devices = true
memory_bytes = 4e8
[rates]
bytes_per_s = [1e10]
op_overhead_s = 1e-6
beside_collective = 0.8
[rates.flops_per_s]
f32 = [1e11]
bf16 = [2e11]
[host]
step_s = 1e-4
lost_per_doubling = 0.01
[[links]]
ranks = 4
bandwidth_bytes_per_s = 5e9
latency_s = 1e-6
[[links]]
ranks = 0
bandwidth_bytes_per_s = 1e9
ports = 2
latency_s = 3e-6
)";

inline compile::Config small_config(const std::vector<std::pair<std::string, std::string>>& keys) {
    compile::Recipe recipe = compile::Recipe::from_text(R"([model]
name = "llama3"
dim = 256
n_layers = 4
n_heads = 8
n_kv_heads = 4
vocab_size = 512
ffn_dim = 512
[training]
dataset = "synthetic"
seq_len = 128
global_batch_size = 8
[runtime]
kernels = "reference"
)",
                                                        "small.toml");
    for (const auto& [key, value] : keys) recipe.set(key, value);
    return compile::config_of(recipe);
}

inline sim::Cluster small_devices() { return sim::parse_cluster(kSmallDevices, "small.toml"); }

// A small model with these keys, on `ranks` of the devices.
inline tune::Problem small_problem(int64_t ranks, const std::vector<std::pair<std::string, std::string>>& keys = {},
                                   int64_t batch = 8) {
    return tune::problem_of(small_config(keys), small_devices(), "small.toml", ranks, batch);
}

}  // namespace lockstep::testing
