#include "comm/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/checksum.h"
#include "base/error.h"

namespace lockstep::comm {
namespace {

// Gather, reduction and level in one number, and back; 0: none.
int32_t packed(const std::optional<mesh::CollectiveAlgorithm>& a) {
    return a ? 1 + (static_cast<int32_t>(a->gather) + 4 * (static_cast<int32_t>(a->reduce) + 8 * a->level)) : 0;
}

std::optional<mesh::CollectiveAlgorithm> unpacked(int32_t number) {
    if (number == 0) return std::nullopt;
    --number;
    return mesh::CollectiveAlgorithm{static_cast<mesh::GatherBy>(number % 4), static_cast<mesh::ReduceBy>(number / 4 % 8),
                                     number / 32};
}

bool same_shape(const Request& a, const Request& b) {
    const Shape x = shape_of(a), y = shape_of(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
}

std::string describe_at(Requests launch, size_t index) {
    if (launch.empty()) return "a barrier";
    if (index >= launch.size()) return fmt::format("{} requests only", launch.size());
    return fmt::format("{} as request {} of {}", describe(launch[index]), index + 1, launch.size());
}

}  // namespace

Shape shape_of(const Request& r) {
    const Collective kind = r.kind == Collective::Recv ? Collective::Send : r.kind;
    return {static_cast<int32_t>(kind),
            static_cast<int32_t>(r.type),
            r.traits().reduces ? static_cast<int32_t>(r.op) : 0,
            packed(r.algorithm),
            r.by,
            r.root,
            r.outer,
            r.dim,
            r.inner,
            r.outer_out};
}

Request request_of(const Shape& s) {
    return {static_cast<Collective>(s.kind),
            static_cast<Dtype>(s.type),
            nullptr,
            nullptr,
            s.outer,
            s.dim,
            s.inner,
            static_cast<ReduceOp>(s.op),
            false,
            unpacked(s.algorithm),
            s.by,
            s.root,
            s.outer_out};
}

bool same_shapes(Requests a, Requests b) { return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same_shape); }

uint64_t digest_of(Requests launch) {
    struct {
        uint64_t before;
        Shape shape;
    } link{launch.size(), {}};
    static_assert(sizeof link == 64);
    for (const Request& request : launch) {
        link.shape = shape_of(request);
        link.before = checksum(std::string_view(reinterpret_cast<const char*>(&link), sizeof link));
    }
    return link.before;
}

std::string mismatch(const std::vector<int>& ranks, int channel, Requests first, int position, Requests other) {
    const auto shorter = static_cast<std::ptrdiff_t>(std::min(first.size(), other.size()));
    const auto [at, unused] = std::mismatch(first.begin(), first.begin() + shorter, other.begin(), same_shape);
    const auto index = static_cast<size_t>(at - first.begin());
    return fmt::format("ranks launched different collectives in group {} on channel {}: rank {} {}, rank {} {}", ranks, channel,
                       ranks[0], describe_at(first, index), ranks[static_cast<size_t>(position)], describe_at(other, index));
}

std::optional<Collective> one_sided(Requests launch) {
    if (launch.empty() || launch[0].traits().symmetric) return std::nullopt;
    return launch[0].kind;
}

std::string refusal(int channel, Requests launch, int position, int members, uint32_t in_flight) {
    if (channel < 0 || channel >= kChannels) return fmt::format("there is no channel {}", channel);
    for (const Request& request : launch) {
        const std::string why = refusal(request, position, members);
        if (!why.empty()) return fmt::format("{}: {}", describe(request), why);
    }
    const auto other = std::find_if(launch.begin(), launch.end(), [](const Request& r) { return !r.traits().symmetric; });
    if (other == launch.end()) return "";
    const Collective kind = other->kind;
    if (std::any_of(launch.begin(), launch.end(), [&](const Request& r) { return r.kind != kind; }))
        return fmt::format("{} and other collectives in one launch", mesh::name_of(kind));
    if (launch.size() > kSendsInALaunch)
        return fmt::format("{} of {} in one launch, which has {} at most", launch.size(), mesh::name_of(kind), kSendsInALaunch);
    if (kind == Collective::Wait && launch.size() > 1) return "several waits in one launch";
    if (kind == Collective::Wait && in_flight == 0) return "wait: nothing was sent";
    if (kind == Collective::Send && in_flight >= kSendsInFlight)
        return fmt::format("more than {} launches of sends in flight", kSendsInFlight);
    return "";
}

void require_group(const std::vector<int>& group, int ranks) {
    std::vector<int> sorted = group;
    std::sort(sorted.begin(), sorted.end());
    const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
    ensure(!group.empty() && distinct && sorted.front() >= 0 && sorted.back() < ranks,
           fmt::format("group {} is not of distinct ranks below {}", group, ranks));
}

int position_in(const std::vector<int>& group, int rank) {
    const auto self = std::find(group.begin(), group.end(), rank);
    ensure(self != group.end(), fmt::format("add_group: rank {} is not in its group {}", rank, group));
    return static_cast<int>(self - group.begin());
}

std::optional<std::string> wrong_launch(int rank, int channel, Requests launch, int position, int members, uint32_t in_flight) {
    const std::string why = refusal(channel, launch, position, members, in_flight);
    if (why.empty()) return std::nullopt;
    return fmt::format("rank {} launched a collective that cannot run: {}", rank, why);
}

}  // namespace lockstep::comm
