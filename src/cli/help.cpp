#include "cli/help.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/nearest.h"
#include "cli/commands.h"
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
    // A name, and next to it or below it what it is.
    std::string item(const std::string& name, const std::string& text) const {
        std::string out = "  " + name;
        bool first = true;
        for (const std::string& line : telemetry::wrap(text, columns_ - kNameColumns)) {
            const bool on_its_line = first && static_cast<int>(out.size()) + 1 < kNameColumns;
            if (on_its_line) out.resize(kNameColumns, ' ');
            else out += "\n" + std::string(kNameColumns, ' ');
            out += line;
            first = false;
        }
        return out + "\n";
    }

    const int columns_;
};

job::ExitCode print_help(const CLI::App& root, const std::vector<std::string>& words) {
    const CLI::App* at = &root;
    std::string above;  // names of the commands that hold it
    for (const std::string& word : words) {
        std::vector<std::string> names;
        const CLI::App* next = nullptr;
        for (const CLI::App* c : at->get_subcommands([](const CLI::App*) { return true; })) {
            names.push_back(c->get_name());
            if (c->get_name() == word) next = c;
        }
        if (!next) {
            telemetry::error(names.empty() ? fmt::format("{} has no commands of its own", at->get_name())
                                           : fmt::format("there is no command '{}'; the nearest is `lockstep help {}`", word,
                                                         nearest(word, names)));
            return kUsage;
        }
        above += (above.empty() ? "" : " ") + at->get_name();
        at = next;
    }
    const std::string name = above.empty() ? at->get_name() : above + " " + at->get_name();
    fmt::print("{}", at->get_formatter()->make_help(at, name, CLI::AppFormatMode::Normal));
    return kDone;
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter(int columns) { return std::make_shared<Formatter>(columns); }

Command add_help(CLI::App& app) {
    const auto words = std::make_shared<std::vector<std::string>>();
    CLI::App* command = app.add_subcommand("help", "print the flags of a command, as --help after it does");
    command->add_option("command", *words, "words of a command (default: all commands)");
    command->footer("Example: lockstep help data prepare");
    return {.app = command, .run = [&app, words](comm::ProcessGroup&) { return static_cast<int>(print_help(app, *words)); }};
}

int output_columns() {
    winsize size{};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace lockstep::cli
