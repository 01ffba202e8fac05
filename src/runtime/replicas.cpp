#include "runtime/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/elements.h"
#include "base/json.h"
#include "runtime/states.h"

namespace lockstep::runtime {
namespace {

using Json = nlohmann::json;

// One state of a unit on a rank: which elements, and a checksum of them.
struct Part {
    uint64_t elements = 0, bits = 0;
};

uint64_t chain(uint64_t sum, std::string_view bytes) {
    const uint64_t both[] = {sum, checksum(bytes)};
    return checksum({reinterpret_cast<const char*>(both), sizeof both});
}

std::map<std::string, Part> parts_of(Executor& e) {
    std::map<std::string, Part> parts;
    const auto is_replicated = [](const ir::State& s) { return s.scope == ir::Scope::Run && s.role != ir::StateRole::Copy; };
    read_states(e, is_replicated, [&](const Run& run, const ir::State& state, const char* data) {
        Part& part = parts[fmt::format("{} of {}[{}]", state.name, run.unit->name, run.instance)];
        part.elements = chain(part.elements, fmt::format("{} {} {}", run.param->name, run.global_begin, run.count));
        part.bits = chain(part.bits, {data, static_cast<size_t>(run.count * bytes_of(state.dtype))});
    });
    return parts;
}

}  // namespace

std::vector<ReplicaDifference> replica_differences(Ranks& ranks) {
    std::vector<std::map<std::string, Part>> here(ranks.here().size());
    ranks.parallel([&](Executor& e) { here[ranks.place(e.rank())] = parts_of(e); });
    Json own = Json::array();
    for (const auto& e : ranks.here()) {
        for (const auto& [state, part] : here[ranks.place(e->rank())])
            own.push_back({state, part.elements, part.bits, e->rank()});
    }
    // By state and its elements: bits, and who has them.
    std::map<std::pair<std::string, uint64_t>, std::map<uint64_t, std::vector<int64_t>>> all;
    for (const std::string& text : ranks.group().exchange(cbor_of(own))) {
        for (const Json& j : json_of_cbor<Json>(text)) all[{j[0], j[1]}][j[2]].push_back(j[3]);
    }
    std::vector<ReplicaDifference> out;
    for (auto& [state, holders] : all) {
        if (holders.size() == 1) continue;
        const auto most = std::max_element(holders.begin(), holders.end(),
                                           [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
        ReplicaDifference d{state.first, {}, most->second};
        for (const auto& [bits, who] : holders) {
            if (bits != most->first) d.ranks.insert(d.ranks.end(), who.begin(), who.end());
        }
        std::sort(d.ranks.begin(), d.ranks.end());
        out.push_back(std::move(d));
    }
    return out;
}

}  // namespace lockstep::runtime
