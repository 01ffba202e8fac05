// What a checkpoint costs, each beside its floor and alternating with it in the same run on the same disk:
//   writing   against a plain program: the same bytes in 8 MiB writes, then fsync
//   stall     what training is held for by a save beside it, against a memcpy of the same bytes
//   loading   against reading the same files into memory (both from the page cache)
// Arguments: folder to write in (default: bench-checkpoint under the working directory), pairs (10).
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/processors.h"
#include "data/synthetic_source.h"
#include "kernels/kernel.h"
#include "runtime/load_states.h"
#include "runtime/saver.h"

namespace {

using namespace lockstep;

double seconds(const std::function<void()>& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

void write_plainly(const std::string& file, const std::vector<char>& bytes) {
    constexpr size_t kBlock = 8 << 20;
    const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (size_t at = 0; at < bytes.size(); at += kBlock) {
        const size_t n = std::min(kBlock, bytes.size() - at);
        if (write(descriptor, bytes.data() + at, n) != static_cast<ssize_t>(n)) fmt::print("a plain write fell short\n");
    }
    fsync(descriptor);
    close(descriptor);
}

void read_plainly(const std::string& file, std::vector<char>& to) {
    constexpr size_t kBlock = 8 << 20;
    const int descriptor = open(file.c_str(), O_RDONLY);
    for (size_t at = 0; at < to.size();) {
        const ssize_t got = read(descriptor, to.data() + at, std::min(kBlock, to.size() - at));
        if (got <= 0) break;
        at += static_cast<size_t>(got);
    }
    close(descriptor);
}

// 52 million parameters on two ranks, 0.62 GB of states: enough that caches do not count.
compile::Recipe recipe(const char* mode) {
    return compile::Recipe::from_text(fmt::format(R"(
[model]
dim = 512
n_layers = 6
n_heads = 8
n_kv_heads = 8
ffn_dim = 1408
vocab_size = 32000
[activation_checkpoint]
mode = "none"
[training]
mixed_precision_param = "float32"
seq_len = 128
local_batch_size = 1
global_batch_size = 2
[parallelism]
data_parallel_shard_degree = 2
[runtime]
threads_per_rank = 1
[checkpoint]
enable = true
async_mode = "{}"
keep_latest_k = 1
last_save_model_only = false
)",
                                                  mode),
                                      "bench");
}

struct Session {
    compile::Recipe r;
    compile::Compiled compiled;
    data::SyntheticSource source;
    runtime::Trainer trainer;
    explicit Session(const char* mode)
        : r(recipe(mode)),
          compiled(compile::compile(r, {kernels::cpu_catalog(1), {}, {}, {}})),
          source({1, 32000, 128, 0.0, 0}),
          trainer(compile::config_of(r), compiled, source) {}
};

int64_t bytes_under(const std::string& folder) {
    int64_t bytes = 0;
    for (const auto& e : std::filesystem::recursive_directory_iterator(folder)) {
        if (e.path().extension() == ".safetensors") bytes += static_cast<int64_t>(e.file_size());
    }
    return bytes;
}

void print(const char* what, int64_t bytes, const std::vector<double>& ours, const std::vector<double>& floor,
           const char* floor_name) {
    std::vector<double> ratio;
    for (size_t i = 0; i < ours.size(); ++i) ratio.push_back(ours[i] / floor[i]);
    const auto [low, high] = std::minmax_element(ratio.begin(), ratio.end());
    const double mb = static_cast<double>(bytes) / 1e6;
    fmt::print(
        "{:<8} {:.3f} s ({:.0f} MB/s); {}: {:.3f} s ({:.0f} MB/s); time ratio {:.3f} [{:.3f}..{:.3f}], speed {:.1f} % (median of "
        "{})\n",
        what, median(ours), mb / median(ours), floor_name, median(floor), mb / median(floor), median(ratio), *low, *high,
        100 / median(ratio), ours.size());
}

}  // namespace

int main(int argc, char** argv) {
    const std::string folder = argc > 1 ? argv[1] : "bench-checkpoint";
    const int pairs = argc > 2 ? std::atoi(argv[2]) : 10;
    std::filesystem::create_directories(folder);
    const std::string root = folder + "/checkpoint", plain = folder + "/plain";
    int64_t bytes = 0;
    {
        Session s("disabled");
        runtime::Saver saver(s.trainer, s.r, root);
        saver.save(runtime::SaveContents::All);
        bytes = bytes_under(root);
        std::vector<char> raw(static_cast<size_t>(bytes), 'x');
        std::vector<double> ours, floor;
        for (int i = 0; i < pairs; ++i) {
            std::filesystem::remove(plain);
            floor.push_back(seconds([&] { write_plainly(plain, raw); }));
            std::filesystem::remove_all(root);
            ours.push_back(seconds([&] { saver.save(runtime::SaveContents::All); }));
        }
        print("writing", bytes, ours, floor, "plain writes + fsync");
        ours.clear(), floor.clear();
        for (int i = 0; i < pairs; ++i) {
            floor.push_back(seconds([&] { read_plainly(plain, raw); }));
            ours.push_back(seconds([&] { runtime::load(s.trainer, checkpoint::folder_of(root, 0)); }));
        }
        print("loading", bytes, ours, floor, "plain reads");
    }
    Session s("async");
    runtime::Saver saver(s.trainer, s.r, root);
    std::vector<char> from(static_cast<size_t>(bytes), 'x'), to(static_cast<size_t>(bytes), 'y');
    std::vector<double> stall, copy, with, without;
    s.trainer.step();
    for (int i = 0; i < pairs; ++i) {
        copy.push_back(seconds([&] { std::memcpy(to.data(), from.data(), from.size()); }));
        without.push_back(seconds([&] { s.trainer.step(); }));
        const double before = saver.stall_s();
        with.push_back(seconds([&] {
            saver.save(runtime::SaveContents::All);
            s.trainer.step();
        }));
        stall.push_back(saver.stall_s() - before);
        saver.finish();
    }
    print("stall", bytes, stall, copy, "memcpy");
    std::vector<double> longer;
    for (size_t i = 0; i < with.size(); ++i) longer.push_back(with[i] - without[i]);
    print("slower", bytes, longer, copy, "memcpy");
    fmt::print("a step takes {:.3f} s, one with a save beside it {:.3f} s, on {} ranks and {} processors\n", median(without),
               median(with), s.compiled.layout.ranks, usable_cpus().size());
    std::filesystem::remove_all(folder);
}
