#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/number_flags.h"
#include "job/stopping.h"
#include "job/supervisor.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct LaunchArgs {
    job::SupervisorOptions options;
    bool json = false;

    // The words behind "--". Throws CLI::ParseError for wrong flags of train.
    void take(const std::vector<std::string>& words) {
        options.command = words;
        if (words.empty() || words[0] != "train") return;
        CLI::App app;
        const Command train = add_train(app);
        telemetry::ConsoleOptions of_train;
        add_console_flags(*train.app, of_train);
        app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 reads from the back
        take_settings(*train.app, *train.recipe);
        options.recipe = *train.recipe;
    }
};

using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

int launch(const LaunchArgs& args) {
    if (geteuid() == 0)  // mpirun asks twice
        set_unless_set("OMPI_ALLOW_RUN_AS_ROOT", "1"), set_unless_set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    const job::Supervised s = job::supervise(args.options);
    if (args.json) {
        Json attempts = Json::array();
        for (const job::Attempt& a : s.attempts) {
            attempts.push_back({{"attempt", attempts.size() + 1},
                                {"hosts", a.hosts},
                                {"code", a.code},
                                {"time_s", a.time_s},
                                {"from_step", a.from_step},
                                {"to_step", a.to_step}});
            if (a.island) attempts.back()["island"] = *a.island;
        }
        print_json(Json{{"code", s.code}, {"step", s.step}, {"attempts", attempts}});
    }
    if (s.code != kDone || s.attempts.size() > 1) {
        for (size_t i = 0; i < s.attempts.size(); ++i) {
            const job::Attempt& a = s.attempts[i];
            telemetry::info(fmt::format("launch: attempt {}{}: step {} to {}, {:.1f} s, exit code {}{}", i + 1,
                                        a.island ? fmt::format(" (island {})", *a.island) : "", a.from_step, a.to_step, a.time_s,
                                        a.code, a.hosts.empty() ? "" : fmt::format(", on {}", fmt::join(a.hosts, " "))));
        }
    }
    if (s.code == kFailed && job::remembered_signal() == 0)
        telemetry::error(fmt::format("launch: given up after {} attempts at step {}", s.attempts.size(), s.step));
    return s.code;
}

}  // namespace

Command add_launch(CLI::App& app) {
    const auto args = std::make_shared<LaunchArgs>();
    CLI::App* command =
        app.add_subcommand("launch", "start training over hosts, and restart it from its last checkpoint when it fails");
    auto* hosts_option =
        command->add_option("--hosts", args->options.hosts, "hosts and processes per host, as n0:2,n1:2 (default: this machine)");
    command->add_option("--processes", args->options.processes, "processes on this machine (default: one per rank)")
        ->check(positive_number())
        ->excludes(hosts_option);
    command
        ->add_option("--max-restarts", args->options.max_restarts,
                     "restarts in a row without a new checkpoint before launch gives up (default 3)")
        ->check(nonnegative_number());
    command
        ->add_option("--grace", args->options.grace_s,
                     "seconds from a signal to launch until what still runs is ended without a checkpoint (default 300)")
        ->check(nonnegative_number());
    command->add_option(
        "--agent", args->options.agent,
        "program that runs a command on a host, to ask whether it answers and to end processes there (default ssh)");
    command->add_option("--meet-at", args->options.meet_at,
                        "host:port at which islands reach this host (default: its name, and a port that is free)");
    command->add_option("--mpirun", args->options.mpirun, "mpirun with its options");
    command->add_flag("--json", args->json, "one JSON object on standard output at the end");
    command->footer("Example: lockstep launch --hosts n0:8,n1:8 -- train recipes/llama3_8b.toml --checkpoint.enable true");
    return {.app = command,
            .run = [args](comm::ProcessGroup&) { return launch(*args); },
            .take_words = [args](const Words& words) { args->take(words); }};
}

}  // namespace lockstep::cli
