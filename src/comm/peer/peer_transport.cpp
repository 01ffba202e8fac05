#include "comm/peer/peer_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "comm/launch.h"
#include "comm/local_copy.h"
#include "comm/peer/memory.h"
#include "device/device.h"

namespace lockstep::comm::peer {
namespace {

using Ranks = std::vector<int>;

// Of another member, as this one reaches it.
struct Peer {
    char* ready = nullptr;  // words in its page that are this member's to set
    char* full = nullptr;
    char* room = nullptr;   // of the queue
    char* arena = nullptr;  // null: its program is another
};

// Of a group in a queue.
struct Use {
    int64_t words = -1;       // the first of two a member, in the own page: ready, then full; -1: nothing goes by peers
    std::vector<Peer> peers;  // by position
    bool is_symmetric = false;
};

struct Room {
    ExchangeScratch scratch;
    int64_t at = 0;  // in the rooms of the page
};

struct Piece {
    Rows rows;
    const char* from;
    char* to;
};
using Pieces = std::vector<std::vector<Piece>>;  // by position

class PeerTransport final : public Transport {
public:
    PeerTransport(ProcessGroup& group, std::unique_ptr<Transport> others, const Moves& moves, const ExchangeOptions& options)
        : group_(group), others_(std::move(others)), moves_(moves), options_(options) {
        ensure(others_->ranks_here() == 1, "comm/peer: a process has one rank");
    }
    // Memory that others have open is freed once they have closed it.
    ~PeerTransport() override {
        opened_.clear();
        try {
            if (page_ && !aborted_) group_.exchange("");
        } catch (const std::exception&) {  // others have stopped
        }
    }

    int ranks() const override { return others_->ranks(); }
    int first_rank() const override { return others_->first_rank(); }
    int ranks_here() const override { return 1; }
    const mesh::Topology& topology() const override { return others_->topology(); }
    std::unique_ptr<Communicator> communicator(int rank) override;

    void abort(const std::string& reason) override {
        {
            const std::lock_guard lock(mutex_);
            if (!aborted_) aborted_ = true, reason_ = reason;
            if (page_) page_->let_go();
        }
        others_->abort(reason);
    }
    void throw_if_aborted() {
        const std::lock_guard lock(mutex_);
        if (aborted_) throw Aborted(reason_);
    }

    // For as long as the transport.
    Page& make_page(int64_t words, int64_t room_bytes) {
        auto page = std::make_unique<Page>(words, room_bytes);
        const std::lock_guard lock(mutex_);
        if (aborted_) throw Aborted(reason_);
        page_ = std::move(page);
        return *page_;
    }
    char* open(const std::string& exported) {
        const auto [at, is_new] = opened_.try_emplace(exported);
        if (is_new) at->second = std::make_unique<Opened>(exported);
        return at->second->base();
    }
    ProcessGroup& group() { return group_; }
    const Moves& moves() const { return moves_; }
    const ExchangeOptions& options() const { return options_; }

private:
    ProcessGroup& group_;
    const std::unique_ptr<Transport> others_;
    const Moves& moves_;
    const ExchangeOptions options_;
    std::map<std::string, std::unique_ptr<Opened>> opened_;
    std::mutex mutex_;  // guards what follows
    std::unique_ptr<Page> page_;
    bool aborted_ = false;
    std::string reason_;
};

class PeerCommunicator final : public Communicator {
public:
    PeerCommunicator(PeerTransport& transport, std::unique_ptr<Communicator> others)
        : transport_(transport), others_(std::move(others)) {}

    int rank() const override { return others_->rank(); }
    int ranks() const override { return others_->ranks(); }
    int position(GroupId id) const override { return others_->position(id); }
    int members(GroupId id) const override { return others_->members(id); }
    void abort(const std::string& reason) override { transport_.abort(reason); }
    bool may_be_captured() const override { return waits_are_recorded_ && others_->may_be_captured(); }

