#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/error.h"
#include "cli/carried.h"
#include "cli/loaded.h"
#include "data/prepared_data.h"
#include "runtime/trainer.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct EvalArgs {
    RecipeArgs checkpoint;  // path: of a checkpoint
    std::string data, tokens, split = "heldout";
    int64_t steps = 0;  // 0: all
    bool other_tokenizer = false, json = false;
};

struct Tokens {
    data::TokenStream stream;
    std::optional<data::Tokenizer> tokenizer;
    std::string tokenizer_file;  // empty: not known
};

Tokens open_tokens(const EvalArgs& args, const Stored& stored) {
    if (!args.tokens.empty()) {
        data::TokenFile file = data::TokenFile::open(args.tokens);
        const std::filesystem::path beside = file.path().parent_path() / data::kTokenizerFile;
        const std::string own = std::filesystem::exists(beside) ? beside.string() : "";
        std::optional<data::Tokenizer> tokenizer = find_tokenizer(stored, own);
        if (tokenizer && tokenizer->vocab_size() != file.vocab_size()) tokenizer.reset();  // of other tokens
        return {std::move(file), std::move(tokenizer), own};
    }
    std::string folder = args.data;
    for (const char* key : {"validation.dataset_path", "training.dataset_path"}) {
        if (folder.empty()) folder = stored.recipe.text(key);
    }
    if (folder.empty())
        throw UserError(
            "eval.no_data", "--data",
            "the checkpoint's recipe names no prepared data: give a prepared folder with --data, or a token file with "
            "--tokens");
    data::PreparedData prepared = data::PreparedData::open(folder);
    std::optional<data::Tokenizer> tokenizer = prepared.tokenizer();
    data::TokenStream& split = args.split == "train" ? prepared.train : prepared.heldout;
    if (split.empty())
        throw UserError(
            "eval.no_heldout", "--split",
            fmt::format("{} has no held-out documents (it was prepared with --heldout 0): give --split train, or other "
                        "data with --data",
                        folder));
    const std::string tokenizer_file = tokenizer ? folder + "/" + data::kTokenizerFile : "";
    return {std::move(split), std::move(tokenizer), tokenizer_file};
}

// Bytes of text that the targets of the first `windows` windows stand for; special tokens stand for none.
int64_t target_bytes(const data::Dataset& data, int64_t windows, const data::Tokenizer& tokenizer) {
    std::vector<int64_t> bytes;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
        bytes.push_back(static_cast<int64_t>(tokenizer.decode_one(id, false).size()));
    for (int32_t id : tokenizer.parts().special) bytes[static_cast<size_t>(id)] = 0;
    std::vector<int32_t> sample[4];
    for (std::vector<int32_t>& s : sample) s.resize(static_cast<size_t>(data.seq_len()));
    int64_t sum = 0;
    for (int64_t w = 0; w < windows; ++w) {
        data.sequential(w, sample[0], sample[1], sample[2], sample[3]);
        for (int32_t target : sample[1]) sum += bytes[static_cast<size_t>(target)];
    }
    return sum;
}

