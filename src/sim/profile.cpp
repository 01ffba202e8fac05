#include "sim/profile.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "base/error.h"
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
        : program_(p), price_of_(std::move(price_of)), page_(std::max<int64_t>(64 << 10, p.arena_bytes[Place::Device] >> 14)) {
        touched_.assign(static_cast<size_t>(ceil_div(p.arena_bytes[Place::Device], page_)) + 1, -1e30);
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
            ops::CostKey key = ops::cost_key(p_.mesh, r, op, threads);
            if (c_.stack.merged_products) merge(key, r, i);
            add(out.pieces.back(), out, ops::cost_of(c_.costs, key, cold(i)));
        }
        for (Piece& piece : out.pieces) {
            double sum = 0;
            for (double s : piece.shares) sum += s;
            for (double& s : piece.shares) s = sum > 0 ? s / sum : 1.0 / static_cast<double>(piece.shares.size());
        }
        return out;
    }

    // Of a layer that is recomputed only from its input: how long its forward's last product takes, and what follows it.
    double unneeded_s(const ir::Routine& backward) const {
        if (backward.kind != ir::RoutineKind::Backward && backward.kind != ir::RoutineKind::BackwardInput) return 0;
        const auto is_again = [&](const ir::Op& op) {
            ops::MatmulShape shape;
            return op.attrs.contains("recomputed") && ops::is_matmul(p_.mesh, backward, op, &shape);
        };
        const auto is_frame = [](const ir::Port& port) { return port.kind == ir::PortKind::Frame; };
        if (std::any_of(backward.ports.begin(), backward.ports.end(), is_frame) ||
            std::none_of(backward.ops.begin(), backward.ops.end(), is_again))
            return 0;
        const ir::Routine* forward = p_.routine(ir::RoutineKind::Forward, backward.block);
        ensure(forward, "simulator: a block without a forward has a backward");
        double tail_s = 0;
        for (const ir::Op& op : forward->ops) {
            if (ir::is_view(*forward, op)) continue;
            ops::MatmulShape shape;
            if (ops::is_matmul(p_.mesh, *forward, op, &shape)) tail_s = 0;
            tail_s += ops::rule(op.kind).collective ? collective(*forward, op).link_s
                                                    : ops::cost_of(c_.costs, ops::cost_key(p_.mesh, *forward, op, 1), 1).core_s;
        }
        return tail_s;
    }