    // Groups have the numbers of the other transport.
    GroupId add_group(Ranks ranks) override {
        const GroupId id = others_->add_group(ranks);
        const auto place = static_cast<size_t>(id);
        ensure(!page_ || place < memberships_.size() || ranks.size() == 1, "add_group: groups are made before the first launch");
        if (place >= memberships_.size()) memberships_.resize(place + 1);
        memberships_[place].ranks = std::move(ranks);
        return id;
    }
    void use(GroupId id, QueueName queue, bool by_peers) override {
        Membership& m = memberships_.at(static_cast<size_t>(id));
        if (!by_peers || m.ranks.size() == 1) return others_->use(id, queue, by_peers);
        ensure(!page_, "use: said before the first launch");
        m.uses[queue].words = 0;
    }
    void expose(char* arena, int64_t bytes, const std::string& plan) override {
        arena_ = arena, arena_bytes_ = bytes, plan_ = plan;
        others_->expose(arena, bytes, plan);
    }

    void connect() override {
        others_->connect();
        lay_out_page();
        ProcessGroup& processes = transport_.group();
        const std::vector<std::string> said = processes.exchange(json_text(own_layout()));
        const std::vector<std::string> pages = processes.exchange(page_->exported());
        const std::vector<std::string> arenas = processes.exchange(arena_ ? exported(arena_) : "");
        std::vector<nlohmann::json> layouts;
        for (const std::string& text : said) layouts.push_back(parse_json<nlohmann::json>(text));
        for (Membership& m : memberships_) {
            for (QueueName queue : kQueuesOfSteps) {
                if (Use& use = m.uses[queue]; use.words >= 0) reach(m, queue, layouts, pages, arenas);
            }
        }
        waits_are_recorded_ = waits_can_be_recorded(page_->word(0));
    }

    using Communicator::run;
    void run(device::Queue& queue, GroupId id, Requests requests) override {
        if (requests.empty() || !requests[0].by_peers || members(id) == 1) return others_->run(queue, id, requests);
        transport_.throw_if_aborted();
        Membership& self = memberships_.at(static_cast<size_t>(id));
        const int position = this->position(id), members = this->members(id);
        uint32_t& in_flight = self.in_flight[queue.index()];
        if (const auto wrong = wrong_launch(rank(), queue.index(), requests, position, members, in_flight)) {
            transport_.abort(*wrong);
            throw InternalError(*wrong);
        }
        const Use& use = self.uses[queue.name()];
        ensure(use.words >= 0 && page_, "comm/peer: a launch in a queue that the group does not use");
        const std::optional<Collective> kind = one_sided(requests);
        if (kind == Collective::Send) ++in_flight;
        if (kind == Collective::Wait) --in_flight;
        Wire wire(*this, queue, use, position, kind.has_value());
        const Exchange<Wire> exchange(wire, transport_.moves(), queue, rooms_[queue.name()].scratch, members, position,
                                      transport_.options());
        for (const Request& r : requests) {
            ensure(r.by_peers, "comm/peer: some requests of a launch go by peers, and others do not");
            exchange.move(r);
        }
        wire.launch();
        for (const Request& r : requests) exchange.reduce(r);
    }

private:
    struct Membership {
        Ranks ranks;
        ByStepQueue<Use> uses;
        uint32_t in_flight[kChannels] = {};  // launches of sends that were not waited for
    };

    // Words for each group and queue, and a room for each queue.
    void lay_out_page() {
        int64_t words = 0, room = 0;
        ByStepQueue<bool> used{};
        for (Membership& m : memberships_) {
            for (QueueName queue : kQueuesOfSteps) {
                if (m.uses[queue].words < 0) continue;
                m.uses[queue].words = words, used[queue] = true;
                words += 2 * static_cast<int64_t>(m.ranks.size());
                for (Pieces* pieces : {&sends_[queue], &receives_[queue]})
                    pieces->resize(std::max(pieces->size(), m.ranks.size()));
            }
        }
        for (QueueName queue : kQueuesOfSteps) {
            if (used[queue]) rooms_[queue].at = std::exchange(room, room + transport_.options().scratch_bytes);
        }
        page_ = &transport_.make_page(words, room);
        for (QueueName queue : kQueuesOfSteps) {
            if (used[queue]) rooms_[queue].scratch.memory = page_->room() + rooms_[queue].at;
        }
    }

    nlohmann::json own_layout() const {
        nlohmann::json uses = nlohmann::json::array(), rooms = nlohmann::json::array();
        for (const Membership& m : memberships_) {
            for (QueueName queue : kQueuesOfSteps) {
                if (m.uses[queue].words >= 0)
                    uses.push_back({static_cast<int>(queue), m.ranks, page_->word_at(m.uses[queue].words)});
            }
        }
        for (QueueName queue : kQueuesOfSteps) rooms.push_back(page_->room_at() + rooms_[queue].at);
        return {{"plan", plan_}, {"uses", uses}, {"rooms", rooms}};
    }

