#include "mesh/algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace lockstep::mesh {
namespace {

constexpr std::array<std::string_view, 3> kGathers = {"direct", "ring", "two_level"};
constexpr std::array<std::string_view, 5> kReductions = {"everywhere", "direct", "chain", "two_level", "library"};

template <class By, size_t n>
std::optional<By> named(const std::array<std::string_view, n>& names, std::string_view name) {
    const auto at = std::find(names.begin(), names.end(), name);
    return at == names.end() ? std::nullopt : std::optional(static_cast<By>(at - names.begin()));
}

int parts_a_host_of(const GroupLayout& l) {
    for (int host = 0; host < l.hosts(); ++host) {
        if (std::count(l.host_of.begin(), l.host_of.end(), host) * l.hosts() != l.parts()) return 0;
    }
    return l.parts() / l.hosts();
}

int level_of(const GroupLayout& l) {
    if (l.parts_a_host == 0 || l.members() % l.hosts() != 0) return 1;
    const int each = l.members() / l.hosts();
    for (int position = 0; position < l.members(); ++position) {
        if (l.host_of[l.part_of[position]] != position / each) return 1;
    }
    return each;
}

// Members by host, or by part where all are on one host: what is scarce then is the copying between processes.
std::vector<int64_t> members_by_node(const GroupLayout& l) {
    const bool one_host = l.hosts() == 1;
    std::vector<int64_t> members(static_cast<size_t>(one_host ? l.parts() : l.hosts()));
    for (int part = 0; part < l.parts(); ++part)
        members[one_host ? part : l.host_of[part]] += static_cast<int64_t>(l.positions[part].size());
    return members;
}

void add_direct(Hops& hops, int parts, int me) {
    for (int step = 1; step < parts; ++step) {
        hops.sends.push_back({(me + step) % parts, me});
        hops.receives.push_back({(me - step + parts) % parts, (me - step + parts) % parts});
    }
}

// Step by step between the hosts, each followed by one round within the host for what the step before brought.
void add_rings(Hops& hops, int hosts, int slots, int me) {
    const int host = me / slots, slot = me % slots;
    const auto part = [&](int h, int s) { return (h + 2 * hosts) % hosts * slots + (s + 2 * slots) % slots; };
    for (int step = 0; step < hosts; ++step) {
        if (step + 1 < hosts) {
            hops.sends.push_back({part(host + 1, slot), part(host - step, slot)});
            hops.receives.push_back({part(host - 1, slot), part(host - step - 1, slot)});
        }
        for (int around = 0; around + 1 < slots; ++around) {
            hops.sends.push_back({part(host, slot + 1), part(host - step, slot - around)});
            hops.receives.push_back({part(host, slot - 1), part(host - step, slot - around - 1)});
        }
    }
}

GatherBy choose_gather(const GroupLayout& l, int64_t total_bytes, int64_t small_bytes) {
    if (total_bytes <= small_bytes) return GatherBy::Direct;
    return l.hosts() > 1 && l.parts_a_host > 1 ? GatherBy::TwoLevel : GatherBy::Ring;
}

// Of the busiest node, what it sends or receives, in units of a member's bytes / members, decides between owners and the chain.
ReduceBy choose_reduce(const GroupLayout& l, int64_t total_bytes, int64_t small_bytes, bool levels) {
    if (total_bytes <= small_bytes) return ReduceBy::Direct;
    if (levels && l.hosts() > 1 && l.level > 1) return ReduceBy::TwoLevel;
    if (l.chain.empty()) return ReduceBy::Direct;
    const std::vector<int64_t> members = members_by_node(l);
    const bool one_host = l.hosts() == 1;
    const auto node_of = [&](int part) { return one_host ? part : l.host_of[part]; };
    const int all = l.members();
    std::vector<int64_t> sent(members.size()), received(members.size());
    for (size_t i = 0; i + 1 < l.chain.size(); ++i) {
        const int from = node_of(l.chain[i]), to = node_of(l.chain[i + 1]);
        if (from != to) sent[from] += all, received[to] += all;
    }
    const int last = node_of(l.chain.back());
    int64_t direct = 0, chain = 0;
    for (int node = 0; node < static_cast<int>(members.size()); ++node) {
        direct = std::max(direct, members[node] * (all - members[node]));
        if (node != last) sent[last] += members[node], received[node] += members[node];
    }
    for (size_t node = 0; node < members.size(); ++node) chain = std::max({chain, sent[node], received[node]});
    return direct <= chain ? ReduceBy::Direct : ReduceBy::Chain;
}

class Counter {
public:
    explicit Counter(const GroupLayout& layout) : l_(layout) {
        out_.by_host.resize(static_cast<size_t>(layout.hosts()));
        out_.by_part.resize(static_cast<size_t>(layout.parts()));
    }
    void send(int from, int to, double bytes) {
        if (from == to) return;
        (l_.host_of[from] == l_.host_of[to] ? out_.by_part[from] : out_.by_host[l_.host_of[from]]) += bytes;
    }
    // bytes_of(part): what is gathered from it.
    void gather(GatherBy by, auto bytes_of) {
        for (int part = 0; part < l_.parts(); ++part) {
            for (const Hop& hop : gather_hops(l_, by, part).sends) send(part, hop.peer, bytes_of(hop.part));
        }
    }
    // bytes_for(part): of every member's operand, what goes to it.
    void reduce(ReduceBy by, auto bytes_for) {
        for (int owner = 0; owner < l_.parts(); ++owner) {
            if (by == ReduceBy::Chain) {
                for (size_t i = 0; i + 1 < l_.chain.size(); ++i) send(l_.chain[i], l_.chain[i + 1], bytes_for(owner));
                send(l_.chain.back(), owner, bytes_for(owner));
                continue;
            }
            if (by == ReduceBy::Library) {
                // Around the ring that ends with the owner; part 0 follows the last.
                const int parts = l_.parts();
                for (int step = 1; step < parts; ++step)
                    send((owner + step) % parts, (owner + step + 1) % parts, bytes_for(owner));
                continue;
            }
            const int slots = l_.parts_a_host;
            for (int part = 0; part < l_.parts(); ++part) {
                // In two levels to the equal slot of the own host, from there to the owner.
                const int to = by == ReduceBy::TwoLevel ? part / slots * slots + owner % slots : owner;
                send(part, to, static_cast<double>(l_.positions[part].size()) * bytes_for(owner));
                if (by == ReduceBy::TwoLevel && part == to) send(part, owner, bytes_for(owner));
            }
        }
    }
    Sent take() { return std::move(out_); }

private:
    const GroupLayout& l_;
    Sent out_;
};

}  // namespace

