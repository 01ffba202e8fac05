#include "data/prepare.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/processors.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct PrepareArgs {
    std::vector<std::string> inputs;
    std::string out, tokenizer, field = "text";
    int vocab = 0, ids_vocab_size = 0, separator = -1;
    std::optional<double> heldout;
    int64_t shard_tokens = data::kDefaultShardTokens;
    bool overwrite = false, append = false, json = false;
};

data::PrepareOptions options_of(const PrepareArgs& args) {
    data::PrepareOptions options;
    for (const std::string& in : args.inputs) options.inputs.emplace_back(in);
    options.out = args.out;
    options.vocab = args.vocab;
    options.tokenizer = args.tokenizer;
    options.ids_vocab_size = args.ids_vocab_size;
    options.ids_separator = args.separator;
    options.field = args.field;
    options.heldout_fraction = args.heldout;
    options.shard_tokens = args.shard_tokens;
    options.threads = static_cast<int>(usable_cpus().size());
    if (args.append) options.existing = data::ExistingData::append;
    else if (args.overwrite) options.existing = data::ExistingData::replace;
    return options;
}

// What a person should know about what was left out or does not look right.
void warn(const data::PrepareSummary& summary) {
    for (const data::LeftOut& kind : summary.left_out) {
        telemetry::warn(fmt::format("left out {} ({}{}). {}", kind.first, kind.what,
                                    kind.files > 1 ? fmt::format("; {} more such files", kind.files - 1) : "", kind.remedy));
    }
    const data::SourceInfo& sources = summary.manifest.sources;
    if (sources.invalid_utf8_bytes > 0) {
        telemetry::warn(
            fmt::format("{} bytes in {} documents are not UTF-8, first in {}: text files are taken byte by byte, JSON "
                        "Lines with U+FFFD in their place. If the text is Latin-1, convert it: iconv -f LATIN1 -t UTF-8",
                        sources.invalid_utf8_bytes, sources.invalid_utf8_documents, sources.invalid_utf8_first));
    }
    if (sources.empty_documents > 0) telemetry::info(fmt::format("left out {} documents without text", sources.empty_documents));
}

int prepare(const PrepareArgs& args) {
    telemetry::ProgressBar bar;
    const data::PrepareSummary summary =
        data::prepare(options_of(args), [&](std::string_view stage, int64_t done, int64_t total) {
            const bool is_bytes = stage == "reading" || stage == "encoding" || stage == "counting words";
            if (is_bytes) bar.show(done >> 20, total >> 20, fmt::format("MiB {}", stage));
            else bar.show(done, total, stage);
        });
    bar.clear();
    warn(summary);
    const data::Manifest& m = summary.manifest;
    if (args.json) {
        const data::SourceInfo& sources = m.sources;
        nlohmann::ordered_json left_out = nlohmann::ordered_json::array();
        for (const data::LeftOut& kind : summary.left_out)
            left_out.push_back({{"what", kind.what}, {"files", kind.files}, {"first", kind.first}, {"remedy", kind.remedy}});
        nlohmann::ordered_json out = {{"out", args.out},
                                      {"vocab_size", m.vocab_size},
                                      {"train_tokens", m.train.tokens},
                                      {"heldout_tokens", m.heldout.tokens},
                                      {"train_documents", m.train.documents},
                                      {"heldout_documents", m.heldout.documents},
                                      {"unigram_entropy_nats", nullptr},
                                      {"was_prepared_already", summary.was_prepared_already},
                                      {"train_shards", m.train.shards.size()},
                                      {"heldout_shards", m.heldout.shards.size()},
                                      {"files", sources.files},
                                      {"bytes", sources.bytes},
                                      {"empty_documents", sources.empty_documents},
                                      {"invalid_utf8_bytes", sources.invalid_utf8_bytes},
                                      {"invalid_utf8_documents", sources.invalid_utf8_documents},
                                      {"left_out", left_out}};
        if (m.unigram_entropy_nats) out["unigram_entropy_nats"] = *m.unigram_entropy_nats;
        print_json(out);
        return kDone;
    }
    const std::string heldout = m.heldout.tokens == 0 ? std::string("none held out")
                                : m.sources.is_tail_of_one_document
                                    ? fmt::format("{} tokens held out, the end of the only document", m.heldout.tokens)
                                    : fmt::format("{} held-out tokens in {} documents", m.heldout.tokens, m.heldout.documents);
    fmt::print("{}{}: vocabulary {}, {} train tokens in {} documents, {}{}\n", args.out,
               summary.was_prepared_already ? " (was prepared already)" : "", m.vocab_size, m.train.tokens, m.train.documents,
               heldout, m.unigram_entropy_nats ? fmt::format(", unigram entropy {:.4f} nats", *m.unigram_entropy_nats) : "");
    return kDone;
}

}  // namespace

Command add_data(CLI::App& app) {
    const auto args = std::make_shared<PrepareArgs>();
    CLI::App* data_app = app.add_subcommand("data", "prepare training data");
    data_app->require_subcommand(1);
    CLI::App* command =
        data_app->add_subcommand("prepare", "text, JSON Lines, Parquet or token ids -> tokenizer and token files");
    command
        ->add_option("inputs", args->inputs,
                     "files and folders: text and JSON Lines, also as .gz and .zst; Parquet; token ids of Megatron-LM (.bin and "
                     ".idx), llm.c and nanoGPT (.bin), numpy (.npy)")
        ->required();
    command->add_option("--out", args->out, "folder to create")->required();
    command->add_option("--field", args->field, "field of JSON Lines and Parquet with the text; a.b: b inside a (default text)");
    auto* vocab_option = command->add_option("--vocab", args->vocab, "vocabulary size of a new tokenizer (default 4096)")
                             ->check(positive_number());
    auto* tokenizer_option =
        command->add_option("--tokenizer", args->tokenizer, "bpe (learned, the default), bytes, or a tokenizer.json");
    auto* ids_option = command
                           ->add_option("--vocab-size", args->ids_vocab_size,
                                        "inputs are token ids, and this is the size of their vocabulary; in place of --tokenizer")
                           ->check(positive_number())
                           ->excludes(vocab_option)
                           ->excludes(tokenizer_option);
    auto* separator_option =
        command->add_option("--separator", args->separator, "with --vocab-size: the id between documents, such as GPT-2's 50256")
            ->check(nonnegative_number());
    ids_option->needs(separator_option);
    separator_option->needs(ids_option);
    command->add_option("--heldout", args->heldout, "share of the documents that is held out (default 0.01); 0: none");
    command->add_option("--shard-tokens", args->shard_tokens, "tokens of one file, about (default 1000000000)");
    auto* overwrite_option = command->add_flag("--overwrite", args->overwrite, "replace data that is in the folder");
    command->add_flag("--append", args->append, "add documents to a prepared folder, with its tokenizer")
        ->excludes(overwrite_option);
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer(
        "Example: lockstep data prepare /usr/include --out data/headers --vocab 4096\n"
        "         lockstep data prepare corpus/*.jsonl.gz --field text --out data/web --tokenizer tokenizer.json");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return prepare(*args); }};
}

}  // namespace lockstep::cli
