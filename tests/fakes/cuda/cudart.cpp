// CUDA's runtime: devices, memory, copies.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "tests/fakes/cuda/machine.h"

namespace lockstep::fakes::cuda {
namespace {

constexpr size_t kAlignment = 256;  // of all that the runtime allocates, and no more than that
constexpr int kNewMemory = 0xff;

void require_number(const Machine& m, int device) {
    require(device >= 0 && device < m.device_count, cudaErrorInvalidDevice,
            fmt::format("device {} does not exist, there are {}", device, m.device_count));
}

std::shared_ptr<char> new_memory(size_t bytes) {
    constexpr std::align_val_t kTwice{2 * kAlignment};
    char* const block = static_cast<char*>(::operator new(kAlignment + bytes, kTwice, std::nothrow));
    require(block != nullptr, cudaErrorMemoryAllocation, "the host that plays the device has no memory left");
    std::memset(block, kNewMemory, kAlignment + bytes);
    return {block + kAlignment, [block](char*) { ::operator delete(block, kTwice); }};
}

void* allocate(Machine& m, size_t bytes, cudaMemoryType type, bool mapped) {
    Allocation a{type == cudaMemoryTypeDevice ? new_device_memory(bytes) : new_memory(bytes), bytes, type, current_device(),
                 mapped};
    char* const address = a.memory.get();
    m.allocations.emplace(address, std::move(a));
    return address;
}

// Memory that is freed while work may use it: the call may wait for that work, or not, so it waits by chance. It is overwritten,
// and released when the work has run.
void release(Machine& m, Lock& lock, void* address, cudaMemoryType type) {
    const auto it = m.allocations.find(static_cast<char*>(address));
    require(it != m.allocations.end() && it->second.type == type, cudaErrorInvalidValue,
            type == cudaMemoryTypeDevice ? "cudaMalloc has not returned this address, or it is free"
                                         : "cudaMallocHost or cudaHostAlloc has not returned this address, or it is free");
    require(it->second.opened == 0, cudaErrorInvalidValue, "another process has the memory open");
    require(!it->second.exported, cudaErrorInvalidValue, "the memory is another process's: cudaIpcCloseMemHandle");
    forbid_unsafe_call(m, "memory is freed");
    const Allocation a = it->second;
    m.allocations.erase(it);
    ++m.counts.host_waits;
    Device& device = m.device(a.device);
    if (type == cudaMemoryTypeDevice) device.allocated_bytes -= a.bytes;
    else m.pinned_bytes -= static_cast<int64_t>(a.bytes);
    const std::vector<int> queues = device.queues;
    const bool waits = m.random() % 2 == 0;
    const int releasing = device.release_queue;
    lock.unlock();
    for (int queue : queues) {
        const Order::Mark last = m.order.last(queue);
        if (waits) await(m, last);
        else if (last) m.order.wait(releasing, last);
    }
    std::memset(a.memory.get(), kNewMemory, a.bytes);
    m.order.give(releasing, [memory = a.memory] {});
}

cudaMemoryType type_of(const Machine& m, const void* address, size_t bytes) {
    const Allocation* a = m.allocation(address, bytes);
    return a ? a->type : cudaMemoryTypeUnregistered;
}

struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    cudaMemoryType to_type, from_type;

    bool from_pageable() const { return from_type == cudaMemoryTypeUnregistered; }
    bool pageable() const { return from_pageable() || to_type == cudaMemoryTypeUnregistered; }
    bool between_hosts() const { return to_type != cudaMemoryTypeDevice && from_type != cudaMemoryTypeDevice; }
    bool in_device() const { return to_type == cudaMemoryTypeDevice && from_type == cudaMemoryTypeDevice; }
};

Copy checked_copy(const Machine& m, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const Copy c{to, from, bytes, type_of(m, to, bytes), type_of(m, from, bytes)};
    const auto demand = [](cudaMemoryType type, bool device, std::string_view which) {
        require((type == cudaMemoryTypeDevice) == device, cudaErrorInvalidValue,
                fmt::format("the {} is {}memory of a device, the copy's kind says otherwise", which, device ? "no " : ""));
    };
    switch (kind) {
        case cudaMemcpyHostToHost: demand(c.to_type, false, "destination"), demand(c.from_type, false, "source"); break;
        case cudaMemcpyHostToDevice: demand(c.to_type, true, "destination"), demand(c.from_type, false, "source"); break;
        case cudaMemcpyDeviceToHost: demand(c.to_type, false, "destination"), demand(c.from_type, true, "source"); break;
        case cudaMemcpyDeviceToDevice: demand(c.to_type, true, "destination"), demand(c.from_type, true, "source"); break;
        case cudaMemcpyDefault: break;
        default: throw Refusal{cudaErrorInvalidMemcpyDirection, fmt::format("there is no kind {}", static_cast<int>(kind))};
    }
    require(to && from, cudaErrorInvalidValue, "an address is null");
    const auto *first_to = static_cast<const char*>(to), *first_from = static_cast<const char*>(from);
    require(first_to + bytes <= first_from || first_from + bytes <= first_to, cudaErrorInvalidValue,
            "source and destination overlap");
    return c;
}

// A word at once, as a copy engine writes it: who waits for it may set it back as soon as it is there.
void move(const Copy& c) {
    constexpr size_t kWord = sizeof(uint32_t);
    if (c.bytes != kWord || reinterpret_cast<uintptr_t>(c.to) % kWord != 0 || reinterpret_cast<uintptr_t>(c.from) % kWord != 0) {
        std::memcpy(c.to, c.from, c.bytes);
        return;
    }
    auto& from = *static_cast<uint32_t*>(const_cast<void*>(c.from));
    std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(c.to)).store(std::atomic_ref<uint32_t>(from).load());
}