int GroupLayout::part_of_process(int process) const {
    const auto it = std::find(process_of.begin(), process_of.end(), process);
    return it == process_of.end() ? -1 : static_cast<int>(it - process_of.begin());
}

Topology even_hosts(int64_t ranks, int64_t ranks_per_host, int64_t ranks_per_process) {
    Topology out{{}, static_cast<int>(ranks_per_process)};
    for (int64_t r = 0; r < ranks; ++r) out.host_of_rank.push_back(static_cast<int>(r / ranks_per_host));
    return out;
}

GroupLayout group_layout(const std::vector<int>& ranks, const Topology& topology) {
    GroupLayout l;
    std::map<int, int> host_number;                             // in the order of the first positions
    std::map<std::pair<int, int>, std::vector<int>> positions;  // by (host, first position on the process)
    std::map<int, int> first_position;                          // by process
    for (int position = 0; position < static_cast<int>(ranks.size()); ++position) {
        const int rank = ranks[position], process = topology.is_one_process() ? 0 : rank / topology.ranks_per_process,
                  on = topology.host_of_rank.empty() ? 0 : topology.host_of_rank[rank];
        const int host = host_number.try_emplace(on, static_cast<int>(host_number.size())).first->second;
        const int first = first_position.try_emplace(process, position).first->second;
        positions[{host, first}].push_back(position);
    }
    l.part_of.resize(ranks.size());
    bool consecutive = true;
    for (const auto& [key, own] : positions) {
        for (int position : own) l.part_of[position] = l.parts();
        consecutive = consecutive && own.back() - own.front() + 1 == static_cast<int>(own.size());
        l.host_of.push_back(key.first);
        l.process_of.push_back(topology.is_one_process() ? 0 : ranks[own.front()] / topology.ranks_per_process);
        l.positions.push_back(own);
    }
    l.parts_a_host = parts_a_host_of(l), l.level = level_of(l);
    if (!consecutive) return l;
    for (int part = 0; part < l.parts(); ++part) l.chain.push_back(part);
    std::sort(l.chain.begin(), l.chain.end(), [&](int a, int b) { return l.positions[a].front() < l.positions[b].front(); });
    return l;
}

