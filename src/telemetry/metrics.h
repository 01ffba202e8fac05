// metrics.jsonl: one JSON object a logged step, with TorchTitan's metric names and `step`.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::telemetry {

using Metrics = std::vector<std::pair<std::string, double>>;

class MetricsFile {
public:
    // Appends, so that a resumed run goes on in the same file; a last line that was cut off when a run was killed is removed.
    // UserError metrics.cannot_write.
    explicit MetricsFile(const std::string& path);
    ~MetricsFile();
    MetricsFile(const MetricsFile&) = delete;
    MetricsFile& operator=(const MetricsFile&) = delete;
    void write(int64_t step, const Metrics& metrics);

private:
    std::string path_;
    FILE* file_;
};

// Anonymous resident memory of this process, bytes (RssAnon of /proc/self/status).
int64_t anonymous_resident_bytes();
// Memory of this machine, or of its cgroup if that is less, bytes.
int64_t machine_memory_bytes();

}  // namespace lockstep::telemetry
