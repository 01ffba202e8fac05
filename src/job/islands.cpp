#include "job/islands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/output_file.h"
#include "telemetry/console.h"

namespace lockstep::job {
namespace {

// The hosts, in their order, in equal parts.
std::vector<std::vector<Host>> parts_of(const std::vector<Host>& hosts, int64_t islands) {
    int64_t slots = 0;
    for (const Host& h : hosts) slots += h.slots;
    const int64_t each = slots / islands;
    if (slots % islands != 0)
        throw UserError("launch.islands", "--hosts",
                        fmt::format("launch: {} processes cannot be shared out among fault_tolerance.group_size = {} islands: "
                                    "each has equally many; change one of them",
                                    slots, islands));
    std::vector<std::vector<Host>> out(static_cast<size_t>(islands));
    int64_t taken = 0;
    for (const Host& h : hosts) {
        for (int64_t left = h.slots; left > 0;) {
            const int64_t here = std::min(left, each - taken % each);
            out[static_cast<size_t>(taken / each)].push_back({h.name, here});
            taken += here, left -= here;
        }
    }
    return out;
}

// host:port of --meet-at, or what stands for it.
comm::islands::ServiceOptions service_of(const SupervisorOptions& args, const compile::Config& config, bool here) {
    comm::islands::ServiceOptions o;
    o.meetings.islands = config.fault_tolerance.group_size;
    if (const int64_t timeout_s = config.comm.train_timeout_seconds; timeout_s > 0)
        o.meetings.patience_s = static_cast<double>(timeout_s) / 2;
    if (args.meet_at.empty()) {
        std::array<char, 256> name{};
        if (!here && gethostname(name.data(), name.size() - 1) == 0) o.host = name.data();
        return o;
    }
    const size_t colon = args.meet_at.rfind(':');
    o.host = args.meet_at.substr(0, colon);
    const std::string port = colon == std::string::npos ? "0" : args.meet_at.substr(colon + 1);
    constexpr int kMostPort = 65535;
    const bool is_number = !port.empty() && port.size() < 6 && port.find_first_not_of("0123456789") == std::string::npos;
    if (o.host.empty() || !is_number || (o.port = std::stoi(port)) > kMostPort)
        throw UserError(
            "launch.meet_at", "--meet-at",
            fmt::format("--meet-at {}: it must be a host's name, or name:port with a port up to {}", args.meet_at, kMostPort));
    return o;
}

// A file that only its owner can read, as long as the launch runs; no other launch has one of this name.
struct Secret {
    std::string file;
    Secret(const std::filesystem::path& folder, const comm::islands::Invitation& invitation) {
        std::random_device random;
        file = (folder / fmt::format("islands-{:08x}{:08x}.json", random(), random())).string();
        comm::islands::write_invitation(file, invitation);
    }
    ~Secret() {
        std::error_code ignored;
        std::filesystem::remove(file, ignored);
    }
    Secret(const Secret&) = delete;
    Secret& operator=(const Secret&) = delete;
};

// Of an island's run, in that of the first one.
std::string folder_of(const std::filesystem::path& first, int64_t island) {
    return (first / fmt::format("island.{}", island)).string();
}

}  // namespace

Islands::Islands(const comm::islands::ServiceOptions& options)
    : service_(options, [](const std::string& line) { telemetry::info("launch: " + line); }),
      go_on_(static_cast<size_t>(options.meetings.islands)) {
    for (std::atomic<bool>& g : go_on_) g = true;
}

bool Islands::others_go_on(int64_t island) const {
    for (size_t i = 0; i < go_on_.size(); ++i) {
        if (static_cast<int64_t>(i) != island && go_on_[i]) return true;
    }
    return false;
}

void Islands::leave(int64_t island) {
    set_going_on(island, false);
    service_.lost(island);
}

Supervised supervise_islands(const SupervisorOptions& options, const LaunchedJob& whole, const compile::Config& config) {
    const int64_t count = config.fault_tolerance.group_size;
    const bool here = whole.hosts.empty();
    if (whole.processes % count != 0)
        throw UserError("launch.islands", "--processes",
                        fmt::format("--processes {} cannot be shared out among fault_tolerance.group_size = {} islands: each has "
                                    "equally many",
                                    whole.processes, count));
    const std::vector<std::vector<Host>> hosts = parts_of(whole.hosts, count);
    Islands islands(service_of(options, config, here));
    const std::filesystem::path folder = config.job.dump_folder;
    make_folder(folder);
    const Secret secret(folder, islands.service().invitation());
    std::vector<std::unique_ptr<Launch>> launches;
    for (int64_t i = 0; i < count; ++i) {
        const auto k = static_cast<size_t>(i);
        LaunchedJob job{hosts[k],
                        whole.recipe,
                        whole.processes / count,
                        i,
                        {fmt::format("{}={}", comm::islands::kInvitation, secret.file)},
                        i == 0 ? Output::Shown : Output::Dropped};
        job.recipe.set("fault_tolerance.replica_id", std::to_string(i));
        if (config.cluster.ranks > 0) job.recipe.set("cluster.ranks", std::to_string(config.cluster.ranks / count));
        if (i > 0) job.recipe.set("job.dump_folder", folder_of(folder, i));
        islands.service().expect(i);  // nobody begins before all have been started
        launches.push_back(std::make_unique<Launch>(options, std::move(job), &islands));
    }
    std::vector<Supervised> ends(launches.size());
    std::vector<std::exception_ptr> errors(launches.size());
    std::vector<std::thread> threads;
    for (size_t k = 0; k < launches.size(); ++k) {
        threads.emplace_back([&, k] {
            try {
                ends[k] = launches[k]->run();
            } catch (...) {
                errors[k] = std::current_exception();
                islands.leave(static_cast<int64_t>(k));
            }
        });
    }
    for (std::thread& t : threads) t.join();
    for (const std::exception_ptr& e : errors) {
        if (e) std::rethrow_exception(e);
    }
    // The first one's folder is that of the job.
    Supervised out{ends[0].code, ends[0].step, {}};
    for (size_t k = 0; k < ends.size(); ++k) {
        out.attempts.insert(out.attempts.end(), ends[k].attempts.begin(), ends[k].attempts.end());
        if (ends[k].code == out.code) continue;
        const std::string where = k == 0 ? folder.string() : folder_of(folder, static_cast<int64_t>(k));
        telemetry::warn(
            fmt::format("launch: island {} ended with exit code {} at step {}: {}", k, ends[k].code, ends[k].step, where));
    }
    return out;
}

}  // namespace lockstep::job
