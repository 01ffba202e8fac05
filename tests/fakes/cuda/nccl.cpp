// NCCL: the calls, groups of them, and what a call must be like by itself. How ranks meet is in communicators.h.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tests/fakes/cuda/communicators.h"

namespace lockstep::fakes::cuda {
namespace {

thread_local std::string last_error_text;

ncclResult_t answer(const char* name, FunctionRef<void()> body) {
    try {
        body();
        return ncclSuccess;
    } catch (const NcclRefusal& refusal) {
        if (!refusal.why.empty()) set_refusal(fmt::format("{}: {}", name, refusal.why));
        last_error_text = cuda::refusal();
        return refusal.result;
    }
}

// ---- What a call must be like by itself.

void require_memory(const char* name, const char* address, size_t bytes, int device) {
    require(address != nullptr, ncclInvalidArgument, fmt::format("{} is null", name));
    const std::string why = bytes == 0 ? "" : unusable(address, bytes, device, true);
    require(why.empty(), ncclInvalidArgument, fmt::format("{}: {}", name, why));
}

void require_buffers(const Seat& seat, const Launch& l) {
    const auto ranks = static_cast<size_t>(seat.size), rank = static_cast<size_t>(seat.rank);
    const bool sends = l.kind != Kind::Receive && (l.kind != Kind::Broadcast || l.root == seat.rank);
    const bool receives = l.kind != Kind::Send;
    const size_t send_bytes = l.bytes() * (l.kind == Kind::ReduceScatter ? ranks : 1);
    const size_t receive_bytes = l.bytes() * (l.kind == Kind::AllGather ? ranks : 1);
    if (sends) require_memory("the buffer to send", l.send, send_bytes, seat.device);
    if (receives) require_memory("the buffer to receive", l.receive, receive_bytes, seat.device);
    if (!sends || !receives) return;
    const bool in_place = l.kind == Kind::AllGather       ? l.send == l.receive + rank * l.bytes()
                          : l.kind == Kind::ReduceScatter ? l.receive == l.send + rank * l.bytes()
                                                          : l.send == l.receive;
    require(in_place || l.send + send_bytes <= l.receive || l.receive + receive_bytes <= l.send, ncclInvalidArgument,
            "the buffers overlap, and not as an operation in place wants it");
}

void require_stream(const Seat& seat, cudaStream_t stream) {
    Machine& m = machine();
    const Lock lock(m.mutex);
    try {
        require(m.stream(stream).device == seat.device, ncclInvalidArgument,
                "the stream is of another device than the communicator");
    } catch (const Refusal& refusal) {
        throw NcclRefusal{ncclInvalidArgument, refusal.why};
    }
}

void require_launch(const Seat& seat, const Launch& l) {
    require(seat.broken == ncclSuccess, seat.broken, seat.why_broken);
    require(!seat.finalized, ncclInvalidUsage, "the communicator was finalized");
    require(element_type(l.type).bytes > 0, ncclInvalidArgument,
            fmt::format("the fake does not know type {}", static_cast<int>(l.type)));
    require(!l.reduces() || !name_of(l.operation).empty(), ncclInvalidArgument,
            fmt::format("the fake does not know operation {}", static_cast<int>(l.operation)));
    const bool has_root = l.is_transfer() || l.kind == Kind::Broadcast;
    require(!has_root || (l.root >= 0 && l.root < seat.size), ncclInvalidArgument,
            fmt::format("there is no rank {}, there are {}", l.root, seat.size));
    require_buffers(seat, l);
}

void require_config(const ncclConfig_t* config) {
    if (!config) return;
    require(config->magic == 0xcafebeef && config->size == sizeof(ncclConfig_t), ncclInvalidArgument,
            "the configuration was not initialized by NCCL_CONFIG_INITIALIZER");
    require(config->blocking != 0, ncclInvalidArgument, "the fake has no communicators that do not block");
}

// ---- Groups.

struct Pending {
    ncclComm_t comm;
    cudaStream_t stream;
    std::vector<Launch> launches;
};

struct Group {
    int depth = 0;
    ncclResult_t error = ncclSuccess;   // of a call in it
    std::vector<Pending> pending = {};  // one for each communicator
    std::vector<Communicators::Join> joins = {};
};

thread_local Group group;

void launch_together(const Pending& p) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    require(cudaStreamIsCapturing(p.stream, &status) == cudaSuccess, ncclUnhandledCudaError, "");
    std::optional<NcclRefusal> refused;
    const Issue now = [&](int queue) {
        try {
            Communicators::all().launch(p.comm, p.launches, queue, false);
        } catch (const NcclRefusal& refusal) {
            refused = refusal;
        }
    };
    const Issue in_graph = [comm = p.comm, launches = p.launches](int queue) {
        try {
            Communicators::all().launch(comm, launches, queue, true);
        } catch (const NcclRefusal& refusal) {
            fail_device(cudaErrorLaunchFailure, refusal.why);
        }
    };
    const cudaError_t error = call(p.launches.front().call, [&](Machine& m, Lock& lock) {
        issue(m, lock, p.stream, &Counts::launches, status == cudaStreamCaptureStatusNone ? now : in_graph);
    });
    if (refused) throw NcclRefusal(*refused);
    require(error == cudaSuccess, ncclUnhandledCudaError, "");
}

void end_group() {
    const Group ended = std::exchange(group, {});
    require(ended.error == ncclSuccess, ended.error, "a call of the group was refused, so none is done");
    require(ended.pending.empty() || ended.joins.empty(), ncclInvalidUsage, "a group makes communicators and uses others");
    for (const Communicators::Join& join : ended.joins) join();
    for (const Pending& p : ended.pending) launch_together(p);
}

// A call that may be in a group; if it is not, it is a group by itself.
ncclResult_t grouped(const char* name, FunctionRef<void()> body) {
    ++group.depth;
    const ncclResult_t result = answer(name, body);
    if (--group.depth > 0) {
        if (group.error == ncclSuccess) group.error = result;
        return result;
    }
    if (result == ncclSuccess) return answer(name, [] { end_group(); });
    group = {};
    return result;
}

ncclResult_t launch(Launch l, ncclComm_t comm, cudaStream_t stream) {
    return grouped(l.call, [&] {
        const Seat seat = Communicators::all().seat(comm);
        require_launch(seat, l);
        require_stream(seat, stream);
        std::vector<Pending>& pending = group.pending;
        auto mine = std::find_if(pending.begin(), pending.end(), [&](const Pending& p) { return p.comm == comm; });
        if (mine == pending.end()) mine = pending.insert(mine, {comm, stream, {}});
        require(mine->stream == stream, ncclInvalidUsage, "the fake wants one stream for each communicator of a group");
        mine->launches.push_back(std::move(l));
    });
}

ncclResult_t join(const char* name, ncclComm_t* comm, int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
    return grouped(name, [&] {
        require(comm != nullptr, ncclInvalidArgument, "the address for the communicator is null");
        require_config(config);
        require(size > 0 && rank >= 0 && rank < size, ncclInvalidArgument, fmt::format("rank {} of {} ranks", rank, size));
        int device = 0;
        require(cudaGetDevice(&device) == cudaSuccess, ncclUnhandledCudaError, "");
        group.joins.push_back(Communicators::all().join(comm, size, id, rank, device));
    });
}

// The host waits for all that the rank has launched.
void finalize(ncclComm_t comm) {
    const std::set<int> queues = Communicators::all().finalize(comm);
    const cudaError_t error = call("ncclCommFinalize", [&](Machine& m, Lock& lock) {
        ++m.counts.host_waits;
        lock.unlock();
        for (int queue : queues) await(m, m.order.last(queue));
    });
    require(error == cudaSuccess, ncclUnhandledCudaError, "");
}

ncclResult_t ask(const char* name, ncclComm_t comm, const void* out, FunctionRef<void(const Seat&)> body) {
    return answer(name, [&] {
        require(out != nullptr, ncclInvalidArgument, "the address for the answer is null");
        body(Communicators::all().seat(comm));
    });
}

const char* bytes(const void* address) { return static_cast<const char*>(address); }
char* bytes(void* address) { return static_cast<char*>(address); }

}  // namespace
}  // namespace lockstep::fakes::cuda

