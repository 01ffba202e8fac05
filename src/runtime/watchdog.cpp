#include "runtime/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/output_file.h"
#include "ops/rule.h"

namespace lockstep::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using OrderedJson = nlohmann::ordered_json;

constexpr double kLooksATimeout = 8, kLongestLook_s = 0.5;
constexpr size_t kPlacesInAMessage = 8;
constexpr const char* kWith = " with ranks ";  // of an op in which ranks wait for each other

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

std::string host() {
    char name[256] = "?";
    gethostname(name, sizeof name - 1);
    return name;
}

}  // namespace

Watchdog::Watchdog(Ranks& ranks, WatchdogOptions options)
    : ranks_(ranks),
      options_(std::move(options)),
      heartbeat_(ranks.group(), options_.silence_s()),
      progress_(ranks.here().size()) {
    thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

double Watchdog::interval_s() const { return std::min(kLongestLook_s, options_.timeout_s / kLooksATimeout); }

void Watchdog::watch() {
    const double interval_s = this->interval_s();
    Clock::time_point last = Clock::now();
    double left_s = 0;
    for (bool gone = false; !gone && !ended_;) {
        std::unique_lock lock(mutex_);
        const auto interval = std::chrono::duration<double>(leaving_ ? interval_s / 10 : interval_s);
        changed_.wait_for(lock, interval, [&] { return leaving_ && left_s == 0; });
        const bool leaving = leaving_;
        lock.unlock();
        const Clock::time_point now = Clock::now();
        const double gap_s = std::chrono::duration<double>(now - last).count(), passed_s = std::min(gap_s, 2 * interval_s);
        last = now;
        if (leaving) {
            left_s += std::max(passed_s, 1e-9);
            gone = heartbeat_.leave() || left_s > options_.timeout_s;
            if (!gone) heartbeat_.beat("", 0, passed_s);
        } else {
            awake_s_ = gap_s > options_.silence_s() ? 0 : awake_s_ + passed_s;
            look(passed_s);
        }
    }
}

void Watchdog::look(double passed_s) {
    for (size_t r = 0; r < progress_.size(); ++r) {
        for (QueueName queue : kQueuesOfSteps) {
            Progress& s = progress_[r][queue];
            const uint64_t begun = ranks_.here()[r]->flight().begun(queue);
            s.stood_s = begun == s.begun ? s.stood_s + passed_s : 0;
            s.begun = begun;
        }
    }
    uint64_t begun = 0;
    for (const ByStepQueue<Progress>& of_rank : progress_) {
        for (const Progress& s : of_rank) begun += s.begun;
    }
    heartbeat_.beat(state(), begun, passed_s);
    stood_s_ = heartbeat_.count() == count_ ? stood_s_ + passed_s : 0;
    count_ = heartbeat_.count();
    if (!heartbeat_.end().empty() && awake_s_ < options_.silence_s())
        return ended_ = true, options_.end("");  // it is this process that the others have lost
    if (!heartbeat_.end().empty()) return end(heartbeat_.end());
    // A rank may wait long for one that computes. Only the first process hears of all.
    std::string reason;
    if (ranks_.group().is_first() && stood_s_ > options_.timeout_s && any_waits())
        reason = fmt::format("no rank made progress for {:.1f} s", stood_s_);
    if (const int silent = heartbeat_.silent(); silent >= 0) {
        const int64_t each = ranks_.count() / ranks_.group().processes(), first = silent * each;
        reason = fmt::format("process {} ({}) has not been heard of for {:.1f} s: it was stopped, has died or is cut off", silent,
                             each == 1 ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, first + each - 1),
                             options_.silence_s());
    }
    if (reason.empty()) return;
    heartbeat_.tell_end(reason);
    end(reason);
}

Watchdog::Position Watchdog::place_of(const Executor& e, const FlightEntry& f) {
    if (!f.entry) return {f};
    const ir::Call& call = f.entry->calls[static_cast<size_t>(f.call)];
    const ir::Routine& r = e.program().routines[static_cast<size_t>(call.routine)];
    return {f, &r, &call, &r.ops[static_cast<size_t>(f.op)]};
}

Watchdog::Position Watchdog::now_at(const Executor& e, QueueName queue) {
    const std::vector<FlightEntry> last = e.flight().last(queue, 1);
    return last.empty() ? Position{} : place_of(e, last[0]);
}

bool Watchdog::Position::waits() const { return op && ops::rule(op->kind).collective; }

