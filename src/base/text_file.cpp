#include "base/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep {

TextFile read_text_file(const std::filesystem::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return {{}, std::strerror(errno)};
    TextFile out;
    char chunk[1 << 14];
    while (true) {
        const ssize_t got = ::read(descriptor, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) out = {{}, std::strerror(errno)};
        if (got <= 0) break;
        out.text.append(chunk, static_cast<size_t>(got));
    }
    ::close(descriptor);
    return out;
}

}  // namespace lockstep
