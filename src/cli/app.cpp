// The command line: which command runs, and what each kind of error becomes.
#include "cli/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <system_error>

#include "base/build_info.h"
#include "base/error.h"
#include "base/nearest.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/help.h"
#include "cli/launched.h"
#include "comm/communicator.h"
#include "comm/mpi/session.h"
#include "compile/recipe.h"
#include "job/stopping.h"
#include "kernels/cpu/isa.h"
#include "plugins/architectures.h"
#include "plugins/gpu_module.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

// A value from outside may be a whole file long.
std::string printable(const std::string& text) {
    constexpr size_t kLongest = 4000;
    const std::string out = telemetry::printable(std::string_view(text).substr(0, kLongest));
    return text.size() > kLongest ? fmt::format("{} ... ({} more characters)", out, text.size() - kLongest) : out;
}

// One message for a person, one object for a program.
int fail(bool json, int code, const std::string& text, const std::string& key = "", const std::string& id = "") {
    if (launched().process > 0) return code;  // the first one says it
    const std::string message = printable(text);
    telemetry::error(id.empty() ? message : fmt::format("{} [{}]", message, id));
    if (!key.empty() && text.find(key) == std::string::npos) telemetry::error("change: " + printable(key));
    if (json) print_json(nlohmann::ordered_json{{"error", {{"message", message}, {"key", key}, {"id", id}}}});
    std::fflush(stdout);  // a launcher may kill this process once another one has ended
    return code;
}

// What the error at hand becomes.
int fail(bool json) {
    try {
        throw;
    } catch (const UserError& e) {
        return fail(json, kRefused, e.what(), e.key(), e.id());
    } catch (const InternalError& e) {
        return fail(json, kFailed, std::string("internal error (please report): ") + e.what());
    } catch (const std::filesystem::filesystem_error& e) {
        if (e.code() != std::errc::filename_too_long) return fail(json, kFailed, e.what());
        return fail(json, kRefused, fmt::format("a file's name is too long: {}", e.path1().string()), "", "file.name_too_long");
    } catch (const std::system_error& e) {
        if (e.code() != std::errc::broken_pipe) return fail(json, kFailed, e.what());
        std::clearerr(stdout);  // nobody reads on: no error to report
        return kDone;
    } catch (const std::bad_alloc&) {
        return fail(json, kFailed,
                    "out of memory: the system refused memory on top of what `lockstep check` plans; end other programs, or use "
                    "another machine");
    } catch (const std::exception& e) {
        return fail(json, kFailed, e.what());
    }
}

// What to say where a command must be and another word is. Empty: all is well, or a flag is there.
std::string unknown_command(const CLI::App& app, int argc, const char* const* argv) {
    const CLI::App* at = &app;
    for (int i = 1; i < argc; ++i) {
        const std::vector<const CLI::App*> commands = at->get_subcommands([](const CLI::App*) { return true; });
        if (at == &app && argv[i][0] == '-') {
            const std::vector<std::string> flags = {"-h", "--help", "--version"};
            if (std::find(flags.begin(), flags.end(), argv[i]) != flags.end()) return "";
            return fmt::format("{}: a command comes first, as in lockstep train recipe.toml; `lockstep --help` lists them",
                               argv[i]);
        }
        if (commands.empty() || argv[i][0] == '-') return "";
        std::vector<std::string> names;
        for (const CLI::App* c : commands) names.push_back(c->get_name());
        const auto known = std::find(names.begin(), names.end(), argv[i]);
        if (std::error_code unknown; known == names.end() && at == &app && std::filesystem::exists(argv[i], unknown))
            return fmt::format("{0}: a command comes first, as in lockstep train {0}; `lockstep --help` lists them", argv[i]);
        if (known == names.end())
            return fmt::format("there is no command '{}{}{}'; the nearest is `lockstep {}{}{}`", at == &app ? "" : at->get_name(),
                               at == &app ? "" : " ", argv[i], at == &app ? "" : at->get_name(), at == &app ? "" : " ",
                               nearest(argv[i], names));
        at = commands[static_cast<size_t>(known - names.begin())];
    }
    return "";
}

std::string version_text() {
    const BuildInfo& build = build_info();
    return fmt::format("lockstep {} ({}, {})\nkernels: CPU, {} on this processor; {}\nGPU: {}\nranks: threads, and {}",
                       build.version, build.commit, build.compiler, kernels::cpu::instruction_sets(), plugins::kServedGpus,
                       plugins::gpu_text(),
                       comm::mpi::is_built() ? "processes by " + comm::mpi::library() : "no processes (built without MPI)");
}

