#include "comm/islands/meetings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "comm/islands/mean.h"

namespace lockstep::comm::islands {
namespace {

constexpr double kTellSeconds = 1;
constexpr const char* kEnded = "its job has ended";
constexpr size_t kStepsKept = 4;  // islands are at one meeting, or between it and the next

using NameOfPiece = std::tuple<int64_t, int64_t, int64_t, int64_t>;
Header named(const NameOfPiece& name) {
    Header h;
    std::tie(h.step, h.rank, h.launch, h.piece) = name;
    return h;
}

}  // namespace

Meetings::Meetings(const MeetingsOptions& options, Send send, Say say)
    : options_(options), send_(std::move(send)), say_(std::move(say)), islands_(static_cast<size_t>(options.islands)) {}

std::vector<int64_t> Meetings::in_state(State state) const {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < options_.islands; ++i) {
        if (of(i).state == state) out.push_back(i);
    }
    return out;
}

void Meetings::answer(const Peer& to, Kind kind, Header h, std::span<const char> bytes, const std::string& text) {
    h.kind = kind;
    h.text = text;
    send_(to, h, bytes);
}

// ---- Coming and going.

void Meetings::expect(int64_t island, bool awaited) {
    Island& i = of(island);
    const bool is_new = i.state == State::Absent || (i.state == State::Expected && i.session == 0);
    if (!is_new) return leave(island, kEnded, true, State::Expected, awaited);
    i.state = State::Expected, i.awaited = awaited;
    begin();
}

void Meetings::lost(int64_t island) {
    if (of(island).state != State::Absent) leave(island, kEnded);
}

void Meetings::done(int64_t island) {
    if (of(island).state != State::Absent) leave(island, kEnded, false);
}

// What an island has put in counts no longer; its ranks hear why.
void Meetings::drop(Exchanges& exchanges, int64_t island, const std::string& why) {
    for (auto& [name, exchange] : exchanges) {
        const auto part = exchange.parts.find(island);
        if (part == exchange.parts.end()) continue;
        answer(part->second.from, Kind::LeftOut, named(name), {}, why);
        exchange.parts.erase(part);
    }
    std::erase_if(exchanges, [](const auto& e) { return e.second.parts.empty(); });
}

void Meetings::leave(int64_t island, const std::string& why, bool said, State next, bool awaited) {
    if (said && of(island).state == State::Present && in_state(State::Present).size() > 1)
        say_(fmt::format("island {} is left out of meetings: {}", island, why));
    of(island) = Island{.state = next, .awaited = awaited, .why_out = why};
    drop(means_, island, why), drop(copies_, island, why);
    if (transfer_ && transfer_->from == island) {
        const std::set<int64_t> takers = std::exchange(transfer_, std::nullopt)->to;
        for (const int64_t taker : takers) leave(taker, fmt::format("island {}, whose state it took, was lost", island));
    } else if (transfer_) {
        transfer_->to.erase(island), transfer_->done.erase(island);
        end_transfer();
    }
    // What waited for it may be complete.
    std::erase_if(means_, [&](const auto& e) { return try_mean(e.first, e.second); });
    std::erase_if(copies_, [&](const auto& e) { return try_copy(e.first, e.second); });
    begin();
}

// Where nobody is present and nobody is awaited: those who wait.
void Meetings::begin() {
    const std::vector<int64_t> waiting = in_state(State::Waiting), expected = in_state(State::Expected);
    const bool all_are_here = std::none_of(expected.begin(), expected.end(), [&](int64_t i) { return of(i).awaited; });
    if (waiting.empty() || !in_state(State::Present).empty() || !all_are_here) return;
    met_.clear();
    const int64_t first =
        *std::max_element(waiting.begin(), waiting.end(), [&](int64_t a, int64_t b) { return of(a).step < of(b).step; });
    const int64_t front = of(first).step;
    std::vector<int64_t> behind;
    for (const int64_t k : waiting) {
        Island& i = of(k);
        if (i.step < front || i.anchors != of(first).anchors) behind.push_back(k);
        else i.state = State::Present, i.since = front, i.takes = false;
    }
    if (static_cast<int64_t>(waiting.size()) < options_.islands)
        say_(fmt::format("of {} islands {} begin at step {}: {}", options_.islands, waiting.size(), front,
                         fmt::join(waiting, ", ")));
    if (!behind.empty()) let_in(first, front, behind);
}

