#include "data/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/processors.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "data/utf8.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct PrepareArgs {
    std::vector<std::string> inputs;
    std::string out, tokenizer, end_token, begin_token, field = "text", format = "auto";
    int vocab = 0, ids_vocab_size = 0, separator = -1, id_bytes = 0;
    int64_t most_bad_lines = 0, longest_document_mib = data::kLongestDocumentBytes >> 20;
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
    options.id_bytes = args.id_bytes;
    options.end_token = args.end_token;
    options.begin_token = args.begin_token;
    options.field = args.field;
    options.text_format = args.format == "text"   ? data::TextFormat::text
                          : args.format == "json" ? data::TextFormat::json
                                                  : data::TextFormat::by_content;
    options.most_bad_lines = args.most_bad_lines;
    options.longest_document_bytes = std::min(args.longest_document_mib, INT64_MAX >> 20) << 20;
    options.heldout_fraction = args.heldout;
    options.shard_tokens = args.shard_tokens;
    options.threads = static_cast<int>(usable_cpus().size());
    if (args.append) options.existing = data::ExistingData::append;
    else if (args.overwrite) options.existing = data::ExistingData::replace;
    return options;
}

// Names and texts from files may hold bytes that are no UTF-8.
void warn_of(const std::string& text) { telemetry::warn(data::with_replacements(text)); }

void warn_of(const char* what, const std::vector<data::LeftOut>& kinds) {
    for (const data::LeftOut& kind : kinds) {
        warn_of(fmt::format("{} {} ({}{}). {}", what, kind.first, kind.what,
                            kind.files > 1 ? fmt::format("; {} more such files", kind.files - 1) : "", kind.remedy));
    }
}

// Which tokens of a tokenizer.json end and begin documents, and who says so.
void tell(const data::PrepareSummary::Documents& documents) {
    const std::string begin = documents.begin.empty() ? "" : fmt::format(" and begin with {}", documents.begin);
    const std::string said = documents.end_said_by.empty() ? "one of the known names" : "as " + documents.end_said_by + " says";
    telemetry::info(data::with_replacements(fmt::format("documents end with {} ({}){}", documents.end, said, begin)));
    for (const std::string& file : documents.broken)
        warn_of(
            fmt::format("{} next to the tokenizer is not JSON, so what it says is not known: correct it, or say with "
                        "--end-token which token ends a document",
                        file));
    for (const data::TokenName& name : documents.unknown_ends)
        warn_of(
            fmt::format("{} names {} as eos_token, which is no token of the tokenizer: documents end with {}. --end-token "
                        "says another",
                        name.said_by, name.text, documents.end));
    for (const std::string& other : documents.other_names)
        warn_of(fmt::format("documents end with {}, as {} says, and {}: --end-token says which", documents.end,
                            documents.end_said_by, other));
    if (documents.end_said_by.empty() && !documents.other_ends.empty() && documents.broken.empty())
        warn_of(
            fmt::format("the tokenizer also has {}, and no tokenizer_config.json next to it says which token ends a document: "
                        "--end-token says it",
                        fmt::join(documents.other_ends, ", ")));
    if (documents.begin.empty() && !documents.configured_begin.empty())
        telemetry::info(data::with_replacements(fmt::format(
            "documents do not begin with {0}, which tokenizer_config.json puts before a text: --begin-token '{0}' does",
            documents.configured_begin)));
}

// What a person should know about what was left out or does not look right.
void warn(const data::PrepareSummary& summary) {
    if (summary.documents) tell(*summary.documents);
    warn_of("left out", summary.left_out);
    warn_of("taken as text:", summary.taken_as_text);
    const data::SourceInfo& sources = summary.manifest.sources;
    if (sources.invalid_utf8_bytes > 0) {
        warn_of(
            fmt::format("{} bytes in {} documents are not UTF-8, first in {}: text files are taken byte by byte, JSON "
                        "Lines with U+FFFD in their place. If the text is Latin-1, convert it: iconv -f LATIN1 -t UTF-8",
                        sources.invalid_utf8_bytes, sources.invalid_utf8_documents, sources.invalid_utf8_first));
    }
    if (sources.bad_lines > 0) {
        warn_of(fmt::format("left out {} lines that cannot be read{}", sources.bad_lines,
                            sources.bad_lines > static_cast<int64_t>(sources.first_bad_lines.size()) ? "; the first are" : ""));
        for (const data::BadLine& bad : sources.first_bad_lines)
            warn_of(fmt::format("  {}, {} {}: {}", bad.file, bad.unit(), bad.line, bad.cause));
    }
    if (sources.empty_documents > 0) telemetry::info(fmt::format("left out {} documents without text", sources.empty_documents));
}

