#include "runtime/share_timelines.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lockstep::runtime {

void share_timelines(const Ranks& ranks, std::vector<ir::Timeline>& timelines) {
    nlohmann::json own = nlohmann::json::array();
    for (const auto& e : ranks.here()) {
        const ir::Timeline& t = timelines[static_cast<size_t>(e->rank())];
        nlohmann::json threads = nlohmann::json::array();
        for (const std::vector<ir::TimedOp>& thread : t.threads) {
            nlohmann::json ops = nlohmann::json::array();
            for (const ir::TimedOp& op : thread) ops.push_back({op.call, op.op, op.start_s, op.end_s, op.ready_s});
            threads.push_back(std::move(ops));
        }
        own.push_back({{"rank", e->rank()}, {"threads", threads}, {"data", {t.data_begin_s, t.data_end_s}}});
    }
    for (const std::string& text : ranks.group().exchange(cbor_of(own))) {
        for (const nlohmann::json& j : json_of_cbor<nlohmann::json>(text)) {
            ir::Timeline& t = timelines[j.at("rank").get<size_t>()];
            for (QueueName queue : kQueuesOfSteps) {
                t.threads[queue].clear();
                for (const nlohmann::json& op : j.at("threads")[static_cast<size_t>(queue)])
                    t.threads[queue].push_back({op[0], op[1], op[2], op[3], op[4]});
            }
            t.data_begin_s = j.at("data")[0], t.data_end_s = j.at("data")[1];
        }
    }
}

}  // namespace lockstep::runtime
