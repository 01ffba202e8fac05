#include "telemetry/console.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "data/utf8.h"
#include "telemetry/wrap.h"

namespace lockstep::telemetry {
namespace {

constexpr int kDefaultColumns = 80, kTimeColumns = 11;  // "[12:34:56] "
spdlog::level::level_enum spoken = spdlog::level::info;
LogFormat format = LogFormat::Text;
std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> sink;  // null: the console is not set up
Listener listener;
std::mutex listener_mutex;

bool listener_takes(Level level, std::string_view text) {
    std::unique_lock lock(listener_mutex);
    const Listener taker = listener;
    lock.unlock();  // what it calls may speak, too
    if (taker) taker(level, text);
    return taker != nullptr;
}

bool is_terminal() { return isatty(STDERR_FILENO) != 0; }

std::string json_line(spdlog::level::level_enum level, std::string_view text, const nlohmann::ordered_json& values) {
    const auto now = std::chrono::system_clock::now();
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
    const spdlog::string_view_t name = spdlog::level::to_string_view(level);
    nlohmann::ordered_json line = {
        {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms)},
        {"level", std::string(name.data(), name.size())},
        {"text", text}};
    if (values.is_object()) line.update(values);
    return json_text(line);
}

void say(Level of, std::string_view raw) {
    const std::string text = printable(raw);
    if (listener_takes(of, text) || !sink) return;
    const auto level = of == Level::Info ? spdlog::level::info : of == Level::Warning ? spdlog::level::warn : spdlog::level::err;
    if (format == LogFormat::Json) return spdlog::log(level, "{}", json_line(level, text, nullptr));
    if (!is_terminal()) return spdlog::log(level, "{}", text);
    std::string lines;
    for (const std::string& line : wrap(text, console_columns() - kTimeColumns))
        lines += (lines.empty() ? "" : "\n" + std::string(kTimeColumns, ' ')) + line;
    spdlog::log(level, "{}", lines);
}

bool console_shows(spdlog::level::level_enum level) {
    const std::lock_guard lock(listener_mutex);
    return sink && !listener && spdlog::get_level() <= level;
}

// Not fmt::print, which throws: a console that is gone does not end a run.
void put(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

std::string printable(std::string_view text) {
    std::string out;
    for (const char c : data::with_replacements(text)) {
        const bool is_control = (c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == 0x7f;
        if (is_control) out += fmt::format("\\x{:02x}", c);
        else out += c;
    }
    return out;
}

void set_up_console(const ConsoleOptions& options) {
    format = options.format;
    spoken = options.quiet ? spdlog::level::warn : spdlog::level::info;
    auto logger = spdlog::get("lockstep");
    if (!logger) {
        sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
        logger = std::make_shared<spdlog::logger>("lockstep", sink);
        spdlog::register_logger(logger);
        spdlog::set_default_logger(logger);
    }
    sink->set_color_mode(options.colors ? spdlog::color_mode::automatic : spdlog::color_mode::never);
    logger->set_pattern(format == LogFormat::Json ? "%v" : "%^[%H:%M:%S]%$ %v");
    logger->set_level(spoken);
}

void set_listener(Listener taker) {
    const std::lock_guard lock(listener_mutex);
    listener = std::move(taker);
}

void switch_colors_off() {
    if (sink) sink->set_color_mode(spdlog::color_mode::never);
}

void mute() { spdlog::set_level(spdlog::level::off); }
void unmute() { spdlog::set_level(spoken); }

void info(std::string_view line) { say(Level::Info, line); }
void warn(std::string_view line) { say(Level::Warning, line); }
void error(std::string_view line) { say(Level::Error, line); }

void info(std::string_view text, const nlohmann::ordered_json& values) {
    if (!console_shows(spdlog::level::info)) return;  // a listener has the numbers of each step from elsewhere
    if (format == LogFormat::Json) spdlog::info("{}", json_line(spdlog::level::info, text, values));
    else put(fmt::format("{}\n", text));
}

int console_columns() {
    winsize size{};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefaultColumns;
}

bool console_shows_text() { return format == LogFormat::Text && console_shows(spdlog::level::info); }

ProgressBar::ProgressBar() : terminal_(is_terminal() && console_shows_text()) {}
ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::show(int64_t done, int64_t total, std::string_view text) {
    if (!terminal_) return;
    const int cells = 24, full = total > 0 ? static_cast<int>(cells * std::min(done, total) / total) : 0;
    std::string line = fmt::format("[{}{}] {}/{}  {}", std::string(static_cast<size_t>(full), '#'),
                                   std::string(static_cast<size_t>(cells - full), '.'), done, total, text);
    const int width = console_columns();
    if (static_cast<int>(line.size()) >= width) line.resize(static_cast<size_t>(width - 1));
    put("\r\033[K" + line);
    std::fflush(stderr);
    shown_ = true;
}

void ProgressBar::clear() {
    if (shown_) put("\r\033[K");
    shown_ = false;
}

}  // namespace lockstep::telemetry
