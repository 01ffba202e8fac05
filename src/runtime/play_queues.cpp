#include <map>
#include <new>
#include <span>
#include <thread>
#include <utility>

#include "runtime/player.h"

namespace lockstep::runtime {
namespace {

using device::Event;

class QueuesPlayer final : public Player {
public:
    explicit QueuesPlayer(Playing& playing)
        : playing_(playing),
          device_(playing.device),
          loaded_(device_.new_event()),
          begun_(device_.new_event()),
          ended_(device_.new_event()),
          launched_(device_.new_event()),
          copied_(device_.new_event()) {
        char* memory = device_.allocate(static_cast<int64_t>(kStepQueues) * kLineBytes, Place::Host);
        ensure(memory, "executor: no memory for the counters of its queues");
        const auto count = [&](QueueName queue) {
            begun_ops_[queue] = new (memory) std::atomic<uint64_t>(0);
            playing_.flight.follow(queue, begun_ops_[queue]);
            memory += kLineBytes;
        };
        count(QueueName::Compute);
        for (QueueName queue : playing_.other_queues()) {
            count(queue);
            others_.push_back({device_.queue(queue), device_.new_event()});
        }
    }

    void start(const ir::Entry& entry) override {
        device::Queue& compute = device_.queue(QueueName::Compute);
        timed_count_ = 0;
        // All begins behind what host code has written, and what host code does next is behind all.
        device_.record(device_.queue(QueueName::Loads), loaded_);
        device_.wait(compute, loaded_);
        if (const device::Graph* graph = graph_of(entry)) {
            device_.wait(compute, copied_);
            for (const OpRun& p : recorded_[&entry].begun) playing_.begin_op(p.queue, playing_.runs, p.entry, p.call, p.op);
            device_.replay(compute, *graph);
        } else {
            give(entry, Updates::Wait);
        }
        device_.record(compute, ended_);
        device_.wait(device_.queue(QueueName::Loads), ended_);
    }

    void finish() override {
        device_.finish(device_.queue(QueueName::Compute));
        if (failed_) playing_.comm.barrier(0, playing_.comm.add_group({static_cast<int>(playing_.rank)}));  // throws the reason
        note_times();
    }

    void begin_snapshot(const ir::Entry& entry) override {
        device::Queue& queue = device_.queue(QueueName::Snapshots);
        device_.record(device_.queue(QueueName::Loads), loaded_);
        device_.wait(queue, loaded_);
        for (size_t i = 0; i < entry.calls.size(); ++i) give(entry, i, queue);
        device_.record(queue, copied_);
    }
    void snapshot(const ir::Entry&) override { device_.finish(device_.queue(QueueName::Snapshots)); }
    double snapshot_wait_s() const override { return 0; }  // the host waits for none

private:
    // Whether updates wait for the snapshot that was begun last; else all that is given does so already.
    enum class Updates { Wait, Follow };

    void give(const ir::Entry& entry, Updates updates) {
        device::Queue& compute = device_.queue(QueueName::Compute);
        // All queues begin and end together.
        device_.record(compute, begun_);
        for (const Other& other : others_) device_.wait(other.queue, begun_);
        const std::vector<std::optional<Event>>& events = events_of(entry);
        for (size_t i = 0; i < entry.calls.size(); ++i) {
            const ir::Call& call = entry.calls[i];
            device::Queue& queue = device_.queue(call.queue);
            for (int w : call.waits) {
                if (entry.calls[static_cast<size_t>(w)].queue != call.queue) device_.wait(queue, *events[static_cast<size_t>(w)]);
            }
            if (updates == Updates::Wait && ir::updates_weights(kind_of(call))) device_.wait(queue, copied_);
            give(entry, i, queue);
            if (events[i]) device_.record(queue, *events[i]);
        }
        begin({nullptr, -1, -1, QueueName::Compute, playing_.runs}, compute);
        for (const Other& other : others_) {
            begin({nullptr, -1, -1, other.queue.name(), playing_.runs}, other.queue);
            device_.record(other.queue, other.joined);
            device_.wait(compute, other.joined);
        }
    }

    // Of an entry that has run once, so that kernels have made their choices; nothing: it is given call by call, as what looks on
    // needs it, and as a meeting of islands is, in whose middle the host waits.
    const device::Graph* graph_of(const ir::Entry& entry) {
        const bool looks_on = playing_.timeline || playing_.watcher || playing_.debug_fill;
        if (!playing_.graphs || looks_on || entry.kind == ir::EntryKind::Outer || !playing_.comm.may_be_captured())
            return nullptr;
        Recorded& r = recorded_[&entry];
        if (r.graph || r.runs++ == 0) return r.graph.get();
        last_collective_.reset();
        captures_ = &r;
        r.graph = device_.capture(device_.queue(QueueName::Compute), [&] { give(entry, Updates::Follow); });
        captures_ = nullptr;
        return r.graph.get();
    }

    // In a graph nothing but edges orders the collectives of several queues, which all ranks must begin in one order.
    template <class F>
    void in_order_of_the_list(device::Queue& queue, F collective) {
        if (!captures_ || playing_.comm.ranks() == 1) return collective();
        if (last_collective_.value_or(queue.name()) != queue.name()) device_.wait(queue, launched_);
        collective();
        device_.record(queue, launched_);
        last_collective_ = queue.name();
    }

    ir::RoutineKind kind_of(const ir::Call& call) const {
        return playing_.program.routines[static_cast<size_t>(call.routine)].kind;
    }

