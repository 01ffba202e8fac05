#include "comm/islands/socket.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <zmq.hpp>

#include "base/checksum.h"
#include "base/error.h"

namespace lockstep::comm::islands {
namespace {

constexpr int kHeartbeatMilliseconds = 5000;   // keeps an idle path open
constexpr int kHandshakeMilliseconds = 10000;  // of a peer that begins one and does not go on
constexpr int64_t kLongestFrame = kPieceBytes + static_cast<int64_t>(kHeaderBytes);
constexpr size_t kKeyText = 41;  // 40 characters of Z85 and a zero

// Nothing is waited for, and nothing is held that none of ours sends: the library ends a connection before it takes a longer
// frame.
void set_limits(zmq::socket_t& socket) {
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::sndhwm, 0);  // what is on its way is bounded by kPiecesInFlight
    socket.set(zmq::sockopt::rcvhwm, 0);
    socket.set(zmq::sockopt::maxmsgsize, kLongestFrame);
    socket.set(zmq::sockopt::handshake_ivl, kHandshakeMilliseconds);
    socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMilliseconds);
}

void send_message(zmq::socket_t& socket, const std::string* to, Header& header, std::span<const char> bytes) {
    header.checksum = checksum({bytes.data(), bytes.size()});
    if (to) socket.send(zmq::buffer(*to), zmq::send_flags::sndmore);
    socket.send(zmq::buffer(to_bytes(header)), zmq::send_flags::sndmore);
    socket.send(zmq::const_buffer(bytes.data(), bytes.size()), zmq::send_flags::none);
}

// The frames of one message; nothing where it is none of ours. Of what has more frames the first ones are kept.
struct Frames {
    zmq::message_t from, header, bytes;
};
std::optional<std::pair<Frames, Header>> receive_message(zmq::socket_t& socket, bool with_sender) {
    Frames frames;
    std::vector<zmq::message_t*> places = {&frames.header, &frames.bytes};
    if (with_sender) places.insert(places.begin(), &frames.from);
    size_t count = 0;
    for (bool more = true; more; ++count) {
        zmq::message_t frame;
        if (!socket.recv(frame, zmq::recv_flags::dontwait)) return std::nullopt;
        more = frame.more();
        if (count < places.size()) *places[count] = std::move(frame);
    }
    if (count != places.size()) return std::nullopt;
    Header h;
    if (!from_bytes(frames.header.to_string_view(), h)) return std::nullopt;
    if (checksum(frames.bytes.to_string_view()) != h.checksum) return std::nullopt;
    return std::pair(std::move(frames), std::move(h));
}

// A signal is as if nothing had come.
void poll(std::span<zmq::pollitem_t> items, int milliseconds) {
    try {
        zmq::poll(items.data(), items.size(), std::chrono::milliseconds(milliseconds));
    } catch (const zmq::error_t& e) {
        if (e.num() != EINTR) throw;
        for (zmq::pollitem_t& item : items) item.revents = 0;
    }
}

}  // namespace

KeyPair new_keys() {
    std::array<char, kKeyText> own{}, secret{};
    ensure(zmq_curve_keypair(own.data(), secret.data()) == 0, "this ZeroMQ was built without CurveZMQ");
    return {own.data(), secret.data()};
}

struct MemberSocket::Parts {
    zmq::context_t context{1};
    zmq::socket_t socket{context, zmq::socket_type::dealer};
};

MemberSocket::MemberSocket(const Invitation& invitation) : parts_(std::make_unique<Parts>()) {
    zmq::socket_t& s = parts_->socket;
    set_limits(s);
    s.set(zmq::sockopt::curve_serverkey, invitation.service_key);
    s.set(zmq::sockopt::curve_publickey, invitation.public_key);
    s.set(zmq::sockopt::curve_secretkey, invitation.secret_key);
    try {
        s.connect(invitation.address);
    } catch (const zmq::error_t& e) {
        throw UserError("islands.invitation", kInvitation,
                        fmt::format("{}: islands cannot meet at {}: {}", kInvitation, invitation.address, e.what()));
    }
}
MemberSocket::~MemberSocket() = default;

void MemberSocket::send(Header header, std::span<const char> bytes) { send_message(parts_->socket, nullptr, header, bytes); }

