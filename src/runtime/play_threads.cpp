#include <pthread.h>
#include <sched.h>

#include <limits>
#include <thread>

#include "base/error.h"
#include "runtime/player.h"

namespace lockstep::runtime {
namespace {

static_assert(comm::kSendsInFlight >= ir::kSendsInFlight);

// The compute queue is played on the thread that calls start(). With communication threads each other queue of the program has
// its own; without them all are played inline, in the order of the list: the same sums in the same order. A snapshot runs on the
// thread that asks for it.
class ThreadsPlayer final : public Player {
public:
    ThreadsPlayer(Playing& playing, const ThreadsOptions& options) : playing_(playing), options_(options) {
        if (!options_.comm_thread) return;
        for (QueueName queue : others_) lanes_[queue].thread = std::thread([this, queue] { loop(queue); });
    }

    ~ThreadsPlayer() override {
        stop_ = true;
        step_.fetch_add(1);
        step_.notify_all();
        for (Lane& lane : lanes_) {
            if (lane.thread.joinable()) lane.thread.join();
        }
    }

    void start(const ir::Entry& entry) override;
    void finish() override {}

    void begin_snapshot(const ir::Entry&) override { copying_ = true; }
    void snapshot(const ir::Entry& entry) override {
        const auto end = [this] {
            copying_ = false;
            copying_.notify_all();
        };
        try {
            for (size_t i = 0; i < entry.calls.size(); ++i) run_call(entry, i, QueueName::Snapshots);
        } catch (...) {
            end();  // nobody waits for what will not come
            throw;
        }
        end();
    }
    double snapshot_wait_s() const override { return snapshot_wait_s_; }

private:
    struct Lane {                       // of a queue
        std::atomic<int> ended{-1};     // the index of its last call that has ended, of the current step
        std::atomic<uint32_t> step{0};  // steps that its thread has finished
        std::thread thread;             // none: the thread that calls start()
    };
    void run_queue(const ir::Entry& entry, QueueName queue);
    void run_call(const ir::Entry& entry, size_t index, QueueName queue);
    void loop(QueueName queue);
    void fail(QueueName queue);  // nobody waits for its calls any more
    void wait_for(QueueName queue, int call);
    void wait_for_snapshot();
    void sleep_off(double least_s);

