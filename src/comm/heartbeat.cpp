#include "comm/heartbeat.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::comm {

Heartbeat::Heartbeat(ProcessGroup& group, double timeout_s)
    : group_(group),
      timeout_s_(timeout_s),
      wire_(group.wire()),
      silent_s_(static_cast<size_t>(group.processes())),
      counts_(silent_s_.size()),
      left_(silent_s_.size()),
      states_(silent_s_.size()) {}

void Heartbeat::post(int to, Kind kind, const std::string& body) { wire_->post(to, static_cast<char>(kind) + body); }

void Heartbeat::hear() {
    std::string message;
    for (int from = 0; wire_->poll(from, message);) {
        const auto p = static_cast<size_t>(from);
        silent_s_[p] = 0;
        const auto kind = static_cast<Kind>(message[0]);
        if (kind == kLeave) {
            left_[p] = true;
        } else if (kind == kBeat) {
            if (from == 0) continue;  // it lives
            const size_t line = message.find('\n');
            counts_[p] = std::stoull(message.substr(1, line - 1)), states_[p] = message.substr(line + 1);
        } else if (end_.empty()) {
            tell_end(message.substr(1));
        }
    }
}

uint64_t Heartbeat::count() const { return std::accumulate(counts_.begin(), counts_.end(), uint64_t{0}); }

void Heartbeat::beat(const std::string& state, uint64_t count, double passed_s) {
    states_[static_cast<size_t>(group_.process())] = state, counts_[static_cast<size_t>(group_.process())] = count;
    if (!wire_) return;
    for (double& s : silent_s_) s += passed_s;
    hear();
    if (!group_.is_first()) {
        if (!leaving_) post(0, kBeat, std::to_string(count) + "\n" + state);
        if (silent_s_[0] > timeout_s_ && !leaving_) silent_ = 0;
        return;
    }
    for (int p = 1; p < group_.processes(); ++p) {
        if (left_[static_cast<size_t>(p)]) continue;
        post(p, kBeat, "");
        if (silent_ < 0 && silent_s_[static_cast<size_t>(p)] > timeout_s_) silent_ = p;
    }
}

void Heartbeat::tell_end(const std::string& reason) {
    end_ = reason;
    if (!wire_) return;
    if (!group_.is_first()) return post(0, kEnd, reason);
    for (int p = 1; p < group_.processes(); ++p) post(p, kEnd, reason);
}

bool Heartbeat::leave() {
    if (!wire_) return true;
    hear();
    if (!group_.is_first()) {
        if (!std::exchange(leaving_, true)) post(0, kLeave, "");
        return true;
    }
    return std::all_of(left_.begin() + 1, left_.end(), [](bool left) { return left; });
}

}  // namespace lockstep::comm
