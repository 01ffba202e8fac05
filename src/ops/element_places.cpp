#include "ops/element_places.h"

#include <algorithm>

namespace lockstep::ops {
namespace {

constexpr size_t kNumbers = 6;  // of a place, before its steps

using Numbers = std::vector<int64_t>;

}  // namespace

void ElementPlaces::put(ir::Attrs& attrs) const {
    Numbers places;
    for (const ElementPlace& p : of) {
        places.insert(places.end(), {p.begin, p.stream, p.run, p.rows, p.stride, p.far});
        places.insert(places.end(), p.steps.begin(), p.steps.end());
    }
    attrs["shards"] = Numbers(shards.begin(), shards.end());
    attrs["places"] = std::move(places);
}

bool are_places(const ir::Op& op) {
    const auto &shards = std::get<Numbers>(op.attrs.at("shards")), &places = std::get<Numbers>(op.attrs.at("places"));
    if (places.empty() || places.size() % (kNumbers + shards.size()) != 0) return false;
    const std::vector<ElementPlace> of = element_places(op).of;
    return of[0].begin == 0 &&
           std::all_of(of.begin(), of.end(), [](const ElementPlace& p) { return p.stream >= 0 && p.run > 0 && p.rows > 0; }) &&
           std::is_sorted(of.begin(), of.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

ElementPlaces element_places(const ir::Op& op) {
    const auto &shards = std::get<Numbers>(op.attrs.at("shards")), &places = std::get<Numbers>(op.attrs.at("places"));
    ElementPlaces out;
    out.shards.assign(shards.begin(), shards.end());
    for (auto at = places.begin(); at != places.end(); at += static_cast<long>(kNumbers + shards.size())) {
        ElementPlace p{at[0], at[1], at[2], at[3], at[4], at[5], {}};
        p.steps.assign(at + kNumbers, at + static_cast<long>(kNumbers + shards.size()));
        out.of.push_back(std::move(p));
    }
    return out;
}

}  // namespace lockstep::ops
