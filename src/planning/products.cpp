#include "planning/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <mutex>
#include <set>

#include "plugins/gpu_module.h"
#include "telemetry/console.h"

namespace lockstep::planning {
namespace {

using kernels::cuda::ChosenProducts;

// Once a process: programs are compiled several times.
void say(const std::string& line) {
    static std::mutex mutex;
    static std::set<std::string> said;
    const std::lock_guard mine(mutex);
    if (said.insert(line).second) telemetry::info(line);
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}
// "h100_500w": h100.
std::string chip_of(const sim::Cluster& cluster) { return lower(cluster.name.substr(0, cluster.name.find_first_of("_ "))); }

// device: what the rows shall be of, in words; nothing: of theirs.
std::optional<ChosenProducts> serving(const std::string& file, ChosenProducts all, const std::string& other) {
    const std::string theirs = fmt::format("{} with cuBLASLt {}", all.device, all.version);
    if (other.empty()) {
        say(fmt::format("runtime.products = \"{}\": {} rows of {} serve", file, all.rows.size(), theirs));
        return all;
    }
    say(fmt::format("runtime.products = \"{}\": 0 of {} rows serve: they are of {}, and this is {}. cuBLASLt chooses by itself",
                    file, all.rows.size(), theirs, other));
    return std::nullopt;
}

}  // namespace

std::optional<ChosenProducts> products_here(const compile::Config& config) {
    const std::string& file = config.runtime.products;
    if (file.empty() || !config.on_gpu()) return std::nullopt;
    ChosenProducts all = kernels::cuda::read_chosen_products(file);
    const plugins::GpuModule& module = plugins::gpu_module();
    const bool is_same = all.device == module.name && all.version == module.products_version;
    return serving(file, std::move(all), is_same ? "" : fmt::format("{} with cuBLASLt {}", module.name, module.products_version));
}

std::optional<ChosenProducts> products_of(const compile::Config& config, const sim::Cluster& cluster) {
    const std::string& file = config.runtime.products;
    if (file.empty() || !cluster.runs_module()) return std::nullopt;
    ChosenProducts all = kernels::cuda::read_chosen_products(file);
    const bool is_same = lower(all.device).find(chip_of(cluster)) != std::string::npos ||
                         cluster.description.find(all.device) != std::string::npos;
    return serving(file, std::move(all), is_same ? "" : fmt::format("{} ({})", cluster.name, cluster.description));
}

}  // namespace lockstep::planning
