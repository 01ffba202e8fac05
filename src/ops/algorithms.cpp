#include "ops/algorithms.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "ops/cost.h"

namespace lockstep::ops {

std::optional<mesh::CollectiveAlgorithm> algorithm_of(const ir::Op& op) {
    const bool gathers = op.attrs.contains("gather"), reduces = op.attrs.contains("reduce");
    if (!gathers && !reduces) return std::nullopt;
    mesh::CollectiveAlgorithm algorithm;
    const auto gather = mesh::gather_by(gathers ? op.text("gather") : mesh::name_of(algorithm.gather));
    const auto reduce = mesh::reduce_by(reduces ? op.text("reduce") : mesh::name_of(algorithm.reduce));
    ensure(gather && reduce, "a collective's algorithm has an unknown name");
    algorithm.gather = *gather, algorithm.reduce = *reduce;
    if (op.attrs.contains("level")) algorithm.level = static_cast<int>(op.integer("level"));
    return algorithm;
}

namespace {
constexpr const char *kTransport = "transport", *kPeer = "peer";
}  // namespace

bool is_by_peers(const ir::Op& op) { return op.attrs.contains(kTransport); }
void set_by_peers(ir::Op& op, bool by_peers) {
    if (by_peers) op.attrs[kTransport] = std::string(kPeer);
    else op.attrs.erase(kTransport);
}
bool any_by_peers(const ir::Program& program) {
    return std::ranges::any_of(program.routines, [](const ir::Routine& r) { return std::ranges::any_of(r.ops, is_by_peers); });
}

std::string wrong_algorithm(const ir::Op& op) {
    if (is_by_peers(op) && op.text(kTransport) != kPeer) return "its transport is unknown";
    const bool gathers = op.attrs.contains("gather"), reduces = op.attrs.contains("reduce");
    const int64_t level = op.attrs.contains("level") ? op.integer("level") : 1;
    const mesh::CollectiveTraits& traits = mesh::traits_of(ir::collective_of(op));
    if (!gathers && !reduces && !op.attrs.contains("level")) return "";
    if (gathers != traits.gathers || reduces != traits.reduces) return "its algorithm is not of such a collective";
    if (gathers && !mesh::gather_by(op.text("gather"))) return "its gather algorithm is unknown";
    const auto by = reduces ? mesh::reduce_by(op.text("reduce")) : mesh::ReduceBy::Direct;
    if (!by) return "its reduce algorithm is unknown";
    if (*by == mesh::ReduceBy::Everywhere && !(traits.gathers && traits.reduces))
        return "only an all_reduce is reduced everywhere";
    if (*by == mesh::ReduceBy::Library && !op.accumulate.empty()) return "a library does not add to a result";
    if (*by == mesh::ReduceBy::Library && is_by_peers(op)) return "a library does not add what peers write";
    if ((level >= 2) != (*by == mesh::ReduceBy::TwoLevel) || level < 1 || level > std::numeric_limits<int>::max())
        return "a level above 1 and the two_level algorithm need each other";
    return "";
}

void set_algorithm(ir::Op& op, const mesh::CollectiveAlgorithm& algorithm) {
    const mesh::CollectiveTraits& traits = mesh::traits_of(ir::collective_of(op));
    for (const char* key : {"gather", "reduce", "level"}) op.attrs.erase(key);
    if (traits.gathers) op.attrs["gather"] = std::string(mesh::name_of(algorithm.gather));
    if (traits.reduces) op.attrs["reduce"] = std::string(mesh::name_of(algorithm.reduce));
    if (algorithm.level > 1) op.attrs["level"] = static_cast<int64_t>(algorithm.level);
}

const std::vector<GroupsOfOneLayout>& PlacedGroups::of(const ir::Op& op) {
    std::vector<int64_t> key(op.group.begin(), op.group.end());
    const mesh::CollectiveTraits& traits = ir::traits_of(op);
    if (!traits.symmetric) key.insert(key.end(), {-1, op.integer("peer"), static_cast<int64_t>(traits.kind)});
    const auto [at, is_new] = known_.try_emplace(std::move(key));
    std::vector<GroupsOfOneLayout>& out = at->second;
    if (!is_new) return out;
    std::set<std::vector<int>> seen;
    for (int64_t rank = 0; rank < program_.mesh.world_ranks(); ++rank) {
        if (program_.mesh.pipeline_rank_of(rank) != program_.pipeline_rank) continue;
        const std::vector<int64_t> members = ir::members_of(program_, op, program_.mesh.group(rank, op.group));
        std::vector<int> ranks(members.begin(), members.end());
        if (!seen.insert(ranks).second) continue;
        mesh::GroupLayout layout = mesh::group_layout(ranks, topology_);
        const auto alike = std::find_if(out.begin(), out.end(), [&](const GroupsOfOneLayout& o) {
            return o.layout.part_of == layout.part_of && o.layout.host_of == layout.host_of;
        });
        if (alike == out.end()) out.push_back({std::move(layout), {std::move(ranks)}});
        else alike->groups.push_back(std::move(ranks));
    }
    return out;
}

HostBytes bytes_sent(const ir::Program& p, const ir::Routine& r, const ir::Op& op, const mesh::Topology& topology,
                     PlacedGroups& groups) {
    HostBytes out;
    out.by_host.resize(static_cast<size_t>(*std::max_element(topology.host_of_rank.begin(), topology.host_of_rank.end()) + 1));
    const mesh::Collective kind = ir::collective_of(op);
    const mesh::CollectiveTraits& traits = mesh::traits_of(kind);
    const std::optional<mesh::CollectiveAlgorithm> chosen = algorithm_of(op);
    if (traits.has_algorithm() && !chosen) return out;
    const mesh::CollectiveAlgorithm algorithm = chosen.value_or(mesh::CollectiveAlgorithm{});
    const int64_t place = traits.has(mesh::Attr::By) ? op.integer("by") : traits.has(mesh::Attr::Root) ? op.integer("root") : 0;
    size_t leaders = 0, ranks = 0;
    for (const GroupsOfOneLayout& placed : groups.of(op)) {
        const mesh::GroupLayout& l = placed.layout;
        leaders += placed.groups.size() * static_cast<size_t>(l.parts());
        ranks += placed.groups.size() * static_cast<size_t>(l.members());
        mesh::Sent sent{std::vector<double>(static_cast<size_t>(l.hosts())), {0}};
        for (size_t i = 0; i < std::max(op.in.size(), op.out.size()); ++i) {
            const mesh::Sent more = mesh::bytes_sent(l, kind, algorithm, block_bytes(p.mesh, r, op, i), place);
            sent.by_part[0] += *std::max_element(more.by_part.begin(), more.by_part.end());
            for (size_t host = 0; host < more.by_host.size(); ++host) sent.by_host[host] += more.by_host[host];
        }
        out.within = std::max(out.within, sent.by_part[0]);
        // The collectives of a launch follow each other.
        const double latencies = (traits.symmetric ? mesh::latencies_of_agreement(l) : 0) +
                                 static_cast<double>(std::max(op.in.size(), op.out.size())) * mesh::latencies(l, kind, algorithm);
        double& most = l.hosts() > 1 ? out.latencies : out.latencies_within;
        most = std::max(most, latencies);
        for (int host = 0; host < l.hosts(); ++host) {
            const auto parts = static_cast<double>(std::count(l.host_of.begin(), l.host_of.end(), host));
            out.leader = std::max(out.leader, sent.by_host[static_cast<size_t>(host)] / parts);
        }
        for (const std::vector<int>& group : placed.groups) {
            for (int host = 0; host < l.hosts(); ++host) {
                const auto part = std::find(l.host_of.begin(), l.host_of.end(), host) - l.host_of.begin();
                const int rank = group[static_cast<size_t>(l.positions[static_cast<size_t>(part)][0])];
                out.by_host[static_cast<size_t>(topology.host_of_rank[static_cast<size_t>(rank)])] +=
                    sent.by_host[static_cast<size_t>(host)];
            }
        }
    }
    if (ranks > 0) out.leaders = static_cast<double>(leaders) / static_cast<double>(ranks);
    return out;
}

}  // namespace lockstep::ops