bool MemberSocket::receive(int milliseconds, const std::function<void(const Header&, std::span<const char>)>& f) {
    zmq::pollitem_t items[] = {{parts_->socket.handle(), 0, ZMQ_POLLIN, 0}};
    poll(items, milliseconds);
    if (!(items[0].revents & ZMQ_POLLIN)) return false;
    const auto message = receive_message(parts_->socket, false);
    if (!message) return false;
    const auto& [frames, header] = *message;
    f(header, {static_cast<const char*>(frames.bytes.data()), frames.bytes.size()});
    return true;
}

struct ServiceSocket::Parts {
    zmq::context_t context{1};
    zmq::socket_t gate{context, zmq::socket_type::rep};  // ZAP (ZeroMQ RFC 27): who may come in
    zmq::socket_t socket{context, zmq::socket_type::router};
    std::string member_key;  // its 32 bytes
    int64_t dropped = 0;
    Invitation invitation;

    void answer_gate() {
        std::vector<zmq::message_t> request;
        do {
            request.emplace_back();
            if (!gate.recv(request.back(), zmq::recv_flags::dontwait)) return;
        } while (request.back().more());
        // version, id, domain, address, identity, mechanism, key
        const bool is_member = request.size() == 7 && request[5].to_string_view() == "CURVE" &&
                               request[6].to_string_view() == std::string_view(member_key);
        const std::string id = request.size() > 1 ? request[1].to_string() : "";
        for (const std::string& frame : {std::string("1.0"), id, std::string(is_member ? "200" : "400"),
                                         std::string(is_member ? "OK" : "no such key"), std::string()})
            gate.send(zmq::buffer(frame), zmq::send_flags::sndmore);
        gate.send(zmq::message_t(), zmq::send_flags::none);
    }
};

ServiceSocket::ServiceSocket(const std::string& host, int port) : parts_(std::make_unique<Parts>()) {
    const KeyPair service = new_keys(), member = new_keys();
    Parts& p = *parts_;
    p.member_key.resize(32);
    ensure(zmq_z85_decode(reinterpret_cast<uint8_t*>(p.member_key.data()), member.public_key.c_str()) != nullptr, "Z85");
    p.gate.bind("inproc://zeromq.zap.01");
    set_limits(p.socket);
    p.socket.set(zmq::sockopt::curve_server, true);
    p.socket.set(zmq::sockopt::curve_secretkey, service.secret_key);
    try {
        const char* const interface = host == kThisHost ? kThisHost : "*";
        p.socket.bind(fmt::format("tcp://{}:{}", interface, port == 0 ? "*" : std::to_string(port)));
    } catch (const zmq::error_t& e) {
        throw UserError("launch.meet_at", "--meet-at",
                        fmt::format("launch: islands cannot meet at port {} of this host: {}; give another one with --meet-at "
                                    "host:port, or none, for one that is free",
                                    port, e.what()));
    }
    const std::string at = p.socket.get(zmq::sockopt::last_endpoint);
    p.invitation = {fmt::format("tcp://{}:{}", host, at.substr(at.rfind(':') + 1)), service.public_key, member.public_key,
                    member.secret_key};
}
ServiceSocket::~ServiceSocket() = default;

const Invitation& ServiceSocket::invitation() const { return parts_->invitation; }
int64_t ServiceSocket::dropped() const { return parts_->dropped; }

void ServiceSocket::send(const std::string& to, Header header, std::span<const char> bytes) {
    send_message(parts_->socket, &to, header, bytes);
}

bool ServiceSocket::receive(int milliseconds, const std::function<void(const std::string&, const Header&, std::string)>& f) {
    Parts& p = *parts_;
    zmq::pollitem_t items[] = {{p.gate.handle(), 0, ZMQ_POLLIN, 0}, {p.socket.handle(), 0, ZMQ_POLLIN, 0}};
    poll(items, milliseconds);
    if (items[0].revents & ZMQ_POLLIN) p.answer_gate();
    if (!(items[1].revents & ZMQ_POLLIN)) return false;
    const auto message = receive_message(p.socket, true);
    if (!message) {
        ++p.dropped;
        return false;
    }
    const auto& [frames, header] = *message;
    f(frames.from.to_string(), header, frames.bytes.to_string());
    return true;
}

}  // namespace lockstep::comm::islands
