#include "device/staged.h"

#include <utility>

#include "base/error.h"
#include "base/round.h"

namespace lockstep::device {

char* StagedDevice::memory_of(Staging& staging, int64_t bytes) {
    if (!staging.memory) staging.memory = allocate(bytes, Place::Host);
    ensure(staging.memory, "device: no memory for staging");
    return staging.memory;
}

char* StagedDevice::room(Staging& staging, Queue& queue, int64_t bytes) {
    char* const memory = memory_of(staging, 2 * kAccessBytes);
    if (staging.used + bytes > kAccessBytes) {
        std::optional<Event>& left = staging.copied[static_cast<size_t>(staging.half)];
        if (!left) left = new_event();
        record(queue, *left);
        staging.half = 1 - staging.half, staging.used = 0;
        const std::optional<Event>& entered = staging.copied[static_cast<size_t>(staging.half)];
        if (entered && !done(*entered)) finish(*entered);
    }
    return memory + staging.half * kAccessBytes + std::exchange(staging.used, staging.used + round_up(bytes, kAlignmentBytes));
}

void StagedDevice::read(Queue& queue, const void* from, int64_t bytes, FunctionRef<void(const char*)> f) {
    ensure(bytes <= kAccessBytes, "device: host code reads too much at once");
    Staging& staging = out_[queue.name()];
    const std::lock_guard lock(staging.mutex);
    char* const memory = memory_of(staging, kAccessBytes);
    copy(queue, memory, from, bytes);
    finish(queue);
    f(memory);
}

void StagedDevice::write(Queue& queue, void* to, int64_t bytes, FunctionRef<void(char*)> f) {
    ensure(bytes <= kAccessBytes, "device: host code writes too much at once");
    Staging& staging = in_[queue.name()];
    const std::lock_guard lock(staging.mutex);
    char* const memory = room(staging, queue, bytes);
    f(memory);
    copy(queue, to, memory, bytes);
}

}  // namespace lockstep::device
