#include "comm/processes/layout.h"

#include <algorithm>
#include <map>

namespace lockstep::comm::processes {
namespace {

// Members by host, or by part where all are on one host: what is scarce then is the copying between processes.
std::vector<int> members_by_node(const Layout& l) {
    const bool one_host = l.host_of.back() == 0;
    std::vector<int> members(static_cast<size_t>(one_host ? l.parts() : l.host_of.back() + 1));
    for (int part = 0; part < l.parts(); ++part)
        members[one_host ? part : l.host_of[part]] += static_cast<int>(l.positions[part].size());
    return members;
}

// Parts on each host where all hosts have the same number, else 0.
int parts_a_host(const Layout& l) {
    const int hosts = l.host_of.back() + 1;
    for (int host = 0; host < hosts; ++host) {
        if (std::count(l.host_of.begin(), l.host_of.end(), host) * hosts != l.parts()) return 0;
    }
    return l.parts() / hosts;
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

}  // namespace

int Layout::part_of_process(int process) const {
    const auto it = std::find(process_of.begin(), process_of.end(), process);
    return it == process_of.end() ? -1 : static_cast<int>(it - process_of.begin());
}

Layout layout_of(const std::vector<int>& ranks, int ranks_per_process, const Topology& topology) {
    Layout l;
    std::map<int, int> host_number;                             // in the order of the first positions
    std::map<std::pair<int, int>, std::vector<int>> positions;  // by (host, first position on the process)
    std::map<int, int> first_position;                          // by process
    for (int position = 0; position < static_cast<int>(ranks.size()); ++position) {
        const int rank = ranks[position], process = rank / ranks_per_process;
        const int host = host_number.try_emplace(topology.host_of_rank[rank], static_cast<int>(host_number.size())).first->second;
        const int first = first_position.try_emplace(process, position).first->second;
        positions[{host, first}].push_back(position);
    }
    l.part_of.resize(ranks.size());
    bool consecutive = true;
    for (const auto& [key, own] : positions) {
        for (int position : own) l.part_of[position] = l.parts();
        consecutive = consecutive && own.back() - own.front() + 1 == static_cast<int>(own.size());
        l.host_of.push_back(key.first);
        l.process_of.push_back(ranks[own.front()] / ranks_per_process);
        l.positions.push_back(own);
    }
    if (!consecutive) return l;
    for (int part = 0; part < l.parts(); ++part) l.chain.push_back(part);
    std::sort(l.chain.begin(), l.chain.end(), [&](int a, int b) { return l.positions[a].front() < l.positions[b].front(); });
    return l;
}

GatherBy choose_gather(const Layout& layout, int64_t total_bytes, int64_t small_bytes) {
    if (total_bytes <= small_bytes) return GatherBy::Direct;
    const bool several_hosts = layout.host_of.back() > 0;
    return several_hosts && parts_a_host(layout) > 1 ? GatherBy::TwoLevel : GatherBy::Ring;
}

// Bytes that the busiest node sends or receives, in units of a member's bytes / members.
ReduceBy choose_reduce(const Layout& layout, int64_t total_bytes, int64_t small_bytes) {
    if (layout.chain.empty() || total_bytes <= small_bytes) return ReduceBy::Direct;
    const std::vector<int> members = members_by_node(layout);
    const bool one_host = layout.host_of.back() == 0;
    const auto node_of = [&](int part) { return one_host ? part : layout.host_of[part]; };
    const int all = layout.members();
    std::vector<int> sent(members.size()), received(members.size());
    for (size_t i = 0; i + 1 < layout.chain.size(); ++i) {
        const int from = node_of(layout.chain[i]), to = node_of(layout.chain[i + 1]);
        if (from != to) sent[from] += all, received[to] += all;
    }
    const int last = node_of(layout.chain.back());
    int direct = 0, chain = 0;
    for (int node = 0; node < static_cast<int>(members.size()); ++node) {
        direct = std::max(direct, members[node] * (all - members[node]));
        if (node != last) sent[last] += members[node], received[node] += members[node];
    }
    for (size_t node = 0; node < members.size(); ++node) chain = std::max({chain, sent[node], received[node]});
    return direct <= chain ? ReduceBy::Direct : ReduceBy::Chain;
}

Hops gather_hops(const Layout& layout, GatherBy by, int part) {
    Hops hops;
    switch (by) {
        case GatherBy::Direct: add_direct(hops, layout.parts(), part); break;
        case GatherBy::Ring: add_rings(hops, layout.parts(), 1, part); break;
        case GatherBy::TwoLevel: add_rings(hops, layout.parts() / parts_a_host(layout), parts_a_host(layout), part); break;
    }
    return hops;
}

}  // namespace lockstep::comm::processes
