#include "comm/peer/memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/round.h"

namespace lockstep::comm::peer {
namespace {

// Memory that is exported begins a page of the GPU of its own: a handle stands for a whole page.
constexpr int64_t kPageBytes = int64_t{2} << 20;
constexpr int64_t kOneBytes = 256;  // apart from what peers write
constexpr int64_t kWordBytes = sizeof(uint32_t);
constexpr int kSaidByte = 1;  // of a word that is set

// Empty: the call succeeded.
std::string failure(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return "";
    static_cast<void>(cudaGetLastError());  // so that the next call does not say it again
    return fmt::format("{}: {}", call, cudaGetErrorString(error));
}
void check(cudaError_t error, const char* call) {
    if (const std::string why = failure(error, call); !why.empty()) throw InternalError(why);
}
#define CHECK(call, ...) check(call(__VA_ARGS__), #call)

cudaStream_t stream_of(const device::Queue& queue) { return static_cast<cudaStream_t>(queue.handle()); }

// Of the driver, which nothing is linked with.
using Wait = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
Wait driver_wait() {
    static const Wait wait = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        constexpr unsigned kSince = 12000;
        const cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, kSince, cudaEnableDefault, &result);
        if (!failure(error, "").empty() || result != cudaDriverEntryPointSuccess) found = nullptr;
        return reinterpret_cast<Wait>(found);
    }();
    return wait;
}

CUresult wait_in(cudaStream_t stream, const uint32_t* word) {
    return driver_wait()(stream, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ);
}

