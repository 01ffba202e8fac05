// The command line: flags, help, and what each kind of error becomes.
#include "cli/app.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/launched.h"
#include "comm/communicator.h"
#include "comm/mpi/session.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

void add_recipe(CLI::App& app, RecipeArgs& args, const char* name = "recipe", const char* help = "recipe, a TOML file") {
    app.add_option(name, args.path, help)->required();
    app.add_option("--ranks", args.ranks, "ranks of the job; a degree of -1 takes what the others leave")
        ->check(CLI::PositiveNumber);
    app.allow_extras();
}

// "--section.key value" and "--section.key=value" pairs that CLI11 left over.
void take_settings(const CLI::App& app, RecipeArgs& args) {
    const std::vector<std::string> rest = app.remaining();
    for (size_t i = 0; i < rest.size(); ++i) {
        const bool is_key = rest[i].starts_with("--") && rest[i].find('.') != std::string::npos;
        if (!is_key) throw CLI::ExtrasError({rest[i]});
        const std::string key = rest[i].substr(2);
        if (const size_t equals = key.find('='); equals != std::string::npos)
            args.settings.emplace_back(key.substr(0, equals), key.substr(equals + 1));
        else if (i + 1 < rest.size()) args.settings.emplace_back(key, rest[++i]);
        else throw CLI::ArgumentMismatch(rest[i] + " needs a value");
    }
}

// One message for a person, one object for a program.
int fail(bool json, int code, const std::string& message, const std::string& key = "", const std::string& id = "") {
    if (launched().process > 0) return code;  // the first one says it
    telemetry::error(id.empty() ? message : fmt::format("{} [{}]", message, id));
    if (!key.empty() && message.find(key) == std::string::npos) telemetry::error("change: " + key);
    if (json) fmt::print("{}\n", nlohmann::ordered_json{{"error", {{"message", message}, {"key", key}, {"id", id}}}}.dump());
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
        return fail(json, kFailed, std::string("a defect of Lockstep itself: ") + e.what());
    } catch (const std::bad_alloc&) {
        return fail(json, kFailed, "out of memory: `lockstep check` says what a recipe needs");
    } catch (const std::exception& e) {
        return fail(json, kFailed, e.what());
    }
}

}  // namespace