    void reach(Membership& m, QueueName queue, const std::vector<nlohmann::json>& layouts, const std::vector<std::string>& pages,
               const std::vector<std::string>& arenas) {
        Use& use = m.uses[queue];
        const auto layout_of = [&](int rank) -> const nlohmann::json& { return layouts[static_cast<size_t>(rank)]; };
        use.is_symmetric = arena_ && std::ranges::all_of(m.ranks, [&](int rank) { return layout_of(rank)["plan"] == plan_; });
        const int own = position_in(m.ranks, rank());
        for (size_t k = 0; k < m.ranks.size(); ++k) {
            Peer& peer = use.peers.emplace_back();
            if (static_cast<int>(k) == own) continue;
            const nlohmann::json& layout = layout_of(m.ranks[k]);
            const auto its = std::ranges::find_if(layout["uses"], [&](const nlohmann::json& u) {
                return u[0].get<int>() == static_cast<int>(queue) && u[1].get<Ranks>() == m.ranks;
            });
            ensure(its != layout["uses"].end(),
                   fmt::format("comm/peer: rank {} does not use the group of ranks {} as rank {} does", m.ranks[k],
                               fmt::join(m.ranks, " "), rank()));
            char* const page = transport_.open(pages[static_cast<size_t>(m.ranks[k])]);
            constexpr auto kWord = static_cast<int64_t>(sizeof(uint32_t));
            peer.ready = page + (*its)[2].get<int64_t>() + 2 * own * kWord, peer.full = peer.ready + kWord;
            peer.room = page + layout["rooms"][static_cast<size_t>(queue)].get<int64_t>();
            if (use.is_symmetric) peer.arena = transport_.open(arenas[static_cast<size_t>(m.ranks[k])]);
        }
    }

    // What a launch moves. Members take turns in rounds: of copies to where the bytes belong there is one, of those by the room one
    // for each chunk.
    class Wire {
    public:
        Wire(PeerCommunicator& own, device::Queue& queue, const Use& use, int position, bool is_one_sided)
            : own_(own),
              queue_(queue),
              use_(use),
              position_(position),
              members_(static_cast<int>(use.peers.size())),
              room_(own.rooms_[queue.name()].scratch.memory),
              share_(own.transport_.options().scratch_bytes / members_ / kAlignmentBytes * kAlignmentBytes),
              is_one_sided_(is_one_sided),
              sends_(own.sends_[queue.name()]),
              receives_(own.receives_[queue.name()]) {}

        void send(const Rows& rows, const void* from, int to, void* there) {
            sends_[static_cast<size_t>(to)].push_back({rows, static_cast<const char*>(from), static_cast<char*>(there)});
        }
        void receive(const Rows& rows, void* to, int from) {
            receives_[static_cast<size_t>(from)].push_back({rows, nullptr, static_cast<char*>(to)});
        }

        void launch() {
            bool more = true;
            for (int64_t round = 0; more; ++round) {
                more = false;
                const auto each = [&](Pieces& pieces, const auto& f) {  // first the one before this
                    for (int step = 1; step < members_; ++step) {
                        const int k = (position_ - step + members_) % members_;
                        if (rounds_of(pieces[static_cast<size_t>(k)]) > round) more = true, f(k, peer(k));
                    }
                };
                each(receives_, [&](int, const Peer& p) { say(p.ready); });
                each(sends_, [&](int k, const Peer& p) {
                    wait_for_word(2 * k);
                    for_piece(sends_[static_cast<size_t>(k)], round,
                              [&](const Piece& piece, int64_t begin, int64_t bytes) { give(p, piece, begin, bytes); });
                    say(p.full);
                });
                each(receives_, [&](int k, const Peer&) {
                    wait_for_word(2 * k + 1);
                    for_piece(receives_[static_cast<size_t>(k)], round, [&](const Piece& piece, int64_t begin, int64_t bytes) {
                        if (!is_direct(piece)) take(k, piece, begin, bytes);
                    });
                });
            }
            for (Pieces* pieces : {&sends_, &receives_}) {
                for (std::vector<Piece>& of_member : *pieces) of_member.clear();
            }
        }