CollectiveAlgorithm choose_algorithm(const GroupLayout& l, Collective kind, int64_t block_bytes, int64_t small_bytes,
                                     bool levels) {
    const int64_t all_bytes = block_bytes * l.members();
    CollectiveAlgorithm algorithm;
    switch (kind) {
        case Collective::AllGather: algorithm.gather = choose_gather(l, all_bytes, small_bytes); break;
        case Collective::ReduceScatter: algorithm.reduce = choose_reduce(l, all_bytes, small_bytes, levels); break;
        case Collective::AllReduce:
            algorithm.gather = choose_gather(l, block_bytes, small_bytes);
            algorithm.reduce =
                all_bytes <= small_bytes ? ReduceBy::Everywhere : choose_reduce(l, block_bytes, small_bytes, levels);
            break;
        case Collective::AllToAll:
        case Collective::Broadcast:
        case Collective::Permute:
        case Collective::Send:
        case Collective::Recv:
        case Collective::Wait: break;  // there is one only
    }
    if (algorithm.reduce == ReduceBy::TwoLevel) algorithm.level = l.level;
    return algorithm;
}

std::string unfit(const GroupLayout& l, Collective kind, const CollectiveAlgorithm& algorithm) {
    const CollectiveTraits& traits = traits_of(kind);
    const bool two_level = traits.reduces && algorithm.reduce == ReduceBy::TwoLevel;
    if ((algorithm.level > 1) != two_level) return fmt::format("level {} is not that of its reduction", algorithm.level);
    if (traits.reduces && !traits.gathers && algorithm.reduce == ReduceBy::Everywhere)
        return "it is reduced everywhere, which only all-reduces can be";
    if (traits.gathers && algorithm.gather == GatherBy::TwoLevel && l.parts_a_host == 0)
        return "it is gathered in two levels, and hosts have unequal numbers of processes";
    if (traits.reduces && algorithm.reduce == ReduceBy::Chain && l.chain.empty())
        return "it is reduced along a chain, and ranks of a process do not follow each other";
    if (two_level && l.level != algorithm.level)
        return fmt::format("it is reduced by {} ranks of a host, and {}", algorithm.level,
                           l.level == 1 ? "hosts have one, or unequal numbers, or ranks of a host do not follow each other"
                                        : fmt::format("hosts have {}", l.level));
    return "";
}

Sent bytes_sent(const GroupLayout& l, Collective kind, const CollectiveAlgorithm& algorithm, double block_bytes, int64_t place) {
    Counter counter(l);
    const auto of_members = [&](int part) { return static_cast<double>(l.positions[part].size()) * block_bytes; };
    const auto of_slice = [&](int) { return block_bytes / l.parts(); };
    switch (kind) {
        case Collective::AllGather: counter.gather(algorithm.gather, of_members); break;
        case Collective::ReduceScatter: counter.reduce(algorithm.reduce, of_members); break;
        case Collective::AllReduce:
            if (algorithm.reduce == ReduceBy::Everywhere) {
                counter.gather(algorithm.gather, of_members);
            } else {
                counter.reduce(algorithm.reduce, of_slice);
                counter.gather(algorithm.gather, of_slice);
            }
            break;
        case Collective::AllToAll: counter.reduce(ReduceBy::Direct, of_members); break;  // it is that without a sum
        case Collective::Broadcast:
            for (int part = 0; part < l.parts(); ++part) {
                for (const Hop& hop : broadcast_hops(l, static_cast<int>(place), part).sends)
                    counter.send(part, hop.peer, block_bytes);
            }
            break;
        case Collective::Permute:
            for (int64_t from = 0; from < l.members(); ++from)
                counter.send(l.part_of[static_cast<size_t>(from)], l.part_of[static_cast<size_t>((from + place) % l.members())],
                             block_bytes);
            break;
        case Collective::Send: counter.send(l.part_of[0], l.part_of[1], block_bytes); break;
        case Collective::Recv:
        case Collective::Wait: break;  // the sender has sent
    }
    return counter.take();
}