// CLI11 takes an empty word for a number's 0 and for a text's default, and a number that is too large for the largest one. A
// word is empty where a variable of the shell is not set. Empty: all is well.
std::string unusable_value(const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
        const bool is_free_text = option->check_lname("prompt");  // an empty prompt begins a document
        const std::string type = option->get_type_name();
        for (const std::string& value : option->results()) {
            if (option->get_items_expected_max() == 0 || is_free_text) continue;
            if (value.empty()) return fmt::format("{}: the value is empty", option->get_name());
            const auto overflows = [&](auto number) {
                return std::from_chars(value.data(), value.data() + value.size(), number).ec == std::errc::result_out_of_range;
            };
            if (type.starts_with("UINT") && value.starts_with('-'))
                return fmt::format("{} {}: must be a number from 0", option->get_name(), value);
            if ((type.starts_with("UINT") && overflows(uint64_t{})) || (type.starts_with("INT") && overflows(int64_t{})))
                return fmt::format("{} {}: the number is too large", option->get_name(), value);
        }
    }
    return "";
}

bool is_switch(const std::string& name) {
    const compile::RecipeKey* key = compile::find_key(name);
    return key && std::holds_alternative<bool>(key->default_value);
}

// What a key that is true or false is set to by the flag itself, torchtitan's form: --checkpoint.enable,
// --checkpoint.no-enable. Empty: the flag needs a value, or has one in the next word.
std::string set_by_flag_alone(const std::string& flag, const char* next) {
    static const std::regex no("\\.no[-_]");
    const std::string key = flag.substr(2), positive = std::regex_replace(key, no, ".");
    if (positive != key && is_switch(positive)) return fmt::format("--{}=false", positive);
    std::error_code unknown;
    const bool has_value = next && (std::strcmp(next, "true") == 0 || std::strcmp(next, "false") == 0 ||
                                    !(std::string_view(next).starts_with("--") || std::filesystem::exists(next, unknown)));
    return is_switch(key) && !has_value ? flag + "=true" : "";
}

// "--section.key value" as one word. CLI11 knows no keys, and would take the value of one that comes first for the recipe.
std::vector<const char*> with_joined_keys(const char* const* begin, const char* const* end, std::vector<std::string>& joined) {
    joined.reserve(static_cast<size_t>(end - begin));  // words are pointed to
    std::vector<const char*> words;
    for (const char* const* at = begin; at != end; ++at) {
        const std::string_view word = *at;
        const bool is_key = word.starts_with("--") && word.find('.') != word.npos && word.find('=') == word.npos;
        const char* next = at + 1 == end ? nullptr : at[1];
        if (std::string flag = is_key ? set_by_flag_alone(*at, next) : ""; !flag.empty())
            words.push_back(joined.emplace_back(std::move(flag)).c_str());
        else if (is_key && next && !std::string_view(next).starts_with("--"))
            words.push_back(joined.emplace_back(fmt::format("{}={}", word, *++at)).c_str());
        else words.push_back(*at);
    }
    return words;
}

// In the groups and the order of `lockstep --help`.
std::vector<Command> all_commands(CLI::App& app) {
    std::vector<Command> all;
    const auto group = [&](const char* name, const std::vector<Command>& commands) {
        for (const Command& c : commands) {
            CLI::App* first = all.emplace_back(c).app;  // of the words: "data", of "data prepare"
            while (first->get_parent() != &app) first = first->get_parent();
            first->group(name);
        }
    };
    group("Train",
          {add_new(app), add_train(app), add_launch(app), add_report(app), add_eval(app), add_sample(app), add_checkpoints(app)});
    group("Plan", {add_check(app), add_plan(app), add_tune(app), add_clusters(app), add_bench(app), add_calibrate(app),
                   add_show(app), add_schedule(app), add_diff(app)});
    group("Data and models", {add_data(app), add_convert(app), add_recipe(app)});
    group("Tools", {add_help(app), add_completion(app), add_man(app)});
    return all;
}

// Of `launch train r.toml`, whose "--" is missing. Empty: it is there, or no command is.
std::string missing_dashes(const std::vector<Command>& commands, int argc, const char* const* argv) {
    const char* const* const end = argv + argc;
    if (std::find(argv, end, std::string_view("--")) != end) return "";
    const auto is_command = [&](const char* word) {
        return std::any_of(commands.begin(), commands.end(), [&](const Command& c) { return c.app->get_name() == word; });
    };
    const char* const* const inner = std::find_if(argv + 2, end, is_command);
    if (inner == end) return "";
    return fmt::format("{}: the command that it starts comes behind --: lockstep {} -- {}", argv[1],
                       fmt::join(argv + 1, inner, " "), fmt::join(inner, end, " "));
}

