// Runs a body on every rank of a world, each on its own thread; the tests' only way to start ranks.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/local.h"

namespace lockstep::comm::test {

// Returns what() of the exception that ended each rank, or "".
inline std::vector<std::string> run_ranks(World& world, const std::function<void(Communicator&)>& body) {
    std::vector<std::string> errors(static_cast<size_t>(world.ranks()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world.ranks(); ++rank) {
        threads.emplace_back([&, rank] {
            const auto communicator = world.communicator(rank);
            try {
                body(*communicator);
            } catch (const std::exception& error) {
                errors[static_cast<size_t>(rank)] = error.what();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
}

inline std::vector<int> all_ranks(int ranks) {
    std::vector<int> list;
    for (int rank = 0; rank < ranks; ++rank) list.push_back(rank);
    return list;
}

}  // namespace lockstep::comm::test