// Gives the legacy default stream work: it runs after all that blocking streams of the device were given, and they go on after
// it.
Order::Mark give_legacy(Machine& m, Lock& lock, const std::string& name, std::function<void()> work) {
    Device& device = m.device(current_device());
    std::vector<int> blocking;
    for (const auto& [handle, stream] : m.streams) {
        if (stream.device != current_device() || stream.flags & cudaStreamNonBlocking) continue;
        if (stream.capture) {
            invalidate(*stream.capture, "a call used the legacy default stream");
            throw Refusal{cudaErrorStreamCaptureImplicit,
                          "the legacy default stream would follow a blocking stream that captures"};
        }
        blocking.push_back(stream.queue);
    }
    lock.unlock();
    for (int queue : blocking) {
        if (const Order::Mark last = m.order.last(queue)) m.order.wait(device.legacy_queue, last);
    }
    plain(name, std::move(work))(device.legacy_queue);
    const Order::Mark mark = m.order.last(device.legacy_queue);
    for (int queue : blocking) m.order.wait(queue, mark);
    lock.lock();
    device.legacy = mark;
    lock.unlock();
    return mark;
}

// By "API synchronization behavior" of the documentation.
void copy_by_legacy_stream(Machine& m, Lock& lock, const Copy& c) {
    ++m.counts.copies;
    if (!c.in_device()) ++m.counts.host_waits;
    if (c.from_pageable() && c.to_type == cudaMemoryTypeDevice) {
        // Returns when it has the source's bytes, which may be before the device has them.
        await(m, give_legacy(m, lock, "copy", [] {}));
        const auto* first = static_cast<const char*>(c.from);
        lock.lock();
        give_legacy(m, lock, "copy", [to = c.to, staged = std::vector<char>(first, first + c.bytes)] {
            std::copy(staged.begin(), staged.end(), static_cast<char*>(to));
        });
        return;
    }
    const Order::Mark mark = give_legacy(m, lock, "copy", [c] { std::memcpy(c.to, c.from, c.bytes); });
    if (!c.in_device()) await(m, mark);
}

void require_fill(const Machine& m, const void* to, size_t bytes) {
    require(m.allocation(to, bytes) != nullptr, cudaErrorInvalidValue, "the destination was not allocated by cudaMalloc");
}

cudaDeviceProp device_prop(const DeviceProperties& p) {
    cudaDeviceProp prop{};
    p.name.copy(prop.name, sizeof prop.name - 1);
    prop.totalGlobalMem = static_cast<size_t>(p.memory_bytes);
    prop.major = p.major, prop.minor = p.minor;
    prop.multiProcessorCount = p.multiprocessors;
    prop.warpSize = 32;
    prop.sharedMemPerBlock = 48 << 10, prop.sharedMemPerBlockOptin = 227 << 10, prop.sharedMemPerMultiprocessor = 228 << 10;
    prop.regsPerBlock = prop.regsPerMultiprocessor = 65536;
    prop.maxThreadsPerBlock = 1024, prop.maxThreadsPerMultiProcessor = 2048;
    prop.maxThreadsDim[0] = prop.maxThreadsDim[1] = 1024, prop.maxThreadsDim[2] = 64;
    prop.maxGridSize[0] = 0x7fffffff, prop.maxGridSize[1] = prop.maxGridSize[2] = 65535;
    prop.asyncEngineCount = 3;
    prop.canMapHostMemory = prop.unifiedAddressing = prop.concurrentKernels = prop.streamPrioritiesSupported = 1;
    return prop;
}