double latencies(const GroupLayout& l, Collective kind, const CollectiveAlgorithm& algorithm) {
    const int nodes = l.hosts() > 1 ? l.hosts() : l.parts();
    if (nodes == 1) return 0;
    const double gathering = algorithm.gather == GatherBy::Direct ? 1 : nodes - 1,
                 reducing = algorithm.reduce == ReduceBy::Everywhere ? 0
                            : algorithm.reduce == ReduceBy::Chain    ? nodes
                            : algorithm.reduce == ReduceBy::Library  ? nodes - 1
                                                                     : 1;
    switch (kind) {
        case Collective::AllGather: return gathering;
        case Collective::ReduceScatter: return reducing;
        case Collective::AllReduce: return gathering + reducing;
        case Collective::Broadcast: return nodes - 1;
        case Collective::AllToAll:
        case Collective::Permute:
        case Collective::Send:
        case Collective::Recv: return 1;
        case Collective::Wait: break;
    }
    return 0;
}

double latencies_of_agreement(const GroupLayout& l) {
    double count = 0;
    for (int known = 1; known < l.parts(); known *= 2) ++count;
    return count;
}

Levels levels_of(const GroupLayout& l, int part) {
    const int slots = l.parts_a_host, host = part / slots, slot = part % slots;
    Levels out;
    GroupLayout &within = out.within, &between = out.between;
    const int each = l.level;
    within.part_of.resize(static_cast<size_t>(each));
    for (int s = 0; s < slots; ++s) {
        const int p = host * slots + s;
        std::vector<int> own;
        for (int position : l.positions[p]) own.push_back(position % each), within.part_of[position % each] = s;
        within.positions.push_back(own);
        within.process_of.push_back(l.process_of[p]), within.host_of.push_back(0);
    }
    for (int h = 0; h < l.hosts(); ++h) {
        between.part_of.push_back(h), between.positions.push_back({h});
        between.process_of.push_back(l.process_of[h * slots + slot]), between.host_of.push_back(h);
    }
    return out;
}

Hops gather_hops(const GroupLayout& l, GatherBy by, int part) {
    Hops hops;
    switch (by) {
        case GatherBy::Direct: add_direct(hops, l.parts(), part); break;
        case GatherBy::Ring: add_rings(hops, l.parts(), 1, part); break;
        case GatherBy::TwoLevel: add_rings(hops, l.hosts(), l.parts_a_host, part); break;
    }
    return hops;
}

Hops broadcast_hops(const GroupLayout& l, int root, int part) {
    const int first = l.part_of[static_cast<size_t>(root)];
    // The root's part, the others of its host, then host by host.
    const auto hosts_after = [&](int p) { return (l.host_of[p] - l.host_of[first] + l.hosts()) % l.hosts(); };
    const auto key = [&](int p) { return std::tuple(hosts_after(p), p != first, p); };
    Hops hops;
    int before = -1, after = -1;
    for (int p = 0; p < l.parts(); ++p) {
        if (key(p) < key(part) && (before < 0 || key(before) < key(p))) before = p;
        if (key(part) < key(p) && (after < 0 || key(p) < key(after))) after = p;
    }
    if (before >= 0) hops.receives.push_back({before, first});
    if (after >= 0) hops.sends.push_back({after, first});
    return hops;
}

std::string_view name_of(GatherBy by) { return kGathers[static_cast<size_t>(by)]; }
std::string_view name_of(ReduceBy by) { return kReductions[static_cast<size_t>(by)]; }
std::optional<GatherBy> gather_by(std::string_view name) { return named<GatherBy>(kGathers, name); }
std::optional<ReduceBy> reduce_by(std::string_view name) { return named<ReduceBy>(kReductions, name); }

}  // namespace lockstep::mesh
