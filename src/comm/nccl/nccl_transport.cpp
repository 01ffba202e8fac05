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
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/round.h"
#include "comm/block_rows.h"
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

// Everything between is launched together.
class Together {
public:
    Together() { CHECK(ncclGroupStart); }
    void launch() { CHECK(ncclGroupEnd); }
};

class NcclTransport final : public Transport {
public:
    NcclTransport(ProcessGroup& group, int ranks, const Moves& moves, const Options& options)
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
    const Options& options() const { return options_; }

private:
    ProcessGroup& group_;
    const Moves& moves_;
    const Options options_;
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
    void use(GroupId group, QueueName queue) override {
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
        ncclUniqueId id = {};
        if (rank() == 0) CHECK(ncclGetUniqueId, &id);
        const std::string first = processes.exchange(rank() == 0 ? std::string(id.internal, sizeof id.internal) : "")[0];
        std::memcpy(id.internal, first.data(), sizeof id.internal);
        ncclComm_t world = nullptr;
        CHECK(ncclCommInitRank, &world, ranks(), id, rank());
        transport_.keep(world);

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
        Launch launch(*this, queue, self);
        launch.move(requests);
        for (const Request& r : requests) {
            if (is_by_library(r)) continue;
            if (r.kind == Collective::ReduceScatter) launch.reduce_scatter(r);
            if (r.kind == Collective::AllReduce) launch.all_reduce(r);
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

    // Of a member's part of a chunk, a piece of its own.
    struct Part {
        const char* from;
        int64_t at, bytes;  // in the chunk
    };
    // What a sum on a channel is made of.
    struct Chunks {
        char* scratch = nullptr;
        std::vector<Part> own;
    };
    Chunks& chunks(device::Queue& queue) {
        Chunks& chunks = chunks_.at(static_cast<size_t>(queue.index()));
        if (!chunks.scratch) chunks.scratch = queue.device().allocate(transport_.options().scratch_bytes, Place::Device);
        ensure(chunks.scratch, "nccl: no memory on the GPU for what sums are made of");
        return chunks;
    }

    // One launch of this rank.
    class Launch {
    public:
        Launch(NcclCommunicator& own, device::Queue& queue, const Membership& self)
            : own_(own),
              queue_(queue),
              comm_(self.comms[queue.name()]),
              members_(static_cast<int>(self.ranks.size())),
              position_(self.position) {}

        // All that is not summed here.
        void move(Requests requests) const {
            Together together;
            for (const Request& r : requests) {
                switch (r.kind) {
                    case Collective::AllGather: all_gather(r); break;
                    case Collective::AllToAll: all_to_all(r); break;
                    case Collective::Broadcast:
                        CHECK(ncclBroadcast, r.in, r.out, static_cast<size_t>(r.block_bytes()), ncclInt8, r.root, comm_,
                              stream());
                        break;
                    case Collective::Permute:
                        send(r.in, r.block_bytes(), (position_ + r.by) % members_);
                        receive(r.out, r.block_bytes(), (position_ - r.by + members_) % members_);
                        break;
                    case Collective::Send: send(r.in, r.block_bytes(), 1); break;
                    case Collective::Recv: receive(r.out, r.block_bytes(), 0); break;
                    case Collective::ReduceScatter:
                        if (is_by_library(r)) library_reduce_scatter(r);
                        break;
                    case Collective::AllReduce:
                        if (is_by_library(r))
                            CHECK(ncclAllReduce, r.in, r.out, static_cast<size_t>(r.block_elements()), type_of(r.type), ncclSum,
                                  comm_, stream());
                        break;
                    case Collective::Wait: break;  // what follows in the queue follows the send
                }
            }
            together.launch();
        }

        void reduce_scatter(const Request& r) const {
            const int64_t run = r.dim * r.inner, size = bytes_of(r.type);
            const auto* const in = static_cast<const char*>(r.in);
            in_chunks(r, r.block_elements(), [&](int64_t begin, int64_t count, const auto& give) {
                for (int k = 0; k < members_; ++k) {
                    for_rows(run * size, members_ * run * size, begin * size, count * size,
                             [&](int64_t place, int64_t at, int64_t bytes) { give(k, in + k * run * size + place, at, bytes); });
                }
                return static_cast<char*>(r.out) + begin * size;
            });
        }

        // Each member makes a slice, and gives it to all; or, where it is short, the whole.
        void all_reduce(const Request& r) const {
            const int64_t size = bytes_of(r.type), total = r.block_elements();
            const auto* const in = static_cast<const char*>(r.in);
            auto* const out = static_cast<char*>(r.out);
            if (total * size <= own_.transport_.options().small_bytes) {
                in_chunks(r, total, [&](int64_t begin, int64_t count, const auto& give) {
                    for (int k = 0; k < members_; ++k) give(k, in + begin * size, 0, count * size);
                    return out + begin * size;
                });
                return;
            }
            const int64_t slice = round_up((total + members_ - 1) / members_, kAlignmentBytes / size);
            const auto begin_of = [&](int k) { return std::min(total, k * slice); };
            // Of a member's slice, the part in a chunk: the last slices are shorter.
            const auto part = [&](int k, int64_t begin) { return std::min(begin_of(k) + begin, begin_of(k + 1)); };
            in_chunks(r, slice, [&](int64_t begin, int64_t count, const auto& give) {
                for (int k = 0; k < members_; ++k)
                    give(k, in + part(k, begin) * size, 0, (part(k, begin + count) - part(k, begin)) * size);
                return out + part(position_, begin) * size;
            });
            const auto slice_bytes = [&](int k) { return (begin_of(k + 1) - begin_of(k)) * size; };
            Together together;
            for (int k = 0; k < members_; ++k) {
                if (k == position_) continue;
                send(out + begin_of(position_) * size, slice_bytes(position_), k);
                receive(out + begin_of(k) * size, slice_bytes(k), k);
            }
            together.launch();
        }

    private:
        cudaStream_t stream() const { return stream_of(queue_); }
        void send(const void* from, int64_t bytes, int to) const {
            if (bytes > 0) CHECK(ncclSend, from, static_cast<size_t>(bytes), ncclInt8, to, comm_, stream());
        }
        void receive(void* to, int64_t bytes, int from) const {
            if (bytes > 0) CHECK(ncclRecv, to, static_cast<size_t>(bytes), ncclInt8, from, comm_, stream());
        }

        // Of several rows each by itself, as all_gather.
        void library_reduce_scatter(const Request& r) const {
            ensure(!r.accumulate, "nccl: a sum by the library does not add to its result");
            const int64_t run = r.dim * r.inner, run_bytes = run * bytes_of(r.type);
            for (int64_t o = 0; o < r.outer; ++o)
                CHECK(ncclReduceScatter, static_cast<const char*>(r.in) + o * members_ * run_bytes,
                      static_cast<char*>(r.out) + o * run_bytes, static_cast<size_t>(run), type_of(r.type), ncclSum, comm_,
                      stream());
        }

        // Of several rows each by itself.
        void all_gather(const Request& r) const {
            const int64_t run_bytes = r.dim * r.inner * bytes_of(r.type);
            if (r.outer == 1) {
                CHECK(ncclAllGather, r.in, r.out, static_cast<size_t>(run_bytes), ncclInt8, comm_, stream());
                return;
            }
            for (int k = 0; k < members_; ++k) {
                for (int64_t o = 0; o < r.outer; ++o) {
                    send(static_cast<const char*>(r.in) + o * run_bytes, run_bytes, k);
                    receive(static_cast<char*>(r.out) + (o * members_ + k) * run_bytes, run_bytes, k);
                }
            }
        }

        // Rows of a block are cut where those of the result are, on both sides.
        void all_to_all(const Request& r) const {
            const int64_t run_bytes = r.dim * r.inner * bytes_of(r.type), run_out_bytes = r.block_bytes() / r.outer_out;
            for (int k = 0; k < members_; ++k) {
                for (int64_t o = 0; o < r.outer; ++o) {
                    for_rows(run_out_bytes, members_ * run_out_bytes, o * run_bytes, run_bytes,
                             [&](int64_t to, int64_t at, int64_t bytes) {
                                 send(static_cast<const char*>(r.in) + (o * members_ + k) * run_bytes + at, bytes, k);
                                 receive(static_cast<char*>(r.out) + k * run_out_bytes + to, bytes, k);
                             });
                }
            }
        }

        // A sum of `elements` at most for each member, a chunk after the other: give_all(begin, count, give) gives each member
        // its part of a chunk by give(member, from, where in the chunk, bytes), and says where this one's result begins. All
        // members cut a part in the same way: what others send here has the sizes of the pieces of this one's own part.
        template <class GiveAll>
        void in_chunks(const Request& r, int64_t elements, const GiveAll& give_all) const {
            const int64_t size = bytes_of(r.type);
            const int64_t most = own_.transport_.options().scratch_bytes / members_ / kAlignmentBytes * kAlignmentBytes / size;
            Chunks& chunks = own_.chunks(queue_);
            const auto place = [&](int member) { return chunks.scratch + member * most * size; };
            for (int64_t begin = 0; begin < elements; begin += most) {
                chunks.own.clear();
                Together together;
                char* const out = give_all(begin, std::min(most, elements - begin),
                                           [&](int member, const char* from, int64_t at, int64_t bytes) {
                                               if (member == position_) chunks.own.push_back({from, at, bytes});
                                               else send(from, bytes, member);
                                           });
                int64_t own_bytes = 0;
                for (const Part& part : chunks.own) {
                    own_bytes += part.bytes;
                    for (int k = 0; k < members_; ++k) {
                        if (k != position_) receive(place(k) + part.at, part.bytes, k);
                    }
                }
                together.launch();
                if (own_bytes == 0) continue;
                for (const Part& part : chunks.own)
                    own_.transport_.moves().copy(queue_, {1, part.bytes, 0, 0}, part.from, place(position_) + part.at);
                const auto in = [&](int member) -> const void* { return place(member); };
                const auto to = [&](int) -> void* { return out; };
                own_.transport_.moves().reduce(queue_,
                                               {r.type, r.op, members_, r.level(), in, 1, to, r.accumulate, own_bytes / size});
            }
        }

        NcclCommunicator& own_;
        device::Queue& queue_;
        const ncclComm_t comm_;
        const int members_, position_;
    };

    NcclTransport& transport_;
    std::vector<Membership> memberships_;
    bool connected_ = false;
    std::array<Chunks, kChannels> chunks_;
};

std::unique_ptr<Communicator> NcclTransport::communicator(int) { return std::make_unique<NcclCommunicator>(*this); }

}  // namespace

std::unique_ptr<Transport> transport(ProcessGroup& group, int ranks, const Moves& moves, const Options& options) {
    return std::make_unique<NcclTransport>(group, ranks, moves, options);
}

void avoid_sums_in_switches() { setenv("NCCL_NVLS_ENABLE", "0", 0); }

std::string version_text() {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace lockstep::comm::nccl
