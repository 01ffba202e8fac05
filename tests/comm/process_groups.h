// ProcessGroups whose processes are threads of this one, over wires of memory.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/process_group.h"
#include "tests/comm/memory_wire.h"

namespace lockstep::comm::test {

// The k-th wire of every process lies in the k-th of these: the process group's own, then one a transport.
using Networks = std::deque<Network>;

// f(group) on every process; host_of by process. Returns what ended each, null where nothing did.
inline std::vector<std::exception_ptr> in_process_groups(const std::vector<int>& host_of,
                                                         const std::function<void(ProcessGroup&)>& f, Networks* given = nullptr) {
    Networks own, &networks = given ? *given : own;
    std::mutex mutex;
    std::vector<std::exception_ptr> errors(host_of.size());
    std::vector<std::thread> threads;
    for (size_t process = 0; process < host_of.size(); ++process) {
        threads.emplace_back([&, process] {
            size_t made = 0;
            const auto make_wire = [&] {
                const std::lock_guard lock(mutex);
                if (networks.size() == made) networks.emplace_back(host_of);
                return std::make_unique<MemoryWire>(networks[made++], static_cast<int>(process));
            };
            try {
                ProcessGroup group(make_wire);
                group.guard([&] { f(group); });
            } catch (...) {
                errors[process] = std::current_exception();
            }
        });
    }
    for (std::thread& t : threads) t.join();
    return errors;
}

}  // namespace lockstep::comm::test