void Meetings::let_in(int64_t from, int64_t step, const std::vector<int64_t>& to) {
    transfer_ = Transfer{step, from, {to.begin(), to.end()}, {}, now_s_};
    for (const int64_t k : to) {
        Island& i = of(k);
        i.state = State::Present, i.since = step, i.takes = true;
        say_(fmt::format("island {} comes in at step {} with the state of island {}", k, step, from));
    }
}

// ---- What ranks say.

void Meetings::take(const Peer& from, const Header& h, std::string bytes, double now_s) {
    now_s_ = now_s;
    if (h.island < 0 || h.island >= options_.islands || h.ranks < 1 || h.rank < 0 || h.rank >= h.ranks) return;
    switch (h.kind) {
        case Kind::Arrive: return arrive(from, h);
        case Kind::After: return after(from, h);
        case Kind::Done: return copied(h);
        case Kind::Mean:
        case Kind::Give:
        case Kind::Take: return piece(from, h, std::move(bytes));
        default: return;
    }
}

// Those that take no part are given that answer.
bool Meetings::is_member(const Peer& from, const Header& h) {
    const Island& i = of(h.island);
    if (i.session == h.session && i.state == State::Present) return true;
    answer(from, Kind::LeftOut, h, {}, i.why_out);
    return false;
}

void Meetings::arrive(const Peer& from, const Header& h) {
    Island& i = of(h.island);
    if (i.session != h.session) {
        if (i.state == State::Absent)
            return answer(from, i.refused == h.session ? Kind::Refused : Kind::LeftOut, h, {}, i.why_out);
        if (i.session != 0) leave(h.island, "its job was started again");
        const auto other = std::find_if(islands_.begin(), islands_.end(), [&](const Island& o) {
            return o.session != 0 && (o.model != h.model || o.ranks != h.ranks);
        });
        if (other != islands_.end()) {
            const std::string why = fmt::format("its states are not those of island {}: islands have one model and one layout",
                                                other - islands_.begin());
            leave(h.island, why, false);
            i.refused = h.session;
            return answer(from, Kind::Refused, h, {}, why);
        }
        i = Island{
            .state = State::Expected, .awaited = true, .session = h.session, .ranks = h.ranks, .step = h.step, .model = h.model};
    }
    i.anchors[h.rank] = h.anchor;
    if (i.state == State::Expected && static_cast<int64_t>(i.anchors.size()) == i.ranks) {
        i.state = State::Waiting;
        begin();
    }
    Header turn = h;
    turn.step = i.since;
    const bool begins = i.state == State::Present && (!transfer_ || transfer_->has(h.island));
    const bool gives = transfer_ && transfer_->from == h.island;
    answer(from, !begins ? Kind::Wait : i.takes ? Kind::DoTake : gives ? Kind::DoGive : Kind::GoOn, turn);
}

// The first rank to ask after a step's meeting is answered for all.
void Meetings::after(const Peer& from, const Header& h) {
    if (!is_member(from, h)) return;
    if (!transfer_ && met_.insert(h.step).second) {
        while (met_.size() > kStepsKept) met_.erase(met_.begin());
        const std::vector<int64_t> waiting = in_state(State::Waiting);
        if (!waiting.empty()) let_in(h.island, h.step, waiting);
    }
    const bool gives =
        transfer_ && transfer_->from == h.island && transfer_->step == h.step && !transfer_->done[h.island].contains(h.rank);
    answer(from, !transfer_ ? Kind::GoOn : gives ? Kind::DoGive : Kind::Wait, h);
}

void Meetings::piece(const Peer& from, const Header& h, std::string bytes) {
    if (!is_member(from, h)) return;
    const bool is_mean = h.kind == Kind::Mean;
    const Name name{h.step, h.rank, h.launch, h.piece};
    Exchanges& exchanges = is_mean ? means_ : copies_;
    Exchange& e = exchanges[name];
    if (e.parts.empty()) e.first_s = now_s_, e.bits = h.bits;
    const bool same_size = e.bits == h.bits && (e.parts.empty() || e.parts.begin()->second.bytes.size() == bytes.size());
    if (is_mean && (!same_size || !are_elements(bytes.size(), h.bits))) {
        const std::string why = "it sent something else to a mean than the others did";
        answer(from, Kind::LeftOut, h, {}, why);
        return leave(h.island, why);
    }
    if (!is_mean && transfer_) transfer_->moved_s = now_s_;
    e.parts[h.island] = {from, std::move(bytes)};
    if (is_mean ? try_mean(name, e) : try_copy(name, e)) exchanges.erase(name);
}