int attribute(const DeviceProperties& p, cudaDeviceAttr which) {
    const cudaDeviceProp prop = device_prop(p);
    switch (which) {
        case cudaDevAttrComputeCapabilityMajor: return prop.major;
        case cudaDevAttrComputeCapabilityMinor: return prop.minor;
        case cudaDevAttrMultiProcessorCount: return prop.multiProcessorCount;
        case cudaDevAttrWarpSize: return prop.warpSize;
        case cudaDevAttrMaxThreadsPerBlock: return prop.maxThreadsPerBlock;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return prop.maxThreadsPerMultiProcessor;
        case cudaDevAttrMaxSharedMemoryPerBlock: return static_cast<int>(prop.sharedMemPerBlock);
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return static_cast<int>(prop.sharedMemPerBlockOptin);
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return static_cast<int>(prop.sharedMemPerMultiprocessor);
        case cudaDevAttrMaxRegistersPerBlock: return prop.regsPerBlock;
        case cudaDevAttrAsyncEngineCount: return prop.asyncEngineCount;
        case cudaDevAttrCanMapHostMemory: return prop.canMapHostMemory;
        case cudaDevAttrUnifiedAddressing: return prop.unifiedAddressing;
        case cudaDevAttrConcurrentKernels: return prop.concurrentKernels;
        case cudaDevAttrStreamPrioritiesSupported: return prop.streamPrioritiesSupported;
        default:
            throw Refusal{cudaErrorInvalidValue, fmt::format("the fake does not know attribute {}", static_cast<int>(which))};
    }
}

cudaError_t answer_version(const char* name, int* out, int version) {
    if (!out) {
        set_refusal(fmt::format("{}: the address for the version is null", name));
        return cudaErrorInvalidValue;
    }
    *out = version;
    return cudaSuccess;
}

}  // namespace
}  // namespace lockstep::fakes::cuda

using namespace lockstep::fakes::cuda;

extern "C" {

// Both answer without a driver.
cudaError_t cudaDriverGetVersion(int* version) { return answer_version(__func__, version, machine().driver.value_or(0)); }
cudaError_t cudaRuntimeGetVersion(int* version) { return answer_version(__func__, version, CUDART_VERSION); }

cudaError_t cudaGetDeviceCount(int* count) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(count != nullptr, cudaErrorInvalidValue, "the address for the count is null");
        *count = m.device_count;
    });
}

cudaError_t cudaSetDevice(int device) {
    return call(__func__, [&](Machine& m, Lock&) {
        require_number(m, device);
        set_current_device(device);
    });
}

cudaError_t cudaGetDevice(int* device) {
    return call(__func__, [&](Machine&, Lock&) {
        require(device != nullptr, cudaErrorInvalidValue, "the address for the device is null");
        *device = current_device();
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
    return call(__func__, [&](Machine& m, Lock&) {
        require_number(m, device);
        require(prop != nullptr, cudaErrorInvalidValue, "the address for the properties is null");
        *prop = device_prop(m.properties);
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
    return call(__func__, [&](Machine& m, Lock&) {
        require_number(m, device);
        require(value != nullptr, cudaErrorInvalidValue, "the address for the value is null");
        *value = attribute(m.properties, which);
    });
}

cudaError_t cudaDeviceSynchronize() {
    return call(__func__, [](Machine& m, Lock& lock) {
        for (const std::shared_ptr<Capture>& capture : m.captures) {
            if (m.stream(capture->origin).device != current_device()) continue;
            invalidate(*capture, "a call waited for the whole device");
            throw Refusal{cudaErrorStreamCaptureUnsupported, "a stream of the device captures"};
        }
        ++m.counts.host_waits;
        const std::vector<int> queues = m.device(current_device()).queues;
        lock.unlock();
        for (int queue : queues) await(m, m.order.last(queue));
    });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(free && total, cudaErrorInvalidValue, "an address for the answer is null");
        *total = static_cast<size_t>(m.properties.memory_bytes);
        *free = m.free_bytes(current_device());
    });
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(address != nullptr, cudaErrorInvalidValue, "the address for the answer is null");
        forbid_unsafe_call(m, "memory is allocated");
        *address = nullptr;
        if (bytes == 0) return;
        const size_t free = m.free_bytes(current_device());
        require(bytes <= free, cudaErrorMemoryAllocation, fmt::format("{} bytes are wanted, {} are free", bytes, free));
        *address = allocate(m, bytes, cudaMemoryTypeDevice, false);
        m.device(current_device()).allocated_bytes += bytes;
        ++m.counts.device_allocations;
    });
}

