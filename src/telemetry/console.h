// Everything that a person reads goes to standard error: log lines, and one progress bar where that is a terminal. Standard
// output is kept for results.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::telemetry {

void set_up_console(bool colors);
// Nothing is printed from now on: another process speaks for this one.
void mute();
void unmute();
void info(std::string_view line);
void warn(std::string_view line);
void error(std::string_view line);

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