    Playing& playing_;
    const ThreadsOptions options_;
    const std::vector<QueueName> others_ = playing_.other_queues();
    ByStepQueue<Lane> lanes_;
    std::atomic<uint32_t> step_{0};  // steps begun; the threads of the other queues sleep on it
    std::atomic<const ir::Entry*> entry_{nullptr};
    std::atomic<bool> stop_{false};
    std::atomic<bool> failed_{false};
    std::atomic<bool> copying_{false};  // a snapshot has begun and has not ended
    double snapshot_wait_s_ = 0;
    double owed_s_ = 0;  // of delays: not slept yet, or too long
};

void ThreadsPlayer::fail(QueueName queue) {
    failed_ = true;
    lanes_[queue].ended = std::numeric_limits<int>::max();
    lanes_[queue].ended.notify_all();
}

void ThreadsPlayer::wait_for_snapshot() {
    if (!copying_) return;
    const auto start = std::chrono::steady_clock::now();
    copying_.wait(true);
    snapshot_wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ThreadsPlayer::start(const ir::Entry& entry) {
    try {
        for (Lane& lane : lanes_) lane.ended = -1;
        if (options_.comm_thread) {
            entry_ = &entry;
            const uint32_t step = step_.fetch_add(1) + 1;
            step_.notify_all();
            run_queue(entry, QueueName::Compute);
            for (QueueName queue : others_) {
                std::atomic<uint32_t>& ended = lanes_[queue].step;
                for (uint32_t done = ended; done != step; done = ended) ended.wait(done);
            }
            if (failed_)  // throws Aborted with the first reason
                playing_.comm.barrier(0, playing_.comm.add_group({static_cast<int>(playing_.rank)}));
        } else {
            for (size_t i = 0; i < entry.calls.size(); ++i) run_call(entry, i, QueueName::Compute);
        }
        playing_.begin_op(QueueName::Compute, playing_.runs, nullptr, -1, -1);
    } catch (const comm::Aborted&) {
        fail(QueueName::Compute);
        throw;
    }
}

// The calls of one queue, each after those that it waits for.
void ThreadsPlayer::run_queue(const ir::Entry& entry, QueueName queue) {
    for (size_t i = 0; i < entry.calls.size(); ++i) {
        const ir::Call& call = entry.calls[i];
        if (call.queue != queue) continue;
        const bool timed = playing_.timeline && !call.waits.empty();
        const double start_s = timed ? playing_.now_s() : 0;
        for (int w : call.waits) wait_for(entry.calls[static_cast<size_t>(w)].queue, w);
        if (timed) playing_.note(queue, static_cast<int>(i), -1, start_s, playing_.now_s());
        run_call(entry, i, queue);
        lanes_[queue].ended.store(static_cast<int>(i), std::memory_order_release);
        lanes_[queue].ended.notify_all();
    }
}

void ThreadsPlayer::wait_for(QueueName queue, int call) {
    std::atomic<int>& last = lanes_[queue].ended;
    for (int ended = last.load(std::memory_order_acquire); ended < call; ended = last.load(std::memory_order_acquire)) {
        if (failed_) throw comm::Aborted("another queue of this rank failed");
        last.wait(ended);
    }
    if (failed_) throw comm::Aborted("another queue of this rank failed");
}

void ThreadsPlayer::loop(QueueName queue) {
    if (!options_.comm_cpus.empty()) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int cpu : options_.comm_cpus) CPU_SET(static_cast<size_t>(cpu), &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    for (uint32_t seen = 0;;) {
        step_.wait(seen);
        seen = step_;
        if (stop_) return;
        try {
            run_queue(*entry_.load(), queue);
            playing_.begin_op(queue, playing_.runs, nullptr, -1, -1);
        } catch (const std::exception&) {  // run_call has aborted all ranks; the compute queue says why
            fail(queue);
        }
        lanes_[queue].step = seen;
        lanes_[queue].step.notify_all();
    }
}

void ThreadsPlayer::run_call(const ir::Entry& entry, size_t index, QueueName name) {
    const ir::Call& call = entry.calls[index];
    device::Queue& queue = playing_.device.queue(name);
    const bool computes = traits_of(name).computes, of_step = traits_of(name).in_steps;
    if (ir::updates_weights(playing_.program.routines[static_cast<size_t>(call.routine)].kind)) wait_for_snapshot();
    if (playing_.debug_fill) playing_.fill_with_nan(call, queue);
    const bool timed = of_step && playing_.timeline;  // snapshots run during the step
    playing_.prepared.for_each(call, [&](const Launch& launch) {
        const double start_s = timed ? playing_.now_s() : 0;
        if (of_step) playing_.begin_op(name, playing_.runs, &entry, static_cast<int>(index), launch.index);
        try {
            playing_.comm.attend(queue);
            if (launch.kernel) {
                launch.kernel->run({launch.in, launch.out, launch.fresh, launch.workspace, queue, call.instance});
            } else if (launch.copied_bytes > 0) {
                playing_.device.copy(queue, launch.out[0], launch.in[0], launch.copied_bytes);
            } else if (launch.is_collective) {
                if (computes) sleep_off(0);
                comm::Request requests[kMaxOperands];
                playing_.comm.run(queue, launch.group, launch.requests_in(requests));
            } else if (computes) {
                owed_s_ += launch.delay_s;
                sleep_off(1e-3);
            }
        } catch (const comm::Aborted&) {
            throw;
        } catch (const std::exception& e) {
            throw playing_.failure(launch, e);
        }
        if (timed) playing_.note(name, static_cast<int>(index), launch.index, start_s, playing_.now_s());
        if (of_step) playing_.watch(launch, queue);
    });
}

// A sleep is some tens of microseconds too long: those are not slept later.
void ThreadsPlayer::sleep_off(double least_s) {
    if (owed_s_ <= least_s) return;
    const auto start = Playing::Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(owed_s_));
    owed_s_ -= std::chrono::duration<double>(Playing::Clock::now() - start).count();
}

}  // namespace

std::unique_ptr<Player> play_by_threads(Playing& playing, const ThreadsOptions& options) {
    return std::make_unique<ThreadsPlayer>(playing, options);
}

}  // namespace lockstep::runtime
