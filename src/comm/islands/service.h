// Where the islands of a launch meet: a thread of `lockstep launch` with the sockets, around Meetings.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/islands/invitation.h"
#include "comm/islands/meetings.h"

namespace lockstep::comm::islands {

struct ServiceOptions {
    MeetingsOptions meetings;
    std::string host = kThisHost;  // by which islands find this one (socket.h)
    int port = 0;                  // 0: a free one
};

class Service {
public:
    // `say` is called by the service's thread. UserError launch.meet_at.
    Service(const ServiceOptions& options, Meetings::Say say);
    ~Service();
    Service(const Service&) = delete;
    Service& operator=(const Service&) = delete;

    const Invitation& invitation() const { return invitation_; }
    // As in Meetings; from any thread. When they return it is so.
    void expect(int64_t island, bool awaited = true) {
        tell([=](Meetings& m) { m.expect(island, awaited); });
    }
    void lost(int64_t island) {
        tell([island](Meetings& m) { m.lost(island); });
    }
    void done(int64_t island) {
        tell([island](Meetings& m) { m.done(island); });
    }

private:
    using News = std::function<void(Meetings&)>;
    void tell(News news);
    void serve(const ServiceOptions& options);

    const Meetings::Say say_;
    Invitation invitation_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    std::vector<News> news_;
    bool stop_ = false, failed_ = false;
    std::unique_ptr<class ServiceSocket> socket_;
    std::thread thread_;
};

}  // namespace lockstep::comm::islands
