// A device whose memory host code cannot follow: it reads and writes through memory of Place::Host, a queue at a time.
#pragma once

#include <array>
#include <mutex>
#include <optional>

#include "device/device.h"

namespace lockstep::device {

class StagedDevice : public Device {
public:
    bool is_host() const final { return false; }
    void read(Queue& queue, const void* from, int64_t bytes, FunctionRef<void(const char*)> f) final;
    void write(Queue& queue, void* to, int64_t bytes, FunctionRef<void(char*)> f) final;

private:
    // What host code has filled is copied while it fills the next: one half after the other, and a half anew when the queue has
    // done what was copied from it.
    struct Staging {
        std::mutex mutex;
        char* memory = nullptr;  // 2 kAccessBytes for writes, kAccessBytes for reads
        int half = 0;
        int64_t used = 0;  // of the half
        std::array<std::optional<Event>, 2> copied;
    };
    char* memory_of(Staging& staging, int64_t bytes);
    char* room(Staging& staging, Queue& queue, int64_t bytes);

    ByQueue<Staging> in_, out_;
};

}  // namespace lockstep::device
