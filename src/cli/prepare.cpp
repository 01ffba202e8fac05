#include "data/prepare.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "telemetry/console.h"

namespace lockstep::cli {

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

}  // namespace lockstep::cli
