#include "runtime/executor.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/elements.h"
#include "base/error.h"
#include "base/round.h"
#include "ops/ways.h"

namespace lockstep::runtime {
namespace {

constexpr size_t kMaxOperands = 64;
static_assert(comm::kTransfersInFlight >= ir::kTransfersInFlight);
constexpr int kSnapshotChannel = 2;  // beside the streams of a step: no collectives

comm::Type comm_type(Dtype t) {
    switch (t) {
        case Dtype::F32: return comm::Type::Float32;
        case Dtype::F64: return comm::Type::Float64;
        case Dtype::BF16: return comm::Type::BFloat16;
        case Dtype::F16: return comm::Type::Float16;
        case Dtype::I32: return comm::Type::Int32;
    }
    throw InternalError("executor: no such element type");
}

// The member's own block as [outer, dim, inner].
comm::Request request_of(const ir::Program& p, const ir::Routine& r, const ir::Op& op, size_t member) {
    comm::Request q;
    if (ir::meeting_of(op) != ir::Meeting::All) {
        const ir::Tensor& t = r.tensors[op.subject()];
        return comm::transfer(comm_type(t.dtype), nullptr, nullptr, ir::local_elements(p.mesh, r, t));
    }
    const ir::Tensor &in = r.tensors[op.in[member]], &out = r.tensors[op.out[member]];
    q.type = comm_type(in.dtype);
    q.way = ops::way_of(op);
    q.op = in.placement.reduce == ir::Reduce::Max ? comm::ReduceOp::Max : comm::ReduceOp::Sum;
    if (op.kind == "all_reduce") {
        q.kind = comm::Kind::AllReduce;
        q.dim = ir::local_elements(p.mesh, r, in);
        return q;
    }
    q.kind = op.kind == "all_gather" ? comm::Kind::AllGather : comm::Kind::ReduceScatter;
    const ir::Tensor& block = op.kind == "all_gather" ? in : out;
    const auto dim = static_cast<size_t>(op.integer("dim"));
    q.inner = 1;
    for (size_t i = 0; i < block.dims.size(); ++i) {
        const int64_t size = ir::local_size(p.mesh, r, block, static_cast<int>(i));
        if (i < dim) q.outer *= size;
        if (i == dim) q.dim = size;
        if (i > dim) q.inner *= size;
    }
    return q;
}

}  // namespace

Executor::Executor(const ir::Program& program, int64_t rank, comm::Communicator& communicator, const ExecutorOptions& options)
    : program_(program),
      rank_(rank),
      comm_(communicator),
      options_(options),
      pool_(options.threads, options.cpus),
      comm_pool_(1),
      snapshot_pool_(1),
      code_(program.routines.size()),
      flight_(options.flight_entries) {
    for (size_t i = 0; i < code_.size(); ++i) prepare(program.routines[i], code_[i]);
    arena_bytes_ = std::max<int64_t>(round_up(program.arena_bytes, 1 << 21), 1 << 21);
    void* memory = mmap(nullptr, static_cast<size_t>(arena_bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw UserError(
            "runtime.out_of_memory", "training.local_batch_size",
            fmt::format("rank {}: the system refused {} bytes for the arena: end other programs, raise the limit of the "
                        "container or of ulimit -v, or lower training.local_batch_size",
                        rank, arena_bytes_));
    }
    madvise(memory, static_cast<size_t>(arena_bytes_), MADV_HUGEPAGE);
    arena_ = static_cast<char*>(memory);
    // Touched now, on this rank's thread, so that a page fault on the step path is impossible.
    for (int64_t i = 0; i < program.arena_bytes; i += 4096) arena_[i] = 0;
    for (const ir::Buffer& b : program.buffers) {
        if (b.state < 0 || program.states[static_cast<size_t>(b.state)].init.value_or(0) == 0) continue;
        const ir::State& s = program.states[static_cast<size_t>(b.state)];
        for (int64_t i = 0; i < b.bytes / bytes_of(s.dtype); ++i) set_element(arena_ + b.offset_bytes, s.dtype, i, *s.init);
    }
    if (options_.comm_thread) comm_thread_ = std::thread([this] { comm_loop(); });
}

Executor::~Executor() {
    stop_ = true;
    step_.fetch_add(1);
    step_.notify_all();
    if (comm_thread_.joinable()) comm_thread_.join();
    munmap(arena_, static_cast<size_t>(arena_bytes_));
}

void Executor::prepare(const ir::Routine& r, Code& code) {
    for (const ir::Tensor& t : r.tensors) {
        const ir::Tensor* root = &t;
        while (root->view_of >= 0) root = &r.tensors[root->view_of];
        code.addresses.push_back({root->port, std::max<int64_t>(root->offset_bytes, 0)});
    }
    for (const ir::Op& op : r.ops) {
        ensure(op.in.size() <= kMaxOperands && op.out.size() <= kMaxOperands, "executor: an op has too many operands");
        Prepared p;
        if (op.kernel == "comm") {
            std::vector<int> members;
            for (int64_t m : ir::members_of(program_, op, program_.mesh.group(rank_, op.group)))
                members.push_back(static_cast<int>(m));
            p.group = comm_.add_group(members);
            const size_t requests = ir::meeting_of(op) == ir::Meeting::Await ? 0 : std::max(op.in.size(), op.out.size());
            for (size_t i = 0; i < requests; ++i) p.requests.push_back(request_of(program_, r, op, i));
        } else {
            p.is_view = ir::is_view(r, op);
            if (options_.delay_s) p.delay_s = options_.delay_s(r, op);
            else p.kernel = kernels::make_kernel({program_.mesh, r, op, rank_, options_.threads});
        }
        if (!op.accumulate.empty()) {
            const ir::TensorId sum = op.out[op.accumulate[0]];
            const bool is_first = std::none_of(r.ops.begin(), r.ops.begin() + (&op - r.ops.data()), [&](const ir::Op& earlier) {
                return std::find(earlier.out.begin(), earlier.out.end(), sum) != earlier.out.end();
            });
            if (is_first) p.fresh_port = r.tensors[sum].port;  // what follows in the same routine adds to it
        }
        code.ops.push_back(std::move(p));
    }
}

double* Executor::value(ir::StateId state) {
    const int b = state < 0 ? -1 : program_.buffer(state, 0);
    if (b < 0) throw InternalError("executor: the program has no such state");
    return reinterpret_cast<double*>(buffer(b));
}

void Executor::begin_snapshot() {
    ensure(program_.entry(ir::EntryKind::Snapshot) != nullptr, "executor: the program has no entry snapshot");
    ensure(!copying_, "executor: one snapshot at a time");
    copying_ = true;
}

void Executor::snapshot() {
    const auto end = [this] {
        copying_ = false;
        copying_.notify_all();
    };
    try {
        const ir::Entry& entry = *program_.entry(ir::EntryKind::Snapshot);
        for (size_t i = 0; i < entry.calls.size(); ++i) run_call(entry, i, kSnapshotChannel);
    } catch (...) {
        end();  // nobody waits for what will not come
        throw;
    }
    end();
}

void Executor::wait_for_snapshot() {
    if (!copying_) return;
    const auto start = std::chrono::steady_clock::now();
    copying_.wait(true);
    snapshot_wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Executor::run(ir::EntryKind kind) {
    const ir::Entry* entry = program_.entry(kind);
    if (!entry) throw InternalError(fmt::format("executor: the program has no entry {}", name_of(kind)));
    if (timeline_) {
        for (std::vector<ir::TimedOp>& thread : timeline_->threads) thread.clear();
    }
    ++runs_;
    try {
        ended_[0] = ended_[1] = -1;
        if (options_.comm_thread) {
            entry_ = entry;
            const uint32_t step = step_.fetch_add(1) + 1;
            step_.notify_all();
            run_stream(*entry, static_cast<int>(ir::Stream::Compute));
            for (uint32_t done = comm_step_; done != step; done = comm_step_) comm_step_.wait(done);
            if (failed_) comm_.barrier(0, comm_.add_group({static_cast<int>(rank_)}));  // throws Aborted with the first reason
        } else {
            for (size_t i = 0; i < entry->calls.size(); ++i) run_call(*entry, i, 0);
        }
        begin_op(0, nullptr, -1, -1);
    } catch (const comm::Aborted&) {
        failed_ = true;
        ended_[0] = std::numeric_limits<int>::max();
        ended_[0].notify_all();
        throw;
    }
}

// The calls of one stream, each after those that it waits for.
void Executor::run_stream(const ir::Entry& entry, int stream) {
    for (size_t i = 0; i < entry.calls.size(); ++i) {
        const ir::Call& call = entry.calls[i];
        if (static_cast<int>(call.stream) != stream) continue;
        if (timeline_ && !call.waits.empty()) {
            const double start_s = now_s();
            for (int w : call.waits) wait_for(static_cast<int>(entry.calls[w].stream), w);
            note(stream, static_cast<int>(i), -1, start_s);
        } else {
            for (int w : call.waits) wait_for(static_cast<int>(entry.calls[w].stream), w);
        }
        run_call(entry, i, stream);
        ended_[stream].store(static_cast<int>(i), std::memory_order_release);
        ended_[stream].notify_all();
    }
}

void Executor::wait_for(int stream, int call) {
    for (int ended = ended_[stream].load(std::memory_order_acquire); ended < call;
         ended = ended_[stream].load(std::memory_order_acquire)) {
        if (failed_) throw comm::Aborted("the other stream of this rank failed");
        ended_[stream].wait(ended);
    }
    if (failed_) throw comm::Aborted("the other stream of this rank failed");
}

void Executor::comm_loop() {
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
            run_stream(*entry_.load(), static_cast<int>(ir::Stream::Comm));
            begin_op(1, nullptr, -1, -1);
        } catch (const std::exception&) {  // run_call has aborted all ranks; the compute stream says why
            failed_ = true;
            ended_[1] = std::numeric_limits<int>::max();
            ended_[1].notify_all();
        }
        comm_step_ = seen;
        comm_step_.notify_all();
    }
}

void Executor::note(int thread, int call, int op, double start_s) {
    timeline_->threads[static_cast<size_t>(thread)].push_back({call, op, start_s, now_s(), start_s});
}

void Executor::begin_op(int channel, const ir::Entry* entry, int call, int op) {
    if (channel == kSnapshotChannel) return;
    flight_.begin(channel, {runs_, entry, call, op, std::chrono::duration<double>(Clock::now().time_since_epoch()).count()});
}

void Executor::run_call(const ir::Entry& entry, size_t index, int channel) {
    const ir::Call& call = entry.calls[index];
    const ir::Routine& r = program_.routines[call.routine];
    const Code& code = code_[call.routine];
    if (r.kind == ir::RoutineKind::Update) wait_for_snapshot();
    if (options_.debug_fill) fill_with_nan(call);
    char* scratch = call.scratch >= 0 ? buffer(call.scratch) : nullptr;
    const auto address = [&](ir::TensorId t) -> void* {
        const Address& a = code.addresses[t];
        if (a.port < 0) return scratch + a.offset;
        const ir::Binding& b = call.bindings[a.port];
        return buffer(b.buffer) + b.offset_bytes + a.offset;
    };
    const ir::Timeline* timeline = channel == kSnapshotChannel ? nullptr : timeline_;  // copies run beside the step
    ThreadPool& pool = channel == 0 ? pool_ : channel == kSnapshotChannel ? snapshot_pool_ : comm_pool_;
    void *in[kMaxOperands], *out[kMaxOperands];
    for (size_t i = 0; i < r.ops.size(); ++i) {
        const ir::Op& op = r.ops[i];
        const Prepared& p = code.ops[i];
        if (p.is_view) continue;
        for (size_t k = 0; k < op.in.size(); ++k) in[k] = address(op.in[k]);
        for (size_t k = 0; k < op.out.size(); ++k) out[k] = address(op.out[k]);
        const bool fresh = p.fresh_port >= 0 && call.bindings[p.fresh_port].fresh;
        const double start_s = timeline ? now_s() : 0;
        begin_op(channel, &entry, static_cast<int>(index), static_cast<int>(i));
        try {
            comm_.attend(channel);
            if (p.kernel) {
                p.kernel->run({in, out, fresh, scratch + std::max<int64_t>(op.workspace_offset_bytes, 0), pool, call.instance});
            } else if (!op.group.empty()) {
                if (channel == 0) sleep_off(0);
                run_collective(op, p, in, out, fresh, channel);
            } else if (channel == 0) {
                owed_s_ += p.delay_s;
                sleep_off(1e-3);
            }
        } catch (const comm::Aborted&) {
            throw;
        } catch (const std::exception& e) {
            const std::string reason = fmt::format("rank {}, {} (layer {}, microbatch {}), op {} {}: {}", rank_, r.name,
                                                   call.instance, call.microbatch, i, op.kind, e.what());
            comm_.abort(reason);
            throw comm::Aborted(reason);
        }
        if (timeline) note(channel, static_cast<int>(index), static_cast<int>(i), start_s);
        if (channel != kSnapshotChannel && watcher_) {
            for (size_t k = 0; k < op.out.size(); ++k) watcher_({&call, &r, &op, op.out[k], out[k]});
        }
    }
}

void Executor::run_collective(const ir::Op& op, const Prepared& p, void* const* in, void* const* out, bool fresh, int channel) {
    if (p.requests.empty()) return comm_.await_transfer(channel, p.group);
    comm::Request requests[kMaxOperands];
    for (size_t k = 0; k < p.requests.size(); ++k) {
        requests[k] = p.requests[k];
        if (k < op.in.size()) requests[k].in = in[k];
        if (k < op.out.size()) requests[k].out = out[k];
        requests[k].accumulate = op.accumulates(static_cast<int>(k)) && !fresh;
    }
    comm_.run(channel, p.group, std::span(requests, p.requests.size()));
}

// A sleep is some tens of microseconds too long: those are not slept later.
void Executor::sleep_off(double least_s) {
    if (owed_s_ <= least_s) return;
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(owed_s_));
    owed_s_ -= std::chrono::duration<double>(Clock::now() - start).count();
}

// Freed buffers and scratch before its use hold NaN: whoever reads them is found out.
void Executor::fill_with_nan(const ir::Call& call) {
    const ir::Routine& r = program_.routines[call.routine];
    const auto fill = [&](int b, int64_t bytes) {
        std::memset(buffer(b), 0xff, static_cast<size_t>(bytes));  // all ones: NaN in float and double
    };
    if (call.scratch >= 0) fill(call.scratch, r.scratch_bytes);
    if (r.kind == ir::RoutineKind::Free) fill(call.bindings[0].buffer, r.ports[0].bytes);
}

}  // namespace lockstep::runtime
