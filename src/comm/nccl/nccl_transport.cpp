#include "comm/nccl/nccl_transport.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "comm/launch.h"
#include "comm/local_copy.h"
#include "device/device.h"

namespace lockstep::comm::nccl {
namespace {

using Ranks = std::vector<int>;

// The most processors that a launch may hold: NCCL's own most.
constexpr int kMostProcessors = 32;

void check(ncclResult_t result, const char* call) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw InternalError(fmt::format("{}: {}: {}", call, ncclGetErrorString(result), ncclGetLastError(nullptr)));
}
#define CHECK(call, ...) check(call(__VA_ARGS__), #call)

ncclDataType_t type_of(Dtype type) {
    switch (type) {
        case Dtype::F32: return ncclFloat32;
        case Dtype::F64: return ncclFloat64;
        case Dtype::I32: return ncclInt32;
        case Dtype::BF16: return ncclBfloat16;
        case Dtype::F16: return ncclFloat16;
        case Dtype::I8: return ncclInt8;
        case Dtype::F8E4M3:
        case Dtype::F8E5M2:
        case Dtype::E8M0: return ncclUint8;  // never reduced
    }
    throw InternalError("nccl: an element type of no kind");
}

// Sums in NCCL's own order; maxima keep the first NaN, which NCCL does not promise.
bool is_by_library(const Request& r) {
    return r.traits().reduces && r.op == ReduceOp::Sum && r.algorithm && r.algorithm->reduce == mesh::ReduceBy::Library;
}

// Of the GPU of the thread.
int processors() {
    int device = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        throw InternalError("nccl: the GPU does not say how many processors it has");
    return count;
}

cudaStream_t stream_of(const device::Queue& queue) { return static_cast<cudaStream_t>(queue.handle()); }

class NcclTransport final : public Transport {
public:
    NcclTransport(ProcessGroup& group, int ranks, const Moves& moves, const ExchangeOptions& options)
        : group_(group), moves_(moves), options_(options), ranks_(ranks) {
        if (ranks != group.processes())
            throw UserError("job.processes", "runtime.kernels",
                            fmt::format("a GPU has one rank of a job of several processes, and the job has {} ranks and {} "
                                        "processes: start as many processes as there are ranks",
                                        ranks, group.processes()));
        for (int process = 0; process < group.processes(); ++process) topology_.host_of_rank.push_back(group.host_of(process));
        topology_.ranks_per_process = 1;
    }
    ~NcclTransport() override {
        for (ncclComm_t comm : comms_) ncclCommDestroy(comm);
    }

    int ranks() const override { return ranks_; }
    int first_rank() const override { return group_.process(); }
    int ranks_here() const override { return 1; }
    const mesh::Topology& topology() const override { return topology_; }
    std::unique_ptr<Communicator> communicator(int rank) override;

    void abort(const std::string& reason) override {
        const std::lock_guard lock(mutex_);
        if (aborted_) return;
        aborted_ = true, reason_ = reason;
        for (ncclComm_t comm : comms_) ncclCommAbort(comm);
        comms_.clear();
    }
    void throw_if_aborted() {
        const std::lock_guard lock(mutex_);
        if (aborted_) throw Aborted(reason_);
    }

    // A communicator, for as long as the transport.
    ncclComm_t keep(ncclComm_t comm) {
        const std::lock_guard lock(mutex_);
        if (aborted_) throw Aborted(reason_);
        return comms_.emplace_back(comm);
    }
    ProcessGroup& group() { return group_; }
    const Moves& moves() const { return moves_; }
    const ExchangeOptions& options() const { return options_; }

private:
    ProcessGroup& group_;
    const Moves& moves_;
    const ExchangeOptions options_;
    const int ranks_;
    mesh::Topology topology_;
    std::mutex mutex_;  // guards what follows
    std::vector<ncclComm_t> comms_;
    bool aborted_ = false;
    std::string reason_;
};

// The groups of each call of all ranks that makes communicators: no two of a call share a rank.
std::vector<std::vector<Ranks>> rounds_of(const std::set<Ranks>& groups) {
    std::vector<std::vector<Ranks>> rounds;
    std::vector<std::set<int>> taken;
    for (const Ranks& group : groups) {
        const auto is_free = [&](const std::set<int>& ranks) {
            return std::none_of(group.begin(), group.end(), [&](int rank) { return ranks.contains(rank); });
        };
        auto it = std::find_if(taken.begin(), taken.end(), is_free);
        if (it == taken.end()) it = taken.insert(taken.end(), std::set<int>{}), rounds.emplace_back();
        it->insert(group.begin(), group.end());
        rounds[static_cast<size_t>(it - taken.begin())].push_back(group);
    }
    return rounds;
}

class NcclCommunicator final : public Communicator {
public:
    explicit NcclCommunicator(NcclTransport& transport) : transport_(transport) {}

