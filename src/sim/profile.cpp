#include "sim/profile.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/round.h"
#include "ir/timeline.h"
#include "ops/algorithms.h"
#include "sim/their_ops.h"

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

bool are_same(const ops::CostKey& a, const ops::CostKey& b) {
    const auto all = [](const ops::CostKey& k) {
        return std::tie(k.op, k.kernel, k.dtype, k.variant, k.threads, k.sizes, k.flops, k.bytes);
    };
    return all(a) == all(b);
}

// A collective, as far as no number of a machine matters.
struct Exchange {
    const ir::Routine* routine;
    const ir::Op* op;
    int group = -1;  // as GroupOf numbers it
    size_t members;  // index of the list of its members
    mesh::RingTraffic traffic;
    double broadcasts = 1;  // of an update: how many of them the op is
};

// A list of members of collectives, and how these communicate.
struct Members {
    std::vector<int64_t> ranks;
    bool is_message;
    bool operator==(const Members&) const = default;
};

// An op of a routine, or what it is a part of.
struct Item {
    int op;
    bool is_collective;
    size_t index;  // of its exchange, else of its key
};

// What a routine asks.
struct Asked {
    std::vector<Item> items;
    std::vector<Item> unneeded;  // what whole_recompute adds to a backward
};

}  // namespace

class Demand::Impl {
public:
    Impl(const ir::Program& p, const ir::Entry& entry, const Cluster& c, const compile::RankThreads& rank_threads,
         const GroupOf& group)
        : p_(p),
          entry_(entry),
          rank_threads_(rank_threads),
          group_(group),
          topology_(topology_of(c, p.mesh.world_ranks())),
          groups_(p, topology_),
          their_ops_(p, c.stack) {
        asked_.resize(p.routines.size()), is_called_.resize(p.routines.size());
        for (const ir::Call& call : entry.calls) {
            const auto i = static_cast<size_t>(call.routine);
            if (is_called_[i]) continue;
            is_called_[i] = true;
            const ir::Routine& r = p.routines[i];
            const bool overlaps = rank_threads.comm_thread && call.queue != QueueName::Compute;
            asked_[i].items = items_of(r, overlaps ? 1 : rank_threads.threads_per_rank, c.stack);
            if (c.stack.whole_recompute) asked_[i].unneeded = unneeded_of(r, c.stack);
        }
    }

    std::vector<Profile> profiles(const Cluster& c, const mesh::Link& ring) const {
        const Prices prices = prices_on(c, ring);
        std::optional<Reuse> reuse;
        if (!c.devices)
            reuse.emplace(p_, entry_, [&](double distance_bytes) {
                return ops::price_of(c.costs, distance_bytes, rank_threads_.threads_per_rank,
                                     static_cast<double>(ranks_sharing_cores(c, p_.mesh.world_ranks())));
            });
        std::vector<Profile> out(asked_.size());
        for (size_t r = 0; r < out.size(); ++r) {
            Profile& profile = out[r];
            for (const Item& item : asked_[r].items) {
                if (item.is_collective) {
                    profile.pieces.push_back({{item.op}, {1.0}, segment_of(prices, exchanges_[item.index])});
                    continue;
                }
                if (profile.pieces.empty() || profile.pieces.back().segment.group >= 0) profile.pieces.emplace_back();
                Piece& piece = profile.pieces.back();
                const ops::OpCost cost =
                    reuse ? ops::cost_of(c.costs, keys_[item.index], reuse->cold(r, static_cast<size_t>(item.op)))
                          : prices.of_keys[item.index];
                const double core_s = add(piece.segment, c, cost);
                piece.ops.push_back(item.op), piece.shares.push_back(core_s);
                (cost.measured ? profile.measured : profile.unmeasured) += core_s;
            }
            for (Piece& piece : profile.pieces) {
                double sum = 0;
                for (double s : piece.shares) sum += s;
                for (double& s : piece.shares) s = sum > 0 ? s / sum : 1.0 / static_cast<double>(piece.shares.size());
            }
            if (!profile.pieces.empty()) profile.pieces.front().segment.core_s += unneeded_s(prices, asked_[r]);
        }
        return out;
    }

