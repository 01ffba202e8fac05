#include "base/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;

// A descriptor that was opened without waiting, which ends with the block.
class Opened {
public:
    explicit Opened(const std::filesystem::path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    int descriptor() const { return descriptor_; }

private:
    int descriptor_;
};

}  // namespace

std::string lfs_pointer_text(std::string_view file) { return fmt::format("{}: it is {}. {}", file, kLfsWhat, kLfsRemedy); }

TextFile read_text_file(const std::filesystem::path& path, Pipes pipes) {
    const Opened file(path);
    struct stat status {};
    if (file.descriptor() < 0 || ::fstat(file.descriptor(), &status) != 0) return {{}, std::strerror(errno)};
    const bool is_pipe = S_ISFIFO(status.st_mode);
    if (is_pipe && pipes == Pipes::Refused) return {{}, "it is a pipe, not a file"};
    if (!is_pipe && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return {{}, "it is a device, not a file"};
    const TextFile too_long{{}, "it is longer than 1 GiB, so it is no text file of Lockstep"};
    if (!is_pipe && status.st_size > static_cast<off_t>(kMaxBytes)) return too_long;
    const bool has_size = !is_pipe && status.st_size > 0;  // files of /proc have none
    const size_t most = has_size ? static_cast<size_t>(status.st_size) : kMaxBytes + 1;
    TextFile out;
    char chunk[1 << 14];
    while (out.text.size() < most) {
        const ssize_t got = ::read(file.descriptor(), chunk, std::min(sizeof chunk, most - out.text.size()));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN && is_pipe) {  // its writer is not ready: wait from here on
            ::fcntl(file.descriptor(), F_SETFL, O_RDONLY);
            continue;
        }
        if (got < 0) return {{}, std::strerror(errno)};
        if (got == 0) break;
        out.text.append(chunk, static_cast<size_t>(got));
    }
    if (out.text.size() > kMaxBytes) return too_long;
    if (is_pipe && out.text.empty()) return {{}, "it is a pipe that nobody writes to"};
    return out;
}

}  // namespace lockstep
