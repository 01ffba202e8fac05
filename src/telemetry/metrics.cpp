#include "telemetry/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace lockstep::telemetry {

namespace {

void remove_torn_line(const std::string& path) {
    std::error_code ignored;  // opening it says what is wrong
    if (!std::filesystem::is_regular_file(path, ignored)) return;
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (text.empty() || text.back() == '\n') return;
    const size_t keep = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
    std::filesystem::resize_file(path, keep, ignored);
}

}  // namespace

JsonLines::JsonLines(const std::string& path) : path_(path) {
    remove_torn_line(path);
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
    if (descriptor_ < 0)
        throw UserError("metrics.cannot_write", "job.dump_folder",
                        fmt::format("{}: cannot be written: {}; choose another job.dump_folder", path, std::strerror(errno)));
}

JsonLines::~JsonLines() { ::close(descriptor_); }

void JsonLines::write(const nlohmann::ordered_json& line) {
    const std::string text = fmt::format("{}{}\n", cut_off_ ? "\n" : "", json_text(line));
    for (size_t done = 0; done < text.size();) {
        const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            cut_off_ = cut_off_ || done > 0;
            throw UserError("metrics.cannot_write", "job.dump_folder",
                            fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
        }
        done += static_cast<size_t>(written);
    }
    cut_off_ = false;
}

void JsonLines::write(int64_t step, const Metrics& metrics) {
    nlohmann::ordered_json line = {{"step", step}};
    for (const auto& [name, value] : metrics) line[name] = value;
    write(line);
}

int64_t anonymous_resident_bytes() {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word) {
        int64_t kib = 0;
        if (word == "RssAnon:" && status >> kib) return kib * 1024;
    }
    return 0;
}

int64_t machine_memory_bytes() {
    int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
        std::ifstream in(file);
        int64_t limit = 0;
        if (in >> limit && limit > 0) bytes = std::min(bytes, limit);
    }
    return bytes;
}

}  // namespace lockstep::telemetry
