// The order of work on devices: device/scheduler.h, where a piece may also wait for one that another thread gives later. A piece
// is held back until all that it waits for has been given; then the scheduler may run it. Threads that give what others wait for
// take part. If each of those that live waits for a piece that is held back, and no more are expected, nothing can end that, and
// the waits fail; so they do if nobody gives a piece for long. A piece runs in any thread that gives or waits, so no lock that
// work takes may be held over a call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/scheduler.h"

namespace lockstep::fakes::cuda {

class Order {
public:
    struct Place;
    using Mark = std::shared_ptr<Place>;  // of a piece of work
    using Work = std::function<void()>;   // must not throw

    explicit Order(uint64_t seed) : scheduler_(seed) {}

    int add_queue();
    // What is given to the queue from now on runs after that piece.
    void wait(int queue, Mark mark);
    // Without work: a place behind what the queue was given, and what it was told to wait for.
    Mark give(int queue, Work work = nullptr);
    // A place that the queue comes to only while a condition holds, which other pieces bring about. If nobody gives a piece for
    // long, and nothing can run, waits fail. `what` it waits for.
    void give_when(int queue, std::string what, device::Scheduler::Condition condition);
    // Of all that the queue was given and told to wait for; null: nothing.
    Mark last(int queue);

    // Of a piece that will be given later. `what` is the message of a wait for it that cannot end.
    Mark promise(std::string what);
    void reword(const Mark& promised, std::string what);
    void keep(const Mark& promised, int queue, Work work);

    bool done(const Mark& mark);
    // False: the piece will never run.
    bool run_until(const Mark& mark);
    // The calling thread may give what others wait for.
    void take_part();
    // Changes by `threads` how many threads may do so that have not yet.
    void expect(int threads);
    void set_patience(std::chrono::milliseconds patience);
    std::string unkept();  // what each promise says that is not kept, and what places wait for that no queue has come to

private:
    struct Piece {
        Mark mark;
        std::vector<Mark> waits;
        Work work;
        device::Scheduler::Condition condition = nullptr;
    };
    struct Queue {
        std::deque<Piece> held;
        std::vector<Mark> waits;  // of the next piece
        Mark last;
        bool giving = false;  // some thread gives the scheduler a piece of it
    };
    struct Participant;
    using Lock = std::unique_lock<std::mutex>;
    using Clock = std::chrono::steady_clock;

    static std::shared_ptr<Participant>& this_thread();
    void append(Queue& queue, Piece piece, Lock& lock);
    bool give_front(int queue, Lock& lock);
    bool in_vain(Clock::time_point start) const;

    device::Scheduler scheduler_;
    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    std::deque<Queue> queues_;
    std::vector<std::weak_ptr<Place>> promises_;
    std::vector<Mark> conditions_;  // places of queues that have not come to them
    std::vector<std::weak_ptr<Participant>> participants_;
    int expected_ = 0;
    std::chrono::milliseconds patience_ = std::chrono::minutes(1);
    Clock::time_point last_given_ = Clock::now();
    bool stuck_ = false;
};

}  // namespace lockstep::fakes::cuda
