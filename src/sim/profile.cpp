#include "sim/profile.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "base/round.h"
#include "ir/timeline.h"
#include "ops/algorithms.h"

namespace lockstep::sim {
namespace {

// Where each op finds its bytes, in caches or in memory: the step's addresses are known, so what was touched since is too. By
// pages of the arena; least recently used, all of a rank's bytes counted.
class Reuse {
public:
    using PriceOf = std::function<double(double distance_bytes)>;
    Reuse(const ir::Program& p, const ir::Entry& entry, PriceOf price_of)
        : program_(p), price_of_(std::move(price_of)), page_(std::max<int64_t>(64 << 10, p.arena_bytes >> 14)) {
        touched_.assign(static_cast<size_t>(ceil_div(p.arena_bytes, page_)) + 1, -1e30);
        for (const ir::Routine& r : p.routines) sums_.emplace_back(r.ops.size());
        for (int step = 0; step < 2; ++step) {  // the second finds what the first has left
            counting_ = step == 1;
            for (const ir::Call& call : entry.calls) this->call(call);
        }
    }

    double cold(size_t routine, size_t op) const {
        const Sum& s = sums_[routine][op];
        return s.bytes > 0 ? s.cold / s.bytes : 1;
    }

private:
    struct Sum {
        double cold = 0, bytes = 0;
    };

    void call(const ir::Call& call) {
        const ir::Routine& r = program_.routines[call.routine];
        for (size_t i = 0; i < r.ops.size(); ++i) {
            for (const std::vector<ir::TensorId>* list : {&r.ops[i].in, &r.ops[i].out}) {
                for (ir::TensorId t : *list) touch(call, r, t, sums_[static_cast<size_t>(call.routine)][i]);
            }
        }
    }

    void touch(const ir::Call& call, const ir::Routine& r, ir::TensorId id, Sum& sum) {
        const ir::Tensor* root = &r.tensors[id];
        while (root->view_of >= 0) root = &r.tensors[root->view_of];
        const int buffer = root->port >= 0 ? call.bindings[root->port].buffer : call.scratch;
        if (buffer < 0) return;
        const int64_t begin = program_.buffers[buffer].offset_bytes +
                              (root->port >= 0 ? call.bindings[root->port].offset_bytes : 0) +
                              std::max<int64_t>(root->offset_bytes, 0);
        const int64_t bytes = ir::local_bytes(program_.mesh, r, r.tensors[id]);
        int64_t end = std::min(begin + bytes, static_cast<int64_t>(touched_.size()) * page_);
        for (int64_t at = begin; at < end; at = (at / page_ + 1) * page_) {
            const double part = static_cast<double>(std::min(end, (at / page_ + 1) * page_) - at);
            double& last = touched_[static_cast<size_t>(at / page_)];
            if (counting_) sum.bytes += part, sum.cold += part * price_of_(clock_ - last);
            clock_ += part;
            last = clock_;
        }
    }

    const ir::Program& program_;
    const PriceOf price_of_;
    const int64_t page_;
    std::vector<double> touched_;  // by page: the clock when it was last touched
    std::vector<std::vector<Sum>> sums_;
    double clock_ = 0;  // bytes touched so far
    bool counting_ = false;
};

class Profiler {
public:
    Profiler(const ir::Program& p, const Cluster& c, const mesh::Link& ring, const GroupOf& group)
        : p_(p), c_(c), ring_(ring), group_(group), topology_(topology_of(c, p.mesh.world_ranks())), groups_(p, topology_) {}

    Profile profile(const ir::Routine& r, int threads, const auto& cold) const {
        Profile out;
        for (size_t i = 0; i < r.ops.size(); ++i) {
            const ir::Op& op = r.ops[i];
            if (ops::rule(op.kind).collective) {
                out.pieces.push_back({{static_cast<int>(i)}, {1.0}, collective(r, op)});
                continue;
            }
            if (ir::is_view(r, op)) continue;
            if (out.pieces.empty() || out.pieces.back().segment.group >= 0) out.pieces.emplace_back();
            out.pieces.back().ops.push_back(static_cast<int>(i));
            add(out.pieces.back(), out, ops::cost_of(c_.costs, ops::cost_key(p_.mesh, r, op, threads), cold(i)));
        }
        for (Piece& piece : out.pieces) {
            double sum = 0;
            for (double s : piece.shares) sum += s;
            for (double& s : piece.shares) s = sum > 0 ? s / sum : 1.0 / static_cast<double>(piece.shares.size());
        }
        return out;
    }

private:
    void add(Piece& piece, Profile& out, const ops::OpCost& cost) const {
        // A device has its memory to itself: nothing to share, so its ops are as long as the larger of the two.
        const double core_s =
            (c_.devices ? std::max(cost.core_s, cost.memory_s) : cost.core_s) + (cost.measured ? c_.costs.op_overhead_s : 0);
        piece.segment.core_s += core_s;
        if (!c_.devices) piece.segment.memory_s += cost.memory_s;
        piece.shares.push_back(core_s);
        (cost.measured ? out.measured : out.unmeasured) += core_s;
    }