nlohmann::ordered_json json_of(const std::vector<data::LeftOut>& kinds) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const data::LeftOut& kind : kinds)
        out.push_back({{"what", kind.what}, {"files", kind.files}, {"first", kind.first}, {"remedy", kind.remedy}});
    return out;
}

nlohmann::ordered_json json_of(const std::vector<data::BadLine>& lines) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const data::BadLine& bad : lines) out.push_back({{"file", bad.file}, {bad.unit(), bad.line}, {"cause", bad.cause}});
    return out;
}

// A token's id and, where a tokenizer.json was named, its text; null: there is none.
nlohmann::ordered_json json_of_token(int32_t id, const std::string& text) {
    if (id < 0) return nullptr;
    return {{"id", id}, {"text", text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text)}};
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
        const data::PrepareSummary::Documents documents = summary.documents.value_or(data::PrepareSummary::Documents());
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
                                      {"left_out", json_of(summary.left_out)},
                                      {"taken_as_text", json_of(summary.taken_as_text)},
                                      {"bad_lines", sources.bad_lines},
                                      {"first_bad_lines", json_of(sources.first_bad_lines)},
                                      {"end_token", json_of_token(m.separator, documents.end)},
                                      {"begin_token", json_of_token(m.begin, documents.begin)}};
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
    command->add_option("--field", args->field,
                        "field of JSON and Parquet with the text; a.b: b inside a, or a field of that name (default text)");
    command
        ->add_option("--format", args->format,
                     "what files of text hold: auto (JSON if the content is JSON with the field, the default), text or json")
        ->check(CLI::IsMember({"auto", "text", "json"}));
    command
        ->add_option("--skip-bad-lines", args->most_bad_lines,
                     "leave out this many lines of JSON that cannot be read, and say which; one more is an error (default 0)")
        ->check(nonnegative_number());
    command->add_option("--longest-document", args->longest_document_mib, "MiB of the longest document (default 1024)")
        ->check(positive_number());
    auto* vocab_option = command->add_option("--vocab", args->vocab, "vocabulary size of a new tokenizer (default 4096)")
                             ->check(positive_number());
    auto* tokenizer_option =
        command->add_option("--tokenizer", args->tokenizer, "bpe (learned, the default), bytes, or a tokenizer.json");
    command->add_option("--end-token", args->end_token,
                        "token of the tokenizer.json that ends a document (default: as tokenizer_config.json next to it says)");
    command->add_option("--begin-token", args->begin_token,
                        "token of the tokenizer.json that a document begins with, such as <s> (default: none)");
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
    command
        ->add_option("--id-bytes", args->id_bytes,
                     "bytes of an id in files of ids without a header, 2 or 4 (default: 4 if the vocabulary has more than 65536)")
        ->check(CLI::IsMember({2, 4}));
    command->add_option("--heldout", args->heldout, "share of the documents that is held out (default 0.01); 0: none");
    command->add_option("--shard-tokens", args->shard_tokens, "tokens of one file, about (default 1000000000)");
    auto* overwrite_option = command->add_flag("--overwrite", args->overwrite, "replace data that is in the folder");
    command->add_flag("--append", args->append, "add documents to a prepared folder, with its tokenizer")
        ->excludes(overwrite_option);
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer(
        "Example: lockstep data prepare /usr/include --out data/headers --vocab 4096\n"
        "         lockstep data prepare corpus/*.jsonl.gz --field text --out data/web --tokenizer tokenizer.json\n"
        "         lockstep data prepare crawl.jsonl --skip-bad-lines 100 --out data/crawl --begin-token '<s>' --tokenizer "
        "t.json");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return prepare(*args); }};
}

}  // namespace lockstep::cli
