// CUDA's runtime, cuBLASLt, cuDNN's attention and NCCL on a host without a GPU, by NVIDIA's headers: what tests set and ask in
// addition to the vendor's calls. Asynchronous work runs late and in any order that streams, events and graphs allow
// (device/scheduler.h); a seed chooses it. A call that the documentation does not allow is refused, and `refusal()` says why. The
// calls are thread-safe; `reset` and the settings are not: they are for a time when no other thread makes a call.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::fakes::cuda {

// Another schedule. All streams, events, graphs, allocations and communicators are forgotten, work that has not run never runs,
// and counts and settings are as at the start.
void reset(uint64_t seed);

// A kernel. It runs when the stream comes to it; in a stream that captures it becomes a node. If it throws, the device has
// failed: cudaErrorLaunchFailure from every call until `reset`.
cudaError_t enqueue(cudaStream_t stream, const std::string& name, std::function<void()> work);

// Why the last call of any thread that was refused was refused, beginning with the call's name. Empty: none was.
std::string refusal();

struct Counts {
    int64_t host_waits = 0;  // calls by which the host waits for the device, or may: synchronizations, cudaMemcpy, cudaFree
    int64_t device_allocations = 0, pinned_allocations = 0;
    int64_t streams = 0, events = 0, graphs = 0, executable_graphs = 0;  // that were created
    int64_t launches = 0;  // kernels, products and collectives; also those that are captured, as with all that follows
    int64_t words = 0;     // copies of 4 bytes
    int64_t copies = 0, fills = 0, host_functions = 0;
    int64_t graph_launches = 0;
    int64_t stream_waits = 0;  // cudaStreamWaitEvent
    int64_t value_waits = 0;   // cuStreamWaitValue32
};
Counts counts();  // since `reset`, of calls that succeeded

// A cudaStreamWaitEvent does nothing: the n-th from now, 0 is the next. -1: none.
void leave_out_wait(int64_t n);

// The same of a cuStreamWaitValue32, or if its value is there already, of the next one that has something to wait for.
void leave_out_value_wait(int64_t n);
// The same of a copy of 4 bytes.
void leave_out_word(int64_t n);
// Threads stand for processes, which open each other's memory at other addresses. Without: as in containers that forbid it.
void set_ipc(bool works);
// Whether a stream that captures may wait for a value. It may at first.
void set_value_waits_recorded(bool works);

// The version of CUDA that the driver supports, 1000 major + 10 minor; none: no driver is installed.
void set_driver(std::optional<int> version);
void set_device_count(int count);

struct DeviceProperties {
    std::string name = "NVIDIA H100 80GB HBM3";
    int major = 9, minor = 0;  // compute capability
    int64_t memory_bytes = int64_t{80} << 30;
    int multiprocessors = 132;
};
void set_device_properties(const DeviceProperties& properties);  // of each device
// What all allocations of a device may take together, if that is less than its memory. 4 GiB at first, because the host pays.
void set_memory_limit(int64_t bytes);
// What all pinned memory of the host may take together. At first it has no limit.
void set_pinned_limit(int64_t bytes);

// cuBLASLt's heuristics find no algorithm for products with this epilogue (cublasLtEpilogue_t). 0: for all they find one.
void set_epilogue_without_algorithm(uint32_t epilogue);
// A product by the algorithm that its heuristics name first takes so much longer than by the others, which sum in other orders.
void set_first_algorithm_us(int64_t us);

// A backward of cuDNN's attention with more scores, in all heads, asks for more than 1 GiB of workspace. At first none does. Programs
// are compiled by this, so that `reset` leaves it as it is.
void set_most_scores_of_attention(int64_t scores);

// How many ranks of a NCCL communicator may be on one device. NCCL itself allows 1.
void allow_ranks_per_device(int count);
// A wait for a value that nobody writes fails if no thread gives the device anything for so long. A wait for a collective that other ranks never come to fails at once where the fake can tell, because the threads of those
// ranks have ended or wait too. Where it cannot, the wait fails if no thread gives the device anything for so long. One minute at
// first.
void set_patience(std::chrono::milliseconds patience);

}  // namespace lockstep::fakes::cuda
