#include "device/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace lockstep::device {
namespace {

constexpr uint64_t kGivenForOneRun = 8;         // on average, before giving runs a piece
constexpr uint64_t kQueuesForOneThatLags = 12;  // on average, one that runs only where no other can

}  // namespace

struct Scheduler::Piece {
    std::function<void()> work;
    std::vector<Ticket> before;
    int queue;
    Condition condition;
    bool running = false, done = false;
};

// Some seeds let queues take turns, others let one lag behind for long: each finds what the other misses.
Scheduler::Scheduler(uint64_t seed) : random_(seed), pieces_of_an_order_(uint64_t{1} << 2 * (random_() % 4)) {}

Scheduler::~Scheduler() {
    for (Queue& q : queues_) {
        for (const std::shared_ptr<Piece>& piece : q.pieces)
            piece->before.clear();  // a long chain would be destroyed recursively
    }
}

int Scheduler::add_queue() {
    const std::lock_guard lock(mutex_);
    Queue& q = queues_.emplace_back();
    q.lags = random_() % kQueuesForOneThatLags == 0;
    q.rank = q.lags ? 0 : random_();
    return static_cast<int>(queues_.size()) - 1;
}

Scheduler::Ticket Scheduler::give(int queue, std::function<void()> work, Condition condition) {
    std::unique_lock lock(mutex_);
    Queue& q = queues_.at(static_cast<size_t>(queue));
    auto piece = std::make_shared<Piece>(Piece{std::move(work), std::exchange(q.waits, {}), queue, std::move(condition)});
    q.pieces.push_back(piece);
    changed_.notify_all();
    if (random_() % kGivenForOneRun == 0) {
        if (auto other = next()) run(std::move(other), lock);
    }
    return piece;
}

void Scheduler::wait(int queue, Ticket ticket) {
    const std::lock_guard lock(mutex_);
    if (!ticket->done) queues_.at(static_cast<size_t>(queue)).waits.push_back(std::move(ticket));
}

std::shared_ptr<Scheduler::Piece> Scheduler::next() {
    if (random_() % pieces_of_an_order_ == 0) {
        for (Queue& q : queues_) q.rank = q.lags ? 0 : random_();
    }
    const auto is_done = [](const Ticket& t) { return t->done; };
    const Queue* best = nullptr;
    for (const Queue& q : queues_) {
        if (q.pieces.empty() || (best && q.rank < best->rank)) continue;
        const Piece& head = *q.pieces.front();
        if (!head.running && std::all_of(head.before.begin(), head.before.end(), is_done) &&
            (!head.condition || head.condition()))
            best = &q;
    }
    return best ? best->pieces.front() : nullptr;
}

void Scheduler::run(std::shared_ptr<Piece> piece, std::unique_lock<std::mutex>& lock) {
    piece->running = true;
    ++running_;
    if (piece->work) {
        lock.unlock();
        piece->work();
        lock.lock();
    }
    --running_;
    piece->running = false, piece->done = true;
    piece->work = nullptr, piece->condition = nullptr;
    piece->before.clear();
    queues_[static_cast<size_t>(piece->queue)].pieces.pop_front();
    changed_.notify_all();
}

bool Scheduler::done(const Ticket& ticket) {
    std::unique_lock lock(mutex_);
    if (ticket->done) return true;
    if (auto piece = next()) run(std::move(piece), lock);
    return ticket->done;
}

bool Scheduler::has_run(const Ticket& ticket) {
    const std::lock_guard lock(mutex_);
    return ticket->done;
}

bool Scheduler::run_until(const Ticket& ticket) {
    const auto has_condition = [](const Queue& q) { return !q.pieces.empty() && q.pieces.front()->condition; };
    std::unique_lock lock(mutex_);
    while (!ticket->done) {
        if (auto piece = next()) {
            run(std::move(piece), lock);
        } else if (running_ > 0) {
            changed_.wait(lock);
        } else {
            ensure(std::ranges::any_of(queues_, has_condition), "scheduler: nothing can run, and something is waited for");
            return false;
        }
    }
    return true;
}

}  // namespace lockstep::device
