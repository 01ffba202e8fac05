#include "measure/hosts.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/function_ref.h"
#include "base/processors.h"
#include "comm/launch.h"
#include "measure/stopwatch.h"

namespace lockstep::measure {
namespace {

constexpr double kLong_s = 0.25;  // of a launch whose rate counts
constexpr int64_t kMostExchanged = 64 << 20;
constexpr int kLaunches = 3, kSmallLaunches = 200, kBusyLaunches = 16, kRounds = 11;
constexpr double kWork_s = 8e-3;  // before a launch: longer than a turn of the system's scheduler

double cpu_s() {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
    return seconds(u.ru_utime) + seconds(u.ru_stime);
}

std::vector<double> all_of(comm::ProcessGroup& processes, double own) {
    std::vector<double> out;
    for (const std::string& text : processes.exchange(fmt::format("{}", own))) out.push_back(std::stod(text));
    return out;
}
double most_of(comm::ProcessGroup& processes, double own) {
    const std::vector<double> all = all_of(processes, own);
    return *std::max_element(all.begin(), all.end());
}
double sum_of(comm::ProcessGroup& processes, double own) {
    const std::vector<double> all = all_of(processes, own);
    return std::accumulate(all.begin(), all.end(), 0.0);
}

struct Rate {
    double busiest_bytes = 0;      // between hosts, of one launch of one group
    double within_bytes = 0;       // between processes of a host, of the busiest process
    double time_s = 0, cpu_s = 0;  // of one launch; cpu_s of all processes
};

// kWork_s of a core.
void work() {
    volatile double sum = 0;
    for (const double end_s = core_of_thread_s() + kWork_s; core_of_thread_s() < end_s;) {
        for (int i = 0; i < 10000; ++i) sum = sum + i;
    }
}

class Links {
public:
    explicit Links(comm::ProcessGroup& processes)
        : processes_(processes),
          transport_(processes.transport(processes.processes(), {})),
          rank_(transport_->communicator(processes.process())) {}

    std::vector<int> everybody() const {
        std::vector<int> ranks(static_cast<size_t>(processes_.processes()));
        std::iota(ranks.begin(), ranks.end(), 0);
        return ranks;
    }
    // One process of each host, those of equal place: groups that have nothing but links between them.
    std::vector<int> of_this_place(int processes_a_host) const {
        std::vector<int> ranks;
        for (int p = processes_.process() % processes_a_host; p < processes_.processes(); p += processes_a_host)
            ranks.push_back(p);
        return ranks;
    }
    std::vector<int> of_this_host() const {
        std::vector<int> ranks;
        for (int p = 0; p < processes_.processes(); ++p) {
            if (processes_.host_of(p) == processes_.host_of(processes_.process())) ranks.push_back(p);
        }
        return ranks;
    }
    // The groups that are launched on later.
    void join(const std::vector<std::vector<int>>& groups) {
        for (const std::vector<int>& ranks : groups) rank_->add_group(ranks);
    }
    mesh::GroupLayout layout(const std::vector<int>& ranks) const { return mesh::group_layout(ranks, transport_->topology()); }

    // Seconds of a message: of a launch that is nothing but them, by processes that compute before each launch as a step's do.
    // Where processes outnumber the cores, a message also waits until its receiver gets a core.
    double latency_s(const std::vector<int>& ranks) {
        const mesh::GroupLayout l = layout(ranks);
        double value = 0, sum = 0;
        comm::Request q = comm::all_reduce(Dtype::F64, &value, &sum, 1);
        q.algorithm = mesh::CollectiveAlgorithm{mesh::GatherBy::Direct, mesh::ReduceBy::Everywhere};
        const double messages = mesh::latencies_of_agreement(l) + mesh::latencies(l, mesh::Collective::AllReduce, *q.algorithm);
        const comm::GroupId group = rank_->add_group(ranks);
        const auto launch = [&] { rank_->run(0, group, q); };
        std::vector<double> differences;
        for (int round = 0; round < kRounds; ++round) {
            const double alone_s = timed(group, kBusyLaunches, [] { work(); }).time_s;
            differences.push_back(timed(group, kBusyLaunches, [&] { work(), launch(); }).time_s - alone_s);
        }
        std::nth_element(differences.begin(), differences.begin() + kRounds / 2, differences.end());
        return std::max(timed(group, kSmallLaunches, launch).time_s, differences[kRounds / 2]) / messages;
    }