    int rank() const override { return transport_.first_rank(); }
    int ranks() const override { return transport_.ranks(); }
    int position(GroupId id) const override { return membership(id).position; }
    int members(GroupId id) const override { return static_cast<int>(membership(id).ranks.size()); }
    void abort(const std::string& reason) override { transport_.abort(reason); }
    bool may_be_captured() const override { return true; }

    GroupId add_group(Ranks ranks) override {
        require_group(ranks, this->ranks());
        const int position = position_in(ranks, rank());
        const auto known =
            std::find_if(memberships_.begin(), memberships_.end(), [&](const Membership& m) { return m.ranks == ranks; });
        if (known != memberships_.end()) return static_cast<GroupId>(known - memberships_.begin());
        ensure(!connected_ || ranks.size() == 1, "add_group: the groups of NCCL are made before the first launch");
        memberships_.push_back({std::move(ranks), position, {}, {}, {}});
        return static_cast<GroupId>(memberships_.size() - 1);
    }
    void use(GroupId group, QueueName queue, bool) override {
        Membership& m = memberships_.at(static_cast<size_t>(group));
        ensure(!connected_ || m.ranks.size() == 1, "use: communicators of NCCL are made before the first launch");
        m.uses[queue] = true;
    }

    // The world's communicator, then parts of it for each queue and group that gives it launches, which all ranks make in one
    // order. A launch holds processors of the GPU while it waits for other ranks. Launches of all queues together hold no more
    // than there are, so each of them can begin whatever the others wait for.
    void connect() override {
        ensure(!connected_, "connect: once");
        connected_ = true;
        ProcessGroup& processes = transport_.group();
        nlohmann::json own = nlohmann::json::array();
        for (const Membership& m : memberships_) {
            for (QueueName queue : kQueuesOfSteps) {
                if (m.uses[queue] && m.ranks.size() > 1) own.push_back({static_cast<int>(queue), m.ranks});
            }
        }
        ByStepQueue<std::set<Ranks>> groups;
        for (const std::string& text : processes.exchange(json_text(own))) {
            for (const nlohmann::json& use : parse_json<nlohmann::json>(text))
                groups[static_cast<QueueName>(use[0].get<int>())].insert(use[1].get<Ranks>());
        }
        if (std::ranges::all_of(groups, [](const auto& of_queue) { return of_queue.empty(); })) return;
        ncclUniqueId id = {};
        if (rank() == 0) CHECK(ncclGetUniqueId, &id);
        const std::string first = processes.exchange(rank() == 0 ? std::string(id.internal, sizeof id.internal) : "")[0];
        std::memcpy(id.internal, first.data(), sizeof id.internal);
        ncclComm_t world = nullptr;
        CHECK(ncclCommInitRank, &world, ranks(), id, rank());
        transport_.keep(world);
        const auto queues = std::ranges::count_if(groups, [](const auto& of_queue) { return !of_queue.empty(); });
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        if (queues > 1) config.maxCTAs = std::min(kMostProcessors, processors() / static_cast<int>(queues));
        for (QueueName queue : kQueuesOfSteps) {
            for (const std::vector<Ranks>& round : rounds_of(groups[queue])) {
                int color = NCCL_SPLIT_NOCOLOR, key = 0;
                Membership* mine = nullptr;
                for (size_t g = 0; g < round.size(); ++g) {
                    const auto it = std::find_if(memberships_.begin(), memberships_.end(),
                                                 [&](const Membership& m) { return m.ranks == round[g]; });
                    if (it != memberships_.end()) mine = &*it, color = static_cast<int>(g), key = it->position;
                }
                ncclComm_t part = nullptr;
                CHECK(ncclCommSplit, world, color, key, &part, &config);
                if (mine) mine->comms[queue] = transport_.keep(part);
            }
        }
    }

