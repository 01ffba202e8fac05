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

bool reduces(Kind kind) { return kind == Kind::ReduceScatter || kind == Kind::AllReduce; }

// Gather, reduction and level in one number, and back; 0: none.
int32_t packed(const std::optional<mesh::Way>& way) {
    return way ? 1 + (static_cast<int32_t>(way->gather) + 4 * (static_cast<int32_t>(way->reduce) + 4 * way->level)) : 0;
}

std::optional<mesh::Way> unpacked(int32_t way) {
    if (way == 0) return std::nullopt;
    --way;
    return mesh::Way{static_cast<mesh::GatherBy>(way % 4), static_cast<mesh::ReduceBy>(way / 4 % 4), way / 16};
}

bool is_transfer(const Request& request) { return request.kind == Kind::Transfer; }

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

mesh::Collective collective_of(Kind kind) {
    switch (kind) {
        case Kind::AllGather: return mesh::Collective::AllGather;
        case Kind::ReduceScatter: return mesh::Collective::ReduceScatter;
        case Kind::AllReduce: return mesh::Collective::AllReduce;
        case Kind::Permute: return mesh::Collective::Permute;
        case Kind::Transfer: return mesh::Collective::Permute;  // of its two members one gives a block to the other
    }
    throw InternalError("comm: no such kind");
}

Shape shape_of(const Request& r) {
    return {static_cast<int32_t>(r.kind),
            static_cast<int32_t>(r.type),
            reduces(r.kind) ? static_cast<int32_t>(r.op) : 0,
            r.kind == Kind::Permute ? r.by : packed(r.way),
            r.outer,
            r.dim,
            r.inner};
}

Request request_of(const Shape& s) {
    const bool permutes = static_cast<Kind>(s.kind) == Kind::Permute;
    return {static_cast<Kind>(s.kind),
            static_cast<Type>(s.type),
            nullptr,
            nullptr,
            s.outer,
            s.dim,
            s.inner,
            static_cast<ReduceOp>(s.op),
            false,
            permutes ? std::nullopt : unpacked(s.way),
            permutes ? s.way : 0};
}

bool same_shapes(Requests a, Requests b) { return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same_shape); }

uint64_t digest_of(Requests launch) {
    struct {
        uint64_t before;
        Shape shape;
    } link{launch.size(), {}};
    static_assert(sizeof link == 48);
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

bool are_transfers(Requests launch) { return !launch.empty() && is_transfer(launch[0]); }

std::string refusal(int channel, Requests launch, int position, int members, uint32_t under_way) {
    if (channel < 0 || channel >= kChannels) return fmt::format("there is no channel {}", channel);
    for (const Request& request : launch) {
        const std::string why = refusal(request, position, members);
        if (!why.empty()) return fmt::format("{}: {}", describe(request), why);
    }
    const auto transfers = static_cast<size_t>(std::count_if(launch.begin(), launch.end(), is_transfer));
    if (transfers == 0) return "";
    if (transfers < launch.size()) return "transfers and other collectives in one launch";
    if (transfers > kTransfersInALaunch) return fmt::format("{} transfers in one launch, of {}", transfers, kTransfersInALaunch);
    if (position == 0 && under_way >= kTransfersInFlight)
        return fmt::format("more than {} launches of transfers under way", kTransfersInFlight);
    return "";
}

void require_group(const std::vector<int>& group, int ranks) {
    std::vector<int> sorted = group;
    std::sort(sorted.begin(), sorted.end());
    const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
    ensure(!group.empty() && distinct && sorted.front() >= 0 && sorted.back() < ranks,
           fmt::format("group {} is not of distinct ranks below {}", group, ranks));
}

}  // namespace lockstep::comm
