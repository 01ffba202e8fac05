// Ways to run a body on every rank of a job. The cases (collectives_cases.cpp, failure_cases.cpp) hold for every transport; each
// executable says which jobs they are run on.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/local.h"
#include "comm/processes/process_transport.h"
#include "tests/comm/memory_wire.h"

namespace lockstep::comm::test {

using Body = std::function<void(Communicator&)>;
// By rank: what() of the exception that ended it, or "".
using Errors = std::map<int, std::string>;

struct Job {
    std::string name;
    mesh::Topology topology;
    // A new world each time. Returns the errors of the ranks that are in this process.
    std::function<Errors(const Body&)> run;
    int ranks() const { return static_cast<int>(topology.host_of_rank.size()); }
};

// On the threads of ranks first .. first + count, all of this process.
template <class World>
Errors run_ranks(World& world, int first, int count, const Body& body) {
    std::vector<std::string> errors(static_cast<size_t>(count));
    std::vector<std::thread> threads;
    for (int k = 0; k < count; ++k) {
        threads.emplace_back([&, k] {
            const auto communicator = world.communicator(first + k);
            try {
                body(*communicator);
            } catch (const std::exception& error) {
                errors[static_cast<size_t>(k)] = error.what();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    Errors by_rank;
    for (int k = 0; k < count; ++k) by_rank[first + k] = errors[static_cast<size_t>(k)];
    return by_rank;
}

inline Errors run_ranks(LocalTransport& world, const Body& body) { return run_ranks(world, 0, world.ranks(), body); }

inline Job local_job(int ranks) {
    const mesh::Topology topology = {std::vector<int>(static_cast<size_t>(ranks), 0), ranks};
    return {"Local" + std::to_string(ranks), topology, [ranks](const Body& body) {
                LocalTransport world(ranks);
                return run_ranks(world, body);
            }};
}

// Processes that are threads of this one, over a wire of memory; host_of by process.
inline Job memory_job(const std::string& name, int ranks_per_process, std::vector<int> host_of, processes::Options options = {},
                      bool leaves_when_asked = false) {
    const int processes = static_cast<int>(host_of.size());
    mesh::Topology topology{{}, ranks_per_process};
    for (int host : host_of)
        topology.host_of_rank.insert(topology.host_of_rank.end(), static_cast<size_t>(ranks_per_process), host);
    return {name, topology, [=](const Body& body) {
                Network network(host_of);
                network.leaves_when_asked = leaves_when_asked;
                std::vector<Errors> errors(host_of.size());
                std::vector<std::thread> threads;
                for (int process = 0; process < processes; ++process) {
                    threads.emplace_back([&, process] {
                        processes::ProcessTransport world(std::make_unique<MemoryWire>(network, process), ranks_per_process,
                                                          options);
                        errors[static_cast<size_t>(process)] = run_ranks(world, world.first_rank(), ranks_per_process, body);
                    });
                }
                for (std::thread& thread : threads) thread.join();
                for (size_t process = 1; process < errors.size(); ++process) errors[0].merge(errors[process]);
                return errors[0];
            }};
}

inline std::vector<int> all_ranks(int ranks) {
    std::vector<int> list;
    for (int rank = 0; rank < ranks; ++rank) list.push_back(rank);
    return list;
}

// All of `errors` are `text`.
inline void expect_all(const Errors& errors, const std::string& text) {
    for (const auto& [rank, error] : errors) EXPECT_EQ(error, text) << "rank " << rank;
}

class Comm : public ::testing::TestWithParam<Job> {};
class CommBits : public Comm {};
class CommFailure : public ::testing::TestWithParam<Job> {};
inline std::string name_of_job(const ::testing::TestParamInfo<Job>& info) { return info.param.name; }

}  // namespace lockstep::comm::test