using namespace lockstep::fakes::cuda;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    return answer(__func__, [&] {
        require(version != nullptr, ncclInvalidArgument, "the address for the version is null");
        *version = NCCL_VERSION_CODE;
    });
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
        case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

const char* ncclGetLastError(ncclComm_t) { return last_error_text.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    return answer(__func__, [&] {
        require(id != nullptr, ncclInvalidArgument, "the address for the id is null");
        *id = Communicators::all().new_id();
    });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    return join(__func__, comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    return join(__func__, comm, size, id, rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* new_comm, ncclConfig_t* config) {
    return grouped(__func__, [&] {
        require(new_comm != nullptr, ncclInvalidArgument, "the address for the communicator is null");
        require(color >= 0 || color == NCCL_SPLIT_NOCOLOR, ncclInvalidArgument, fmt::format("the color {} is negative", color));
        require_config(config);
        group.joins.push_back(Communicators::all().split(comm, color, key, new_comm));
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    return answer(__func__, [&] { finalize(comm); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return answer(__func__, [&] {
        if (!comm) return;
        const Seat seat = Communicators::all().seat(comm);
        if (!seat.finalized && seat.broken == ncclSuccess) finalize(comm);
        Communicators::all().remove(comm);
    });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return answer(__func__, [&] {
        if (comm) Communicators::all().abort(comm);
    });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    return ask(__func__, comm, error, [&](const Seat& s) { *error = s.broken; });
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    return ask(__func__, comm, count, [&](const Seat& s) { *count = s.size; });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
    return ask(__func__, comm, device, [&](const Seat& s) { *device = s.device; });
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    return ask(__func__, comm, rank, [&](const Seat& s) { *rank = s.rank; });
}

ncclResult_t ncclGroupStart() {
    ++group.depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    return answer(__func__, [] {
        require(group.depth > 0, ncclInvalidUsage, "no group has begun");
        if (--group.depth == 0) end_group();
    });
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return launch({__func__, Kind::AllGather, bytes(send), bytes(receive), count, type}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                               ncclComm_t comm, cudaStream_t stream) {
    return launch({__func__, Kind::ReduceScatter, bytes(send), bytes(receive), count, type, operation}, comm, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
    return launch({__func__, Kind::AllReduce, bytes(send), bytes(receive), count, type, operation}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return launch({__func__, Kind::Broadcast, bytes(send), bytes(receive), count, type, ncclNumOps, root}, comm, stream);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return launch({__func__, Kind::Send, bytes(send), nullptr, count, type, ncclNumOps, peer}, comm, stream);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return launch({__func__, Kind::Receive, nullptr, bytes(receive), count, type, ncclNumOps, peer}, comm, stream);
}

}  // extern "C"