// A stream of the current GPU, which ends what it was given before it ends.
class OwnStream {
public:
    OwnStream() { CHECK(cudaStreamCreateWithFlags, &stream_, cudaStreamNonBlocking); }
    ~OwnStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    cudaStream_t get() const { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
};

std::string export_of(const void* allocation, std::string& out) {
    cudaIpcMemHandle_t handle = {};
    const std::string why = failure(cudaIpcGetMemHandle(&handle, const_cast<void*>(allocation)), "cudaIpcGetMemHandle");
    out.assign(handle.reserved, sizeof handle.reserved);
    return why;
}

std::string open_of(const std::string& exported, void*& base) {
    cudaIpcMemHandle_t handle = {};
    if (exported.size() != sizeof handle.reserved) return "another process has nothing to open";
    std::memcpy(handle.reserved, exported.data(), exported.size());
    return failure(cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
}

// Opens what another process of the host exports, and writes a word of its own to it.
std::string try_to_write(const std::string& exported, const void* own, int process) {
    void* base = nullptr;
    std::string why = open_of(exported, base);
    if (!why.empty()) return why;
    {
        const OwnStream stream;
        void* const word = static_cast<char*>(base) + kOneBytes + process % (kPageBytes / kWordBytes / 2) * kWordBytes;
        why = failure(cudaMemcpyAsync(word, own, kWordBytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
        if (why.empty()) why = failure(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    }
    const std::string closed = failure(cudaIpcCloseMemHandle(base), "cudaIpcCloseMemHandle");
    return why.empty() ? closed : why;
}

}  // namespace

std::string why_not(ProcessGroup& group) {
    void* own = nullptr;
    std::string why = driver_wait() ? failure(cudaMalloc(&own, kPageBytes), "cudaMalloc")
                                    : "the driver has no waits of streams for memory (cuStreamWaitValue32)";
    std::string handle;
    if (why.empty()) why = export_of(own, handle);
    const std::vector<std::string> handles = group.exchange(why.empty() ? handle : "");
    for (int process = 0; process < group.processes() && why.empty(); ++process) {
        const bool is_peer = process != group.process() && group.host_of(process) == group.host_of(group.process());
        if (is_peer) why = try_to_write(handles[static_cast<size_t>(process)], own, group.process());
    }
    const std::vector<std::string> all = group.exchange(why);  // nobody writes any more
    if (own) static_cast<void>(cudaFree(own));
    for (size_t process = 0; process < all.size(); ++process) {
        if (!all[process].empty()) return fmt::format("process {}: {}", process, all[process]);
    }
    return "";
}

std::string exported(const void* allocation) {
    std::string handle;
    const std::string why = export_of(allocation, handle);
    ensure(why.empty(), "comm/peer: " + why);
    return handle;
}

Opened::Opened(const std::string& exported) {
    void* base = nullptr;
    const std::string why = open_of(exported, base);
    ensure(why.empty(), "comm/peer: " + why);
    base_ = static_cast<char*>(base);
}
Opened::~Opened() { static_cast<void>(cudaIpcCloseMemHandle(base_)); }

void wait_for(device::Queue& queue, const uint32_t* word) {
    if (const CUresult result = wait_in(stream_of(queue), word); result != CUDA_SUCCESS)
        throw InternalError(fmt::format("cuStreamWaitValue32: error {}", static_cast<int>(result)));
}

bool waits_can_be_recorded(const uint32_t* word) {
    const OwnStream stream;
    CHECK(cudaStreamBeginCapture, stream.get(), cudaStreamCaptureModeThreadLocal);
    const bool is_given = wait_in(stream.get(), word) == CUDA_SUCCESS;
    cudaGraph_t graph = nullptr;
    const bool is_recorded = failure(cudaStreamEndCapture(stream.get(), &graph), "").empty();
    if (graph) static_cast<void>(cudaGraphDestroy(graph));
    return is_given && is_recorded;
}

void copy_rows(device::Queue& queue, int64_t count, int64_t bytes, int64_t from_stride, int64_t to_stride, const void* from,
               void* to) {
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    if (count == 1 || (from_stride == bytes && to_stride == bytes))
        CHECK(cudaMemcpyAsync, to, from, size(count * bytes), cudaMemcpyDefault, stream_of(queue));
    else
        CHECK(cudaMemcpy2DAsync, to, size(to_stride), from, size(from_stride), size(bytes), size(count), cudaMemcpyDefault,
              stream_of(queue));
}

// Sets the words again and again, because waits set them back. Of a GPU that has failed there is nothing to let go.
class Page::LettingGo {
public:
    LettingGo(int device, char* memory, int64_t words) : memory_(memory), words_(words) {
        thread_ = std::thread([this, device] {
            try {
                work(device);
            } catch (const InternalError&) {
            }
        });
    }
    ~LettingGo() {
        ends_ = true;
        thread_.join();
    }

private:
    void work(int device) const {
        CHECK(cudaSetDevice, device);
        const OwnStream stream;
        const auto fill = [&](void* to, int byte, int64_t bytes) {
            CHECK(cudaMemsetAsync, to, byte, static_cast<size_t>(bytes), stream.get());
            CHECK(cudaStreamSynchronize, stream.get());
        };
        fill(memory_, 0, kWordBytes);
        for (; !ends_; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
            fill(memory_ + kOneBytes, kSaidByte, words_ * kWordBytes);
    }

    char* const memory_;
    const int64_t words_;
    std::atomic<bool> ends_ = false;
    std::thread thread_;
};

Page::Page(int64_t words, int64_t room_bytes) : words_(words), room_at_(round_up(kOneBytes + words * kWordBytes, kOneBytes)) {
    const int64_t bytes = round_up(room_at_ + room_bytes, kPageBytes);
    if (const std::string why = failure(cudaMalloc(reinterpret_cast<void**>(&memory_), static_cast<size_t>(bytes)), "cudaMalloc");
        !why.empty())
        throw UserError(
            "runtime.out_of_memory", "training.local_batch_size",
            fmt::format("the device refused {} bytes for what GPUs of the host send each other ({}): end other programs "
                        "that use it, or lower training.local_batch_size",
                        bytes, why));
    CHECK(cudaGetDevice, &device_);
    const OwnStream stream;
    CHECK(cudaMemsetAsync, memory_, 0, static_cast<size_t>(room_at_), stream.get());
    CHECK(cudaMemsetAsync, memory_, kSaidByte, kWordBytes, stream.get());
    CHECK(cudaStreamSynchronize, stream.get());
}

Page::~Page() {
    letting_go_.reset();
    static_cast<void>(cudaFree(memory_));
}

uint32_t* Page::word(int64_t index) const { return reinterpret_cast<uint32_t*>(memory_ + word_at(index)); }
int64_t Page::word_at(int64_t index) const { return kOneBytes + index * kWordBytes; }
char* Page::room() const { return memory_ + room_at_; }

void Page::let_go() {
    if (!letting_go_) letting_go_ = std::make_unique<LettingGo>(device_, memory_, words_);
}

}  // namespace lockstep::comm::peer
