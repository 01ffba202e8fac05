#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/number_flags.h"
#include "job/evaluation.h"
#include "telemetry/console.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

struct EvalArgs {
    planning::RecipeArgs checkpoint;  // path: of a checkpoint
    job::EvaluationOptions options;
    bool json = false;
};

void add_to(nlohmann::ordered_json& out, const job::EvaluatedSet& m) {
    out["data"] = m.name;
    out["loss"] = m.result.loss();
    out["perplexity"] = std::exp(m.result.loss());
    out["bits_per_byte"] = m.bytes > 0 ? nlohmann::ordered_json(m.bits_per_byte()) : nlohmann::ordered_json(nullptr);
    out["tokens"] = m.result.targets;
    out["bytes"] = m.bytes > 0 ? nlohmann::ordered_json(m.bytes) : nlohmann::ordered_json(nullptr);
}

std::string loss_text(const job::EvaluatedSet& m) {
    return fmt::format("loss {:.5f} nats a token, perplexity {:.3f}{}", m.result.loss(), std::exp(m.result.loss()),
                       m.bytes > 0 ? fmt::format(", {:.4f} bits a byte", m.bits_per_byte()) : "");
}

int eval(const EvalArgs& args, comm::ProcessGroup& group) {
    const job::Evaluation e = job::evaluate(args.checkpoint, args.options, group);
    if (!group.is_first()) return kDone;
    const job::EvaluatedSet& whole = e.whole;
    if (args.json) {
        nlohmann::ordered_json out = {{"checkpoint", e.folder}, {"step", e.step}};
        add_to(out, whole);
        out["tokens_per_s"] = static_cast<double>(whole.result.targets) / e.time_s;
        out["ranks"] = e.ranks;
        out["peak_bytes_planned"] = e.bytes_of_all_ranks;
        for (const job::EvaluatedSet& m : e.of_sets) {
            if (e.of_sets.size() > 1) add_to(out["data_sets"].emplace_back(), m);
        }
        print_json(out);
        return kDone;
    }
    fmt::print("{} (step {}) on {} tokens of {}\n", e.folder, e.step, whole.result.targets, whole.name);
    fmt::print("{}\n", loss_text(whole));
    for (const job::EvaluatedSet& m : e.of_sets) {
        if (e.of_sets.size() > 1) fmt::print("  {}: {}\n", m.name, loss_text(m));
    }
    telemetry::info(fmt::format("planned {} a rank; {:.0f} tokens/s", telemetry::gib(e.bytes_of_a_rank),
                                static_cast<double>(whole.result.targets) / e.time_s));
    return kDone;
}

}  // namespace

Command add_eval(CLI::App& app) {
    const auto args = std::make_shared<EvalArgs>();
    CLI::App* command = app.add_subcommand("eval", "compute loss and perplexity of a checkpoint on prepared tokens");
    add_checkpoint_flags(*command, args->checkpoint);
    auto* data_option = command
                            ->add_option("--data", args->options.data,
                                         "prepared folder; again for another (default: those of the checkpoint's recipe)")
                            ->allow_extra_args(false);
    command->add_option("--split", args->options.split, "split of the prepared folder: heldout or train")
        ->check(CLI::IsMember({"heldout", "train"}));
    command->add_option("--tokens", args->options.tokens, "token file, instead of a prepared folder")->excludes(data_option);
    command->add_option("--steps", args->options.steps, "number of batches (default: the whole split once)")
        ->check(positive_number());
    command->add_flag("--other-tokenizer", args->options.accepts_other_tokenizer,
                      "take the tokens even if they are of another tokenizer");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep eval outputs/demo --data data/headers");
    return {.app = command,
            .run = [args](comm::ProcessGroup& group) { return eval(*args, group); },
            .recipe = &args->checkpoint,
            .in_every_process = true};
}

}  // namespace lockstep::cli
