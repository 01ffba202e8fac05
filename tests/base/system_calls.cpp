#include "tests/base/system_calls.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <filesystem>
#include <limits>
#include <mutex>

namespace {

constexpr int kNever = std::numeric_limits<int>::max();
std::atomic<bool> watching{false};
std::mutex mutex;
std::vector<std::string> calls;
int fail_from = kNever, error_number = 0, kill_at = kNever;

std::string last_part(const std::string& path) { return std::filesystem::path(path).filename().string(); }
std::string name_of(int descriptor) {
    char path[PATH_MAX + 1] = "";
    const ssize_t n = readlink(fmt::format("/proc/self/fd/{}", descriptor).c_str(), path, PATH_MAX);
    return n > 0 ? last_part(std::string(path, static_cast<size_t>(n))) : "?";
}

// True where the call is to fail.
bool seen(const std::string& call) {
    std::lock_guard lock(mutex);
    const int number = static_cast<int>(calls.size());
    calls.push_back(call);
    if (number == kill_at) ::raise(SIGKILL);
    if (number < fail_from) return false;
    errno = error_number;
    return true;
}

}  // namespace

// The test program's own definitions come before the C library's.
extern "C" {
ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
    if (watching && seen("write " + name_of(descriptor))) return -1;
    return syscall(SYS_pwrite64, descriptor, data, bytes, offset);
}
int fsync(int descriptor) {
    if (watching && seen("fsync " + name_of(descriptor))) return -1;
    return static_cast<int>(syscall(SYS_fsync, descriptor));
}
int rename(const char* from, const char* to) noexcept {
    if (watching && seen("rename " + last_part(to))) return -1;
    return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
    if (watching && seen("rename " + last_part(to))) return -1;
    return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
}

namespace lockstep::testing {

SystemCalls::SystemCalls() {
    calls.clear();
    ::fail_from = ::kill_at = kNever;
    watching = true;
}
SystemCalls::~SystemCalls() { watching = false; }

std::vector<std::string> SystemCalls::log() const {
    std::lock_guard lock(mutex);
    return calls;
}
void SystemCalls::fail_from(int call, int error) {
    std::lock_guard lock(mutex);
    ::fail_from = call;
    error_number = error;
}
void SystemCalls::kill_at(int call) {
    std::lock_guard lock(mutex);
    ::kill_at = call;
}

bool survives(const std::function<void()>& f) {
    const pid_t child = fork();
    if (child == 0) {
        f();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !WIFSIGNALED(status);
}

}  // namespace lockstep::testing
