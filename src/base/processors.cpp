#include "base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace lockstep {
namespace {

// CPUs' worth of time that the cgroup grants, or a large number.
double cgroup_quota() {
    std::ifstream v2("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (v2 >> quota >> period && quota != "max" && period > 0) return std::stod(quota) / period;
    std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    double q = 0;
    if (v1 >> q && v1_period >> period && q > 0 && period > 0) return q / period;
    return 1e9;
}

}  // namespace

std::vector<int> usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> cpus;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int i = 0; i < CPU_SETSIZE; ++i) {
            if (CPU_ISSET(static_cast<size_t>(i), &set)) cpus.push_back(i);
        }
    }
    if (cpus.empty()) cpus.push_back(0);
    const double quota = std::max(1.0, std::floor(cgroup_quota()));
    if (static_cast<double>(cpus.size()) > quota) cpus.resize(static_cast<size_t>(quota));
    return cpus;
}

std::string running_kernel() {
    std::string id;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    return id;
}

}  // namespace lockstep
