#include "comm/processes/control.h"

#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <cstring>
#include <string_view>

#include "comm/communicator.h"

namespace lockstep::comm::processes {
namespace {

using namespace std::chrono_literals;
// How long the thread waits between two polls: short after an event, then longer and longer. If ranks use all cores, each poll
// takes a core from a rank. A stop may take the longest pause to reach all.
constexpr auto kShortest = 50us, kUnattended = 1000us, kLongest = 10'000us;

std::string bytes_of_ranks(const std::vector<int>& ranks) {
    return {reinterpret_cast<const char*>(ranks.data()), ranks.size() * sizeof(int)};
}

}  // namespace

Control::Control(Wire& wire, std::string settings, std::function<void()> on_stop)
    : wire_(wire), settings_(std::move(settings)), on_stop_(std::move(on_stop)) {
    post(0, kSettings, settings_);
    thread_ = std::thread([this] {
        pthread_setname_np(pthread_self(), "comm control");
        watch();
    });
}

Control::~Control() {
    post(0, kLeave, "");
    thread_.join();
}

void Control::abort(const std::string& reason) {
    begin_stop();
    post(0, kAbort, reason);
}

void Control::throw_aborted() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return phase_ == Phase::Stopped; });
    throw Aborted(reason_);
}

int Control::number_of(const std::vector<int>& ranks) {
    const std::string key = bytes_of_ranks(ranks);
    post(0, kGroup, key);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return phase_ == Phase::Stopped || numbers_.count(key); });
    if (phase_ == Phase::Stopped) throw Aborted(reason_);
    return numbers_.at(key);
}

bool Control::enter() {
    inside_.fetch_add(1);  // before reading the phase: the thread that sets the phase reads this number afterwards
    if (!stopping()) return true;
    leave();
    return false;
}

void Control::begin_stop() {
    Phase running = Phase::Running;
    if (phase_.compare_exchange_strong(running, Phase::Stopping)) on_stop_();
}

void Control::finish_stop(const std::string& reason) {
    begin_stop();
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    phase_ = Phase::Stopped;
    changed_.notify_all();
}

void Control::post(int to, Kind kind, const std::string& body) {
    const std::lock_guard lock(mutex_);
    outbox_.emplace_back(to, static_cast<char>(kind) + body);
    kick_ = true;
    kicked_.notify_one();
}

void Control::post_all(Kind kind, const std::string& body) {
    for (int process = 0; process < wire_.processes(); ++process) post(process, kind, body);
}

void Control::watch() {
    std::chrono::microseconds pause = kShortest;
    try {
        while (!left_) {
            pause = step() || stopping() ? kShortest : std::min<std::chrono::microseconds>(2 * pause, kLongest);
            std::unique_lock lock(mutex_);
            kicked_.wait_for(lock, unattended_ > 0 ? std::min<std::chrono::microseconds>(pause, kUnattended) : pause,
                             [&] { return kick_; });
        }
    } catch (const std::exception& error) {  // without a wire there is nobody to agree with
        finish_stop(fmt::format("process {}: {}", wire_.process(), error.what()));
    }
}

bool Control::step() {
    {
        const std::lock_guard lock(mutex_);
        sending_.swap(outbox_);
        kick_ = false;
    }
    bool some = !sending_.empty();
    for (auto& [to, message] : sending_) {
        if (to == wire_.process()) handle(to, message);
        else wire_.post(to, std::move(message));
    }
    sending_.clear();
    for (int from = 0; wire_.poll(from, own_message_); some = true) handle(from, own_message_);
    if (told_ && !quiet_ && inside_ == 0) {
        quiet_ = some = true;
        post(0, kQuiet, "");
    }
    return some;
}

void Control::handle(int from, const std::string& message) {
    const auto kind = static_cast<Kind>(message[0]);
    const std::string body = message.substr(1);
    switch (kind) {
        case kNumber: {
            const std::lock_guard lock(mutex_);
            int number = 0;
            std::memcpy(&number, body.data(), sizeof number);
            numbers_[body.substr(sizeof number)] = number;
            changed_.notify_all();
            return;
        }
        case kStop: {
            {
                const std::lock_guard lock(mutex_);
                reason_ = body;
            }
            begin_stop();
            told_ = true;
            return;
        }
        case kStopped: {
            std::unique_lock lock(mutex_);
            const std::string reason = reason_;
            lock.unlock();
            finish_stop(reason);
            return;
        }
        case kLeft: left_ = true; return;
        default: handle_at_0(from, kind, body);
    }
}

void Control::handle_at_0(int from, Kind kind, const std::string& body) {
    switch (kind) {
        case kGroup: {
            const int number = given_numbers_.try_emplace(body, static_cast<int>(given_numbers_.size())).first->second;
            post(from, kNumber, std::string(reinterpret_cast<const char*>(&number), sizeof number) + body);
            return;
        }
        case kSettings:
            if (body == settings_) return;
            [[fallthrough]];
        case kAbort:
            if (decided_) return;
            decided_ = true;
            post_all(kStop, kind == kAbort ? body
                                           : fmt::format("processes must be started alike: process 0 has {}, process {} has {}",
                                                         settings_, from, body));
            return;
        case kQuiet:
            if (++quiet_processes_ == wire_.processes()) post_all(kStopped, "");
            return;
        case kLeave:
            if (++left_processes_ == wire_.processes()) post_all(kLeft, "");
            return;
        default: return;
    }
}

}  // namespace lockstep::comm::processes