std::string Watchdog::text_of(const Executor& e, const Position& place, double stood_s) {
    const ir::Program& p = e.program();
    std::string with;
    if (place.waits())
        with =
            fmt::format(" with ranks {}", fmt::join(ir::members_of(p, *place.op, p.mesh.group(e.rank(), place.op->group)), " "));
    return fmt::format("rank {}: stuck {:.1f} s in step {} of this run, {} (layer {}, microbatch {}): {}{}", e.rank(), stood_s,
                       place.entry.run, place.routine->name, place.call->instance, place.call->microbatch, place.op->kind, with);
}

std::string Watchdog::state() const {
    std::string out;
    for (size_t r = 0; r < progress_.size(); ++r) {
        const Executor& e = *ranks_.here()[r];
        std::string own;
        for (QueueName queue : kQueuesOfSteps) {
            const Position place = now_at(e, queue);
            if (place.op) own += text_of(e, place, progress_[r][queue].stood_s) + "\n";
        }
        const double stood_s = progress_[r][QueueName::Compute].stood_s;
        out += own.empty() ? fmt::format("rank {}: {:.1f} s between two steps\n", e.rank(), stood_s) : own;
    }
    return out;
}

bool Watchdog::any_waits() const {
    const std::vector<std::string>& states = heartbeat_.states();
    return std::any_of(states.begin(), states.end(), [](const std::string& s) { return s.find(kWith) != std::string::npos; });
}

void Watchdog::end(const std::string& reason) {
    std::string message = reason, where;
    size_t places = 0;
    const std::vector<std::string>& states = ranks_.group().is_first() ? heartbeat_.states() : std::vector<std::string>{state()};
    for (const std::string& text : states) {
        for (size_t at = 0, line = 0; (line = text.find('\n', at)) != std::string::npos; at = line + 1) {
            if (places++ < kPlacesInAMessage) where += "\n  " + text.substr(at, line - at);
        }
    }
    if (places > kPlacesInAMessage) where += fmt::format("\n  and {} more", places - kPlacesInAMessage);
    message += where;
    try {
        write_records(reason);
        message += fmt::format("\nflight records: {} (lockstep report {})", options_.folder, options_.folder);
    } catch (const std::exception& e) {
        message += fmt::format("\nno flight record: {}", e.what());
    }
    ended_ = true;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(3 * interval_s()));  // a launcher kills the others once one has ended
    options_.end(ranks_.group().is_first() || heartbeat_.silent() == 0 ? message : "");
}

void Watchdog::write_records(const std::string& reason) const {
    make_folder(options_.folder);
    const double now = now_s();
    for (size_t r = 0; r < progress_.size(); ++r) {
        const Executor& e = *ranks_.here()[r];
        const ir::Program& p = e.program();
        OrderedJson queues;
        for (QueueName queue : kQueuesOfSteps) {
            OrderedJson ops = OrderedJson::array();
            const std::vector<FlightEntry> all = e.flight().last(queue, e.flight().entries());
            for (size_t i = 0; i < all.size(); ++i) {
                const FlightEntry& f = all[i];
                OrderedJson op = {{"step", f.run}, {"began_s_ago", now - f.begin_s}};
                if (i + 1 < all.size()) op["time_s"] = all[i + 1].begin_s - f.begin_s;
                const Position place = place_of(e, f);
                if (!place.op) {
                    op["op"] = "rest";
                } else {
                    op["entry"] = name_of(f.entry->kind), op["call"] = f.call, op["routine"] = place.routine->name;
                    op["layer"] = place.call->instance, op["microbatch"] = place.call->microbatch, op["op"] = place.op->kind;
                    if (!place.op->out.empty()) op["result"] = place.routine->tensors[place.op->out[0]].name;
                    if (place.waits()) op["ranks"] = ir::members_of(p, *place.op, p.mesh.group(e.rank(), place.op->group));
                }
                ops.push_back(std::move(op));
            }
            if (traits_of(queue).computes || !ops.empty()) queues[std::string(traits_of(queue).title)] = std::move(ops);
        }
        const std::string path = fmt::format("{}/{}{}.json", options_.folder, options_.prefix, e.rank());
        const OrderedJson record = {
            {"rank", e.rank()}, {"ranks", ranks_.count()}, {"process", ranks_.group().process()}, {"host", host()},
            {"pid", getpid()},  {"reason", reason},        {"streams", std::move(queues)}};
        write_whole_file(path, json_text(record, 1) + "\n");
    }
}

}  // namespace lockstep::runtime
