// One op of a program on a device, by itself, with operands at places that move through memory.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "kernels/kernel.h"
#include "ops/cost.h"

namespace lockstep::measure {

// One op to measure. The program that it is in outlives it.
struct Subject {
    const ir::Program* program;
    const ir::Routine* routine;
    const ir::Op* op;
    ops::CostKey key;
};

// Operands are read from one region that nobody writes, results go into another: no op reads the infinities or denormal numbers
// of the one before.
struct Places {
    const char* in = nullptr;
    char *out = nullptr, *workspace = nullptr;
    char* small = nullptr;  // kSmallBytes for operands whose values matter
    int64_t region_bytes = 0;
};
inline constexpr int64_t kSmallBytes = int64_t{8} << 20;
// These throw UserError bench.memory where the device has too little.
char* new_memory(device::Device& device, int64_t bytes);
// Numbers of mean 0 and variance 1 in bfloat16; two of them are one of that size in float32: as far from round as those of a
// training, since a GPU takes less power, and is faster, where many bits are equal.
const char* new_inputs(device::Device& device, int64_t bytes);
Places new_places(device::Device& device, const char* in, int64_t region_bytes, int64_t workspace_bytes);

class OpBench {
public:
    // `apart`: of several at once each reads another part of the regions, as ranks do, from 0 up to 1.
    OpBench(const Subject& subject, device::Device& device, const Places& places, double apart = 0);

    bool fits() const {
        return in_bytes_ <= places_.region_bytes && out_bytes_ <= places_.region_bytes && small_bytes_ <= kSmallBytes;
    }
    int64_t bytes() const { return in_bytes_ + out_bytes_; }
    // Of one run, seconds: the lower quartile of some samples, since other work on the machine only ever adds. sets: how many
    // sets of operands they go through.
    double time_s(int64_t sets, double budget_s);
    // Of the host, to give a run to the device: the least so far.
    double given_s() const { return given_s_; }

private:
    struct Operand {
        int64_t offset = 0;
        bool is_small = false;  // integers and scalars, whose values matter
    };

    Operand place(ir::TensorId id, int64_t& at);
    // With set k % sets of the operands.
    void run(int64_t k);
    // The mean of n runs, from set k on.
    double sample_s(int64_t k, int64_t n, int64_t sets);

    const Subject& s_;
    device::Device& device_;
    device::Queue& queue_;
    const Places places_;
    const int64_t begin_;
    std::unique_ptr<kernels::Kernel> kernel_;
    std::vector<Operand> in_, out_;
    int64_t in_bytes_ = 0, out_bytes_ = 0, small_bytes_ = 0;
    double given_s_ = 1e9;
};

}  // namespace lockstep::measure
