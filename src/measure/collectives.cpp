#include "measure/collectives.h"

#include <algorithm>
#include <ctime>
#include <thread>

#include "comm/local.h"
#include "measure/pin.h"
#include "measure/stopwatch.h"

namespace lockstep::measure {
namespace {

struct Span {
    double start_s = 0, end_s = 0;
    double core_s = 0;  // of this thread
};

// One launch by `members` threads on the processors that ranks would have, as in a step: operands were written just before and
// lie in their writer's cache, results go where nobody was lately. From the arrival of the last until all are through, and what
// a thread computes meanwhile; the lower quartiles.
ops::CollectiveCost launch(const std::vector<int>& cpus, double cold_bytes, int members, mesh::Collective kind, int64_t count) {
    comm::LocalTransport world(members);
    std::vector<int> all;
    for (int i = 0; i < members; ++i) all.push_back(i);
    std::vector<std::unique_ptr<comm::Communicator>> ranks;
    for (int i = 0; i < members; ++i) ranks.push_back(world.communicator(i));
    const auto reps = static_cast<size_t>(std::clamp<int64_t>((int64_t{1} << 24) / (count * members), 9, 400));
    std::vector<std::vector<Span>> spans(static_cast<size_t>(members), std::vector<Span>(reps + 2));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < members; ++rank) {
        threads.emplace_back([&, rank] {
            const auto cores = static_cast<int>(cpus.size());
            if (members <= cores || members % cores == 0)
                pin_to(cpus[static_cast<size_t>(rank % cores)]);  // as runtime/ranks.cpp
            const int64_t large = count * members;
            const mesh::CollectiveTraits& traits = mesh::traits_of(kind);
            const int64_t read = traits.gives == mesh::Blocks::Members ? large : count;
            const int64_t places = std::max<int64_t>(1, static_cast<int64_t>(cold_bytes) / (4 * large * members));
            std::vector<float> a(static_cast<size_t>(large), 1.0f), results(static_cast<size_t>(large * places), 0.0f);
            int64_t turn = 0;
            const auto request = [&] {
                comm::Request q;
                q.kind = kind == mesh::Collective::Recv && rank == 0 ? mesh::Collective::Send : kind;
                q.in = a.data(), q.out = results.data() + turn++ % places * large;
                q.dim = count;
                q.by = kind == mesh::Collective::Permute ? 1 : 0;
                return q;
            };
            comm::Communicator& me = *ranks[static_cast<size_t>(rank)];
            const comm::GroupId group = me.add_group(all);
            for (Span& span : spans[static_cast<size_t>(rank)]) {
                const comm::Request q = request();
                std::fill_n(a.begin(), read, 1.0f);
                me.barrier(0, group);
                span.core_s = -core_of_thread_s();
                span.start_s = now_s();
                me.run(0, group, q);
                if (q.kind == mesh::Collective::Send) me.wait(0, group);
                span.end_s = now_s();
                span.core_s += core_of_thread_s();
            }
        });
    }
    for (std::thread& t : threads) t.join();
    std::vector<double> times, cores;
    for (size_t i = 2; i < reps + 2; ++i) {
        Span whole = spans[0][i];
        double core_s = 0;
        for (const auto& of : spans) {
            whole.start_s = std::min(whole.start_s, of[i].start_s), whole.end_s = std::max(whole.end_s, of[i].end_s);
            core_s += of[i].core_s / members;
        }
        times.push_back(whole.end_s - whole.start_s), cores.push_back(core_s);
    }
    const auto quartile = [&](std::vector<double>& of) {
        std::nth_element(of.begin(), of.begin() + static_cast<long>(reps / 4), of.end());
        return of[reps / 4];
    };
    return {quartile(times), quartile(cores)};
}

}  // namespace

std::vector<ops::CollectiveRow> collective_rows(const std::vector<int>& cpus, double cold_bytes) {
    std::vector<ops::CollectiveRow> rows;
    const auto cores = static_cast<int>(cpus.size());
    for (int members = 2; members <= 2 * cores; members *= 2) {
        for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
            // Of a message the row is the receiver's: it moves the bytes.
            if (!traits.symmetric && (traits.kind != mesh::Collective::Recv || members != 2)) continue;
            for (int64_t bytes = 1 << 10; bytes <= 16 << 20; bytes *= 8) {
                // If members outnumber cores, each has a share of a core. The row has the time that a whole core would take.
                const double part = std::min(1.0, static_cast<double>(cores) / members);
                const ops::CollectiveCost cost = launch(cpus, cold_bytes, members, traits.kind, bytes / 4);
                const double time_s = part * cost.time_s;
                rows.push_back(
                    {std::string(traits.name), members, static_cast<double>(bytes), time_s, std::min(cost.core_s, time_s)});
            }
        }
    }
    return rows;
}

}  // namespace lockstep::measure
