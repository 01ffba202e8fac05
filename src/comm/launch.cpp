#include "comm/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/checksum.h"

namespace lockstep::comm {
namespace {

bool reduces(Kind kind) { return kind == Kind::ReduceScatter || kind == Kind::AllReduce; }

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
    return {static_cast<int32_t>(r.kind),
            static_cast<int32_t>(r.type),
            reduces(r.kind) ? static_cast<int32_t>(r.op) : 0,
            0,
            r.outer,
            r.dim,
            r.inner};
}

Request request_of(const Shape& s) {
    return {static_cast<Kind>(s.kind),
            static_cast<Type>(s.type),
            nullptr,
            nullptr,
            s.outer,
            s.dim,
            s.inner,
            static_cast<ReduceOp>(s.op),
            false};
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

std::string refusal(int channel, Requests launch, int position, int members) {
    if (channel < 0 || channel >= kChannels) return fmt::format("there is no channel {}", channel);
    for (const Request& request : launch) {
        const std::string why = refusal(request, position, members);
        if (!why.empty()) return fmt::format("{}: {}", describe(request), why);
    }
    return "";
}

}  // namespace lockstep::comm
