#include "kernels/gpu/emulator.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace lockstep::kernels::gpu::emulator {
namespace {

// Writes to shared memory are noticed up to kWatchedBytes beyond what a launch asks for.
// Tops of stacks are shifted within a page: those of a block do not compete for the same lines of a cache.
constexpr size_t kStackBytes = 64 << 10, kStackShift = 192, kWatchedBytes = 48 << 10, kAlignment = 128;

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error("emulated GPU: " + what); }

std::string line_of(const Where& where) { return fmt::format("{} in {}, line {}", where.function, where.file, where.line); }
bool same(const Where& a, const Where& b) { return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0); }

// The registers of a thread that waits. change leaves the one and goes on with the other.
#if defined(__x86_64__)
using Registers = void*;  // where they lie: the top of the stack
extern "C" void lockstep_switch_stack(void** from, void* to);
asm(R"(
.text
.type lockstep_switch_stack,@function
lockstep_switch_stack:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
.size lockstep_switch_stack,.-lockstep_switch_stack
)");
void change(Registers& from, const Registers& to) { lockstep_switch_stack(&from, to); }
void begin(Registers& first, char* memory, size_t bytes, void (*enter)()) {
    void** top = reinterpret_cast<void**>(memory + bytes);
    *--top = nullptr;  // the alignment that a function finds when it is called
    *--top = reinterpret_cast<void*>(enter);
    first = top - 6;
}
#else
using Registers = ucontext_t;
void change(Registers& from, const Registers& to) { swapcontext(&from, &to); }
void begin(Registers& first, char* memory, size_t bytes, void (*enter)()) {
    getcontext(&first);
    first.uc_stack.ss_sp = memory, first.uc_stack.ss_size = bytes, first.uc_link = nullptr;
    makecontext(&first, enter, 0);
}
#endif

// A stack to run on. The address sanitizer is informed of every change, and forgets what it knew of memory that begins anew.
struct Stack {
    Registers registers{};
    const void* memory = nullptr;
    size_t bytes = 0;
    void* of_sanitizer = nullptr;
};
void forget([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(memory, bytes);
#endif
}
void begin(Stack& stack, char* memory, size_t bytes, void (*enter)()) {
    forget(memory, bytes);
    begin(stack.registers, memory, bytes, enter);
    stack.memory = memory, stack.bytes = bytes, stack.of_sanitizer = nullptr;
}
// The first words of `enter`, which came from the stack `before`.
void arrive([[maybe_unused]] Stack& before) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &before.memory, &before.bytes);
#endif
}
void switch_to(Stack& from, const Stack& to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.of_sanitizer, to.memory, to.bytes);
    change(from.registers, to.registers);
    __sanitizer_finish_switch_fiber(from.of_sanitizer, nullptr, nullptr);
#else
    change(from.registers, to.registers);
#endif
}

// Threads that wait for each other: how many have come, and at which place of the source.
struct Meeting {
    unsigned arrived = 0, generation = 0;
    Where where;
};

struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    unsigned group;
};

struct Fiber {
    Stack stack;
    int stack_number = -1;  // none before it begins
    Index index;
    std::vector<Copy> copies;
    unsigned groups = 0;             // of copies, ended ones
    const Meeting* waits = nullptr;  // at which it waits, since its generation
    unsigned generation = 0;
    Where where;
    bool ended = false;
};

struct Warp {
    Meeting meeting;
    unsigned alive = 0;
    Posted posted[kLanes];
};

struct alignas(uint64_t) Chosen {  // of one word, so that an atomic one needs no library
    Order order;
    uint32_t seed;
};
std::atomic<Chosen> chosen{Chosen{Order::Ascending, 0}};
std::atomic<Give> giver{nullptr};
std::atomic<See> seer{nullptr};
std::atomic<unsigned> shared_limit{kSharedBytes};

// The order of one launch.
class Arrangement {
public:
    explicit Arrangement(Chosen c) : order_(c.order), random_(c.seed) {}
    template <class T>
    void arrange(std::vector<T>& list) {
        if (order_ == Order::Descending) std::reverse(list.begin(), list.end());
        if (order_ == Order::Shuffled) std::shuffle(list.begin(), list.end(), random_);
    }

private:
    Order order_;
    std::mt19937_64 random_;
};

std::vector<unsigned> first_numbers(unsigned n) {
    std::vector<unsigned> list(n);
    std::iota(list.begin(), list.end(), 0u);
    return list;
}