private:
    void add(Piece& piece, Profile& out, const ops::OpCost& cost) const {
        // A device has its memory to itself: nothing to share, so its ops are as long as the larger of the two.
        const double core_s = (c_.devices ? std::max(cost.core_s, cost.memory_s) + c_.host.blocking_s : cost.core_s) +
                              (cost.measured ? c_.costs.op_overhead_s : 0);
        piece.segment.core_s += core_s;
        if (!c_.devices) piece.segment.memory_s += cost.memory_s;
        piece.shares.push_back(core_s);
        (cost.measured ? out.measured : out.unmeasured) += core_s;
    }

    // Gives a product the sizes of the one product that the stack makes of it and of those that share an operand with it and
    // contract as much, or that add to the same result.
    void merge(ops::CostKey& key, const ir::Routine& r, size_t index) const {
        ops::MatmulShape own, other;
        const ir::Op& op = r.ops[index];
        if (!ops::is_matmul(p_.mesh, r, op, &own)) return;
        double &m = key.sizes[0], &n = key.sizes[1], &k = key.sizes[2];
        const auto is_in = [](const std::vector<ir::TensorId>& list, ir::TensorId t) {
            return std::find(list.begin(), list.end(), t) != list.end();
        };
        for (size_t i = 0; i < r.ops.size(); ++i) {
            const ir::Op& o = r.ops[i];
            if (i == index || !ops::is_matmul(p_.mesh, r, o, &other)) continue;
            const bool adds = (o.in.size() > 2 && is_in(op.out, o.in[0])) || (op.in.size() > 2 && is_in(o.out, op.in[0]));
            if (adds && other.m == own.m && other.n == own.n) k += static_cast<double>(other.k);
            if (other.k != own.k || !std::any_of(op.in.begin(), op.in.end(), [&](ir::TensorId t) { return is_in(o.in, t); }))
                continue;
            if (other.m == own.m) n += static_cast<double>(other.n);
            else if (other.n == own.n) m += static_cast<double>(other.m);
        }
    }

    Segment collective(const ir::Routine& r, const ir::Op& op) const {
        const int64_t first = p_.pipeline_rank * p_.mesh.ranks();
        const std::vector<int64_t> ranks = ir::members_of(p_, op, p_.mesh.group(first, op.group));
        const auto members = static_cast<int64_t>(ranks.size());
        mesh::RingTraffic traffic;
        const mesh::Collective kind = ir::collective_of(op);
        for (size_t i = 0; i < std::max(op.in.size(), op.out.size()); ++i)
            traffic.add(kind, members, ops::block_bytes(p_.mesh, r, op, i) / holders(r, op, i));
        Segment s;
        s.group = group_(op);
        s.kind = kind;
        if (!mesh::traits_of(kind).moves_bytes()) return s;
        if (c_.devices) {
            const GroupLink link = link_of(c_, ranks, p_.mesh.world_ranks(), !mesh::traits_of(kind).symmetric);
            s.link_s = collective_s(c_, link, kind, members, traffic);
            if (r.kind == ir::RoutineKind::Update) s.link_s += c_.stack.broadcast_s * broadcasts(members);
            s.link = static_cast<int>(static_cast<size_t>(p_.pipeline_rank) * c_.links.size() + link.level);  // of this rank
            if (c_.host.blocking_s > 0 && (ir::is_forward(r.kind) || ir::is_backward(r.kind))) s.link_s += c_.host.collective_s;
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

    // Of the owners of all parameters, on average with each unit that is updated.
    double broadcasts(int64_t owners) const {
        int64_t units = 0;
        for (const ir::Unit& u : p_.units) units += static_cast<int64_t>(p_.instances(u).size());
        return std::max(1.0, static_cast<double>(owners) / static_cast<double>(std::max<int64_t>(units, 1)));
    }

    // Of a message, the ranks that hold the same and send a part each.
    double holders(const ir::Routine& r, const ir::Op& op, size_t i) const {
        if (!c_.stack.split_sends || mesh::traits_of(ir::collective_of(op)).symmetric) return 1;
        const std::vector<ir::TensorId>& list = op.in.size() > i ? op.in : op.out;
        if (i >= list.size()) return 1;
        const ir::Tensor& t = r.tensors[list[i]];
        double split = 1;
        for (size_t d = 0; d < t.dims.size(); ++d)
            split *= static_cast<double>(r.dims[t.dims[d]].size) /
                     static_cast<double>(ir::local_size(p_.mesh, r, t, static_cast<int>(d)));
        return std::max(1.0, static_cast<double>(p_.mesh.ranks()) / split);
    }

    // What goes between processes. All groups of the op are under way at the same time and share
    // the links of hosts; the busiest counts.
    void add_hosts(Segment& s, const ir::Routine& r, const ir::Op& op) const {
        const ops::HostBytes sent = ops::bytes_sent(p_, r, op, topology_, groups_);
        const double across = *std::max_element(sent.by_host.begin(), sent.by_host.end());
        // What was measured between processes has a leader's own part in it.
        // That the others copy when it is done is not counted.
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
    const auto beyond_s = [&](const ir::Routine& r) { return cluster.stack.whole_recompute ? profiler.unneeded_s(r) : 0.0; };
    for (const ir::Call& call : entry.calls) {
        const auto i = static_cast<size_t>(call.routine);
        if (done[i]) continue;
        done[i] = true;
        const bool overlaps = rank_threads.comm_thread && call.queue != QueueName::Compute;
        out[i] = profiler.profile(p.routines[i], overlaps ? 1 : rank_threads.threads_per_rank,
                                  [&](size_t op) { return reuse ? reuse->cold(i, op) : 1.0; });
        if (!out[i].pieces.empty()) out[i].pieces.front().segment.core_s += beyond_s(p.routines[i]);
    }
    return out;
}

}  // namespace lockstep::sim
