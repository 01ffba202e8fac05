#include "job/evaluation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "base/checksum.h"
#include "base/error.h"
#include "data/data_sets.h"
#include "job/carried.h"
#include "job/loaded.h"
#include "planning/run_data.h"
#include "planning/types.h"
#include "runtime/trainer.h"
#include "telemetry/console.h"

namespace lockstep::job {
namespace {

// A data set to be evaluated on.
struct Tokens {
    data::TokenStream stream;
    std::optional<data::Tokenizer> tokenizer;
    std::string tokenizer_file;  // empty: not known
    // Bytes of the text for each byte that its tokens stand for: more than one where the tokenizer drops some.
    double bytes_of_a_decoded_byte = 1;
};

std::vector<Tokens> open_tokens(const EvaluationOptions& options, const Stored& stored) {
    if (!options.tokens.empty()) {
        data::TokenFile file = data::TokenFile::open(options.tokens);
        const std::filesystem::path next_to_file = file.path().parent_path() / data::kTokenizerFile;
        const std::string own = std::filesystem::exists(next_to_file) ? next_to_file.string() : "";
        std::optional<data::Tokenizer> tokenizer = find_tokenizer(stored, own);
        if (tokenizer && tokenizer->vocab_size() != file.vocab_size()) tokenizer.reset();  // of other tokens
        std::vector<Tokens> one;
        one.push_back({std::move(file), std::move(tokenizer), own, 1});
        return one;
    }
    std::vector<std::string> folders = options.data;
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
        data::TokenStream& split = options.split == "train" ? prepared.train : prepared.heldout;
        if (split.empty()) {
            without.push_back(prepared.folder.string());
            continue;
        }
        const std::string file = tokenizer ? (prepared.folder / data::kTokenizerFile).string() : "";
        const data::SplitInfo& info = options.split == "train" ? prepared.manifest.train : prepared.manifest.heldout;
        const bool counted = info.text_bytes > 0 && info.decoded_bytes > 0;
        const double ratio = counted ? static_cast<double>(info.text_bytes) / static_cast<double>(info.decoded_bytes) : 1;
        out.push_back({std::move(split), std::move(tokenizer), file, ratio});
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
    const std::vector<int64_t> bytes = tokenizer.text_bytes();
    std::vector<int32_t> sample[4];
    for (std::vector<int32_t>& s : sample) s.resize(static_cast<size_t>(data.seq_len()));
    int64_t sum = 0;
    for (int64_t w = 0; w < windows; ++w) {
        data.sequential(w, sample[0], sample[1], sample[2], sample[3]);
        for (int32_t target : sample[1]) sum += bytes[static_cast<size_t>(target)];
    }
    return sum;
}

// A tokenizer may have tokens that were added behind the rows of its model: text without them can be evaluated.
void require_rows(const data::TokenStream& stream, const data::Tokenizer& tokenizer, int64_t vocab) {
    std::vector<int32_t> some(1 << 16);
    for (int64_t begin = 0; begin < stream.tokens(); begin += static_cast<int64_t>(some.size())) {
        some.resize(static_cast<size_t>(std::min<int64_t>(std::ssize(some), stream.tokens() - begin)));
        stream.read(begin, some);
        const auto missing = std::find_if(some.begin(), some.end(), [&](int32_t id) { return id >= vocab; });
        if (missing == some.end()) continue;
        throw UserError(
            "eval.no_row", stream.name(),
            fmt::format("{} holds the token '{}' ({}), for which the model has no row: it has {}. Evaluate text "
                        "without this token, or a model that was trained with model.vocab_size = {}",
                        stream.name(), tokenizer.decode_one(*missing, false), *missing, vocab, tokenizer.vocab_size()));
    }
}

// Refuses tokens that mean nothing to the checkpoint's model.
void require_fitting(const Tokens& tokens, const EvaluationOptions& options, const Stored& stored) {
    if (!options.accepts_other_tokenizer && !tokens.tokenizer_file.empty())
        require_same_tokenizer(stored, {tokens.tokenizer_file, options.tokens.empty() ? "--data" : "--tokens", kInsist});
    const int64_t vocab = compile::config_of(stored.recipe).model.size("vocab_size");
    if (tokens.stream.vocab_size() <= vocab) return;
    if (tokens.tokenizer && !tokens.tokenizer_file.empty() && !is_known_other_tokenizer(stored, tokens.tokenizer_file))
        return require_rows(tokens.stream, *tokens.tokenizer, vocab);
    const std::string name = tokens.stream.name();
    throw UserError("eval.vocabulary", name,
                    fmt::format("the vocabulary of {} has {} tokens, but that of the model has {}: prepare the text with the "
                                "model's own tokenizer (`lockstep data prepare --tokenizer`)",
                                name, tokens.stream.vocab_size(), vocab));
}

}  // namespace

Evaluation evaluate(const planning::RecipeArgs& checkpoint, const EvaluationOptions& options, comm::ProcessGroup& group) {
    Stored stored = open_stored(checkpoint, {{"training.global_batch_size", "-1"}});
    for (const std::string& note : stored.notes) telemetry::info(note);
    keep_one_island(stored.recipe);
    planning::take_ranks(stored.recipe, group);
    struct Set {
        data::Dataset data;
        std::optional<data::Tokenizer> tokenizer;
        std::string name;
        double bytes_of_a_decoded_byte;
    };
    std::vector<Set> sets;
    Facts flags = {{"--steps", std::to_string(options.steps)}};
    for (Tokens& tokens : open_tokens(options, stored)) {
        require_fitting(tokens, options, stored);
        const std::string name = tokens.stream.name();
        std::string sums;
        for (const data::TokenFile& file : tokens.stream.files()) sums += hex_checksum(file.header().checksum);
        flags.emplace_back("the tokens of " + name, hex_checksum(sums));
        sets.push_back({data::Dataset(std::move(tokens.stream), planning::dataset_options(compile::values_of(stored.recipe))),
                        std::move(tokens.tokenizer), name, tokens.bytes_of_a_decoded_byte});
    }
    Loaded loaded(stored, {ir::EntryKind::Eval}, group, flags);
    const compile::Compiled& compiled = loaded.compiled;
    if (const std::string float8 = planning::float8_lines(compile::config_of(stored.recipe)).line; !float8.empty())
        telemetry::info(float8);
    runtime::Evaluator evaluator(loaded.ranks, runtime::batch_shape(compiled.layout));

    Evaluation out;
    EvaluatedSet& whole = out.whole;
    bool all_bytes_known = true;
    for (const Set& set : sets) {
        const int64_t all = evaluator.batches(set.data), batches = options.steps > 0 ? std::min(options.steps, all) : all;
        const int64_t windows = std::min(batches * evaluator.windows_of_batch(), set.data.windows());
        const auto start = std::chrono::steady_clock::now();
        EvaluatedSet m{set.name, evaluator.evaluate(set.data, batches)};
        out.time_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (group.is_first() && set.tokenizer)
            m.bytes =
                std::llround(static_cast<double>(target_bytes(set.data, windows, *set.tokenizer)) * set.bytes_of_a_decoded_byte);
        all_bytes_known &= m.bytes > 0;
        whole.name += (whole.name.empty() ? "" : ", ") + m.name;
        whole.result += m.result;
        whole.bytes += m.bytes;
        out.of_sets.push_back(std::move(m));
    }
    if (!all_bytes_known) whole.bytes = 0;
    out.folder = stored.folder, out.step = stored.manifest.steps;
    out.ranks = compiled.layout.ranks;
    out.bytes_of_a_rank = compiled.arena_bytes(), out.bytes_of_all_ranks = compiled.all_arena_bytes();
    return out;
}

}  // namespace lockstep::job