    using Communicator::run;
    void run(device::Queue& queue, GroupId id, Requests requests) override {
        transport_.throw_if_aborted();
        Membership& self = memberships_.at(static_cast<size_t>(id));
        const uint32_t in_flight = self.in_flight[std::clamp(queue.index(), 0, kChannels - 1)];
        if (const auto wrong =
                wrong_launch(rank(), queue.index(), requests, self.position, static_cast<int>(self.ranks.size()), in_flight)) {
            transport_.abort(*wrong);
            throw InternalError(*wrong);
        }
        if (self.ranks.size() == 1) {
            for (size_t i = 0; i < requests.size(); ++i) local::execute(transport_.moves(), queue, std::span(&requests, 1), i, 0);
            return;
        }
        ensure(self.comms[queue.name()], "nccl: a launch in a queue that the group does not use");
        if (const std::optional<Collective> kind = one_sided(requests)) {
            if (kind == Collective::Send) ++self.in_flight[queue.index()];
            if (kind == Collective::Wait) --self.in_flight[queue.index()];
        }
        Wire wire(self.comms[queue.name()], stream_of(queue));
        const int members = static_cast<int>(self.ranks.size());
        const Exchange<Wire> exchange(wire, transport_.moves(), queue, scratch(queue, requests), members, self.position,
                                      transport_.options());
        for (const Request& r : requests) {
            if (!wire.collective(r, members)) exchange.move(r);
        }
        wire.launch();
        for (const Request& r : requests) {
            if (!is_by_library(r)) exchange.reduce(r);
        }
    }

private:
    struct Membership {
        Ranks ranks;
        int position;
        ByStepQueue<bool> uses;
        ByStepQueue<ncclComm_t> comms;
        uint32_t in_flight[kChannels] = {};  // launches of sends that were not waited for
    };
    const Membership& membership(GroupId id) const { return memberships_.at(static_cast<size_t>(id)); }

    ExchangeScratch& scratch(device::Queue& queue, Requests requests) {
        ExchangeScratch& scratch = scratch_.at(static_cast<size_t>(queue.index()));
        const auto is_summed_here = [](const Request& r) { return r.traits().reduces && !is_by_library(r); };
        if (scratch.memory || std::ranges::none_of(requests, is_summed_here)) return scratch;
        scratch.memory = queue.device().allocate(transport_.options().scratch_bytes, Place::Device);
        ensure(scratch.memory, "nccl: no memory on the GPU for what sums are made of");
        return scratch;
    }

    // What one launch of this rank moves.
    class Wire {
    public:
        Wire(ncclComm_t comm, cudaStream_t stream) : comm_(comm), stream_(stream) {}

        void send(const Rows& rows, const void* from, int to, const void*) {
            begin();
            for (int64_t row = 0; row < rows.count; ++row)
                CHECK(ncclSend, static_cast<const char*>(from) + row * rows.from_stride, static_cast<size_t>(rows.bytes),
                      ncclInt8, to, comm_, stream_);
        }
        void receive(const Rows& rows, void* to, int from) {
            begin();
            for (int64_t row = 0; row < rows.count; ++row)
                CHECK(ncclRecv, static_cast<char*>(to) + row * rows.to_stride, static_cast<size_t>(rows.bytes), ncclInt8, from,
                      comm_, stream_);
        }
        // By a call of NCCL's own for all members.
        bool collective(const Request& r, int members) {
            const int64_t run = r.dim * r.inner, run_bytes = run * bytes_of(r.type);
            if (r.kind == Collective::AllGather && r.outer == 1) {
                begin();
                CHECK(ncclAllGather, r.in, r.out, static_cast<size_t>(run_bytes), ncclInt8, comm_, stream_);
            } else if (r.kind == Collective::Broadcast) {
                begin();
                CHECK(ncclBroadcast, r.in, r.out, static_cast<size_t>(r.block_bytes()), ncclInt8, r.root, comm_, stream_);
            } else if (is_by_library(r) && r.kind == Collective::AllReduce) {
                begin();
                CHECK(ncclAllReduce, r.in, r.out, static_cast<size_t>(r.block_elements()), type_of(r.type), ncclSum, comm_,
                      stream_);
            } else if (is_by_library(r)) {  // of several rows each by itself
                ensure(!r.accumulate, "nccl: a sum by the library does not add to its result");
                begin();
                for (int64_t o = 0; o < r.outer; ++o)
                    CHECK(ncclReduceScatter, static_cast<const char*>(r.in) + o * members * run_bytes,
                          static_cast<char*>(r.out) + o * run_bytes, static_cast<size_t>(run), type_of(r.type), ncclSum, comm_,
                          stream_);
            } else {
                return false;
            }
            return true;
        }
        void launch() {
            if (std::exchange(has_begun_, false)) CHECK(ncclGroupEnd);
        }

    private:
        void begin() {
            if (!std::exchange(has_begun_, true)) CHECK(ncclGroupStart);
        }

        const ncclComm_t comm_;
        const cudaStream_t stream_;
        bool has_begun_ = false;
    };

    NcclTransport& transport_;
    std::vector<Membership> memberships_;
    bool connected_ = false;
    std::array<ExchangeScratch, kChannels> scratch_;
};

std::unique_ptr<Communicator> NcclTransport::communicator(int) { return std::make_unique<NcclCommunicator>(*this); }

}  // namespace

std::unique_ptr<Transport> transport(ProcessGroup& group, int ranks, const Moves& moves, const ExchangeOptions& options) {
    return std::make_unique<NcclTransport>(group, ranks, moves, options);
}

void avoid_sums_in_switches() { setenv("NCCL_NVLS_ENABLE", "0", 0); }

std::string version_text() {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace lockstep::comm::nccl
