#include "report/flight_records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "base/text_file.h"
#include "telemetry/console.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kRanksInAList = 64;

struct Damaged {
    std::string why;
};

const Json& field(const Json& j, const char* name) {
    if (!j.is_object() || !j.contains(name)) throw Damaged{fmt::format("there is no \"{}\"", name)};
    return j.at(name);
}
int64_t integer(const Json& value, const char* name, int64_t least, int64_t most) {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) ||
        value.get<int64_t>() < least || value.get<int64_t>() > most)
        throw Damaged{fmt::format("\"{}\" is not an integer from {} to {}", name, least, most)};
    return value.get<int64_t>();
}
double seconds(const Json& value, const char* name) {
    if (!value.is_number()) throw Damaged{fmt::format("\"{}\" is not a number", name)};
    return value.get<double>();
}
std::string text(const Json& value, const char* name) {
    if (!value.is_string()) throw Damaged{fmt::format("\"{}\" is not a text", name)};
    return value.get<std::string>();
}
const Json& list(const Json& value, const char* name) {
    if (!value.is_array()) throw Damaged{fmt::format("\"{}\" is not a list", name)};
    return value;
}

FlightOp op_of(const Json& j, int64_t ranks) {
    constexpr int64_t kMost = int64_t{1} << 40;
    FlightOp op;
    op.began_s_ago = seconds(field(j, "began_s_ago"), "began_s_ago");
    if (j.contains("time_s")) op.time_s = seconds(j.at("time_s"), "time_s");
    op.op = text(field(j, "op"), "op");
    op.rests = op.op == "rest";
    if (op.rests) return op;
    op.routine = text(field(j, "routine"), "routine");
    op.layer = integer(field(j, "layer"), "layer", 0, kMost);
    op.microbatch = integer(field(j, "microbatch"), "microbatch", 0, kMost);
    if (!j.contains("ranks")) return op;
    for (const Json& r : list(j.at("ranks"), "ranks")) op.ranks.push_back(integer(r, "ranks", 0, ranks - 1));
    return op;
}

FlightRecord record_of(const Json& j) {
    constexpr int64_t kMost = int64_t{1} << 40;
    FlightRecord r;
    r.ranks = integer(field(j, "ranks"), "ranks", 1, kMostRanks);
    r.rank = integer(field(j, "rank"), "rank", 0, r.ranks - 1);
    r.process = integer(field(j, "process"), "process", 0, kMost);
    r.pid = integer(field(j, "pid"), "pid", 0, kMost);
    r.host = text(field(j, "host"), "host");
    r.reason = text(field(j, "reason"), "reason");
    const Json& queues = field(j, "streams");
    for (const QueueTraits& q : kQueueTraits) {
        const char* const title = q.title.data();
        if (!q.in_steps || (!q.computes && queues.is_object() && !queues.contains(title))) continue;  // it had no calls
        for (const Json& op : list(field(queues, title), title)) r.queues[q.queue].push_back(op_of(op, r.ranks));
    }
    return r;
}

// What the queue is at; null: nothing.
const FlightOp* now_at(const std::vector<FlightOp>& ops) { return ops.empty() || ops.back().rests ? nullptr : &ops.back(); }

std::string text_of(const FlightOp& op) {
    std::string text = fmt::format("{} (layer {}, microbatch {}) {}", op.routine, op.layer, op.microbatch, op.op);
    if (!op.ranks.empty()) text += fmt::format(" with ranks {}", fmt::join(op.ranks, " "));
    return text;
}

std::string list_of(const std::vector<int64_t>& ranks) {
    const size_t shown = std::min(ranks.size(), kRanksInAList);
    const std::string text = fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + static_cast<long>(shown), " "));
    return shown == ranks.size() ? text : fmt::format("{} and {} more", text, ranks.size() - shown);
}

// Where ranks are, with those that are there; and whom they wait for.
struct Places {
    std::map<std::string, std::vector<int64_t>> waiting, others;
    std::vector<int64_t> lost, late;

