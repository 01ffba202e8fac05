#include "telemetry/trace.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "ops/rule.h"

namespace lockstep::telemetry {
namespace {

using Json = nlohmann::ordered_json;

class Writer {
public:
    explicit Writer(const std::string& path) : out_(path) { out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"; }

    void rank(size_t rank, const ir::Timeline& timeline) {
        const ir::Program& p = *timeline.program;
        const bool pipeline = p.mesh.degree(mesh::Axis::pp) > 1;
        name("process_name", rank, 0,
             fmt::format("rank {}{}", rank, pipeline ? fmt::format(", pipeline rank {}", p.pipeline_rank) : ""));
        for (const QueueTraits& q : kQueueTraits) {
            if (q.computes || (q.in_steps && !timeline.threads[q.queue].empty()))
                name("thread_name", rank, number_of(q.queue), std::string(q.title));
        }
        if (timeline.data_end_s > timeline.data_begin_s)
            slice(rank, 0, "data", "data", timeline.data_begin_s, timeline.data_end_s, Json::object());
        for (QueueName queue : kQueuesOfSteps) {
            const std::vector<ir::TimedOp>& all = timeline.threads[queue];
            for (size_t i = 0, end = 0; i < all.size(); i = end) {
                for (end = i; end < all.size() && all[end].call == all[i].call;) ++end;
                call(rank, number_of(queue), timeline, {all.data() + i, end - i});
            }
        }
    }

    bool finish() {
        out_ << "\n]}\n";
        return static_cast<bool>(out_.flush());
    }

private:
    static size_t number_of(QueueName queue) { return static_cast<size_t>(queue); }

    void event(const Json& e) {
        if (!first_) out_ << ",\n";
        first_ = false;
        out_ << json_text(e);
    }

    void name(const char* what, size_t rank, size_t thread, const std::string& text) {
        event({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", text}}}});
    }

    void slice(size_t rank, size_t thread, const std::string& name, std::string_view category, double start_s, double end_s,
               Json args) {
        event({{"ph", "X"},
               {"name", name},
               {"cat", category},
               {"pid", rank},
               {"tid", thread},
               {"ts", 1e6 * start_s},
               {"dur", 1e6 * (end_s - start_s)},
               {"args", std::move(args)}});
    }

    void call(size_t rank, size_t thread, const ir::Timeline& timeline, std::span<const ir::TimedOp> ops) {
        const ir::Call& call = timeline.entry->calls[ops[0].call];
        const ir::Routine& r = timeline.program->routines[call.routine];
        slice(rank, thread, r.name, ir::name_of(r.kind), ops.front().start_s, ops.back().end_s,
              {{"call", ops[0].call},
               {"instance", call.instance},
               {"microbatch", call.microbatch},
               {"stream", name_of(call.queue)}});
        for (const ir::TimedOp& t : ops) {
            if (t.op < 0) {
                slice(rank, thread, "wait", "waiting", t.start_s, t.end_s, Json::object());
                continue;
            }
            const ir::Op& op = r.ops[t.op];
            Json args = {{"op", t.op}, {"result", r.tensors[op.subject()].name}, {"kernel", op.kernel}};
            if (t.ready_s > t.start_s) args["waited_us"] = 1e6 * (t.ready_s - t.start_s);
            slice(rank, thread, op.kind, ops::rule(op.kind).collective ? "communication" : "op", t.start_s, t.end_s,
                  std::move(args));
        }
    }

    std::ofstream out_;
    bool first_ = true;
};

[[noreturn]] void refuse_trace(const std::string& path) {
    throw UserError("trace.cannot_write", "--trace",
                    fmt::format("--trace {}: cannot be written; choose a file in a folder that exists and is writable", path));
}

}  // namespace

void require_can_be_written(const std::string& path) {
    std::error_code ignored;
    const bool is_new = !std::filesystem::exists(path, ignored);
    if (!std::ofstream(path, std::ios::app)) refuse_trace(path);
    if (is_new) std::filesystem::remove(path, ignored);
}

void write_trace(const std::string& path, std::span<const ir::Timeline> timelines) {
    Writer writer(path);
    for (size_t i = 0; i < timelines.size(); ++i) {
        const auto ranks = static_cast<size_t>(timelines[i].program->mesh.world_ranks());
        writer.rank(i * (ranks / timelines.size()), timelines[i]);
    }
    if (!writer.finish()) refuse_trace(path);
}

}  // namespace lockstep::telemetry
