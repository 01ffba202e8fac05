#include "measure/collectives.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/local.h"
#include "measure/pin.h"

namespace lockstep::measure {
namespace {

using Clock = std::chrono::steady_clock;

// One launch by `members` threads, each on a processor of its own where there are enough; the lower quartile by rank 0's clock.
double launch_s(const std::vector<int>& cpus, int members, comm::Kind kind, int64_t count) {
    comm::World world(members);
    std::vector<int> all;
    for (int i = 0; i < members; ++i) all.push_back(i);
    std::vector<std::unique_ptr<comm::Communicator>> ranks;
    for (int i = 0; i < members; ++i) ranks.push_back(world.communicator(i));
    const int reps = static_cast<int>(std::clamp<int64_t>((int64_t{1} << 24) / (count * members), 9, 400));
    std::vector<double> times(static_cast<size_t>(reps));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < members; ++rank) {
        threads.emplace_back([&, rank] {
            if (members <= static_cast<int>(cpus.size())) pin_to(cpus[static_cast<size_t>(rank)]);
            const int64_t large = count * members;
            std::vector<float> a(static_cast<size_t>(large), 1.0f), b(static_cast<size_t>(large), 0.0f);
            comm::Request q = comm::all_reduce(comm::Type::Float32, a.data(), b.data(), count);
            if (kind == comm::Kind::AllGather) q = comm::all_gather(comm::Type::Float32, a.data(), b.data(), 1, count, 1);
            if (kind == comm::Kind::ReduceScatter) q = comm::reduce_scatter(comm::Type::Float32, a.data(), b.data(), 1, count, 1);
            comm::Communicator& me = *ranks[static_cast<size_t>(rank)];
            const comm::GroupId group = me.add_group(all);
            for (int i = -2; i < reps; ++i) {
                const auto start = Clock::now();
                me.run(0, group, q);
                if (rank == 0 && i >= 0)
                    times[static_cast<size_t>(i)] = std::chrono::duration<double>(Clock::now() - start).count();
            }
        });
    }
    for (std::thread& t : threads) t.join();
    std::nth_element(times.begin(), times.begin() + reps / 4, times.end());
    return times[static_cast<size_t>(reps / 4)];
}

}  // namespace

std::vector<ops::CollectiveRow> collective_rows(const std::vector<int>& cpus) {
    std::vector<ops::CollectiveRow> rows;
    const auto cores = static_cast<int>(cpus.size());
    const std::pair<const char*, comm::Kind> kinds[] = {{"all_gather", comm::Kind::AllGather},
                                                        {"reduce_scatter", comm::Kind::ReduceScatter},
                                                        {"all_reduce", comm::Kind::AllReduce}};
    for (int members = 2; members <= 2 * cores; members *= 2) {
        for (const auto& [name, kind] : kinds) {
            for (int64_t bytes = 1 << 10; bytes <= 16 << 20; bytes *= 8) {
                // Where members outnumber cores each has a part of one: the time of a whole core is that part of what passed.
                const double part = std::min(1.0, static_cast<double>(cores) / members);
                rows.push_back({name, members, static_cast<double>(bytes), part * launch_s(cpus, members, kind, bytes / 4)});
            }
        }
    }
    return rows;
}

}  // namespace lockstep::measure
