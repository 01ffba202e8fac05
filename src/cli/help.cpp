#include "cli/help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

constexpr int kNarrowest = 40, kWidest = 120, kNameColumns = 24;

std::string joined(const std::vector<std::string>& lines) {
    std::string out;
    for (const std::string& line : lines) out += line + "\n";
    return out;
}

class Formatter : public CLI::Formatter {
public:
    explicit Formatter(int columns) : columns_(std::clamp(columns, kNarrowest, kWidest)) {}

    std::string make_option(const CLI::Option* option, bool is_positional) const override {
        return item(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
    }
    std::string make_subcommand(const CLI::App* app) const override {
        return item(app->get_display_name(true), app->get_description());
    }
    std::string make_description(const CLI::App* app) const override {
        return joined(telemetry::wrap(app->get_description(), columns_));
    }
    std::string make_usage(const CLI::App* app, std::string name) const override {
        return "\n" + joined(telemetry::wrap(CLI::Formatter::make_usage(app, std::move(name)), columns_));
    }
    std::string make_footer(const CLI::App* app) const override {
        const std::string footer = app->get_footer();
        return footer.empty() ? "" : joined(telemetry::wrap(footer, columns_));
    }

private:
    // A name, and beside or below it what it is.
    std::string item(const std::string& name, const std::string& text) const {
        std::string out = "  " + name;
        bool first = true;
        for (const std::string& line : telemetry::wrap(text, columns_ - kNameColumns)) {
            const bool beside = first && static_cast<int>(out.size()) + 1 < kNameColumns;
            if (beside) out.resize(kNameColumns, ' ');
            else out += "\n" + std::string(kNameColumns, ' ');
            out += line;
            first = false;
        }
        return out + "\n";
    }

    const int columns_;
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter(int columns) { return std::make_shared<Formatter>(columns); }

int output_columns() {
    winsize size{};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace lockstep::cli
