// Runs queues of work late: a piece runs only when a thread waits for something, or by chance when work is given. A seed
// chooses the next queue among those whose next piece waits for nothing. Code that is right only because a device happens to be
// slow or fast fails here. The scheduler knows nothing of memory or kernels, so fakes of other devices are built on it. A piece
// waits only for pieces that were given before it, so every wait ends, but for pieces that also have a condition. Pieces of one
// queue never overlap; pieces of several queues do if several threads wait. With one thread a seed repeats its order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

namespace lockstep::device {

class Scheduler {
public:
    struct Piece;
    using Ticket = std::shared_ptr<const Piece>;  // of a piece of work

    explicit Scheduler(uint64_t seed);
    ~Scheduler();  // what has not run never runs
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    // All of these from any thread.
    int add_queue();
    // Work, or nothing but a place in the queue: behind what the queue was given, and what it was asked to wait for. Must not
    // throw. A piece with a condition runs only while that holds, which other pieces bring about; it is asked at any time.
    using Condition = std::function<bool()>;
    Ticket give(int queue, std::function<void()> work = nullptr, Condition condition = nullptr);
    // What is given to the queue from now on runs after that piece.
    void wait(int queue, Ticket ticket);
    // May run one piece.
    bool done(const Ticket& ticket);
    bool has_run(const Ticket& ticket);  // runs none
    // Returns when the piece has run. False: nothing can run until a condition holds.
    bool run_until(const Ticket& ticket);

private:
    struct Queue {
        std::deque<std::shared_ptr<Piece>> pieces;  // that have not run to their end
        std::vector<Ticket> waits;                  // of the next piece
        bool lags = false;                          // runs only where no other can
        uint64_t rank = 0;                          // among those that could go on the highest does
    };

    std::shared_ptr<Piece> next();
    void run(std::shared_ptr<Piece> piece, std::unique_lock<std::mutex>& lock);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::mt19937_64 random_;
    const uint64_t pieces_of_an_order_;  // on average, before another order of queues is drawn
    std::deque<Queue> queues_;
    int running_ = 0;
};

}  // namespace lockstep::device