class Block {
public:
    Block() : shared_(kSharedBytes + kAlignment) {
        void* memory =
            mmap(nullptr, kStackBytes * kMostThreads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        stacks_ = static_cast<char*>(memory);
    }
    ~Block() {
        forget(stacks_, kStackBytes * kMostThreads);
        munmap(stacks_, kStackBytes * kMostThreads);
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    std::byte* shared() {
        const auto address = reinterpret_cast<uintptr_t>(shared_.data());
        return shared_.data() + (kAlignment - address % kAlignment) % kAlignment;
    }

    void run(Size size, size_t shared_bytes, const std::function<void()>& body, Arrangement& order);
    void barrier(const Where& where) { join(meeting_, alive_, where); }
    const Posted* post(const void* own, size_t bytes, const Where& where);
    void taken(const Where& where) { join(warp().meeting, kLanes, where); }
    void start_copy(const Copy& copy);
    void end_group_of_copies() { ++fibers_[current_].groups; }
    void await_copies(unsigned groups_left);

private:
    static void enter();
    void end();
    void join(Meeting& meeting, unsigned members, const Where& where);
    static void pass(Meeting& meeting) { meeting.arrived = 0, ++meeting.generation; }
    void begin_on_a_stack(Fiber& f);
    bool can_go_on(const Fiber& f) const { return !f.ended && (!f.waits || f.waits->generation != f.generation); }
    [[noreturn]] void refuse_deadlock() const;
    Warp& warp() { return warps_[current_ / kLanes]; }

    std::vector<std::byte> shared_;
    bool is_filled_ = false;  // all of it, with NaN
    char* stacks_ = nullptr;
    int taken_ = 0;          // stacks of this block, by number from 0
    std::vector<int> left_;  // those of threads that have ended: the last one is in the cache
    const std::function<void()>* body_ = nullptr;
    std::vector<Fiber> fibers_;
    std::vector<Warp> warps_;
    Meeting meeting_;
    unsigned alive_ = 0, current_ = 0;
    Stack main_;
    std::exception_ptr error_;
};
thread_local std::unique_ptr<Block> block;

void Block::run(Size size, size_t shared_bytes, const std::function<void()>& body, Arrangement& order) {
    const unsigned threads = size.x * size.y * size.z;
    body_ = &body, error_ = nullptr;
    if (!is_filled_) std::memset(shared(), 0xff, kSharedBytes);
    is_filled_ = false;
    fibers_.assign(threads, {}), warps_.assign((threads + kLanes - 1) / kLanes, {});
    meeting_ = {}, alive_ = threads;
    for (unsigned t = 0; t < threads; ++t) {
        fibers_[t].index = {t % size.x, t / size.x % size.y, t / (size.x * size.y)};
        ++warps_[t / kLanes].alive;
    }
    taken_ = 0, left_.clear();
    std::vector<unsigned> warps = first_numbers(static_cast<unsigned>(warps_.size()));
    order.arrange(warps);
    std::vector<std::vector<unsigned>> lanes;
    for (unsigned w : warps) {
        lanes.push_back(first_numbers(warps_[w].alive));
        order.arrange(lanes.back());
        for (unsigned& lane : lanes.back()) lane += w * kLanes;
    }
    while (alive_ > 0) {
        bool moved = false;
        for (const std::vector<unsigned>& warp : lanes) {
            for (bool again = true; again;) {
                again = false;
                for (unsigned t : warp) {
                    Fiber& f = fibers_[t];
                    if (!can_go_on(f)) continue;
                    if (f.stack_number < 0) begin_on_a_stack(f);
                    current_ = t, place.thread = f.index, f.waits = nullptr;
                    again = moved = true;
                    switch_to(main_, f.stack);
                    if (error_) std::rethrow_exception(error_);
                    if (f.ended) left_.push_back(f.stack_number);
                }
            }
        }
        if (!moved) refuse_deadlock();
    }
    std::memset(shared(), 0xff, shared_bytes);
    // The first byte is as it should be, and each is like the next.
    const size_t watched = std::min<size_t>(kSharedBytes, shared_bytes + kWatchedBytes);
    is_filled_ = *shared() == std::byte{0xff} && std::memcmp(shared(), shared() + 1, watched - 1) == 0;
    if (!is_filled_) refuse(fmt::format("a kernel writes beyond its {} bytes of shared memory", shared_bytes));
}

void Block::begin_on_a_stack(Fiber& f) {
    if (left_.empty()) left_.push_back(taken_++);
    f.stack_number = left_.back();
    left_.pop_back();
    begin(f.stack, stacks_ + kStackBytes * f.stack_number, kStackBytes - 64 - f.stack_number % 16 * kStackShift, &Block::enter);
}

void Block::enter() {
    Block& b = *block;
    arrive(b.main_);
    try {
        (*b.body_)();
    } catch (...) {
        b.error_ = std::current_exception();
    }
    if (!b.error_ && !b.fibers_[b.current_].copies.empty())
        b.error_ = std::make_exception_ptr(std::runtime_error("emulated GPU: a thread ends with copies that it did not await"));
    b.end();
}

// Threads that have ended count at a block's barrier as if they had come, as on the hardware.
void Block::end() {
    Fiber& f = fibers_[current_];
    f.ended = true;
    --warp().alive;
    if (--alive_ == meeting_.arrived && alive_ > 0) pass(meeting_);
    switch_to(f.stack, main_);
    std::abort();
}

void Block::join(Meeting& meeting, unsigned members, const Where& where) {
    if (meeting.arrived == 0) meeting.where = where;
    if (!same(meeting.where, where))
        refuse(fmt::format("some threads of a block are at {}, others at {}", line_of(meeting.where), line_of(where)));
    if (++meeting.arrived == members) return pass(meeting);
    Fiber& f = fibers_[current_];
    f.waits = &meeting, f.generation = meeting.generation, f.where = where;
    switch_to(f.stack, main_);
}

const Posted* Block::post(const void* own, size_t bytes, const Where& where) {
    Warp& w = warp();
    if (w.alive < kLanes) refuse(fmt::format("only {} lanes of a warp are left at {}", w.alive, line_of(where)));
    if (bytes > kMostExchanged) refuse("no such exchange: " + line_of(where));
    std::memcpy(w.posted[current_ % kLanes], own, bytes);
    join(w.meeting, kLanes, where);
    return w.posted;
}

void Block::start_copy(const Copy& copy) {
    Fiber& f = fibers_[current_];
    f.copies.push_back(copy);
    f.copies.back().group = f.groups;
}
void Block::await_copies(unsigned groups_left) {
    Fiber& f = fibers_[current_];
    const auto end =
        std::find_if(f.copies.begin(), f.copies.end(), [&](const Copy& c) { return c.group + groups_left >= f.groups; });
    for (auto c = f.copies.begin(); c != end; ++c) {
        if (c->from) std::memcpy(c->to, c->from, c->bytes);
        else std::memset(c->to, 0, c->bytes);
    }
    f.copies.erase(f.copies.begin(), end);
}

void Block::refuse_deadlock() const {
    std::string text;
    std::optional<Where> last;
    for (unsigned t = 0; t < fibers_.size(); ++t) {
        const Fiber& f = fibers_[t];
        if (f.ended || (last && same(*last, f.where))) continue;
        text += fmt::format("{}thread {} at {}", text.empty() ? "" : "; ", t, line_of(f.where));
        last = f.where;
    }
    refuse(fmt::format("threads of block {} wait for each other: {}", place.block.x, text));
}

}  // namespace

thread_local Place place;

void set_order(Order order, uint32_t seed) { chosen = Chosen{order, seed}; }

void set_give(Give give) { giver = give; }

void set_see(See see) { seer = see; }
void see(const Launch& launch) {
    if (const See to = seer) to(launch);
}
void set_most_shared_bytes(unsigned bytes) { shared_limit = bytes; }
unsigned most_shared_bytes() { return shared_limit; }

void give(void* stream, std::function<void()> launch) {
    if (const Give to = giver) to(stream, std::move(launch));
    else launch();
}

void run(Size grid, Size size, size_t shared_bytes, const std::function<void()>& body) {
    const uint64_t threads = uint64_t{size.x} * size.y * size.z;
    if (threads == 0 || threads > kMostThreads || size.z > 64) refuse(fmt::format("no GPU takes a block of {} threads", threads));
    if (shared_bytes > shared_limit) refuse(fmt::format("no GPU has {} bytes of shared memory for a block", shared_bytes));
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        refuse(fmt::format("no GPU takes a grid of {} x {} x {} blocks", grid.x, grid.y, grid.z));
    if (!block) block = std::make_unique<Block>();
    Arrangement order(chosen);
    std::vector<unsigned> blocks = first_numbers(grid.x);
    order.arrange(blocks);
    place.block_size = size, place.grid_size = grid;
    for (unsigned z = 0; z < grid.z; ++z) {
        for (unsigned y = 0; y < grid.y; ++y) {
            for (unsigned x : blocks) {
                place.block = {x, y, z};
                block->run(size, shared_bytes, body, order);
            }
        }
    }
}

void check_alignment(const void* address, size_t bytes) {
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0)
        refuse(fmt::format("thread {} of block {} reads or writes {} bytes at {}, which is no multiple", place.thread.x,
                           place.block.x, bytes, address));
}
std::byte* shared_memory() { return block->shared(); }
void block_barrier(const Where& where) { block->barrier(where); }
const Posted* post(const void* own, size_t bytes, const Where& where) { return block->post(own, bytes, where); }
void taken(const Where& where) { block->taken(where); }
// Nobody posts anew before all have taken.
void exchange(const void* own, void* other, size_t bytes, unsigned lane, const Where& where) {
    if (lane >= kLanes) refuse("no such exchange: " + line_of(where));
    const Posted* posted = post(own, bytes, where);
    std::memcpy(other, posted[lane], bytes);
    taken(where);
}
void start_copy(void* to, const void* from, size_t bytes) {
    check_alignment(to, bytes);
    check_alignment(from, bytes);
    block->start_copy({to, from, bytes, 0});
}
void end_group_of_copies() { block->end_group_of_copies(); }
void await_copies(unsigned groups_left) { block->await_copies(groups_left); }

}  // namespace lockstep::kernels::gpu::emulator
