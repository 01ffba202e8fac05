#include "cli/terminal.h"

#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>

#include "cli/environment.h"
#include "cli/help.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

bool is_output_terminal() { return isatty(STDOUT_FILENO) != 0; }

// Standard output, kept in memory while this lives.
class KeptOutput {
public:
    KeptOutput() : before_(stdout), memory_(open_memstream(&text_, &bytes_)) {
        if (memory_) stdout = memory_;
    }
    ~KeptOutput() {
        stdout = before_;
        if (memory_) std::fclose(memory_);
        std::free(text_);
    }
    KeptOutput(const KeptOutput&) = delete;
    KeptOutput& operator=(const KeptOutput&) = delete;
    std::string text() const {
        if (memory_) std::fflush(memory_);
        return {text_, bytes_};
    }

private:
    char* text_ = nullptr;
    size_t bytes_ = 0;
    FILE *before_, *memory_;
};

}  // namespace

std::string colored(const std::string& text, Color color) {
    if (!is_output_terminal() || refuses_colors()) return text;
    return fmt::format("\033[{}m{}\033[0m", color == Color::Green ? 32 : 31, text);
}

void at_terminal_width(const std::function<void()>& print) {
    if (!is_output_terminal()) return print();
    std::string text;
    {
        const KeptOutput kept;
        print();
        text = kept.text();
    }
    if (text.ends_with('\n')) text.pop_back();
    for (const std::string& line : telemetry::wrap(text, output_columns())) fmt::print("{}\n", line);
}

void print_verdict(const std::string& text, bool is_good) {
    const int columns = is_output_terminal() ? output_columns() : std::numeric_limits<int>::max();
    for (const std::string& line : telemetry::wrap(text, columns))
        fmt::print("{}\n", colored(line, is_good ? Color::Green : Color::Red));
}

}  // namespace lockstep::cli