    std::vector<std::vector<Segment>> segments(const Cluster& c) const {
        ensure(c.devices, "simulator: without profiles only devices have segments");
        const Prices prices = prices_on(c, {});
        std::vector<std::vector<Segment>> out(asked_.size());
        for (size_t r = 0; r < out.size(); ++r) {
            for (const Item& item : asked_[r].items) {
                if (item.is_collective) {
                    out[r].push_back(segment_of(prices, exchanges_[item.index]));
                    continue;
                }
                if (out[r].empty() || out[r].back().group >= 0) out[r].emplace_back();
                add(out[r].back(), c, prices.of_keys[item.index]);
            }
            if (!out[r].empty()) out[r].front().core_s += unneeded_s(prices, asked_[r]);
        }
        return out;
    }

private:
    // What a machine makes of keys and members.
    struct Prices {
        const Cluster& cluster;
        const mesh::Link& ring;
        std::vector<ops::OpCost> of_keys;  // with operands in memory
        std::vector<GroupLink> links;      // of devices, by list of members
    };
    Prices prices_on(const Cluster& c, const mesh::Link& ring) const {
        Prices out{c, ring, {}, {}};
        const bool is_asked = c.devices || c.stack.whole_recompute;
        for (size_t k = 0; is_asked && k < keys_.size(); ++k) out.of_keys.push_back(ops::cost_of(c.costs, keys_[k], 1));
        for (size_t m = 0; c.devices && m < members_.size(); ++m)
            out.links.push_back(link_of(c, members_[m].ranks, p_.mesh.world_ranks(), members_[m].is_message));
        return out;
    }

    std::vector<Item> items_of(const ir::Routine& r, int threads, const Stack& stack) {
        std::vector<Item> out;
        for (size_t i = 0; i < r.ops.size(); ++i) {
            const ir::Op& op = r.ops[i];
            const bool is_collective = ops::rule(op.kind).collective;
            if (!is_collective && ir::is_view(r, op)) continue;
            ops::CostKey key;
            if (!is_collective) {
                key = ops::cost_key(p_.mesh, r, op, threads);
                if (stack.merged_products) merge(key, r, i);
                const double elements = their_ops_.elements(r, op);
                key.sizes[0] *= elements, key.bytes *= elements, key.flops *= elements;
            }
            const Item item{static_cast<int>(i), is_collective, is_collective ? exchange(r, op, stack) : add_key(std::move(key))};
            ops::CostKey copied = is_collective ? their_ops_.copied(r, op) : ops::CostKey{};
            const bool copies = copied.bytes > 0, is_sum = ir::is_collective(op, mesh::Collective::ReduceScatter);
            if (!copies || !is_sum) out.push_back(item);
            if (copies) out.push_back({item.op, false, add_key(std::move(copied))});
            if (copies && is_sum) out.push_back(item);
        }
        return out;
    }

    // Of a layer that is recomputed only from its input: its forward's last product, and what follows it.
    std::vector<Item> unneeded_of(const ir::Routine& backward, const Stack& stack) {
        if (backward.kind != ir::RoutineKind::Backward && backward.kind != ir::RoutineKind::BackwardInput) return {};
        const auto is_again = [&](const ir::Op& op) {
            ops::MatmulShape shape;
            return op.attrs.contains("recomputed") && ops::is_matmul(p_.mesh, backward, op, &shape);
        };
        const auto is_frame = [](const ir::Port& port) { return port.kind == ir::PortKind::Frame; };
        if (std::any_of(backward.ports.begin(), backward.ports.end(), is_frame) ||
            std::none_of(backward.ops.begin(), backward.ops.end(), is_again))
            return {};
        const ir::Routine* forward = p_.routine(ir::RoutineKind::Forward, backward.block);
        ensure(forward, "simulator: a block without a forward has a backward");
        std::vector<Item> tail;
        for (size_t i = 0; i < forward->ops.size(); ++i) {
            const ir::Op& op = forward->ops[i];
            if (ir::is_view(*forward, op)) continue;
            ops::MatmulShape shape;
            if (ops::is_matmul(p_.mesh, *forward, op, &shape)) tail.clear();
            const bool is_collective = ops::rule(op.kind).collective;
            tail.push_back({static_cast<int>(i), is_collective,
                            is_collective ? exchange(*forward, op, stack) : add_key(ops::cost_key(p_.mesh, *forward, op, 1))});
        }
        return tail;
    }
    double unneeded_s(const Prices& prices, const Asked& asked) const {
        double out = 0;
        for (const Item& item : asked.unneeded)
            out += item.is_collective ? segment_of(prices, exchanges_[item.index]).link_s : prices.of_keys[item.index].core_s;
        return out;
    }