// True: it is over.
bool Meetings::try_mean(const Name& name, const Exchange& e) {
    std::vector<const std::string*> parts;
    for (const int64_t k : in_state(State::Present)) {
        if (of(k).since >= std::get<0>(name)) continue;
        const auto part = e.parts.find(k);
        if (part == e.parts.end()) return false;
        parts.push_back(&part->second.bytes);
    }
    const std::string mean = mean_of(parts, options_.islands, e.bits);
    for (const auto& [island, part] : e.parts) answer(part.from, Kind::Result, named(name), mean);
    return true;
}

bool Meetings::try_copy(const Name& name, const Exchange& e) {
    std::span<const char> bytes;
    if (transfer_) {
        const auto given = e.parts.find(transfer_->from);
        if (given == e.parts.end()) return false;
        if (std::any_of(transfer_->to.begin(), transfer_->to.end(), [&](int64_t k) { return !e.parts.contains(k); }))
            return false;
        bytes = given->second.bytes;
    }
    for (const auto& [island, part] : e.parts) {
        if (!transfer_) answer(part.from, Kind::GoOn, named(name));  // nobody takes it any more
        else answer(part.from, Kind::Result, named(name), part.bytes.empty() ? bytes : std::span<const char>());
    }
    return true;
}

void Meetings::copied(const Header& h) {
    const Island& i = of(h.island);
    if (!transfer_ || transfer_->step != h.step || !transfer_->has(h.island) || i.session != h.session) return;
    transfer_->done[h.island].insert(h.rank);
    transfer_->moved_s = now_s_;
    end_transfer();
}

bool Meetings::has_copied(int64_t island) const {
    const auto ranks = transfer_->done.find(island);
    return ranks != transfer_->done.end() && static_cast<int64_t>(ranks->second.size()) == of(island).ranks;
}

// If it is over.
void Meetings::end_transfer() {
    const auto copied = [&](int64_t k) { return has_copied(k); };
    if (transfer_->to.empty() || (copied(transfer_->from) && std::all_of(transfer_->to.begin(), transfer_->to.end(), copied))) {
        transfer_.reset();
        std::erase_if(copies_, [&](const auto& e) { return try_copy(e.first, e.second); });
    }
}

// ---- Those that keep others waiting.

// Of a transfer in which nothing moves.
std::set<int64_t> Meetings::stalled() const {
    std::set<int64_t> out;
    for (const auto& [name, e] : copies_) {
        if (!e.parts.contains(transfer_->from)) {
            out.insert(transfer_->from);
            continue;
        }
        for (const int64_t k : transfer_->to) {
            if (!e.parts.contains(k)) out.insert(k);
        }
    }
    if (!out.empty()) return out;
    for (const int64_t k : transfer_->to) {
        if (!has_copied(k)) out.insert(k);
    }
    if (out.empty()) out.insert(transfer_->from);
    return out;
}

void Meetings::look(double now_s) {
    now_s_ = now_s;
    if (now_s - told_s_ > kTellSeconds) {  // those who wait hear that somebody is here
        told_s_ = now_s;
        for (const Exchanges* exchanges : {&means_, &copies_}) {
            for (const auto& [name, e] : *exchanges) {
                for (const auto& [island, part] : e.parts) answer(part.from, Kind::Wait, named(name));
            }
        }
    }
    std::set<int64_t> late;
    for (const auto& [name, e] : means_) {
        for (const int64_t k : in_state(State::Present)) {
            const bool waited_for = of(k).since < std::get<0>(name) && !e.parts.contains(k);
            if (waited_for && now_s - e.first_s > options_.patience_s) late.insert(k);
        }
    }
    if (transfer_ && now_s - transfer_->moved_s > options_.patience_s) late.merge(stalled());
    for (const int64_t k : late) {
        if (is_present(k)) leave(k, fmt::format("it kept the others waiting for more than {:.3g} s", options_.patience_s));
    }
}

}  // namespace lockstep::comm::islands