    explicit Places(const FlightRecords& records) {
        std::set<int64_t> awaited, waits;
        for (const auto& [rank, record] : records) {
            bool any = false;
            for (const std::vector<FlightOp>& queue : record.queues) {
                const FlightOp* op = now_at(queue);
                if (!op) continue;
                any = true;
                (op->ranks.empty() ? others : waiting)[text_of(*op)].push_back(rank);
                if (op->ranks.empty()) continue;
                waits.insert(rank);
                awaited.insert(op->ranks.begin(), op->ranks.end());
            }
            if (!any) others["rests between two steps"].push_back(rank);
        }
        for (int64_t r = 0; r < records.begin()->second.ranks; ++r) {
            if (!records.contains(r)) lost.push_back(r);
            else if (awaited.contains(r) && !waits.contains(r)) late.push_back(r);
        }
    }
};

}  // namespace

std::optional<FlightRecord> parse_flight_record(std::string_view text, std::string& why) {
    const auto j = json_or_discarded<Json>(text);
    if (j.is_discarded()) return why = "it is no JSON, or was cut off", std::nullopt;
    try {
        return record_of(j);
    } catch (const Damaged& d) {
        why = d.why;
        return std::nullopt;
    }
}

FlightRecords read_flight_records(const std::string& given) {
    FlightRecords records;
    std::error_code error;
    for (const fs::path& folder : {fs::path(given), fs::path(given) / "comm_traces"}) {
        for (const fs::directory_entry& e : fs::directory_iterator(folder, error)) {
            if (e.path().extension() != ".json" || !e.is_regular_file(error)) continue;
            const std::string text = read_text_file(e.path(), Pipes::Refused).text;
            std::string why;
            if (std::optional<FlightRecord> record = parse_flight_record(text, why)) {
                const int64_t rank = record->rank;
                records.insert_or_assign(rank, std::move(*record));
            } else if (folder.filename() == "comm_traces" || text.find("\"streams\"") != std::string::npos) {
                telemetry::warn(fmt::format("{} is left out, it is no whole flight record: {}", e.path().string(), why));
            }
        }
        if (!records.empty()) break;
    }
    return records;
}

Json to_json(const FlightRecords& records) {
    const Places p(records);
    Json places = Json::array();
    for (const auto* group : {&p.waiting, &p.others}) {
        for (const auto& [text, ranks] : *group)
            places.push_back({{"waits", group == &p.waiting}, {"at", text}, {"ranks", ranks}});
    }
    return {{"reason", records.begin()->second.reason},
            {"without_record", p.lost},
            {"awaited_elsewhere", p.late},
            {"places", places}};
}

std::string text_of(const FlightRecords& records, int64_t ops) {
    const Places p(records);
    std::string out;
    const auto to = std::back_inserter(out);
    fmt::format_to(to, "{}\n", records.begin()->second.reason);
    if (!p.lost.empty()) fmt::format_to(to, "ranks without a record: {} (stopped, dead or cut off)\n", list_of(p.lost));
    if (!p.late.empty()) fmt::format_to(to, "ranks that others wait for, and that wait for nobody: {}\n", list_of(p.late));
    for (const auto& [text, ranks] : p.waiting) fmt::format_to(to, "waiting   {}: ranks {}\n", text, list_of(ranks));
    for (const auto& [text, ranks] : p.others) fmt::format_to(to, "elsewhere {}: ranks {}\n", text, list_of(ranks));
    for (const auto& [rank, record] : records) {
        if (ops == 0) break;
        fmt::format_to(to, "rank {} (process {}, {}, pid {})\n", rank, record.process, record.host, record.pid);
        for (QueueName queue : kQueuesOfSteps) {
            const std::vector<FlightOp>& all = record.queues[queue];
            for (size_t i = all.size() - std::min(all.size(), static_cast<size_t>(ops)); i < all.size(); ++i)
                fmt::format_to(to, "  {:<13} {:>10.3f} s ago {:>12}  {}\n", traits_of(queue).title, all[i].began_s_ago,
                               all[i].time_s ? fmt::format("{:.3f} ms", 1e3 * *all[i].time_s) : "still there",
                               all[i].rests ? "rest" : text_of(all[i]));
        }
    }
    return out;
}

}  // namespace lockstep::report
