#include "data/prepare.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct PrepareArgs {
    std::vector<std::string> inputs;
    std::string out, tokenizer = "bpe";
    int vocab = 0;
    double heldout = 0.01;
    bool overwrite = false, json = false;
};

int prepare(const PrepareArgs& args) {
    data::PrepareOptions options;
    for (const std::string& in : args.inputs) options.inputs.emplace_back(in);
    options.out = args.out;
    options.vocab = args.vocab;
    options.tokenizer = args.tokenizer;
    options.heldout_fraction = args.heldout;
    options.existing = args.overwrite ? data::ExistingData::replace : data::ExistingData::refuse;
    telemetry::ProgressBar bar;
    const data::PrepareSummary summary =
        data::prepare(options, [&](std::string_view stage, int64_t done, int64_t total) { bar.show(done, total, stage); });
    bar.clear();
    const data::Manifest& m = summary.manifest;
    if (args.json) {
        const nlohmann::ordered_json out = {{"out", args.out},
                                            {"vocab_size", m.vocab_size},
                                            {"train_tokens", m.train.tokens},
                                            {"heldout_tokens", m.heldout.tokens},
                                            {"train_documents", m.train.documents},
                                            {"heldout_documents", m.heldout.documents},
                                            {"unigram_entropy_nats", m.unigram_entropy_nats},
                                            {"was_prepared_already", summary.was_prepared_already}};
        fmt::print("{}\n", out.dump());
        return kDone;
    }
    fmt::print(
        "{}{}: vocabulary {}, {} train tokens in {} documents, {} held-out tokens in {} documents, unigram entropy {:.4f} nats\n",
        args.out, summary.was_prepared_already ? " (was prepared already)" : "", m.vocab_size, m.train.tokens, m.train.documents,
        m.heldout.tokens, m.heldout.documents, m.unigram_entropy_nats);
    return kDone;
}

}  // namespace

Command add_data(CLI::App& app) {
    const auto args = std::make_shared<PrepareArgs>();
    CLI::App* data_app = app.add_subcommand("data", "prepare training data");
    data_app->require_subcommand(1);
    CLI::App* command = data_app->add_subcommand("prepare", "text files or folders -> tokenizer and token files");
    command->add_option("inputs", args->inputs, "text files or folders")->required();
    command->add_option("--out", args->out, "folder to make")->required();
    command->add_option("--vocab", args->vocab, "size of the vocabulary that is learned (default 4096)");
    command->add_option("--tokenizer", args->tokenizer, "bpe (learned), bytes, or a tokenizer.json");
    command->add_option("--heldout", args->heldout, "share of the documents that is held out");
    command->add_flag("--overwrite", args->overwrite, "replace other data in the folder");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep data prepare /usr/include --out data/headers --vocab 4096");
    return {.app = command, .run = [args](comm::Crew&) { return prepare(*args); }};
}

}  // namespace lockstep::cli
