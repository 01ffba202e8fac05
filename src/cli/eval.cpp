#include <fmt/format.h>
#include <fmt/ranges.h>

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
#include "cli/number_flags.h"
#include "cli/run_data.h"
#include "data/data_sets.h"
#include "runtime/trainer.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct EvalArgs {
    RecipeArgs checkpoint;          // path: of a checkpoint
    std::vector<std::string> data;  // prepared folders
    std::string tokens, split = "heldout";
    int64_t steps = 0;  // 0: all
    bool other_tokenizer = false, json = false;
};

// A data set to be evaluated on.
struct Tokens {
    data::TokenStream stream;
    std::optional<data::Tokenizer> tokenizer;
    std::string tokenizer_file;  // empty: not known
};

std::vector<Tokens> open_tokens(const EvalArgs& args, const Stored& stored) {
    if (!args.tokens.empty()) {
        data::TokenFile file = data::TokenFile::open(args.tokens);
        const std::filesystem::path beside = file.path().parent_path() / data::kTokenizerFile;
        const std::string own = std::filesystem::exists(beside) ? beside.string() : "";
        std::optional<data::Tokenizer> tokenizer = find_tokenizer(stored, own);
        if (tokenizer && tokenizer->vocab_size() != file.vocab_size()) tokenizer.reset();  // of other tokens
        std::vector<Tokens> one;
        one.push_back({std::move(file), std::move(tokenizer), own});
        return one;
    }
    std::vector<std::string> folders = args.data;
    for (const char* key : {"validation.dataset_path", "training.dataset_path"}) {
        if (folders.empty()) folders = stored.recipe.list(key);
    }
    if (folders.empty())
        throw UserError(
            "eval.no_data", "--data",
            "the checkpoint's recipe names no prepared data: give a prepared folder with --data, or a token file with "
            "--tokens");
    std::vector<Tokens> out;
    std::vector<std::string> without;
    for (data::DataSet& set : data::open_data_sets(folders)) {
        data::PreparedData& prepared = set.prepared;
        std::optional<data::Tokenizer> tokenizer = prepared.tokenizer();
        data::TokenStream& split = args.split == "train" ? prepared.train : prepared.heldout;
        if (split.empty()) {
            without.push_back(prepared.folder.string());
            continue;
        }
        const std::string file = tokenizer ? (prepared.folder / data::kTokenizerFile).string() : "";
        out.push_back({std::move(split), std::move(tokenizer), file});
    }
    if (out.empty())
        throw UserError("eval.no_heldout", "--split",
                        fmt::format("{} has no held-out documents (it was prepared with --heldout 0): give --split train, or "
                                    "other data with --data",
                                    fmt::join(without, ", ")));
    if (!without.empty()) telemetry::warn(fmt::format("left out: {}, which has no held-out documents", fmt::join(without, ", ")));
    return out;
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

// Refuses tokens that mean nothing to the checkpoint's model.
void require_fitting(const Tokens& tokens, const EvalArgs& args, const Stored& stored) {
    if (!args.other_tokenizer && !tokens.tokenizer_file.empty())
        require_same_tokenizer(stored, {tokens.tokenizer_file, args.tokens.empty() ? "--data" : "--tokens", kInsist});
    const int64_t vocab = compile::config_of(stored.recipe).model.size("vocab_size");
    const std::string name = tokens.stream.name();
    if (tokens.stream.vocab_size() > vocab)
        throw UserError("eval.vocabulary", name,
                        fmt::format("the vocabulary of {} has {} tokens, but that of the model has {}: prepare the text with the "
                                    "model's own tokenizer (`lockstep data prepare --tokenizer`)",
                                    name, tokens.stream.vocab_size(), vocab));
}

struct Measured {
    std::string name;
    runtime::EvalResult result;
    int64_t bytes = 0;  // of text; 0: not known
    double bits_per_byte() const { return result.loss_sum / std::log(2.0) / static_cast<double>(bytes); }
};

void add_to(nlohmann::ordered_json& out, const Measured& m) {
    out["data"] = m.name;
    out["loss"] = m.result.loss();
    out["perplexity"] = std::exp(m.result.loss());
    out["bits_per_byte"] = m.bytes > 0 ? nlohmann::ordered_json(m.bits_per_byte()) : nlohmann::ordered_json(nullptr);
    out["tokens"] = m.result.targets;
    out["bytes"] = m.bytes > 0 ? nlohmann::ordered_json(m.bytes) : nlohmann::ordered_json(nullptr);
}

std::string loss_text(const Measured& m) {
    return fmt::format("loss {:.5f} nats a token, perplexity {:.3f}{}", m.result.loss(), std::exp(m.result.loss()),
                       m.bytes > 0 ? fmt::format(", {:.4f} bits a byte", m.bits_per_byte()) : "");
}

int eval(const EvalArgs& args, comm::Crew& crew) {
    Stored stored = open_stored(args.checkpoint, {{"training.global_batch_size", "-1"}});
    take_ranks(stored.recipe, crew);
    struct Set {
        data::Dataset data;
        std::optional<data::Tokenizer> tokenizer;
        std::string name;
    };
    std::vector<Set> sets;
    Facts flags = {{"--steps", std::to_string(args.steps)}};
    for (Tokens& tokens : open_tokens(args, stored)) {
        require_fitting(tokens, args, stored);
        const std::string name = tokens.stream.name();
        std::string sums;
        for (const data::TokenFile& file : tokens.stream.files()) sums += hex_checksum(file.header().checksum);
        flags.emplace_back("the tokens of " + name, hex_checksum(sums));
        sets.push_back({data::Dataset(std::move(tokens.stream), dataset_options(compile::values_of(stored.recipe))),
                        std::move(tokens.tokenizer), name});
    }
    Loaded loaded(stored, {ir::EntryKind::Eval}, crew, flags);
    const compile::Compiled& compiled = loaded.compiled;
    runtime::Evaluator evaluator(loaded.ranks, runtime::batch_shape(compiled.layout));

    double time_s = 0;
    std::vector<Measured> of_sets;
    Measured whole;
    bool all_bytes_known = true;
    for (const Set& set : sets) {
        const int64_t all = evaluator.batches(set.data), batches = args.steps > 0 ? std::min(args.steps, all) : all;
        const int64_t windows = std::min(batches * evaluator.windows_of_batch(), set.data.windows());
        const auto start = std::chrono::steady_clock::now();
        Measured m{set.name, evaluator.evaluate(set.data, batches)};
        time_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (crew.is_first() && set.tokenizer) m.bytes = target_bytes(set.data, windows, *set.tokenizer);
        all_bytes_known &= m.bytes > 0;
        whole.name += (whole.name.empty() ? "" : ", ") + m.name;
        whole.result += m.result;
        whole.bytes += m.bytes;
        of_sets.push_back(std::move(m));
    }
    if (!all_bytes_known) whole.bytes = 0;
    if (!crew.is_first()) return kDone;
    if (args.json) {
        nlohmann::ordered_json out = {{"checkpoint", stored.folder}, {"step", stored.manifest.steps}};
        add_to(out, whole);
        out["tokens_per_s"] = static_cast<double>(whole.result.targets) / time_s;
        out["ranks"] = compiled.layout.ranks;
        out["peak_bytes_planned"] = compiled.all_arena_bytes();
        for (const Measured& m : of_sets) {
            if (of_sets.size() > 1) add_to(out["data_sets"].emplace_back(), m);
        }
        print_json(out);
        return kDone;
    }
    fmt::print("{} (step {}) on {} tokens of {}\n", stored.folder, stored.manifest.steps, whole.result.targets, whole.name);
    fmt::print("{}\n", loss_text(whole));
    for (const Measured& m : of_sets) {
        if (of_sets.size() > 1) fmt::print("  {}: {}\n", m.name, loss_text(m));
    }
    telemetry::info(fmt::format("planned {} a rank; {:.0f} tokens/s", gib(compiled.arena_bytes()),
                                static_cast<double>(whole.result.targets) / time_s));
    return kDone;
}

}  // namespace

Command add_eval(CLI::App& app) {
    const auto args = std::make_shared<EvalArgs>();
    CLI::App* command = app.add_subcommand("eval", "compute loss and perplexity of a checkpoint on prepared tokens");
    add_checkpoint_flags(*command, args->checkpoint);
    auto* data_option =
        command
            ->add_option("--data", args->data, "prepared folder; again for another (default: those of the checkpoint's recipe)")
            ->allow_extra_args(false);
    command->add_option("--split", args->split, "split of the prepared folder: heldout or train")
        ->check(CLI::IsMember({"heldout", "train"}));
    command->add_option("--tokens", args->tokens, "token file, instead of a prepared folder")->excludes(data_option);
    command->add_option("--steps", args->steps, "number of batches (default: the whole split once)")->check(positive_number());
    command->add_flag("--other-tokenizer", args->other_tokenizer, "take the tokens even if they are of another tokenizer");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep eval outputs/demo --data data/headers");
    return {.app = command,
            .run = [args](comm::Crew& crew) { return eval(*args, crew); },
            .recipe = &args->checkpoint,
            .in_every_process = true};
}

}  // namespace lockstep::cli
