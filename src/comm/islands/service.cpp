#include "comm/islands/service.h"

#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "comm/islands/socket.h"

namespace lockstep::comm::islands {

constexpr int kPollMilliseconds = 10, kMessagesAtATime = 64;

Service::Service(const ServiceOptions& options, Meetings::Say say)
    : say_(std::move(say)), socket_(std::make_unique<ServiceSocket>(options.host, options.port)) {
    invitation_ = socket_->invitation();
    // Signals are for the other threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this, options] {
        try {
            serve(options);
        } catch (const std::exception& e) {
            say_(fmt::format("islands meet no longer: {}", e.what()));
            const std::lock_guard lock(mutex_);
            failed_ = true;
            changed_.notify_all();
        }
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Service::~Service() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    thread_.join();
}

void Service::tell(News news) {
    std::unique_lock lock(mutex_);
    news_.push_back(std::move(news));
    changed_.wait(lock, [&] { return news_.empty() || failed_; });
}

void Service::serve(const ServiceOptions& options) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto now_s = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    Meetings meetings(
        options.meetings,
        [&](const std::string& to, const Header& header, std::span<const char> bytes) { socket_->send(to, header, bytes); },
        say_);
    const auto take = [&](const std::string& from, const Header& h, std::string bytes) {
        meetings.take(from, h, std::move(bytes), now_s());
    };
    bool has_warned = false;
    for (;;) {
        {
            const std::lock_guard lock(mutex_);
            if (stop_) {
                if (socket_->dropped() > 1) say_(fmt::format("{} such messages were dropped in all", socket_->dropped()));
                return;
            }
            for (const News& tell : news_) tell(meetings);
            if (!news_.empty()) changed_.notify_all();
            news_.clear();
        }
        for (int k = 0; k < kMessagesAtATime && socket_->receive(k == 0 ? kPollMilliseconds : 0, take); ++k) {
        }
        if (socket_->dropped() > 0 && !std::exchange(has_warned, true))
            say_("a message that no rank of Lockstep sends has come where islands meet; it is dropped, and so are further ones");
        meetings.look(now_s());
    }
}

}  // namespace lockstep::comm::islands
