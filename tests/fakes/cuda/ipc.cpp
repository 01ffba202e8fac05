// CUDA's runtime and driver: memory between processes, and streams that wait for values in it.
#include <cuda.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>

#include "tests/fakes/cuda/machine.h"

namespace lockstep::fakes::cuda {
namespace {

constexpr size_t kOffset = 256;  // of an allocation in its pages: the runtime aligns no better
constexpr int kNewMemory = 0xff;
constexpr char kMark[] = "lockstep fake ipc";

size_t mapped_bytes(size_t bytes) { return kOffset + bytes; }

std::shared_ptr<char> owned(void* pages, size_t bytes) {
    require(pages != MAP_FAILED, cudaErrorMemoryAllocation, "the host that plays the device has no memory left");
    return {static_cast<char*>(pages) + kOffset, [pages, bytes](char*) { munmap(pages, mapped_bytes(bytes)); }};
}

struct Handle {
    char mark[sizeof kMark];
    const char* address;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    return static_cast<CUresult>(call("cuStreamWaitValue32", [&](Machine& m, Lock& lock) {
        const auto* word = reinterpret_cast<const char*>(address);
        const Stream& s = m.stream(stream);
        require(address % sizeof value == 0, cudaErrorInvalidValue, "the address is not a multiple of 4");
        const Allocation* a = m.allocation(word, sizeof value);
        require(a && a->type == cudaMemoryTypeDevice, cudaErrorInvalidValue, "this is no memory of a device");
        require(flags == CU_STREAM_WAIT_VALUE_GEQ, cudaErrorNotSupported, "the fake has no other comparison than GEQ");
        if (s.capture && !m.records_value_waits) forbid_capture(s, "it was to wait for a value");
        const auto holds = [word, value, memory = a->memory] {
            const std::atomic_ref<const uint32_t> now(*reinterpret_cast<const uint32_t*>(word));
            return has_failed() || static_cast<int32_t>(now.load() - value) >= 0;
        };
        bool left_out = false;
        if (m.left_out_value_wait > 0) --m.left_out_value_wait;
        else if (m.left_out_value_wait == 0 && !holds()) left_out = true, m.left_out_value_wait = -1;
        const auto wait = [holds, value, word](int queue) {
            machine().order.give_when(
                queue, fmt::format("queue {} waits for {} at {}", queue, value, static_cast<const void*>(word)), holds);
        };
        issue(m, lock, stream, &Counts::value_waits, left_out ? plain("a wait that is left out", [] {}) : Issue(wait));
    }));
}

}  // namespace

std::shared_ptr<char> new_device_memory(size_t bytes) {
    void* const pages = mmap(nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    std::shared_ptr<char> memory = owned(pages, bytes);
    std::memset(memory.get() - kOffset, kNewMemory, mapped_bytes(bytes));
    return memory;
}

std::shared_ptr<char> mapped_again(const Allocation& a) {
    return owned(mremap(a.memory.get() - kOffset, 0, mapped_bytes(a.bytes), MREMAP_MAYMOVE), a.bytes);
}

}  // namespace lockstep::fakes::cuda

using namespace lockstep::fakes::cuda;

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(handle != nullptr, cudaErrorInvalidValue, "the address for the handle is null");
        require(m.has_ipc, cudaErrorNotSupported, "this machine has no memory between processes");
        const auto it = m.allocations.find(static_cast<const char*>(address));
        require(it != m.allocations.end() && it->second.type == cudaMemoryTypeDevice && !it->second.exported,
                cudaErrorInvalidValue, "cudaMalloc has not returned this address, or it is free");
        Handle own = {};
        std::memcpy(own.mark, kMark, sizeof kMark);
        own.address = it->first;
        *handle = {};
        std::memcpy(handle->reserved, &own, sizeof own);
    });
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(address != nullptr, cudaErrorInvalidValue, "the address for the answer is null");
        require(flags == cudaIpcMemLazyEnablePeerAccess, cudaErrorInvalidValue,
                "the flags must be cudaIpcMemLazyEnablePeerAccess");
        forbid_unsafe_call(m, "memory is opened");
        Handle own = {};
        std::memcpy(&own, handle.reserved, sizeof own);
        require(std::memcmp(own.mark, kMark, sizeof kMark) == 0, cudaErrorInvalidValue, "this is no handle");
        const auto it = m.allocations.find(own.address);
        require(it != m.allocations.end() && !it->second.exported, cudaErrorInvalidValue, "what the handle is of is free");
        require(it->second.thread != std::this_thread::get_id(), cudaErrorDeviceUninitialized,
                "a process may not open what it has exported itself");
        Allocation opened{mapped_again(it->second), it->second.bytes, cudaMemoryTypeDevice, it->second.device};
        opened.exported = it->first;
        ++it->second.opened;
        char* const base = opened.memory.get();
        m.allocations.emplace(base, std::move(opened));
        *address = base;
    });
}

// Work that uses the memory may run later.
cudaError_t cudaIpcCloseMemHandle(void* address) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        const auto it = m.allocations.find(static_cast<const char*>(address));
        require(it != m.allocations.end() && it->second.exported, cudaErrorInvalidValue,
                "cudaIpcOpenMemHandle has not returned this address, or it is closed");
        forbid_unsafe_call(m, "memory is closed");
        const Allocation a = it->second;
        m.allocations.erase(it);
        if (const auto exported = m.allocations.find(a.exported); exported != m.allocations.end()) --exported->second.opened;
        Device& device = m.device(a.device);
        const std::vector<int> queues = device.queues;
        const int releasing = device.release_queue;
        lock.unlock();
        for (int queue : queues) {
            if (const Order::Mark last = m.order.last(queue)) m.order.wait(releasing, last);
        }
        m.order.give(releasing, [memory = a.memory] {});
    });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result) {
    return call(__func__, [&](Machine&, Lock&) {
        require(symbol && function && result, cudaErrorInvalidValue, "an address is null");
        require(flags == cudaEnableDefault, cudaErrorInvalidValue, "the fake knows no such flags");
        const bool found = std::strcmp(symbol, "cuStreamWaitValue32") == 0 && version >= 12000;
        *function = found ? reinterpret_cast<void*>(wait_value) : nullptr;
        *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    });
}

}  // extern "C"
