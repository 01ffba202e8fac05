// Who meets, and what they agree on: the service without its sockets (service.h). Nothing here waits or reads a clock.
//
// An island is absent, expected (its job is about to be started), waiting (all of its ranks have arrived) or present. Where
// nobody is present and nobody is awaited any more, all who wait begin at the step of the one that is furthest; others, and
// those with another anchor, take its state. Where some are present, who waits takes the state of one of them when they have
// met next; the others wait until it has. A mean is that of the islands that are present: one that is lost is left out from
// then on, and so is one that comes later than `patience_s` after the first.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/islands/message.h"

namespace lockstep::comm::islands {

struct MeetingsOptions {
    int64_t islands = 2;
    double patience_s = std::numeric_limits<double>::infinity();
};

class Meetings {
public:
    using Peer = std::string;  // a rank, as the sockets know it
    using Send = std::function<void(const Peer&, const Header&, std::span<const char>)>;
    using Say = std::function<void(const std::string&)>;  // a line for people
    Meetings(const MeetingsOptions& options, Send send, Say say);

    // An island's job is about to be started, or started again. Awaited: nobody begins without it.
    void expect(int64_t island, bool awaited = true);
    // Its job has failed, or has taken all of its steps.
    void lost(int64_t island);
    void done(int64_t island);
    // What a rank sends. What is no message of such a rank is dropped.
    void take(const Peer& from, const Header& header, std::string bytes, double now_s);
    // To be called now and then.
    void look(double now_s);

    bool is_present(int64_t island) const { return of(island).state == State::Present; }

private:
    enum class State { Absent, Expected, Waiting, Present };
    struct Island {
        State state = State::Absent;
        bool awaited = false;  // expected
        uint64_t session = 0, refused = 0;
        int64_t ranks = 0, step = 0;
        std::string model = {}, why_out = "its job has ended";
        std::map<int64_t, std::string> anchors = {};  // by rank, of those that have arrived
        int64_t since = 0;                            // it meets at later steps
        bool takes = false;                           // it begins with the state of another one
    };
    struct Part {
        Peer from;
        std::string bytes;
    };
    struct Exchange {                   // a piece of a mean, or of a state
        std::map<int64_t, Part> parts;  // by island
        int64_t bits = 0;
        double first_s = 0;
    };
    struct Transfer {  // of a state
        int64_t step = 0, from = 0;
        std::set<int64_t> to;
        std::map<int64_t, std::set<int64_t>> done;  // ranks, by island
        double moved_s = 0;                         // when somebody was last heard of
        bool has(int64_t island) const { return from == island || to.contains(island); }
    };
    using Name = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // step, rank, launch, piece
    using Exchanges = std::map<Name, Exchange>;

    Island& of(int64_t island) { return islands_.at(static_cast<size_t>(island)); }
    const Island& of(int64_t island) const { return islands_.at(static_cast<size_t>(island)); }
    std::vector<int64_t> in_state(State state) const;

    bool is_member(const Peer& from, const Header& header);
    void arrive(const Peer& from, const Header& header);
    void after(const Peer& from, const Header& header);
    void piece(const Peer& from, const Header& header, std::string bytes);
    void copied(const Header& header);

    void begin();
    void let_in(int64_t from, int64_t step, const std::vector<int64_t>& to);
    bool try_mean(const Name& name, const Exchange& exchange);
    bool try_copy(const Name& name, const Exchange& exchange);
    void drop(Exchanges& exchanges, int64_t island, const std::string& why);
    void leave(int64_t island, const std::string& why, bool said = true, State next = State::Absent, bool awaited = false);
    bool has_copied(int64_t island) const;
    void end_transfer();
    std::set<int64_t> stalled() const;
    void answer(const Peer& to, Kind kind, Header question, std::span<const char> bytes = {}, const std::string& text = {});

    const MeetingsOptions options_;
    const Send send_;
    const Say say_;
    std::vector<Island> islands_;
    Exchanges means_, copies_;
    std::optional<Transfer> transfer_;
    std::set<int64_t> met_;  // the last steps after which it was decided who comes in
    double now_s_ = 0, told_s_ = 0;
};

}  // namespace lockstep::comm::islands
