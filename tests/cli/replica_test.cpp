// A bit that flips in the memory of one process of a running command, which the job must notice and lay at that process's door.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <sstream>
#include <string_view>
#include <thread>

#include "checkpoint/safetensors.h"
#include "comm/mpi/session.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

// The memory of another process of the same user, who must be allowed to trace it.
class ForeignMemory {
public:
    explicit ForeignMemory(pid_t pid) : folder_(fmt::format("/proc/{}/", pid)), file_(open((folder_ + "mem").c_str(), O_RDWR)) {}
    ~ForeignMemory() {
        if (file_ >= 0) close(file_);
    }
    ForeignMemory(const ForeignMemory&) = delete;
    ForeignMemory& operator=(const ForeignMemory&) = delete;
    bool is_open() const { return file_ >= 0; }

    // Writes `after` wherever `before`, as long, stands in writable memory. How often; 0 too once the process has ended.
    int replace(std::string_view before, std::string_view after) const {
        int found = 0;
        std::ifstream maps(folder_ + "maps");
        for (std::string line; std::getline(maps, line);) {  // "begin-end rw-p ..", in hexadecimal
            char dash = 0;
            uint64_t begin = 0, end = 0;
            std::string access;
            std::istringstream(line) >> std::hex >> begin >> dash >> end >> access;
            if (!access.starts_with("rw")) continue;
            std::string bytes(end - begin, '\0');
            const ssize_t n = pread(file_, bytes.data(), bytes.size(), static_cast<off_t>(begin));
            bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
            for (size_t at = bytes.find(before); at != std::string::npos; at = bytes.find(before, at + 1)) {
                const auto to = static_cast<off_t>(begin + at);
                found += pwrite(file_, after.data(), after.size(), to) == static_cast<ssize_t>(after.size());
            }
        }
        return found;
    }

private:
    std::string folder_;
    int file_;
};

// At a learning rate of 0 weights stay what the checkpoint of the first step says, so that they can be found. Three replicas, as
// of two nobody could say which one is right.
TEST(CliReplicas, ABitThatFlipsInARunningProcessIsFoundAndItsRankNamed) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    Scratch s;
    s.write("r.toml", tiny_recipe("[training]\ndataset = \"synthetic\"\nlocal_batch_size = 1\nseq_len = 16\n[parallelism]\n"
                                  "data_parallel_replicate_degree = 3\n"));
    const std::string train = "train r.toml --optimizer.lr 0";
    const Finished first = s.lockstep(train + " --training.steps 1 --checkpoint.enable true");
    ASSERT_EQ(first.code, 0) << first.err;
    std::string row(24 * sizeof(float), '\0');
    checkpoint::SafetensorsReader(s.path("out/checkpoint/step-00000001/model.safetensors"))
        .read("model.layers.1.mlp.down_proj.weight", 0, 24, row.data());
    std::string flipped = row;
    flipped[5 * sizeof(float)] ^= 1;  // the lowest bit of one weight

    s.write("start.sh", "echo $$ > pid$1; shift; exec \"$@\"\n");
    std::string processes;
    for (int rank = 0; rank < 3; ++rank)
        processes += fmt::format("{} -n 1 sh start.sh {} $LOCKSTEP $RUN", rank ? " :" : "", rank);
    auto running = std::async(std::launch::async, [&] {
        return s.shell(
            fmt::format("RUN='{} --training.steps 100000000 --metrics.log_freq 1000 --debug.replica_check_freq 2 "
                        "--job.dump_folder again'; timeout 60 $MPIRUN{} >out.txt 2>err.txt",
                        train, processes));
    });
    const auto has_ended = [&](std::chrono::milliseconds within) {
        return running.wait_for(within) == std::future_status::ready;
    };
    while (s.read("again/metrics.jsonl").empty() && !has_ended(10ms)) {
    }
    const ForeignMemory memory(std::stoi("0" + s.read("pid1")));
    const bool may_write = memory.is_open();
    int flips = 0;
    // Should the update just have read what is overwritten, it writes the old weights again.
    while (may_write && !has_ended(20ms)) flips += memory.replace(row, flipped);
    if (!may_write) (void)s.shell("kill $(cat pid0)");
    const Finished f = running.get();
    if (!may_write) GTEST_SKIP() << "the memory of other processes may not be written here";
    EXPECT_GT(flips, 0);
    EXPECT_EQ(f.code, 3) << f.err;
    EXPECT_NE(f.err.find("the weights of layer[1] on rank 1 differ from those of ranks 0 2, which must be the same."),
              std::string::npos)
        << f.err;
}

}  // namespace
}  // namespace lockstep::testing