    // CPU seconds that a process spends on polling in a second of waiting for another.
    double polling(const std::vector<int>& ranks) {
        const comm::GroupId group = rank_->add_group(ranks);
        processes_.exchange("");
        const bool late = processes_.process() == ranks[0];
        if (late) std::this_thread::sleep_for(std::chrono::duration<double>(kLong_s));
        const double cpu = cpu_s();
        rank_->barrier(0, group);
        const double of_all = sum_of(processes_, late ? 0 : cpu_s() - cpu);
        return of_all / kLong_s / (processes_.processes() - 1);
    }

    // Of a launch that takes long enough for its rate to be that of the links.
    Rate rate(const std::vector<int>& ranks, mesh::Collective kind) {
        const mesh::GroupLayout l = layout(ranks);
        const comm::GroupId group = rank_->add_group(ranks);
        for (int64_t count = 1 << 14;; count *= 4) {
            const int64_t bytes = 4 * count, all_bytes = bytes * l.members();
            a_.resize(static_cast<size_t>(count * l.members()), 1.0f), b_.resize(a_.size());
            comm::Request q = kind == mesh::Collective::AllGather
                                  ? comm::all_gather(Dtype::F32, a_.data(), b_.data(), 1, count, 1)
                                  : comm::reduce_scatter(Dtype::F32, a_.data(), b_.data(), 1, count, 1);
            q.algorithm = mesh::choose_algorithm(l, kind, bytes);
            const auto launch = [&] { rank_->run(0, group, q); };
            if (timed(group, 1, launch).time_s < kLong_s && all_bytes * 4 <= kMostExchanged) continue;
            Rate r = timed(group, kLaunches, launch);
            const mesh::Sent sent = mesh::bytes_sent(l, kind, *q.algorithm, static_cast<double>(bytes));
            r.busiest_bytes = *std::max_element(sent.by_host.begin(), sent.by_host.end());
            r.within_bytes = *std::max_element(sent.by_part.begin(), sent.by_part.end());
            return r;
        }
    }

private:
    // Of one call of many, by the process that takes longest.
    Rate timed(comm::GroupId group, int calls, FunctionRef<void()> call) {
        processes_.exchange("");
        rank_->barrier(0, group);
        const double cpu = cpu_s();
        const double start_s = now_s();
        for (int i = 0; i < calls; ++i) call();
        const double time_s = now_s() - start_s;
        Rate out;
        out.cpu_s = sum_of(processes_, cpu_s() - cpu) / calls;
        out.time_s = most_of(processes_, time_s) / calls;
        return out;
    }

    comm::ProcessGroup& processes_;
    const std::unique_ptr<comm::Transport> transport_;
    const std::unique_ptr<comm::Communicator> rank_;
    std::vector<float> a_, b_;
};

}  // namespace

sim::Hosts hosts(comm::ProcessGroup& processes) {
    sim::Hosts out;
    if (processes.is_alone()) return out;
    Links links(processes);
    const std::vector<int> all = links.everybody(), here = links.of_this_host();
    const mesh::GroupLayout layout = links.layout(all);
    out.ranks = layout.parts_a_host;
    if (out.ranks == 0 || (layout.hosts() > 1 && out.ranks > 1 && layout.level == 1))
        throw UserError("bench.hosts", "",
                        "hosts have unequal numbers of processes, or those of a host do not follow each other: start equally "
                        "many on each, host by host");
    out.share_cores = true;
    const std::string own = running_kernel();
    for (const std::string& other : processes.exchange(own)) out.share_cores = out.share_cores && !other.empty() && other == own;
    const std::vector<int> across = links.of_this_place(static_cast<int>(out.ranks));
    links.join({here, all, across});
    // The part of a process's CPU time in a launch that was work. The rest was polling, while it waited.
    const double polling = out.polling = std::min(links.polling(all), 0.9);
    const auto work_s = [&](const Rate& r) {
        return std::max(1e-9, (r.cpu_s / processes.processes() - polling * r.time_s) / (1 - polling));
    };
    if (out.ranks > 1) {
        const Rate within = links.rate(here, mesh::Collective::AllGather);
        out.process_bytes_per_s = within.within_bytes / work_s(within);
        out.process_latency_s = links.latency_s(here);
    }
    if (layout.hosts() == 1) return out;
    out.link.latency_s = links.latency_s(all);
    double bytes = 0, time_s = 0, core_s = 0;  // bytes of a group; all groups send at the same time
    for (const mesh::Collective kind : {mesh::Collective::AllGather, mesh::Collective::ReduceScatter}) {
        const Rate r = links.rate(across, kind);
        bytes += r.busiest_bytes, time_s += r.time_s, core_s += work_s(r);
    }
    out.link.bandwidth_bytes_per_s = static_cast<double>(out.ranks) * bytes / time_s;
    out.core_s_per_byte = core_s / bytes;
    return out;
}

}  // namespace lockstep::measure
