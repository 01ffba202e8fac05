// What a run writes for programs to read: metrics.jsonl, one JSON object a logged step, with TorchTitan's metric names and
// `step`; events.jsonl, one JSON object for each thing that happened to the run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::telemetry {

using Metrics = std::vector<std::pair<std::string, double>>;

// A file of JSON objects, one a line.
class JsonLines {
public:
    // Appends, so that a resumed run goes on in the same file; a last line that was cut off when a run was killed is removed.
    // UserError metrics.cannot_write. What is written after a line that could not be written whole begins a new line.
    explicit JsonLines(const std::string& path);
    ~JsonLines();
    JsonLines(const JsonLines&) = delete;
    JsonLines& operator=(const JsonLines&) = delete;
    void write(const nlohmann::ordered_json& line);
    void write(int64_t step, const Metrics& metrics);

private:
    std::string path_;
    int descriptor_;
    bool cut_off_ = false;  // the last line
};

// Anonymous resident memory of this process, bytes (RssAnon of /proc/self/status).
int64_t anonymous_resident_bytes();
// Memory of this machine, or of its cgroup if that is less, bytes.
int64_t machine_memory_bytes();

}  // namespace lockstep::telemetry
