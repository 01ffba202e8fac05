#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/commas.h"
#include "base/error.h"
#include "base/json.h"
#include "base/round.h"
#include "base/text_file.h"
#include "cli/commands.h"
#include "cli/text_stream.h"
#include "job/carried.h"
#include "job/loaded.h"
#include "report/run_files.h"
#include "runtime/generator.h"
#include "runtime/token_sampler.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

struct SampleArgs {
    planning::RecipeArgs checkpoint;  // path: of a checkpoint
    std::vector<std::string> prompts, prompt_files, prompt_tokens, stops;
    std::string tokenizer, logits;
    int64_t max_tokens = 128, top_k = 0;
    double temperature = 1, top_p = 1;
    uint64_t seed = 0;
    bool other_tokenizer = false, keep = false, json = false;
};

using Clock = std::chrono::steady_clock;

void check_options(const SampleArgs& a) {
    const auto refuse = [](const char* flag, const std::string& value, const char* range) {
        throw UserError("sample.out_of_range", flag, fmt::format("{} {}: must be {}", flag, value, range));
    };
    if (!(a.temperature >= 0 && a.temperature <= 1e6))
        refuse("--temperature", fmt::format("{}", a.temperature), "from 0 to 1000000");
    if (!(a.top_p > 0 && a.top_p <= 1)) refuse("--top-p", fmt::format("{}", a.top_p), "above 0 and at most 1");
    if (a.top_k < 0) refuse("--top-k", std::to_string(a.top_k), "0 (all) or more");
    if (a.max_tokens < 1) refuse("--max-tokens", std::to_string(a.max_tokens), "at least 1");
}

