// Memory of a GPU that other processes of its host write to, by CUDA's IPC, and waits of queues for words in it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/process_group.h"
#include "device/queue.h"

namespace lockstep::comm::peer {

// Why the processes of a host cannot write to the memory of each other's GPUs; empty: they can. It is tried, not asked. Every
// process calls it at the same time, on a thread whose GPU is its own, and gets the same answer.
std::string why_not(ProcessGroup& group);

// An allocation of a GPU, as other processes of the host open it: bytes of a fixed number. `allocation`: as it was allocated.
std::string exported(const void* allocation);

// An allocation of another process, for as long as this lives. It lives longer than what queues were given to do there.
class Opened {
public:
    explicit Opened(const std::string& exported);
    ~Opened();
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    char* base() const { return base_; }

private:
    char* base_ = nullptr;
};

// What the queue is given from now on happens once the word is at least 1. The queue waits, and no processor of the GPU.
void wait_for(device::Queue& queue, const uint32_t* word);
// Whether such a wait can be recorded in a graph; `word`: any.
bool waits_can_be_recorded(const uint32_t* word);

// Rows from here to memory of this process or of another, by copy engines.
void copy_rows(device::Queue& queue, int64_t count, int64_t bytes, int64_t from_stride, int64_t to_stride, const void* from,
               void* to);

// What peers write to of a rank: words, each 0 or set, and room for what they send. All words are 0 at first.
class Page {
public:
    Page(int64_t words, int64_t room_bytes);
    ~Page();
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;

    uint32_t* word(int64_t index) const;
    char* room() const;
    int64_t room_at() const { return room_at_; }  // in the page
    int64_t word_at(int64_t index) const;         // likewise
    const void* set() const { return memory_; }   // a word that is set: what is copied to the word of a peer
    std::string exported() const { return peer::exported(memory_); }

    // Waits for words of this page end from now on, and set() is 0: peers get no word any more. For a rank that stops: its queues
    // come to their ends, and nobody takes what they send for sound.
    void let_go();

private:
    class LettingGo;
    const int64_t words_, room_at_;
    int device_ = 0;
    char* memory_ = nullptr;
    std::unique_ptr<LettingGo> letting_go_;
};

}  // namespace lockstep::comm::peer