cudaError_t cudaFree(void* address) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        if (address) release(m, lock, address, cudaMemoryTypeDevice);
    });
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
    return call(__func__, [&](Machine& m, Lock&) {
        constexpr unsigned kFlags = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
        require(address != nullptr, cudaErrorInvalidValue, "the address for the answer is null");
        require((flags & ~kFlags) == 0, cudaErrorInvalidValue, fmt::format("the flags {:#x} do not exist", flags & ~kFlags));
        forbid_unsafe_call(m, "memory is allocated");
        *address = nullptr;
        if (bytes == 0) return;
        const auto free = static_cast<size_t>(std::max<int64_t>(m.pinned_limit_bytes - m.pinned_bytes, 0));
        require(bytes <= free, cudaErrorMemoryAllocation, fmt::format("{} bytes are wanted, {} may be pinned", bytes, free));
        *address = allocate(m, bytes, cudaMemoryTypeHost, flags & cudaHostAllocMapped);
        m.pinned_bytes += static_cast<int64_t>(bytes);
        ++m.counts.pinned_allocations;
    });
}

cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void* address) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        if (address) release(m, lock, address, cudaMemoryTypeHost);
    });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(device != nullptr, cudaErrorInvalidValue, "the address for the answer is null");
        require(flags == 0, cudaErrorInvalidValue, "flags must be 0");
        const Allocation* a = m.allocation(host, 1);
        require(a && a->mapped, cudaErrorInvalidValue, "the memory was not allocated by cudaHostAlloc with cudaHostAllocMapped");
        *device = host;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(attributes != nullptr, cudaErrorInvalidValue, "the address for the attributes is null");
        *attributes = {};
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = cudaInvalidDeviceId;
        const Allocation* a = m.allocation(address, 1);
        if (!a) return;
        void* const p = const_cast<void*>(address);
        attributes->type = a->type;
        attributes->device = a->device;
        attributes->hostPointer = a->type == cudaMemoryTypeHost ? p : nullptr;
        attributes->devicePointer = a->type == cudaMemoryTypeDevice || a->mapped ? p : nullptr;
    });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        if (bytes == 0) return;
        const Copy c = checked_copy(m, to, from, bytes, kind);
        forbid_unsafe_call(m, "the host waits for a copy");
        copy_by_legacy_stream(m, lock, c);
    });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        m.stream(stream);
        if (bytes == 0) return;
        const Copy c = checked_copy(m, to, from, bytes, kind);
        require(!c.pageable(), cudaErrorInvalidValue, "memory of the host that is not pinned: the copy may wait for the host");
        require(!c.between_hosts(), cudaErrorInvalidValue, "both sides are memory of the host: the copy waits for the host");
        bool left_out = false;
        if (bytes == sizeof(uint32_t)) {
            ++m.counts.words;
            left_out = m.left_out_word == 0;
            if (m.left_out_word >= 0) --m.left_out_word;
        }
        issue(m, lock, stream, &Counts::copies, plain("copy", [c, left_out] {
                  if (!left_out) move(c);
              }));
    });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        m.stream(stream);
        require(width <= to_pitch && width <= from_pitch, cudaErrorInvalidPitchValue, "a row is longer than its pitch");
        if (width == 0 || height == 0) return;
        std::vector<Copy> rows;
        for (size_t i = 0; i < height; ++i)
            rows.push_back(checked_copy(m, static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch,
                                        width, kind));
        require(!rows[0].pageable() && !rows[0].between_hosts(), cudaErrorInvalidValue, "the copy may wait for the host");
        issue(m, lock, stream, &Counts::copies, plain("copy", [rows] {
                  for (const Copy& c : rows) std::memcpy(c.to, c.from, c.bytes);
              }));
    });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        if (bytes == 0) return;
        require_fill(m, to, bytes);
        forbid_unsafe_call(m, "the legacy default stream is used");
        ++m.counts.fills;
        const bool pinned = type_of(m, to, bytes) == cudaMemoryTypeHost;
        if (pinned) ++m.counts.host_waits;
        const Order::Mark mark = give_legacy(m, lock, "fill", [=] { std::memset(to, value, bytes); });
        if (pinned) await(m, mark);
    });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        m.stream(stream);
        if (bytes == 0) return;
        require_fill(m, to, bytes);
        issue(m, lock, stream, &Counts::fills, plain("fill", [=] { std::memset(to, value, bytes); }));
    });
}

}  // extern "C"
