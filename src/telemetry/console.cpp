#include "telemetry/console.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace lockstep::telemetry {

void set_up_console(bool colors) {
    auto logger = spdlog::get("lockstep");
    if (!logger) {
        auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(colors ? spdlog::color_mode::automatic
                                                                                 : spdlog::color_mode::never);
        logger = std::make_shared<spdlog::logger>("lockstep", sink);
        logger->set_pattern("%^[%H:%M:%S]%$ %v");
        spdlog::register_logger(logger);
        spdlog::set_default_logger(logger);
    }
}

void mute() { spdlog::set_level(spdlog::level::off); }
void unmute() { spdlog::set_level(spdlog::level::info); }

void info(std::string_view line) { spdlog::info("{}", line); }
void warn(std::string_view line) { spdlog::warn("{}", line); }
void error(std::string_view line) { spdlog::error("{}", line); }

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) != 0 && spdlog::get_level() != spdlog::level::off) {}
ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::show(int64_t done, int64_t total, std::string_view text) {
    if (!terminal_) return;
    winsize size{};
    const int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    const int cells = 24, full = total > 0 ? static_cast<int>(cells * std::min(done, total) / total) : 0;
    std::string line = fmt::format("[{}{}] {}/{}  {}", std::string(static_cast<size_t>(full), '#'),
                                   std::string(static_cast<size_t>(cells - full), '.'), done, total, text);
    if (static_cast<int>(line.size()) >= width) line.resize(static_cast<size_t>(width - 1));
    fmt::print(stderr, "\r\033[K{}", line);
    std::fflush(stderr);
    shown_ = true;
}

void ProgressBar::clear() {
    if (shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
}

}  // namespace lockstep::telemetry