    Segment collective(const ir::Routine& r, const ir::Op& op) const {
        const int64_t first = p_.pipeline_rank * p_.mesh.ranks();
        const std::vector<int64_t> ranks = ir::members_of(p_, op, p_.mesh.group(first, op.group));
        const auto members = static_cast<int64_t>(ranks.size());
        mesh::RingTraffic traffic;
        const mesh::Collective kind = ir::collective_of(op);
        for (size_t i = 0; i < std::max(op.in.size(), op.out.size()); ++i)
            traffic.add(kind, members, ops::block_bytes(p_.mesh, r, op, i));
        Segment s;
        s.group = group_(op);
        s.kind = kind;
        if (!mesh::traits_of(kind).moves_bytes()) return s;
        if (c_.devices) {
            const LinkLevel& level = link_of(c_, ranks);
            s.link_s = traffic.time_s(level.link);
            const auto index = &level - c_.links.data();  // of this rank
            s.link = static_cast<int>(p_.pipeline_rank * static_cast<int64_t>(c_.links.size()) + index);
            return s;
        }
        const ops::CollectiveCost cost = ops::collective_cost(c_.costs, p_.mesh, r, op);
        s.core_s = cost.core_s;
        // What was measured is the share of the members that ran at the same time.
        s.memory_s = s.core_s / static_cast<double>(std::min<int64_t>(members, c_.costs.cores));
        s.link_s = std::max(cost.time_s, traffic.time_s(ring_));
        if (!topology_.is_one_process()) add_hosts(s, r, op);
        return s;
    }

    // What goes between processes. All groups of the op are under way at the same time and share
    // the links of hosts; the busiest counts.
    void add_hosts(Segment& s, const ir::Routine& r, const ir::Op& op) const {
        const ops::HostBytes sent = ops::bytes_sent(p_, r, op, topology_, groups_);
        const double across = *std::max_element(sent.by_host.begin(), sent.by_host.end());
        // What was measured between processes has a leader's own part in it. That the others copy when it is done is not counted.
        const double core_s = sent.leader * c_.hosts.core_s_per_byte +
                              (c_.hosts.process_bytes_per_s > 0 ? sent.within / c_.hosts.process_bytes_per_s : 0);
        if (core_s > 0) s.core_s = core_s, s.link_s = 0, s.computing = sent.leaders;
        double messages_s = sent.latencies_within * c_.hosts.process_latency_s;
        if (across > 0) {
            const mesh::Link& link = c_.hosts.link;
            messages_s +=
                sent.latencies * link.latency_s + (link.bandwidth_bytes_per_s > 0 ? across / link.bandwidth_bytes_per_s : 0);
            s.link = topology_.host_of_rank[static_cast<size_t>(p_.pipeline_rank * p_.mesh.ranks())];  // of its first rank
        }
        s.link_s += messages_s;
        s.core_s += c_.hosts.polling * messages_s;
    }

    const ir::Program& p_;
    const Cluster& c_;
    const mesh::Link& ring_;
    const GroupOf& group_;
    const mesh::Topology topology_;
    mutable ops::PlacedGroups groups_;
};

}  // namespace

std::vector<Profile> profiles_of(const ir::Program& p, const ir::Entry& entry, const Cluster& cluster,
                                 const compile::RankThreads& rank_threads, const mesh::Link& ring, const GroupOf& group) {
    const Profiler profiler(p, cluster, ring, group);
    const auto ranks = static_cast<double>(ranks_sharing_cores(cluster, p.mesh.world_ranks()));
    std::optional<Reuse> reuse;
    if (!cluster.devices)
        reuse.emplace(p, entry, [&](double distance_bytes) {
            return ops::price_of(cluster.costs, distance_bytes, rank_threads.threads_per_rank, ranks);
        });
    std::vector<Profile> out(p.routines.size());
    std::vector<bool> done(p.routines.size());
    for (const ir::Call& call : entry.calls) {
        const auto i = static_cast<size_t>(call.routine);
        if (done[i]) continue;
        done[i] = true;
        const bool beside = rank_threads.comm_thread && call.stream == ir::Stream::Comm;
        out[i] = profiler.profile(p.routines[i], beside ? 1 : rank_threads.threads_per_rank,
                                  [&](size_t op) { return reuse ? reuse->cold(i, op) : 1.0; });
    }
    return out;
}

}  // namespace lockstep::sim
