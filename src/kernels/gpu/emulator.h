// Runs kernels written for a GPU on a processor, for tests: a block of threads on one thread of the host. Each thread of the
// block is a fiber, which leaves the processor only at a barrier of its block or an exchange with its warp. What a GPU leaves
// undefined is refused here with a line of the source: lanes of a warp that wait at different places, a barrier that not all
// threads reach, an exchange with a lane that has ended. Shared memory that is sized at the launch starts as NaN. A warp runs
// until all of its lanes wait for others or have ended, then the next one does: the warps of a block drift as far apart as a
// GPU lets them. In which order they run is chosen (Order). A kernel whose result depends on it has a race.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace lockstep::kernels::gpu::emulator {

struct Size {
    unsigned x = 1, y = 1, z = 1;
};
using Index = Size;

enum class Order { Ascending, Descending, Shuffled };
// Of warps in a block, lanes in a warp, and blocks in a grid; for all launches of this process from now on.
void set_order(Order order, uint32_t seed = 0);

// Of the thread of a GPU that runs now.
struct Place {
    Index thread, block;
    Size block_size, grid_size;
};
extern thread_local Place place;

// Runs a launch: at once, or as a test's fake of a vendor's runtime does with work that it is given.
using Give = void (*)(void* stream, std::function<void()> launch);
void set_give(Give give);  // nullptr: at once
void give(void* stream, std::function<void()> launch);

// Each launch, before it is given.
struct Launch {
    unsigned blocks, threads, shared_bytes;
};
using See = void (*)(const Launch& launch);
void set_see(See see);  // nullptr: nobody
void see(const Launch& launch);

// For which a launch can ask: as on an sm_80, or as a test says.
void set_most_shared_bytes(unsigned bytes);
unsigned most_shared_bytes();
inline constexpr unsigned kSharedBytes = 163 << 10;

// Runs `body` for every thread of every block. Throws std::runtime_error where a GPU would do anything.
void run(Size grid, Size block, size_t shared_bytes, const std::function<void()>& body);

// From within `body`:
// Refuses an address that is no multiple of `bytes`, as a GPU does.
void check_alignment(const void* address, size_t bytes);
// A place of the source. (clang 14 has no std::source_location.)
struct Where {
    const char *file, *function;
    unsigned line;
    static constexpr Where current(const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
                                   unsigned line = __builtin_LINE()) {
        return {file, function, line};
    }
};
std::byte* shared_memory();
void block_barrier(const Where& where);
// Gives `bytes` of `own` to the warp and gets those of `lane`. All 32 lanes take part, at one place of the source.
void exchange(const void* own, void* other, size_t bytes, unsigned lane, const Where& where);
// The same in two steps: what each lane of the warp has posted, which stays until all of them have called taken().
inline constexpr size_t kMostExchanged = 64;
using Posted = std::byte[kMostExchanged];
const Posted* post(const void* own, size_t bytes, const Where& where);
void taken(const Where& where);
// Copies that a thread starts and awaits later: they happen when it awaits them, and not a moment before. A thread that ends
// before is refused. from: nullptr for zeros.
void start_copy(void* to, const void* from, size_t bytes);
void end_group_of_copies();
void await_copies(unsigned groups_left);
inline constexpr unsigned kLanes = 32, kMostThreads = 1024;

}  // namespace lockstep::kernels::gpu::emulator