    size_t add_key(ops::CostKey key) {
        const auto same = [&](size_t k) { return are_same(keys_[k], key); };
        std::vector<size_t>& known = known_keys_[key.op + key.kernel];
        if (const auto found = std::find_if(known.begin(), known.end(), same); found != known.end()) return *found;
        known.push_back(keys_.size());
        keys_.push_back(std::move(key));
        return known.back();
    }

    // Adds an op to its piece; returns how long it computes.
    double add(Segment& s, const Cluster& c, const ops::OpCost& cost) const {
        // A device has its memory to itself: nothing to share, so its ops are as long as the larger of the two.
        const double core_s = (c.devices ? std::max(cost.core_s, cost.memory_s) + c.host.blocking_s : cost.core_s) +
                              (cost.measured ? c.costs.op_overhead_s : 0);
        s.core_s += core_s;
        if (!c.devices) s.memory_s += cost.memory_s;
        return core_s;
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

    size_t exchange(const ir::Routine& r, const ir::Op& op, const Stack& stack) {
        const int64_t first = p_.pipeline_rank * p_.mesh.ranks();
        const mesh::Collective kind = ir::collective_of(op);
        Members members{ir::members_of(p_, op, p_.mesh.group(first, op.group)), !mesh::traits_of(kind).symmetric};
        const auto count = static_cast<int64_t>(members.ranks.size());
        Exchange out{&r, &op, group_(op), 0, {}, 1};
        for (size_t i = 0; i < std::max(op.in.size(), op.out.size()); ++i)
            out.traffic.add(kind, count, ops::block_bytes(p_.mesh, r, op, i) * sent(r, op, i) / holders(r, op, i, stack));
        if (r.kind == ir::RoutineKind::Update) out.broadcasts = broadcasts(count);
        out.members = static_cast<size_t>(std::find(members_.begin(), members_.end(), members) - members_.begin());
        if (out.members == members_.size()) members_.push_back(std::move(members));
        exchanges_.push_back(std::move(out));
        return exchanges_.size() - 1;
    }

    double sent(const ir::Routine& r, const ir::Op& op, size_t i) const {
        return their_ops_.sent(r, op, i < op.in.size() ? op.in[i] : op.out[i]);
    }

    Segment segment_of(const Prices& prices, const Exchange& e) const {
        const Cluster& c = prices.cluster;
        const ir::Routine& r = *e.routine;
        const auto members = static_cast<int64_t>(members_[e.members].ranks.size());
        const mesh::Collective kind = ir::collective_of(*e.op);
        Segment s;
        s.group = e.group;
        s.kind = kind;
        // A permute is a copy from memory to memory, by engines of its own, and so is all that peers do.
        s.takes_processors = kind != mesh::Collective::Permute && !ops::is_by_peers(*e.op);
        if (!mesh::traits_of(kind).moves_bytes()) return s;
        if (c.devices) {
            const GroupLink& link = prices.links[e.members];
            s.link_s = collective_s(c, link, kind, members, e.traffic);
            if (r.kind == ir::RoutineKind::Update) s.link_s += c.stack.broadcast_s * e.broadcasts;
            s.link = static_cast<int>(static_cast<size_t>(p_.pipeline_rank) * c.links.size() + link.level);  // of this rank
            if (c.host.blocking_s > 0 && (ir::is_forward(r.kind) || ir::is_backward(r.kind))) s.link_s += c.host.collective_s;
            return s;
        }
        const ops::CollectiveCost cost = ops::collective_cost(c.costs, p_.mesh, r, *e.op);
        s.core_s = cost.core_s;
        // What was measured is the share of the members that ran at the same time.
        s.memory_s = s.core_s / static_cast<double>(std::min<int64_t>(members, c.costs.cores));
        s.link_s = std::max(cost.time_s, e.traffic.time_s(prices.ring));
        if (!topology_.is_one_process()) add_hosts(s, c, r, *e.op);
        return s;
    }

    // Of the owners of all parameters, on average with each unit that is updated.
    double broadcasts(int64_t owners) const {
        int64_t units = 0;
        for (const ir::Unit& u : p_.units) units += static_cast<int64_t>(p_.instances(u).size());
        return std::max(1.0, static_cast<double>(owners) / static_cast<double>(std::max<int64_t>(units, 1)));
    }

    // Of a message, the ranks that hold the same and send a part each.
    double holders(const ir::Routine& r, const ir::Op& op, size_t i, const Stack& stack) const {
        if (!stack.split_sends || mesh::traits_of(ir::collective_of(op)).symmetric) return 1;
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
    void add_hosts(Segment& s, const Cluster& c, const ir::Routine& r, const ir::Op& op) const {
        const ops::HostBytes sent = ops::bytes_sent(p_, r, op, topology_, groups_);
        const double across = *std::max_element(sent.by_host.begin(), sent.by_host.end());
        // What was measured between processes has a leader's own part in it.
        // That the others copy when it is done is not counted.
        const double core_s = sent.leader * c.hosts.core_s_per_byte +
                              (c.hosts.process_bytes_per_s > 0 ? sent.within / c.hosts.process_bytes_per_s : 0);
        if (core_s > 0) s.core_s = core_s, s.link_s = 0, s.computing = sent.leaders;
        double messages_s = sent.latencies_within * c.hosts.process_latency_s;
        if (across > 0) {
            const mesh::Link& link = c.hosts.link;
            messages_s +=
                sent.latencies * link.latency_s + (link.bandwidth_bytes_per_s > 0 ? across / link.bandwidth_bytes_per_s : 0);
            s.link = topology_.host_of_rank[static_cast<size_t>(p_.pipeline_rank * p_.mesh.ranks())];  // of its first rank
        }
        s.link_s += messages_s;
        s.core_s += c.hosts.polling * messages_s;
    }

    const ir::Program& p_;
    const ir::Entry& entry_;
    const compile::RankThreads rank_threads_;
    const GroupOf group_;
    const mesh::Topology topology_;
    mutable ops::PlacedGroups groups_;
    const TheirOps their_ops_;
    std::vector<Asked> asked_;  // by routine
    std::vector<bool> is_called_;
    std::vector<ops::CostKey> keys_;                                   // of ops, each once
    std::unordered_map<std::string, std::vector<size_t>> known_keys_;  // of them, by op and kernel
    std::vector<Exchange> exchanges_;
    std::vector<Members> members_;
};

Demand::Demand(const ir::Program& program, const ir::Entry& entry, const Cluster& cluster,
               const compile::RankThreads& rank_threads, const GroupOf& group)
    : impl_(std::make_unique<Impl>(program, entry, cluster, rank_threads, group)) {}
Demand::~Demand() = default;

std::vector<Profile> Demand::profiles(const Cluster& cluster, const mesh::Link& ring) const {
    return impl_->profiles(cluster, ring);
}
std::vector<std::vector<Segment>> Demand::segments(const Cluster& cluster) const { return impl_->segments(cluster); }

std::vector<Profile> profiles_of(const ir::Program& p, const ir::Entry& entry, const Cluster& cluster,
                                 const compile::RankThreads& rank_threads, const mesh::Link& ring, const GroupOf& group) {
    return Demand(p, entry, cluster, rank_threads, group).profiles(cluster, ring);
}

}  // namespace lockstep::sim
