// What Lockstep says on the way to a result: lines, and one progress bar. A program that wants it on standard error calls
// set_up_console(); one that wants the lines itself gives a listener; without either nothing is printed. Standard output is
// kept for results. On a terminal lines wrap between words at its width; in a file a line stays one line.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lockstep::telemetry {

enum class LogFormat { Text, Json };
struct ConsoleOptions {
    bool colors = true;                  // on a terminal
    bool quiet = false;                  // warnings and errors only
    LogFormat format = LogFormat::Text;  // Json: each line is an object {time, level, text, ...}
};
void set_up_console(const ConsoleOptions& options);
// Takes the lines instead of standard error; empty: no longer. It may be called from several threads at the same time.
enum class Level { Info, Warning, Error };
using Listener = std::function<void(Level, std::string_view)>;
void set_listener(Listener listener);
void switch_colors_off();
// Nothing is printed from now on: another process speaks for this one.
void mute();
void unmute();
// As a terminal can show it: names and values from outside may hold control characters, and bytes that are no UTF-8. Every line
// below goes through it; what is printed elsewhere and quotes a file should, too.
std::string printable(std::string_view text);
void info(std::string_view line);
void warn(std::string_view line);
void error(std::string_view line);
// A line of a table: `text` for a person, without the time of day; the fields of `values` for a program.
void info(std::string_view text, const nlohmann::ordered_json& values);

// Columns of the terminal that standard error is; 80 where it is none or does not say.
int console_columns();
// Are lines of a person's text printed at all: neither quiet nor muted, nor JSON?
bool console_shows_text();

// "[#####.....] 120/1000  loss 3.21  1.2 k tok/s"; nothing where standard error is no terminal.
class ProgressBar {
public:
    ProgressBar();
    ~ProgressBar();
    void show(int64_t done, int64_t total, std::string_view text);
    void clear();  // before a log line

private:
    bool terminal_, shown_ = false;
};

}  // namespace lockstep::telemetry