    // One for each call that a call of another queue waits for.
    const std::vector<std::optional<Event>>& events_of(const ir::Entry& entry) {
        const auto [it, is_new] = events_.try_emplace(&entry);
        if (!is_new) return it->second;
        it->second.resize(entry.calls.size());
        for (const ir::Call& call : entry.calls) {
            for (int w : call.waits) {
                std::optional<Event>& event = it->second[static_cast<size_t>(w)];
                if (entry.calls[static_cast<size_t>(w)].queue != call.queue && !event) event = device_.new_event();
            }
        }
        return it->second;
    }

    void give(const ir::Entry& entry, size_t index, device::Queue& queue) {
        const ir::Call& call = entry.calls[index];
        if (playing_.debug_fill) playing_.fill_with_nan(call, queue);
        bool is_first = true;
        playing_.prepared.for_each(call, [&](const Launch& launch) {
            const OpRun place{&entry, static_cast<int>(index), launch.index, queue.name(), playing_.runs};
            if (std::exchange(is_first, false) || launch.is_collective) begin(place, queue);
            try {
                if (launch.kernel) give_kernel(launch, place, queue);
                else if (launch.copied_bytes > 0) device_.copy(queue, launch.out[0], launch.in[0], launch.copied_bytes);
                else if (launch.is_collective) give_collective(launch, place, queue);
                else if (traits_of(queue.name()).computes) give_delay(launch.delay_s, queue);
            } catch (const comm::Aborted&) {
                throw;
            } catch (const std::exception& e) {
                throw playing_.failure(launch, e);
            }
            if (place.is_watched()) playing_.watch(launch, queue);
        });
    }

    struct OpRun {  // of an op in its entry
        const ir::Entry* entry;
        int call, op;
        QueueName queue;
        int64_t run;
        bool is_watched() const { return traits_of(queue).in_steps; }
    };
    // Written down now, and counted when the queue comes to it.
    void begin(const OpRun& p, device::Queue& queue) {
        if (!p.is_watched()) return;
        if (captures_) captures_->begun.push_back(p);
        else playing_.begin_op(p.queue, p.run, p.entry, p.call, p.op);
        device_.count(queue, begun_ops_[p.queue]);
    }

    // Around an op, where a timeline is wanted: note_times() reads when both happened.
    struct Timed {
        OpRun place;
        Event start, end;
    };
    template <class F>
    void timed(const OpRun& place, device::Queue& queue, F give_op) {
        if (!playing_.timeline || !place.is_watched()) return give_op();
        if (timed_count_ == timed_.size()) timed_.push_back({place, device_.new_event(true), device_.new_event(true)});
        Timed& t = timed_[timed_count_++];
        t.place = place;
        device_.record(queue, t.start);
        give_op();
        device_.record(queue, t.end);
    }
    void note_times() {
        const double zero_s = std::chrono::duration<double>(playing_.zero.time_since_epoch()).count();
        for (const Timed& t : std::span(timed_).first(timed_count_))
            playing_.note(t.place.queue, t.place.call, t.place.op, device_.time_s(t.start) - zero_s,
                          device_.time_s(t.end) - zero_s);
    }

    void give_kernel(const Launch& launch, const OpRun& place, device::Queue& queue) {
        const size_t in = launch.op->in.size(), out = launch.op->out.size();
        std::vector<void*> addresses(launch.in, launch.in + in);
        addresses.insert(addresses.end(), launch.out, launch.out + out);
        addresses.push_back(launch.workspace);
        const auto run = [this, place, in, out, &queue, kernel = launch.kernel, fresh = launch.fresh, call = launch.call,
                          routine = launch.routine, op = launch.op](void* const* at) {
            if (failed_) return;
            try {
                kernel->run({at, at + in, fresh, at[in + out], queue, call->instance});
            } catch (const std::exception& e) {
                Launch where{};
                where.call = call, where.routine = routine, where.op = op, where.index = place.op;
                playing_.failure(where, e);  // finish() throws it
                failed_ = true;
            }
        };
        timed(place, queue, [&] { device_.launch(queue, addresses, run); });
    }

    // What waits in the queue for other ranks is the op that has begun last.
    void give_collective(const Launch& launch, const OpRun& place, device::Queue& queue) {
        timed(place, queue, [&] {
            comm::Request requests[kMaxOperands];
            in_order_of_the_list(queue, [&] { playing_.comm.run(queue, launch.group, launch.requests_in(requests)); });
        });
    }

    void give_delay(double delay_s, device::Queue& queue) {
        device_.call(queue, [delay_s] { std::this_thread::sleep_for(std::chrono::duration<double>(delay_s)); });
    }

    Playing& playing_;
    device::Device& device_;
    const Event loaded_, begun_, ended_, launched_, copied_;
    struct Other {  // than the compute queue, of a step
        device::Queue& queue;
        Event joined;  // behind its last call
    };
    std::vector<Other> others_;
    std::map<const ir::Entry*, std::vector<std::optional<Event>>> events_;
    struct Recorded {
        int64_t runs = 0;
        std::unique_ptr<device::Graph> graph;
        std::vector<OpRun> begun;  // in their order
    };
    std::map<const ir::Entry*, Recorded> recorded_;
    Recorded* captures_ = nullptr;
    std::optional<QueueName> last_collective_;  // of the graph that is being recorded
    std::vector<Timed> timed_;
    size_t timed_count_ = 0;  // of this run
    std::atomic<bool> failed_{false};
    static constexpr int64_t kLineBytes = 64;
    ByStepQueue<std::atomic<uint64_t>*> begun_ops_;
};

}  // namespace

std::unique_ptr<Player> play_by_queues(Playing& playing) { return std::make_unique<QueuesPlayer>(playing); }

}  // namespace lockstep::runtime