std::string read_prompt(const std::string& file) {
    if (file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
    TextFile in = read_text_file(file);
    if (!in.is_readable())
        throw UserError("sample.prompt_file", file, fmt::format("--prompt-file {}: cannot be read ({})", file, in.reason));
    return std::move(in.text);
}

std::vector<int32_t> read_tokens(const std::string& list, int64_t vocab) {
    std::vector<int32_t> out;
    for (std::string item : split_at_commas(list)) {
        item.erase(0, item.find_first_not_of(' '));
        item.erase(item.find_last_not_of(' ') + 1);
        const bool digits = !item.empty() && item.size() < 10 && item.find_first_not_of("0123456789") == std::string::npos;
        if (!digits || std::stoll(item) >= vocab)
            throw UserError("sample.prompt_tokens", "--prompt-tokens",
                            fmt::format("--prompt-tokens {}: '{}' is not a token id below {}; give ids with commas between them",
                                        list, item, vocab));
        out.push_back(static_cast<int32_t>(std::stoll(item)));
    }
    if (out.empty())
        throw UserError("sample.prompt_tokens", "--prompt-tokens",
                        "--prompt-tokens: the list is empty; give ids with commas between them");
    return out;
}

using Prompts = std::vector<std::vector<int32_t>>;

void require_rows(const data::Tokenizer& tokenizer, const Prompts& prompts, int64_t vocab) {
    for (const std::vector<int32_t>& prompt : prompts) {
        const auto missing = std::find_if(prompt.begin(), prompt.end(), [&](int32_t id) { return id >= vocab; });
        if (missing == prompt.end()) continue;
        throw UserError("sample.no_row", "--prompt",
                        fmt::format("a prompt holds the token '{}' ({}), for which the model has no row: it has {}. Leave it out "
                                    "of the prompt, or train a model with model.vocab_size = {} that begins from this one",
                                    tokenizer.decode_one(*missing, false), *missing, vocab, tokenizer.vocab_size()));
    }
}

// Texts by the tokenizer, begun as the documents of its data are; an empty one begins a document, as after a separator.
Prompts read_prompts(const SampleArgs& args, const std::optional<data::Tokenizer>& tokenizer, int64_t vocab) {
    std::vector<std::string> texts = args.prompts;
    for (const std::string& file : args.prompt_files) texts.push_back(read_prompt(file));
    if (texts.empty() && args.prompt_tokens.empty())
        throw UserError("sample.no_prompt", "--prompt", "no prompt: give --prompt, --prompt-file or --prompt-tokens");
    if (!tokenizer && !(texts.empty() && args.stops.empty()))
        throw UserError("sample.no_tokenizer", "--tokenizer",
                        "the tokenizer of this checkpoint was not found: it is not in the checkpoint's folder, and its recipe "
                        "names no prepared data that exists; give --tokenizer, or prompts as --prompt-tokens");
    Prompts out;
    for (const std::string& text : texts) {
        std::vector<int32_t>& prompt = out.emplace_back();
        if (tokenizer->begin() >= 0) prompt.push_back(tokenizer->begin());
        tokenizer->encode(text, prompt);
        if (out.back().empty()) out.back().push_back(tokenizer->separator());
    }
    if (tokenizer) require_rows(*tokenizer, out, vocab);
    for (const std::string& list : args.prompt_tokens) out.push_back(read_tokens(list, vocab));
    return out;
}

// A model may have fewer rows than its tokenizer tokens: tokens that were added later were never trained.
void take_larger_tokenizer(const job::Stored& stored, const SampleArgs& args, const data::Tokenizer& tokenizer, int64_t vocab) {
    const std::string file = args.tokenizer.empty() ? job::tokenizer_file(job::tokenizer_folders(stored)) : args.tokenizer;
    if (job::is_known_other_tokenizer(stored, file))
        throw UserError("sample.vocabulary", "--tokenizer",
                        fmt::format("the tokenizer has {} tokens, but the model knows {}: it was trained with another one",
                                    tokenizer.vocab_size(), vocab));
    telemetry::info(fmt::format("{} has {} tokens; the model has rows for the first {} of them: the others are never drawn", file,
                                tokenizer.vocab_size(), vocab));
}

// Where every prompt is tokens already, a tokenizer that cannot be read here is not missed.
std::optional<data::Tokenizer> tokenizer_of(const job::Stored& stored, const SampleArgs& args) {
    if (!args.tokenizer.empty() && !args.other_tokenizer)
        job::require_same_tokenizer(stored, {args.tokenizer, "--tokenizer", job::kInsist});
    try {
        return job::find_tokenizer(stored, args.tokenizer);
    } catch (const UserError& e) {
        if (!args.tokenizer.empty() || !args.prompts.empty() || !args.prompt_files.empty() || !args.stops.empty()) throw;
        telemetry::warn(fmt::format("tokens are printed as numbers: {}", e.what()));
        return std::nullopt;
    }
}

int64_t longest_of(const Prompts& prompts) {
    size_t most = 0;
    for (const std::vector<int32_t>& p : prompts) most = std::max(most, p.size());
    return static_cast<int64_t>(most);
}

// The first process's, on all: standard input is its own.
Prompts share(const Prompts& prompts, comm::ProcessGroup& group) {
    if (group.is_alone()) return prompts;
    return parse_json<nlohmann::json>(group.exchange(group.is_first() ? json_text(nlohmann::json(prompts)) : "")[0])
        .get<Prompts>();
}

// Rows of numbers, as `train --watch` writes tensors.
class LogitsFile {
public:
    explicit LogitsFile(const std::string& path) : path_(path) {
        if (!path.empty()) out_.open(path);
    }
    void write(std::span<const double> row) {
        if (path_.empty()) return;
        fmt::memory_buffer text;
        for (size_t i = 0; i < row.size(); ++i) fmt::format_to(std::back_inserter(text), "{}{}", i == 0 ? "" : " ", row[i]);
        text.push_back('\n');
        out_.write(text.data(), static_cast<std::streamsize>(text.size()));
        if (!out_) throw UserError("sample.logits", "--logits", fmt::format("--logits {}: cannot be written", path_));
    }

private:
    std::string path_;
    std::ofstream out_;
};

struct Sequence {
    std::vector<int32_t> prompt, tokens;
    std::optional<TextStream> text;
    const char* finish_reason = nullptr;
};

// Rows of the model that no token of its tokenizer has were never trained, and print nothing.
std::vector<int32_t> tokens_to_draw(const std::optional<data::Tokenizer>& tokenizer, int64_t vocab) {
    std::vector<int32_t> out;
    for (int32_t id = 0; id < vocab; ++id) {
        const bool has_token =
            !tokenizer || (id < tokenizer->vocab_size() && !tokenizer->parts().tokens[static_cast<size_t>(id)].empty());
        if (has_token) out.push_back(id);
    }
    return out;
}

// A prompt of ids may hold some that are no tokens.
std::string text_of_prompt(const data::Tokenizer& tokenizer, std::vector<int32_t> prompt) {
    std::erase_if(prompt, [&](int32_t id) { return id >= tokenizer.vocab_size(); });
    return tokenizer.decode(prompt);
}

// The loop of one command: a token for every sequence that has not ended, until all have. The first process chooses and prints;
// what it chooses becomes the others'.
class Sampling {
public:
    // A sequence ends with one of the tokens `ends`.
    Sampling(const SampleArgs& args, runtime::Generator& generator, const std::optional<data::Tokenizer>& tokenizer,
             std::vector<int32_t> ends, const comm::ProcessGroup& group)
        : args_(args),
          generator_(generator),
          tokenizer_(tokenizer),
          ends_(std::move(ends)),
          chooses_(group.is_first()),
          sampler_(tokens_to_draw(tokenizer, generator.vocab()), {args.temperature, args.top_k, args.top_p, args.seed}),
          logits_(chooses_ ? args.logits : "") {}

    void run(const Prompts& prompts) {
        for (const std::vector<int32_t>& p : prompts) {
            Sequence& s = sequences.emplace_back();
            s.prompt = p;
            if (tokenizer_)
                s.text.emplace(*tokenizer_, args_.stops, p.back() == tokenizer_->separator() || p.back() == tokenizer_->begin());
        }
        const Clock::time_point start = Clock::now();
        generator_.begin(prompts);
        const Clock::time_point prefilled = Clock::now();
        std::vector<int32_t> next(static_cast<size_t>(generator_.sequences()), runtime::kNoToken);
        for (size_t s = 0; s < prompts.size(); ++s) next[s] = prompts[s].back();
        while (generator_.step(next)) {
            if (chooses_) choose(next);
        }
        prefill_s = std::chrono::duration<double>(prefilled - start).count();
        decode_s = std::chrono::duration<double>(Clock::now() - prefilled).count();
    }

    std::vector<Sequence> sequences;
    double prefill_s = 0, decode_s = 0;

private:
    void choose(std::vector<int32_t>& next) {
        for (size_t i = 0; i < sequences.size(); ++i) {
            if (sequences[i].finish_reason) continue;
            const auto at = static_cast<int64_t>(i);
            logits_.write(generator_.logits(at));
            next[i] = sampler_.pick(generator_.logits(at), at, generator_.place(at));
            take(sequences[i], next[i], generator_.place(at));
            if (sequences[i].finish_reason) next[i] = runtime::kNoToken;
        }
    }

    void take(Sequence& s, int32_t token, int64_t place) {
        s.tokens.push_back(token);
        if (std::find(ends_.begin(), ends_.end(), token) != ends_.end()) s.finish_reason = "end_of_text";
        else if (s.text && s.text->add(token)) s.finish_reason = "stop";
        else if (static_cast<int64_t>(s.tokens.size()) == args_.max_tokens) s.finish_reason = "max_tokens";
        else if (place == generator_.context()) s.finish_reason = "context";
        if (!streams()) return;
        const std::string now = s.finish_reason ? s.text->take_rest() : s.text->take();
        std::fwrite(now.data(), 1, now.size(), stdout);
        std::fflush(stdout);
    }
    bool streams() const { return !args_.json && tokenizer_ && sequences.size() == 1; }

    const SampleArgs& args_;
    runtime::Generator& generator_;
    const std::optional<data::Tokenizer>& tokenizer_;
    const std::vector<int32_t> ends_;
    const bool chooses_;
    runtime::TokenSampler sampler_;
    LogitsFile logits_;
};

// Bytes that are no UTF-8 become the replacement character in JSON; the tokens say what they were.
nlohmann::ordered_json to_json(const Sequence& s) {
    return {{"prompt_tokens", s.prompt.size()},
            {"tokens", s.tokens},
            {"text", s.text ? nlohmann::ordered_json(s.text->text()) : nlohmann::ordered_json(nullptr)},
            {"finish_reason", s.finish_reason}};
}

void print(const std::vector<Sequence>& sequences) {
    for (size_t i = 0; i < sequences.size(); ++i) {
        if (!sequences[i].text) fmt::print("{}\n", fmt::join(sequences[i].tokens, ","));
        else if (sequences.size() > 1) fmt::print("[{}] {}\n", i + 1, sequences[i].text->text());
        else fmt::print("\n");  // it was printed as it came
    }
}

// The run that a checkpoint belongs to: the first folder above it that holds one.
std::string run_of(const std::string& checkpoint) {
    std::error_code error;
    for (std::filesystem::path p = std::filesystem::absolute(checkpoint, error); p.has_relative_path(); p = p.parent_path()) {
        if (report::is_run(p.string())) return p.string();
    }
    throw UserError("sample.no_run", "--keep",
                    fmt::format("--keep: {} belongs to no run of `lockstep train` whose folder is still there; leave --keep out",
                                checkpoint));
}

// For `lockstep report`: a line a sequence.
void keep(const std::string& run, const SampleArgs& args, const data::Tokenizer& tokenizer, int64_t step,
          const std::vector<Sequence>& sequences) {
    telemetry::JsonLines file(run + "/samples.jsonl");
    for (const Sequence& s : sequences) {
        file.write({{"step", step},
                    {"prompt", text_of_prompt(tokenizer, s.prompt)},
                    {"text", s.text->text()},
                    {"temperature", args.temperature},
                    {"top_p", args.top_p},
                    {"top_k", args.top_k},
                    {"seed", args.seed}});
    }
}

int sample(const SampleArgs& args, comm::ProcessGroup& group) {
    check_options(args);
    job::Stored stored = job::open_stored(args.checkpoint, {{"parallelism.data_parallel_replicate_degree", "1"},
                                                            {"parallelism.data_parallel_shard_degree", "-1"},
                                                            {"parallelism.tensor_parallel_degree", "1"},
                                                            {"parallelism.context_parallel_degree", "1"},
                                                            {"parallelism.pipeline_parallel_degree", "1"},
                                                            {"parallelism.sequence_parallel", "false"},
                                                            {"quantize.scale_sequences", "0"},
                                                            {"quantize.scale_context_blocks", "0"},
                                                            {"cluster.ranks", "0"}});
    for (const std::string& note : stored.notes) telemetry::info(note);
    job::keep_one_island(stored.recipe);
    const std::string run = args.keep ? run_of(stored.folder) : "";
    compile::Recipe& recipe = stored.recipe;
    const compile::Config config = compile::config_of(recipe);
    const int64_t vocab = config.model.size("vocab_size"), longest = config.training.seq_len;
    std::optional<data::Tokenizer> tokenizer;
    Prompts prompts;
    if (group.is_first()) {
        tokenizer = tokenizer_of(stored, args);
        if (tokenizer && tokenizer->vocab_size() > vocab) take_larger_tokenizer(stored, args, *tokenizer, vocab);
        prompts = read_prompts(args, tokenizer, vocab);
        if (const int64_t most = longest_of(prompts); most > longest)
            throw UserError("sample.prompt_too_long", "training.seq_len",
                            fmt::format("a prompt has {} tokens, but training.seq_len = {}: shorten the prompt, or raise "
                                        "training.seq_len if the model allows it",
                                        most, longest));
    }
    prompts = share(prompts, group);
    // The caches are as long as they may have to be.
    recipe.set("training.seq_len",
               std::to_string(longest_of(prompts) + std::min(longest - longest_of(prompts), args.max_tokens)));
    recipe.set("training.global_batch_size", "-1");
    planning::take_ranks(recipe, group);
    recipe.set("training.local_batch_size", std::to_string(ceil_div(static_cast<int64_t>(prompts.size()),
                                                                    compile::layout_of(compile::config_of(recipe)).data_ranks)));

    job::Loaded loaded(stored, {ir::EntryKind::Prefill, ir::EntryKind::Decode}, group);
    const compile::Compiled& compiled = loaded.compiled;
    runtime::Generator generator(loaded.ranks);
    std::vector<int32_t> ends;
    if (args.other_tokenizer) ends.push_back(tokenizer ? tokenizer->separator() : runtime::kNoToken);
    else if (group.is_first()) ends = job::end_tokens(stored, tokenizer);
    Sampling sampling(args, generator, tokenizer, std::move(ends), group);
    group.guard([&] { sampling.run(prompts); });
    if (!group.is_first()) return kDone;

    int64_t generated = 0;
    for (const Sequence& s : sampling.sequences) generated += static_cast<int64_t>(s.tokens.size());
    const double tokens_per_s = static_cast<double>(generated) / sampling.decode_s;
    if (!run.empty() && tokenizer) keep(run, args, *tokenizer, stored.manifest.steps, sampling.sequences);
    if (args.json) {
        nlohmann::ordered_json out = {{"checkpoint", stored.folder},
                                      {"step", stored.manifest.steps},
                                      {"sequences", nlohmann::ordered_json::array()},
                                      {"tokens_per_s", tokens_per_s},
                                      {"prefill_s", sampling.prefill_s},
                                      {"decode_s", sampling.decode_s},
                                      {"context", generator.context()},
                                      {"ranks", compiled.layout.ranks},
                                      {"peak_bytes_planned", compiled.all_arena_bytes()}};
        for (const Sequence& s : sampling.sequences) out["sequences"].push_back(to_json(s));
        print_json(out);
        return kDone;
    }
    print(sampling.sequences);
    telemetry::info(fmt::format("{} tokens, {:.1f} a second after {:.3f} s for the prompts; planned {} a rank", generated,
                                tokens_per_s, sampling.prefill_s, telemetry::gib(compiled.arena_bytes())));
    return kDone;
}

}  // namespace