int run(int argc, const char* const* argv) {
    CLI::App app{"Lockstep compiles the whole training step of a large language model into one program: checked, then run."};
    app.set_version_flag("--version", std::string("lockstep ") + LOCKSTEP_VERSION + " (cpu kernels; ranks as threads" +
                                          (comm::mpi::is_built() ? ", processes by MPI" : "") + ")");
    app.require_subcommand(1);
    bool colors = true;
    TrainArgs train_args;
    CheckArgs check_args;
    ShowArgs show_args;
    DiffArgs diff_args;
    EvalArgs eval_args;
    SampleArgs sample_args;
    ConvertArgs convert_args;
    PrepareArgs prepare_args;
    ExplainArgs explain_args;
    ReportArgs report_args;
    LaunchArgs launch_args;

    CLI::App* train_app = app.add_subcommand(
        "train", "train a recipe; ranks are threads of this process, or of all that mpirun or srun has started");
    add_recipe(*train_app, train_args.recipe);
    train_app->add_option(
        "--watch", train_args.watch,
        "a tensor, as routine.tensor or layer.N.routine.tensor; its values are written in global order under the dump folder");
    train_app->add_option("--trace", train_args.observe.trace,
                          "file for the timeline of one step, for chrome://tracing and Perfetto; `plan --trace` writes the same");
    train_app->add_option("--trace-step", train_args.observe.trace_step, "which step of this run (default: the third)")
        ->check(CLI::PositiveNumber);
    train_app->add_flag("--profile", train_args.observe.profile,
                        "where the steps' time went by kind of op, beside this machine's roofs (measured after the run)");
    train_app->add_option("--cluster", train_args.observe.cluster,
                          "cluster file whose roofs --profile holds the ops against, instead of measuring them");
    train_app->add_flag("--json", train_args.json, "one JSON object on standard output at the end");
    train_app->footer("Example: lockstep train recipes/demo.toml --training.steps 100");

    CLI::App* check_app = app.add_subcommand("check", "compile a recipe, prove that it runs, print the exact memory of a rank");
    add_recipe(*check_app, check_args.recipe);
    check_app->add_flag("--json", check_args.json, "one JSON object on standard output");
    check_app->footer("Example: lockstep check recipes/llama3_405b.toml");

    CLI::App* show_app = app.add_subcommand("show", "print the program as text");
    add_recipe(*show_app, show_args.recipe);
    auto* after_option = show_app->add_option("--after", show_args.after, "stop after this pass");
    auto* against_option =
        show_app->add_option("--against", show_args.against, "another recipe: print how the two programs differ");
    show_app->add_option("--skip", show_args.skip, "switch a pass off (fuse_loss, recompute, overlap)");
    auto* passes_option = show_app->add_flag("--passes", show_args.passes, "the passes and their times instead of the program");
    show_app
        ->add_flag("--schedule", show_args.schedule,
                   "the pipeline instead of the program: which blocks each stage has, and the order of forwards and backwards")
        ->excludes(after_option)
        ->excludes(against_option)
        ->excludes(passes_option);
    show_app->add_flag("--json", show_args.json, "one JSON object on standard output");
    show_app->footer("Example: lockstep show recipes/demo.toml --after shard");

    CLI::App* diff_app = app.add_subcommand("diff", "run two recipes and name the first tensor that differs");
    add_recipe(*diff_app, diff_args.recipe);
    diff_app->add_option("other", diff_args.other, "the other recipe")->required();
    diff_app->add_option("--steps", diff_args.steps, "steps to run")->check(CLI::PositiveNumber);
    diff_app->add_option(
        "--tolerance", diff_args.tolerance,
        "largest difference that counts as equal, relative to the tensor's scale; default 1e-10 in float64, 1e-4 in float32");
    diff_app->add_flag("--json", diff_args.json, "one JSON object on standard output");
    diff_app->footer("Example: lockstep diff recipes/demo.toml recipes/one_rank.toml");

    const char* checkpoint_help = "a checkpoint's folder, a folder of checkpoints (the latest is taken), or a run's folder";
    CLI::App* eval_app = app.add_subcommand("eval", "loss and perplexity of a checkpoint on any prepared tokens");
    add_recipe(*eval_app, eval_args.checkpoint, "checkpoint", checkpoint_help);
    auto* data_option =
        eval_app->add_option("--data", eval_args.data, "prepared folder; default: that of the checkpoint's recipe");
    eval_app->add_option("--split", eval_args.split, "of the prepared folder: heldout or train")
        ->check(CLI::IsMember({"heldout", "train"}));
    eval_app->add_option("--tokens", eval_args.tokens, "a token file instead of a prepared folder")->excludes(data_option);
    eval_app->add_option("--steps", eval_args.steps, "batches to take; default: the whole split once")
        ->check(CLI::PositiveNumber);
    eval_app->add_flag("--json", eval_args.json, "one JSON object on standard output");
    eval_app->footer("Example: lockstep eval outputs/demo --data data/headers");

    CLI::App* sample_app = app.add_subcommand("sample", "generate text from a checkpoint");
    add_recipe(*sample_app, sample_args.checkpoint, "checkpoint", checkpoint_help);
    sample_app->add_option("--prompt", sample_args.prompts, "text to go on from; several: one sequence each")
        ->allow_extra_args(false);
    sample_app->add_option("--prompt-file", sample_args.prompt_files, "a file with the prompt; -: standard input")
        ->allow_extra_args(false);
    sample_app->add_option("--prompt-tokens", sample_args.prompt_tokens, "the prompt as token ids, commas between them")
        ->allow_extra_args(false);
    sample_app->add_option("--max-tokens", sample_args.max_tokens, "tokens to generate for each prompt (default 128)");
    sample_app->add_option("--temperature", sample_args.temperature,
                           "divides the logits; 0: always the likeliest token (default 1)");
    sample_app->add_option("--top-k", sample_args.top_k, "only the k likeliest tokens; 0: all");
    sample_app->add_option("--top-p", sample_args.top_p,
                           "only the likeliest tokens that together have this probability (default 1)");
    sample_app->add_option("--seed", sample_args.seed, "of the choices (default 0)");
    sample_app->add_option("--stop", sample_args.stops, "end before this text; may be given several times")
        ->allow_extra_args(false);
    sample_app->add_option("--tokenizer", sample_args.tokenizer,
                           "a tokenizer.json; default: the one the checkpoint was trained with");
    sample_app->add_option("--logits", sample_args.logits, "file for the logits of every step, as text, one row a step");
    sample_app->add_flag("--json", sample_args.json, "one JSON object on standard output at the end");
    sample_app->footer("Example: lockstep sample outputs/demo --prompt '#include <' --temperature 0.8 --top-p 0.95");

    CLI::App* convert_app =
        app.add_subcommand("convert", "a Hugging Face folder to a checkpoint, or a checkpoint to such a folder");
    convert_app->add_option("in", convert_args.in, "a folder with config.json, or a checkpoint")->required();
    convert_app->add_option("out", convert_args.out, "folder to make")->required();
    convert_app->add_option("--dtype", convert_args.dtype, "of the tensors written: float32, bfloat16 or float16");
    convert_app->add_option("--shard-bytes", convert_args.shard_bytes, "largest file of an export (default 5 GB)")
        ->check(CLI::PositiveNumber);
    convert_app->add_flag("--json", convert_args.json, "one JSON object on standard output");
    convert_app->footer("Example: lockstep convert Llama-3.2-1B checkpoints/llama");

    CLI::App* data_app = app.add_subcommand("data", "prepare training data");
    data_app->require_subcommand(1);
    CLI::App* prepare_app = data_app->add_subcommand("prepare", "text files or folders -> tokenizer and token files");
    prepare_app->add_option("inputs", prepare_args.inputs, "text files or folders")->required();
    prepare_app->add_option("--out", prepare_args.out, "folder to make")->required();
    prepare_app->add_option("--vocab", prepare_args.vocab, "size of the vocabulary that is learned (default 4096)");
    prepare_app->add_option("--tokenizer", prepare_args.tokenizer, "bpe (learned), bytes, or a tokenizer.json");
    prepare_app->add_option("--heldout", prepare_args.heldout, "share of the documents that is held out");
    prepare_app->add_flag("--overwrite", prepare_args.overwrite, "replace other data in the folder");
    prepare_app->add_flag("--json", prepare_args.json, "one JSON object on standard output");
    prepare_app->footer("Example: lockstep data prepare /usr/include --out data/headers --vocab 4096");

    PlanArgs plan_args;
    CLI::App* plan_app = app.add_subcommand("plan", "what a recipe's step costs on a machine, without running it");
    add_recipe(*plan_app, plan_args.recipe);
    plan_app->add_option("--cluster", plan_args.cluster, "cluster file: clusters/*.toml, or what `lockstep bench` wrote")
        ->required();
    plan_app->add_option("--trace", plan_args.trace,
                         "file for the timeline of a step, a rank of each pipeline rank, in the form of `train --trace`");
    plan_app->add_flag("--json", plan_args.json, "one JSON object on standard output");
    plan_app->footer("Example: lockstep plan recipes/llama3_8b.toml --cluster clusters/h100.toml");

    BenchArgs bench_args;
    CLI::App* bench_app = app.add_subcommand(
        "bench",
        "measure this machine's kernels, copies and collectives, and, started over hosts, their links: its cluster "
        "file");
    bench_app->add_option("--out", bench_args.out, "file to write (default cluster.toml)");
    bench_app->add_option("--seconds", bench_args.seconds, "how long to measure kernels (default 80)")
        ->check(CLI::PositiveNumber);
    bench_app->add_option("--machine", bench_args.machine,
                          "cluster file whose kernels and copies are taken over, not measured again");
    bench_app->add_flag("--quick", bench_args.quick, "small shapes only: a rough table in seconds");
    bench_app->add_flag("--json", bench_args.json, "one JSON object on standard output");
    bench_app->footer(
        "Example: lockstep bench --out this_machine.toml\n         mpirun -n 8 --host a:4,b:4 lockstep bench --out "
        "two_hosts.toml");

    ScheduleArgs schedule_args;
    CLI::App* schedule_app = app.add_subcommand("schedule", "draw and check a pipeline schedule, named or from a CSV file");
    schedule_app->add_option("name", schedule_args.name, "1F1B, Interleaved1F1B, ...; all names are listed where left out");
    schedule_app->add_option("--from", schedule_args.file, "a CSV file of torch.distributed.pipelining instead of a name")
        ->excludes("name");
    schedule_app->add_option("--ranks", schedule_args.ranks, "pipeline ranks (default 4)")->check(CLI::Range(1, 4096));
    schedule_app
        ->add_option("--stages-per-rank", schedule_args.stages_per_rank, "default: 2 where the schedule takes several, else 1")
        ->check(CLI::Range(1, 64));
    schedule_app->add_option("--microbatches", schedule_args.microbatches, "of a step (default 8)")->check(CLI::Range(1, 65536));
    schedule_app->add_flag("--csv", schedule_args.csv, "the table in PyTorch's format, for pipeline_parallel_schedule_csv");
    schedule_app->add_flag("--json", schedule_args.json, "one JSON object on standard output");
    schedule_app->footer("Example: lockstep schedule ZB-H1 --ranks 4 --microbatches 8");

    CLI::App* launch_app =
        app.add_subcommand("launch", "start training over hosts, look after it, start it again from its last checkpoint");
    auto* hosts_option =
        launch_app->add_option("--hosts", launch_args.hosts, "hosts with their processes, as n0:2,n1:2; default: this machine");
    launch_app->add_option("--processes", launch_args.processes, "processes on this machine; default: one a rank")
        ->check(CLI::PositiveNumber)
        ->excludes(hosts_option);
    launch_app
        ->add_option("--max-restarts", launch_args.max_restarts,
                     "in a row without a new checkpoint, before it gives up (default 3)")
        ->check(CLI::NonNegativeNumber);
    launch_app->add_option("--agent", launch_args.agent,
                           "what runs a command on a host: whether it lives, and to end what is left there (default ssh)");
    launch_app->add_option("--mpirun", launch_args.mpirun, "the launcher with its options");
    launch_app->add_flag("--json", launch_args.json, "one JSON object on standard output at the end");
    launch_app->footer("Example: lockstep launch --hosts n0:8,n1:8 -- train recipes/llama3_8b.toml --checkpoint.enable true");

    CLI::App* report_app = app.add_subcommand("report", "what the flight records of a job that hung or lost a rank say");
    report_app->add_option("folder", report_args.folder, "a run's folder, or the folder of the records")->required();
    report_app->add_option("--ops", report_args.ops, "last ops of each rank to print (default 5)")->check(CLI::NonNegativeNumber);
    report_app->add_flag("--json", report_args.json, "one JSON object on standard output");
    report_app->footer("Example: lockstep report outputs/demo");

    CLI::App* recipe_app = app.add_subcommand("recipe", "explain recipe keys: default, whether they act, meaning");
    recipe_app->add_option("--explain,key", explain_args.key, "a key or a section; all where left out");
    recipe_app->add_flag("--json", explain_args.json, "one JSON array on standard output");
    recipe_app->footer("Example: lockstep recipe --explain training.global_batch_size");

    std::signal(SIGXFSZ, SIG_IGN);  // a file over the system's limit is an error to report, not the end of the process
    telemetry::set_up_console(colors);
    const bool json = std::any_of(argv, argv + argc, [](const char* a) { return std::string_view(a) == "--json"; });
    const bool launches = argc > 1 && std::string_view(argv[1]) == "launch";
    try {
        // What launch is to start stands behind --, with flags of its own.
        const char* const* end = launches ? std::find(argv, argv + argc, std::string_view("--")) : argv + argc;
        if (end != argv + argc) launch_args.command.assign(end + 1, argv + argc);
        app.parse(static_cast<int>(end - argv), argv);
        const bool trains = !launch_args.command.empty() && launch_args.command[0] == "train";
        if (trains) app.parse(static_cast<int>(argv + argc - end), end);  // "--" in place of the program's name
        take_settings(*train_app, train_args.recipe);
        if (trains) launch_args.recipe = train_args.recipe;
        take_settings(*check_app, check_args.recipe);
        take_settings(*plan_app, plan_args.recipe);
        take_settings(*show_app, show_args.recipe);
        take_settings(*diff_app, diff_args.recipe);
        take_settings(*eval_app, eval_args.checkpoint);
        take_settings(*sample_app, sample_args.checkpoint);
    } catch (const CLI::ParseError& e) {
        if (launched().process > 0) return e.get_exit_code() == 0 ? kDone : kUsage;
        return app.exit(e) == 0 ? kDone : kUsage;
    }
    const auto failed = [&] { return fail(json); };
    try {
        if (*train_app && !launches) return in_crew([&](comm::Crew& crew) { return train(train_args, crew); }, failed);
        if (*eval_app) return in_crew([&](comm::Crew& crew) { return eval(eval_args, crew); }, failed);
        if (*sample_app) return in_crew([&](comm::Crew& crew) { return sample(sample_args, crew); }, failed);
        if (*bench_app) return in_crew([&](comm::Crew& crew) { return bench(bench_args, crew); }, failed);
        if (launched().process > 0) return kDone;  // the first process does it alone
        if (launches) return launch(launch_args);
        if (*check_app) return check(check_args);
        if (*show_app) return show(show_args);
        if (*diff_app) return diff(diff_args);
        if (*plan_app) return plan(plan_args);
        if (*convert_app) return convert(convert_args);
        if (*schedule_app) return schedule(schedule_args);
        if (*prepare_app) return prepare(prepare_args);
        if (*report_app) return report(report_args);
        return explain(explain_args);
    } catch (const std::exception&) {
        return failed();
    }
}

}  // namespace lockstep::cli
