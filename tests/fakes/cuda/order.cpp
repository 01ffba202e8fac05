#include "tests/fakes/cuda/order.h"

#include <algorithm>
#include <utility>

namespace lockstep::fakes::cuda {

struct Order::Place {
    device::Scheduler::Ticket ticket;  // set once, when the piece is given to the scheduler
    std::string what;                  // of a promise that is not kept
};

// Lives as long as its thread.
struct Order::Participant {
    Mark awaited;
};

std::shared_ptr<Order::Participant>& Order::this_thread() {
    static thread_local auto participant = std::make_shared<Participant>();
    return participant;
}

int Order::add_queue() {
    const Lock lock(mutex_);
    queues_.emplace_back();
    return scheduler_.add_queue();
}

void Order::wait(int queue, Mark mark) {
    const Lock lock(mutex_);
    queues_.at(static_cast<size_t>(queue)).waits.push_back(std::move(mark));
}

Order::Mark Order::give(int queue, Work work) {
    Lock lock(mutex_);
    auto mark = std::make_shared<Place>();
    append(queues_.at(static_cast<size_t>(queue)), {mark, {}, std::move(work)}, lock);
    return mark;
}

void Order::give_when(int queue, std::string what, device::Scheduler::Condition condition) {
    Lock lock(mutex_);
    std::erase_if(conditions_, [&](const Mark& mark) { return mark->ticket && scheduler_.has_run(mark->ticket); });
    auto mark = std::make_shared<Place>();
    mark->what = std::move(what);
    conditions_.push_back(mark);
    append(queues_.at(static_cast<size_t>(queue)), {mark, {}, nullptr, std::move(condition)}, lock);
}

Order::Mark Order::last(int queue) {
    Lock lock(mutex_);
    Queue& q = queues_.at(static_cast<size_t>(queue));
    if (q.waits.empty()) return q.last;
    auto mark = std::make_shared<Place>();
    append(q, {mark, {}, nullptr}, lock);
    return mark;
}

Order::Mark Order::promise(std::string what) {
    const Lock lock(mutex_);
    auto mark = std::make_shared<Place>();
    mark->what = std::move(what);
    promises_.push_back(mark);
    return mark;
}

void Order::reword(const Mark& promised, std::string what) {
    const Lock lock(mutex_);
    promised->what = std::move(what);
}

void Order::keep(const Mark& promised, int queue, Work work) {
    Lock lock(mutex_);
    std::erase_if(promises_, [&](const std::weak_ptr<Place>& p) { return p.expired() || p.lock() == promised; });
    append(queues_.at(static_cast<size_t>(queue)), {promised, {}, std::move(work)}, lock);
}

void Order::append(Queue& queue, Piece piece, Lock& lock) {
    piece.waits = std::exchange(queue.waits, {});
    queue.last = piece.mark;
    last_given_ = Clock::now();
    queue.held.push_back(std::move(piece));
    for (bool gave = true; gave;) {  // each piece may free others
        gave = false;
        for (size_t i = 0; i < queues_.size(); ++i) gave |= give_front(static_cast<int>(i), lock);
    }
    changed_.notify_all();
}

bool Order::give_front(int queue, Lock& lock) {
    const auto given = [](const Mark& m) { return m->ticket != nullptr; };
    Queue& q = queues_[static_cast<size_t>(queue)];
    if (q.giving || q.held.empty() || !std::all_of(q.held.front().waits.begin(), q.held.front().waits.end(), given)) return false;
    Piece piece = std::move(q.held.front());
    q.held.pop_front();
    q.giving = true;
    lock.unlock();  // the scheduler may run a piece
    for (const Mark& mark : piece.waits) scheduler_.wait(queue, mark->ticket);
    device::Scheduler::Ticket ticket = scheduler_.give(queue, std::move(piece.work), std::move(piece.condition));
    lock.lock();
    piece.mark->ticket = std::move(ticket);
    q.giving = false;
    return true;
}

bool Order::done(const Mark& mark) {
    Lock lock(mutex_);
    if (!mark->ticket) return false;
    lock.unlock();
    return scheduler_.done(mark->ticket);
}

// Whether nothing can end a wait that began at `start`. A thread that gives a piece may yet give more.
bool Order::in_vain(Clock::time_point start) const {
    const auto gives = [](const Queue& q) { return q.giving; };
    const auto waits = [](const std::weak_ptr<Participant>& p) {
        const std::shared_ptr<Participant> thread = p.lock();
        return !thread || (thread->awaited && !thread->awaited->ticket);
    };
    if (std::any_of(queues_.begin(), queues_.end(), gives)) return false;
    if (Clock::now() - std::max(start, last_given_) > patience_) return true;
    return expected_ == 0 && std::all_of(participants_.begin(), participants_.end(), waits);
}

bool Order::run_until(const Mark& mark) {
    const Clock::time_point start = Clock::now();
    Lock lock(mutex_);
    this_thread()->awaited = mark;
    while (!mark->ticket && !stuck_) {
        stuck_ = in_vain(start);
        // With a limit, because nobody says when a thread has ended.
        if (!stuck_) changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
    this_thread()->awaited = nullptr;
    changed_.notify_all();
    if (!mark->ticket) return false;
    for (;;) {
        lock.unlock();
        if (scheduler_.run_until(mark->ticket)) return true;
        lock.lock();
        // Until a thread gives what makes a condition hold.
        stuck_ = stuck_ || Clock::now() - std::max(start, last_given_) > patience_;
        if (stuck_) return false;
        changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
}

void Order::take_part() {
    const Lock lock(mutex_);
    const auto is_this = [](const std::weak_ptr<Participant>& p) { return p.lock() == this_thread(); };
    if (std::none_of(participants_.begin(), participants_.end(), is_this)) participants_.push_back(this_thread());
}

void Order::expect(int threads) {
    const Lock lock(mutex_);
    expected_ += threads;
}

void Order::set_patience(std::chrono::milliseconds patience) {
    const Lock lock(mutex_);
    patience_ = patience;
}

std::string Order::unkept() {
    const Lock lock(mutex_);
    std::string text;
    const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
    for (const std::weak_ptr<Place>& p : promises_) {
        if (const Mark mark = p.lock()) add(mark->what);
    }
    for (const Mark& mark : conditions_) {
        if (!mark->ticket || !scheduler_.has_run(mark->ticket)) add(mark->what);
    }
    return text;
}

}  // namespace lockstep::fakes::cuda
