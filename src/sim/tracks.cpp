#include "sim/tracks.h"

#include "base/error.h"

namespace lockstep::sim {
namespace {

// By call of a rank whose threads are numbered from `first` on: where it is. Of calls that are waited for and do not exist: nowhere.
std::vector<Wait> places_of(const Rank& rank, size_t first) {
    std::vector<Wait> out;
    const auto hold = [&](int call) {
        if (static_cast<size_t>(call) >= out.size()) out.resize(static_cast<size_t>(call) + 1);
    };
    for (size_t t = 0; t < rank.threads.size(); ++t) {
        const std::vector<Work>& work = rank.threads[t].work;
        for (size_t w = 0; w < work.size(); ++w) {
            hold(work[w].id);
            for (const int waited : work[w].waits) hold(waited);
            out[static_cast<size_t>(work[w].id)] = {static_cast<int>(first + t), static_cast<int>(w)};
        }
    }
    return out;
}

std::vector<char> awaited_of(const Rank& rank, size_t calls) {
    std::vector<char> out(calls, 0);
    for (const Thread& t : rank.threads) {
        for (const Work& w : t.work) {
            for (const int waited : w.waits) out[static_cast<size_t>(waited)] = 1;
        }
    }
    return out;
}

bool may_follow(const Work& w) { return w.waits.empty() && w.delay_s == 0 && !w.segments->empty(); }

}  // namespace

int Tracks::pieces_of(const Work& w) {
    const auto [at, is_new] = number_of_.try_emplace(w.segments.get(), static_cast<int>(pieces_.size()));
    if (is_new) {
        const auto meets = [&](const Segment& s) { return joins(s); };
        pieces_.push_back({w.segments.get(), std::none_of(w.segments->begin(), w.segments->end(), meets)});
    }
    return at->second;
}

void Tracks::add(const Rank& rank) {
    const size_t first = tracks_.size();
    const std::vector<Wait> places = places_of(rank, first);
    const std::vector<char> awaited = awaited_of(rank, places.size());
    for (const Thread& t : rank.threads) {
        Track& track = tracks_.emplace_back();
        add_turns(track, t, places, first, rank.threads.size());
        const size_t n = t.work.size();
        track.run_end.resize(n), track.before_s.resize(n + 1);
        for (size_t w = n; w-- > 0;) {
            const bool goes_on = w + 1 < n && !awaited[static_cast<size_t>(t.work[w].id)] &&
                                 pieces(track.turns[w + 1]).meets_none && may_follow(t.work[w + 1]);
            track.run_end[w] = goes_on ? track.run_end[w + 1] : static_cast<int>(w) + 1;
        }
    }
}

void Tracks::add_turns(Track& track, const Thread& thread, const std::vector<Wait>& places, size_t first, size_t threads) {
    track.works = thread.work.data();
    track.turns.reserve(thread.work.size());
    std::vector<int> ended(threads, -1);  // by thread of the rank: the last work that has been waited for
    int& own = ended[static_cast<size_t>(&track - tracks_.data()) - first];
    for (const Work& w : thread.work) {
        for (const int waited : w.waits) {
            const Wait& at = places[static_cast<size_t>(waited)];
            if (at.thread >= 0) {
                int& last = ended[static_cast<size_t>(at.thread) - first];
                if (at.work <= last) continue;
                last = at.work;
            }
            track.waits.push_back(at);
        }
        own = static_cast<int>(track.turns.size());
        track.turns.push_back({w.not_before_s, pieces_of(w), static_cast<unsigned>(track.waits.size()), w.delay_s != 0});
    }
}

void Tracks::read_starts() {
    for (Track& track : tracks_) {
        for (size_t w = 0; w < track.turns.size(); ++w) track.turns[w].not_before_s = track.works[w].not_before_s;
    }
}

void Tracks::read_times() {
    for (Pieces& p : pieces_) {
        p.sum_s = 0, p.first = p.segments->data(), p.count = static_cast<int>(p.segments->size());
        for (const Segment& s : *p.segments) {
            ensure(s.memory_s == 0, "simulator: a device has its memory to itself");
            p.sum_s += alone_s(s);
        }
    }
    for (Track& track : tracks_) {
        for (size_t w = 0; w < track.turns.size(); ++w) track.before_s[w + 1] = track.before_s[w] + pieces(track.turns[w]).sum_s;
    }
}

}  // namespace lockstep::sim
