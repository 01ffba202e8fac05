// ZeroMQ's sockets as islands use them: encrypted and authenticated by CurveZMQ, messages of a header and bytes with a
// checksum. The one file that names the library.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/islands/invitation.h"
#include "comm/islands/message.h"

namespace lockstep::comm::islands {

struct KeyPair {
    std::string public_key, secret_key;
};
KeyPair new_keys();

// Of a rank. Used by one thread at a time. It connects by itself. A connection that breaks is made again, but what was on its
// way is lost, and who waits for it gives up in the end.
class MemberSocket {
public:
    explicit MemberSocket(const Invitation& invitation);
    ~MemberSocket();
    void send(Header header, std::span<const char> bytes);
    // Waits up to `milliseconds`. f(header, bytes) of a message, which stays where it is while f runs. False: none came.
    bool receive(int milliseconds, const std::function<void(const Header&, std::span<const char>)>& f);

private:
    struct Parts;
    const std::unique_ptr<Parts> parts_;
};

// Of the service. The library refuses a connection without the secret of the invitation before this class reads anything of it.
class ServiceSocket {
public:
    // Reached by the name `host`: of this host, or kThisHost, which no other one can reach. Port 0: a free one. UserError
    // launch.meet_at.
    ServiceSocket(const std::string& host, int port);
    ~ServiceSocket();
    const Invitation& invitation() const;
    void send(const std::string& to, Header header, std::span<const char> bytes);
    bool receive(int milliseconds, const std::function<void(const std::string& from, const Header&, std::string bytes)>& f);
    int64_t dropped() const;  // messages of members that are none of ours

private:
    struct Parts;
    const std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep::comm::islands