int run_command(int argc, const char* const* argv) {
    CLI::App app{"Lockstep compiles the whole training step of a large language model into one program: checked, then run.",
                 "lockstep"};
    app.footer(
        "`lockstep COMMAND --help` has the flags of a command and an example. A first run on a text of yours: lockstep new "
        "novels --data novels.txt");
    app.formatter(help_formatter(output_columns()));
    app.set_version_flag("--version", version_text);
    app.require_subcommand(1);
    const std::vector<Command> commands = all_commands(app);
    telemetry::ConsoleOptions console{.colors = !refuses_colors()};
    for (const Command& c : commands) add_console_flags(*c.app, console);
    std::signal(SIGXFSZ, SIG_IGN);  // a file over the system's limit is an error to report, not the end of the process
    telemetry::set_up_console(console);
    const bool json = std::any_of(argv, argv + argc, [](const char* a) { return std::string_view(a) == "--json"; });
    // "--" ends this command line where the command takes another one behind it.
    const char* const* const dashes = std::find(argv, argv + argc, std::string_view("--"));
    const auto takes_words = [](const Command& c) { return c.take_words != nullptr; };
    const auto outer = std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& c) { return takes_words(c) && argc > 1 && c.app->get_name() == argv[1]; });
    const char* const* const end = outer == commands.end() ? argv + argc : dashes;
    if (argc < 2) {
        if (launched().process > 0) return kUsage;
        fmt::print("{}", app.help());
        telemetry::error("a subcommand is required, as in lockstep train recipe.toml");
        return kUsage;
    }
    if (const std::string unknown = unknown_command(app, argc, argv); !unknown.empty()) {
        if (launched().process == 0) telemetry::error(unknown);
        return kUsage;
    }
    if (const std::string hint = outer == commands.end() ? "" : missing_dashes(commands, argc, argv); !hint.empty()) {
        if (launched().process == 0) telemetry::error(hint);
        return kUsage;
    }
    const Command* chosen = nullptr;
    try {
        std::vector<std::string> joined;
        const std::vector<const char*> words = with_joined_keys(argv, end, joined);
        app.parse(static_cast<int>(words.size()), words.data());
        chosen = &*std::find_if(commands.begin(), commands.end(), [](const Command& c) { return c.app->parsed(); });
        if (const std::string unusable = unusable_value(*chosen->app); !unusable.empty()) {
            if (launched().process == 0) telemetry::error(unusable);
            return kUsage;
        }
        if (end != argv + argc) chosen->take_words({end + 1, argv + argc});
        if (chosen->recipe) take_settings(*chosen->app, *chosen->recipe);
    } catch (const CLI::ParseError& e) {
        if (launched().process > 0) return e.get_exit_code() == 0 ? kDone : kUsage;
        constexpr std::string_view kOtherType = "Could not convert: ";
        if (const std::string said = e.what(); said.starts_with(kOtherType)) {
            telemetry::error(said.substr(kOtherType.size()) + ": the flag takes another kind of value, or a smaller one");
            return kUsage;
        }
        return app.exit(e) == 0 ? kDone : kUsage;
    }
    telemetry::set_up_console(console);
    if (chosen->catches_signals) job::remember_signals(job::Again::EndsProcess);  // now: MPI may take long to start
    const auto failed = [&] { return fail(json); };
    try {
        if (chosen->in_every_process) return in_process_group(chosen->app->get_name(), chosen->run, failed);
        if (launched().process > 0) return kDone;
        if (const int processes = launched().processes; processes > 1)
            telemetry::info(fmt::format("{} runs only in the first of the {} processes", chosen->app->get_name(), processes));
        comm::ProcessGroup alone;
        return chosen->run(alone);
    } catch (const std::exception&) {
        return failed();
    }
}

// Lost output is a failure, unless its reader has gone.
int flushed(int code) {
    errno = 0;
    const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
    const int reason = errno;
    if (!lost || reason == EPIPE) return code;
    telemetry::error(fmt::format("standard output cannot be written{}{}: what this command printed is not whole",
                                 reason ? ": " : "", reason ? std::strerror(reason) : ""));
    return kFailed;
}

}  // namespace

int run(int argc, const char* const* argv) {
    if (const std::optional<std::string> file = variable(plugins::kModuleVariable)) plugins::use_gpu_module(*file);
    return flushed(run_command(argc, argv));
}

}  // namespace lockstep::cli