Command add_sample(CLI::App& app) {
    const auto args = std::make_shared<SampleArgs>();
    CLI::App* command = app.add_subcommand("sample", "generate text from a checkpoint");
    add_checkpoint_flags(*command, args->checkpoint);
    command->add_option("--prompt", args->prompts, "text to continue; may be given several times")->allow_extra_args(false);
    command->add_option("--prompt-file", args->prompt_files, "file with the prompt; -: standard input")->allow_extra_args(false);
    command->add_option("--prompt-tokens", args->prompt_tokens, "prompt as token ids, separated by commas")
        ->allow_extra_args(false);
    command->add_option("--max-tokens", args->max_tokens, "number of tokens to generate per prompt (default 128)");
    command->add_option("--temperature", args->temperature, "sampling temperature; 0: always the likeliest token (default 1)");
    command->add_option("--top-k", args->top_k, "sample from the k likeliest tokens; 0: all");
    command->add_option("--top-p", args->top_p,
                        "sample from the likeliest tokens that together have this probability (default 1)");
    command->add_option("--seed", args->seed, "seed of the sampling (default 0)");
    command->add_option("--stop", args->stops, "stop before this text; may be given several times")->allow_extra_args(false);
    command->add_option("--tokenizer", args->tokenizer, "tokenizer.json (default: the one that the checkpoint was trained with)");
    command->add_flag("--other-tokenizer", args->other_tokenizer, "take --tokenizer even if it is not the checkpoint's");
    command->add_option("--logits", args->logits, "write the logits to this file, as text, one row per step");
    command->add_flag("--keep", args->keep,
                      "also write the texts to samples.jsonl of the checkpoint's run, for `lockstep report`");
    command->add_flag("--json", args->json, "one JSON object on standard output at the end");
    command->footer("Example: lockstep sample outputs/demo --prompt '#include <' --temperature 0.8 --top-p 0.95");
    return {.app = command,
            .run = [args](comm::ProcessGroup& group) { return sample(*args, group); },
            .recipe = &args->checkpoint,
            .in_every_process = true};
}

}  // namespace lockstep::cli