    private:
        const Peer& peer(int k) const { return use_.peers[static_cast<size_t>(k)]; }
        static int64_t bytes_of(const Piece& piece) { return piece.rows.count * piece.rows.bytes; }
        bool is_in_room(const char* p) const { return p >= room_ && p < room_ + own_.transport_.options().scratch_bytes; }
        // The same at sender and receiver.
        bool is_direct(const Piece& piece) const { return is_in_room(piece.to) || (use_.is_symmetric && !is_one_sided_); }
        int64_t chunks_of(const Piece& piece) const { return is_direct(piece) ? 1 : ceil_div(bytes_of(piece), share_); }
        int64_t rounds_of(const std::vector<Piece>& pieces) const {
            if (pieces.empty() || is_direct(pieces[0])) return pieces.empty() ? 0 : 1;
            int64_t rounds = 0;
            for (const Piece& piece : pieces) rounds += chunks_of(piece);
            return rounds;
        }
        // f(piece, from its byte, how many), of a round: all, where they go to their places; else a chunk of one.
        template <class F>
        void for_piece(const std::vector<Piece>& pieces, int64_t round, const F& f) const {
            for (const Piece& piece : pieces) {
                if (is_direct(piece)) {
                    f(piece, 0, bytes_of(piece));
                } else if (const int64_t chunks = chunks_of(piece); round >= chunks) {
                    round -= chunks;
                } else {
                    return f(piece, round * share_, std::min(share_, bytes_of(piece) - round * share_));
                }
            }
        }

        void say(char* word) const { copy(one_row(sizeof(uint32_t)), own_.page_->set(), word); }
        void wait_for_word(int64_t index) const {
            uint32_t* const word = own_.page_->word(use_.words + index);
            wait_for(queue_, word);
            queue_.device().fill(queue_, word, 0, sizeof *word);
        }

        void give(const Peer& p, const Piece& piece, int64_t begin, int64_t bytes) const {
            if (is_in_room(piece.to)) return copy(piece.rows, piece.from, p.room + (piece.to - room_));
            if (is_direct(piece)) {
                ensure(piece.to >= own_.arena_ && piece.to < own_.arena_ + own_.arena_bytes_,
                       "comm/peer: a buffer outside the arena");
                return copy(piece.rows, piece.from, p.arena + (piece.to - own_.arena_));
            }
            for_rows(piece.rows.bytes, piece.rows.from_stride, begin, bytes, [&](int64_t place, int64_t at, int64_t count) {
                copy(one_row(count), piece.from + place, p.room + position_ * share_ + at);
            });
        }
        void take(int k, const Piece& piece, int64_t begin, int64_t bytes) const {
            for_rows(piece.rows.bytes, piece.rows.to_stride, begin, bytes, [&](int64_t place, int64_t at, int64_t count) {
                copy(one_row(count), room_ + k * share_ + at, piece.to + place);
            });
        }
        static Rows one_row(int64_t bytes) { return {1, bytes, bytes, bytes}; }
        void copy(const Rows& rows, const void* from, void* to) const {
            copy_rows(queue_, rows.count, rows.bytes, rows.from_stride, rows.to_stride, from, to);
        }

        PeerCommunicator& own_;
        device::Queue& queue_;
        const Use& use_;
        const int position_, members_;
        char* const room_;
        const int64_t share_;  // of the room, of a member
        const bool is_one_sided_;
        Pieces &sends_, &receives_;
    };

    PeerTransport& transport_;
    const std::unique_ptr<Communicator> others_;
    std::vector<Membership> memberships_;
    Page* page_ = nullptr;  // after connect()
    ByStepQueue<Room> rooms_;
    ByStepQueue<Pieces> sends_, receives_;  // of the launch that is given; kept, so that it allocates nothing
    char* arena_ = nullptr;
    int64_t arena_bytes_ = 0;
    std::string plan_;
    bool waits_are_recorded_ = false;
};

std::unique_ptr<Communicator> PeerTransport::communicator(int rank) {
    return std::make_unique<PeerCommunicator>(*this, others_->communicator(rank));
}

}  // namespace

std::unique_ptr<Transport> transport(ProcessGroup& group, std::unique_ptr<Transport> others, const Moves& moves,
                                     const ExchangeOptions& options) {
    return std::make_unique<PeerTransport>(group, std::move(others), moves, options);
}

}  // namespace lockstep::comm::peer