int eval(const EvalArgs& args, comm::Crew& crew) {
    Stored stored = open_stored(args.checkpoint, {{"training.global_batch_size", "-1"}});
    take_ranks(stored.recipe, crew);
    const compile::Recipe& recipe = stored.recipe;
    Tokens tokens = open_tokens(args, stored);
    if (!args.other_tokenizer && !tokens.tokenizer_file.empty())
        require_same_tokenizer(stored, {tokens.tokenizer_file, args.tokens.empty() ? "--data" : "--tokens", kInsist});
    const int64_t vocab = std::get<int64_t>(recipe.model_shape().at("vocab_size"));
    const std::string name = tokens.stream.name();
    if (tokens.stream.vocab_size() > vocab)
        throw UserError("eval.vocabulary", name,
                        fmt::format("the vocabulary of {} has {} tokens, but that of the model has {}: prepare the text with the "
                                    "model's own tokenizer (`lockstep data prepare --tokenizer`)",
                                    name, tokens.stream.vocab_size(), vocab));
    std::string sums;
    for (const data::TokenFile& file : tokens.stream.files()) sums += hex_checksum(file.header().checksum);
    const std::string sum = hex_checksum(sums);
    const data::SampleMode mode = recipe.flag("training.document_mask") ? data::SampleMode::packed : data::SampleMode::windows;
    const data::Dataset data(std::move(tokens.stream), {static_cast<int>(recipe.integer("training.seq_len")), mode, 0});

    Loaded loaded(stored, {"eval"}, crew, {{"the tokens of " + name, sum}, {"--steps", std::to_string(args.steps)}});
    const compile::Compiled& compiled = loaded.compiled;
    runtime::Evaluator evaluator(loaded.ranks, runtime::batch_shape(compiled.layout));

    const int64_t all = evaluator.batches(data), batches = args.steps > 0 ? std::min(args.steps, all) : all;
    const auto start = std::chrono::steady_clock::now();
    const runtime::EvalResult result = evaluator.evaluate(data, batches);
    const double time_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!crew.is_first()) return kDone;
    const int64_t windows = std::min(batches * evaluator.windows_of_batch(), data.windows());
    const int64_t bytes = tokens.tokenizer ? target_bytes(data, windows, *tokens.tokenizer) : 0;
    const double bits_per_byte = bytes > 0 ? result.loss_sum / std::log(2.0) / static_cast<double>(bytes) : 0;
    if (args.json) {
        nlohmann::ordered_json out = {{"checkpoint", stored.folder},
                                      {"step", stored.manifest.steps},
                                      {"data", name},
                                      {"loss", result.loss()},
                                      {"perplexity", std::exp(result.loss())},
                                      {"bits_per_byte", nullptr},
                                      {"tokens", result.targets},
                                      {"bytes", nullptr},
                                      {"tokens_per_s", static_cast<double>(result.targets) / time_s},
                                      {"ranks", compiled.layout.ranks},
                                      {"peak_bytes_planned", compiled.all_arena_bytes()}};
        if (bytes > 0) out["bits_per_byte"] = bits_per_byte, out["bytes"] = bytes;
        fmt::print("{}\n", out.dump());
        return kDone;
    }
    fmt::print("{} (step {}) on {} tokens of {}\n", stored.folder, stored.manifest.steps, result.targets, name);
    fmt::print("loss {:.5f} nats a token, perplexity {:.3f}{}\n", result.loss(), std::exp(result.loss()),
               bytes > 0 ? fmt::format(", {:.4f} bits a byte", bits_per_byte) : "");
    telemetry::info(fmt::format("planned {} a rank; {:.0f} tokens/s", gib(compiled.arena_bytes()),
                                static_cast<double>(result.targets) / time_s));
    return kDone;
}

}  // namespace

Command add_eval(CLI::App& app) {
    const auto args = std::make_shared<EvalArgs>();
    CLI::App* command = app.add_subcommand("eval", "compute loss and perplexity of a checkpoint on prepared tokens");
    add_checkpoint_flags(*command, args->checkpoint);
    auto* data_option =
        command->add_option("--data", args->data, "prepared folder (default: the one in the checkpoint's recipe)");
    command->add_option("--split", args->split, "split of the prepared folder: heldout or train")
        ->check(CLI::IsMember({"heldout", "train"}));
    command->add_option("--tokens", args->tokens, "token file, instead of a prepared folder")->excludes(data_option);
    command->add_option("--steps", args->steps, "number of batches (default: the whole split once)")->check(CLI::PositiveNumber);
    command->add_flag("--other-tokenizer", args->other_tokenizer, "take the tokens even if they are of another tokenizer");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep eval outputs/demo --data data/headers");
    return {.app = command,
            .run = [args](comm::Crew& crew) { return eval(*args, crew); },
            .recipe = &args->checkpoint,
            .in_every_process = true};
}

}  // namespace lockstep::cli
