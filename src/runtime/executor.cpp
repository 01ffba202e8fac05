#include "runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "base/elements.h"
#include "base/error.h"
#include "ir/text.h"
#include "ops/algorithms.h"

namespace lockstep::runtime {

namespace {

// What a queue may be given, and not have begun: two steps.
int64_t given_ahead(const ir::Program& program) {
    int64_t most = 0;
    for (const ir::Entry& entry : program.entries) {
        int64_t noted = 2;
        for (const ir::Call& call : entry.calls)
            noted += 1 + static_cast<int64_t>(program.routines[static_cast<size_t>(call.routine)].ops.size());
        most = std::max(most, noted);
    }
    return 2 * most;
}

}  // namespace

Executor::Executor(const ir::Program& program, int64_t rank, comm::Communicator& communicator, device::Machine& machine,
                   const ExecutorOptions& options)
    : Executor(program, rank, communicator, machine.device({options.threads, options.cpus}), options) {}

Executor::Executor(const ir::Program& program, int64_t rank, comm::Communicator& communicator,
                   std::unique_ptr<device::Device> device, const ExecutorOptions& options)
    : program_(program),
      rank_(rank),
      threads_(options.threads),
      cpus_(options.cpus),
      prepared_(program, rank, communicator, options.threads, options.delay_s, options.islands),
      device_(std::move(device)),
      playing_{program,        rank,
               communicator,   *device_,
               prepared_,      options.debug_fill,
               options.graphs, Flight(options.flight_entries, device_->is_host() ? 0 : given_ahead(program))} {
    ByPlace<char*> arenas;
    for (Place place : kPlaces) arenas[place] = new_arena(place);
    prepared_.set_arenas(arenas);
    if (ops::any_by_peers(program))
        communicator.expose(arenas[Place::Device], program.arena_bytes[Place::Device], hex_checksum(ir::print(program)));
    for (size_t i = 0; i < program.buffers.size(); ++i) {
        const ir::Buffer& b = program.buffers[i];
        if (b.state < 0 || program.states[static_cast<size_t>(b.state)].init.value_or(0) == 0) continue;
        const ir::State& s = program.states[static_cast<size_t>(b.state)];
        write(static_cast<int>(i), 0, b.bytes, [&](char* data) {
            for (int64_t k = 0; k < b.bytes / bytes_of(s.dtype); ++k) set_element(data, s.dtype, k, *s.init);
        });
    }
    player_ = device_->is_host() ? play_by_threads(playing_, {options.comm_thread, options.comm_cpus}) : play_by_queues(playing_);
}

char* Executor::new_arena(Place place) {
    const int64_t bytes = program_.arena_bytes[place];
    if (place == Place::Host && bytes == 0) return nullptr;
    if (char* arena = device_->allocate(bytes, place)) return arena;
    if (place == Place::Host)
        throw UserError(
            "runtime.out_of_host_memory", "checkpoint.async_mode",
            fmt::format("rank {}: the system refused {} bytes of {}memory for copies of the states, from which checkpoints "
                        "are written during training: end other programs, raise the limit of the container or of "
                        "ulimit, or set checkpoint.async_mode = \"disabled\", which needs no copies",
                        rank_, bytes, device_->is_host() ? "" : "pinned "));
    throw UserError("runtime.out_of_memory", "training.local_batch_size",
                    fmt::format("rank {}: the {} refused {} bytes for the arena: end other programs{}, or lower "
                                "training.local_batch_size",
                                rank_, device_->is_host() ? "system" : "device", bytes,
                                device_->is_host() ? ", raise the limit of the container or of ulimit -v"
                                                   : " that use it, or ranks that share it"));
}

// What was given to the queues uses all the rest. A device that has failed uses nothing more.
Executor::~Executor() {
    try {
        for (const QueueTraits& q : kQueueTraits) device_->finish(device_->queue(q.queue));
    } catch (const InternalError&) {
    }
}

bool Executor::is_on_host(int buffer) const { return program_.buffers[static_cast<size_t>(buffer)].place == Place::Host; }

void Executor::read(int buffer, int64_t offset_bytes, int64_t bytes, FunctionRef<void(const char*)> f) {
    if (is_on_host(buffer)) {
        ensure(!snapshot_begun_, "executor: copies of states are read before snapshot() has waited for them");
        return f(address(buffer, offset_bytes));
    }
    device_->read(device_->queue(QueueName::Loads), address(buffer, offset_bytes), bytes, f);
}

void Executor::write(int buffer, int64_t offset_bytes, int64_t bytes, FunctionRef<void(char*)> f) {
    ensure(!is_on_host(buffer), "executor: copies of states are written only by the entry snapshot");
    device_->write(device_->queue(QueueName::Loads), address(buffer, offset_bytes), bytes, f);
}

int Executor::buffer_of(ir::StateId state) const {
    const int b = state < 0 ? -1 : program_.buffer(state, 0);
    if (b < 0) throw InternalError("executor: the program has no such state");
    return b;
}

void Executor::values(ir::StateId state, std::span<double> out) {
    read(buffer_of(state), 0, static_cast<int64_t>(out.size_bytes()),
         [&](const char* data) { std::memcpy(out.data(), data, out.size_bytes()); });
}

double Executor::value(ir::StateId state) {
    double out = 0;
    values(state, {&out, 1});
    return out;
}

void Executor::set_value(ir::StateId state, double value) {
    write(buffer_of(state), 0, sizeof value, [&](char* data) { std::memcpy(data, &value, sizeof value); });
}

void Executor::note(ir::StateId state, int place) {
    Note& note = notes_.at(static_cast<size_t>(place));
    if (!note.memory) {
        constexpr int64_t kBytes = kNoted * static_cast<int64_t>(sizeof(double));
        if (device_->is_host()) notes_of_host_.resize(kNotes * kNoted);
        note.memory = device_->is_host() ? static_cast<void*>(&notes_of_host_[static_cast<size_t>(place * kNoted)])
                                         : device_->allocate(kBytes, Place::Host);
        ensure(note.memory, "executor: no memory for what is noted");
        note.made = device_->new_event();
    }
    const int buffer = buffer_of(state);
    const ir::State& s = program_.states[static_cast<size_t>(state)];
    const int64_t bytes = program_.buffers[static_cast<size_t>(buffer)].bytes;
    ensure(s.dtype == Dtype::F64 && bytes <= kNoted * static_cast<int64_t>(sizeof(double)),
           "executor: a state that is noted is small");
    device::Queue& queue = device_->queue(QueueName::Loads);  // behind all that was started
    device_->copy(queue, note.memory, address(buffer, 0), bytes);
    device_->record(queue, *note.made);
}

void Executor::noted(int place, std::span<double> out) {
    const Note& note = notes_.at(static_cast<size_t>(place));
    device_->finish(*note.made);
    std::memcpy(out.data(), note.memory, out.size_bytes());
}

void Executor::begin_snapshot() {
    const ir::Entry* entry = program_.entry(ir::EntryKind::Snapshot);
    ensure(entry, "executor: the program has no entry snapshot");
    ensure(!snapshot_begun_.exchange(true), "executor: one snapshot at a time");
    player_->begin_snapshot(*entry);
}

void Executor::snapshot() {
    player_->snapshot(*program_.entry(ir::EntryKind::Snapshot));
    snapshot_begun_ = false;
}

void Executor::run(ir::EntryKind kind, int64_t fragment) {
    start(kind, fragment);
    finish();
}

void Executor::start(ir::EntryKind kind, int64_t fragment) {
    const ir::Entry* entry = program_.entry(kind, fragment);
    if (!entry) throw InternalError(fmt::format("executor: the program has no entry {}", name_of(kind)));
    if (playing_.timeline) {
        for (std::vector<ir::TimedOp>& thread : playing_.timeline->threads) thread.clear();
    }
    ++playing_.runs;
    player_->start(*entry);
}

}  // namespace lockstep::runtime
