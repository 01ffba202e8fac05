#include "job/new_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/output_file.h"
#include "base/processors.h"
#include "compile/recipe.h"
#include "data/prepare.h"
#include "measure/machine.h"
#include "planning/plan.h"
#include "runtime/parameters.h"
#include "telemetry/metrics.h"
#include "telemetry/wrap.h"

namespace lockstep::job {
namespace {

namespace fs = std::filesystem;

struct FirstShape {
    int64_t dim, layers, heads;
    double lr;

    // Parameters of the layers, without embedding and head.
    double body() const { return 12.0 * static_cast<double>(layers * dim * dim); }
};
// From 0.2 to 350 million parameters without the embedding. Learning rates fall with the width.
constexpr FirstShape kFirstShapes[] = {{1024, 24, 16, 3e-4}, {768, 12, 12, 6e-4}, {640, 10, 10, 8e-4},
                                       {512, 8, 8, 1e-3},    {384, 6, 6, 1.5e-3}, {256, 5, 4, 2e-3},
                                       {192, 4, 3, 3e-3},    {128, 3, 2, 3e-3},   {64, 2, 2, 3e-3}};
constexpr int64_t kFirstSeqLen = 256, kFirstBatch = 16;  // sequences, of all ranks
constexpr int64_t kMostFirstRanks = 16;
// Of the time that is given: the rest is for the start, evaluations and checkpoints, and for what the plan is off.
constexpr double kShareOfSteps = 0.75;
constexpr double kTokensPerParameter = 8;  // of layers; fewer, and a smaller model learns more in the same time
constexpr double kMostEpochs = 20;         // beyond which a text is learned by heart
constexpr int64_t kFewestSteps = 200;      // of a model that is chosen

int64_t bytes_of_texts(const std::vector<std::string>& texts) {
    int64_t bytes = 0;
    for (const data::Input& in : data::find_inputs(std::vector<fs::path>(texts.begin(), texts.end())).files) bytes += in.bytes;
    return bytes;
}

// A vocabulary as large as the text fills with tokens that are frequent enough to be learned.
data::PrepareOptions prepare_options(const NewRunOptions& o, const std::string& out) {
    constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
    const int64_t bytes = bytes_of_texts(o.texts);
    data::PrepareOptions options;
    for (const std::string& text : o.texts) options.inputs.emplace_back(text);
    options.out = out, options.field = o.field, options.threads = static_cast<int>(usable_cpus().size());
    options.tokenizer = bytes < 256 * kKiB ? "bytes" : "bpe";
    options.vocab = bytes < 256 * kKiB ? 0 : bytes < 2 * kMiB ? 1024 : bytes < 16 * kMiB ? 4096 : 8192;
    options.heldout_fraction = bytes < 8 * kMiB ? 0.05 : data::kDefaultHeldout;
    return options;
}

sim::Cluster described_here(const std::string& file) {
    const sim::Cluster c = sim::read_cluster(file, "--cluster");
    if (c.devices || c.declared)
        throw UserError("new.not_this_machine", "--cluster",
                        fmt::format("--cluster {}: describes {}; give the file that `lockstep bench` wrote on this machine, or "
                                    "leave --cluster out, and this machine is measured",
                                    file, c.devices ? "devices" : "published rates"));
    return c;
}

sim::Cluster measured_here(const NewRunOptions& o, const std::string& file) {
    measure::MachineOptions options;
    options.cpus = usable_cpus(), options.memory_bytes = static_cast<double>(telemetry::machine_memory_bytes());
    options.budget_s = 5, options.small_only = true, options.progress = o.measuring;
    const sim::Cluster c = measure::machine(options);
    write_whole_file(file, "# Written by `lockstep new` on the machine that it describes, as `lockstep bench --quick` does.\n" +
                               sim::print(c));
    return c;
}

// The folder that this command makes: removed again where it fails.
class FirstFolder {
public:
    explicit FirstFolder(fs::path path) : path_(std::move(path)) {}
    ~FirstFolder() {
        std::error_code ignored;
        if (!keeps_) fs::remove_all(path_, ignored);
    }
    FirstFolder(const FirstFolder&) = delete;
    FirstFolder& operator=(const FirstFolder&) = delete;
    void keep() { keeps_ = true; }

private:
    fs::path path_;
    bool keeps_ = false;
};

int64_t ranks_here() {
    const auto cores = static_cast<int64_t>(usable_cpus().size());
    int64_t ranks = 1;
    while (2 * ranks <= std::min(cores, kMostFirstRanks)) ranks *= 2;
    return ranks;
}

// Everything that the recipe says.
struct FirstRecipe {
    NewRun run;
    FirstShape shape;
    int64_t seq_len = 0, batch = 0;
    bool has_heldout = false;
};

std::string seconds_text(double s) { return s < 1 ? fmt::format("{:.0f} ms", 1000 * s) : fmt::format("{:.2f} s", s); }

std::string toml_of(const FirstRecipe& f, double minutes) {
    const NewRun& r = f.run;
    const auto quoted = [](const std::string& text) { return compile::text_of(compile::Value(text)); };
    std::string out = fmt::format(
        "# Written by `lockstep new` for {:g} minutes of training on this machine. Every key is explained by `lockstep recipe "
        "KEY`,\n"
        "# and may be given as a flag too: lockstep train {} --training.steps 50\n[job]\ndump_folder = {}  # checkpoints, "
        "metrics\n",
        minutes, r.recipe, quoted(r.dump_folder));
    out += fmt::format(
        "\n[model]  # {} parameters\nname = \"{}\"\nflavor = \"debugmodel\"  # the next keys change its size\n"
        "dim = {}       # width\nn_layers = {}\nn_heads = {}     # dim is a multiple of it\n",
        telemetry::grouped(r.parameters), r.model, f.shape.dim, f.shape.layers, f.shape.heads);
    out += r.model == "gpt2"
               ? fmt::format("n_positions = {}  # the longest sequence\ndropout = {}  # against learning by heart\n", f.seq_len,
                             r.epochs() > 4 ? "0.1" : "0.0")
               : fmt::format("n_kv_heads = {}\nffn_dim = {}\nrope_scaling_factor = 1.0\n", f.shape.heads, 4 * f.shape.dim);
    out += fmt::format(
        "\n[training]\ndataset_path = {}  # {} tokens to train on, a vocabulary of {}\n"
        "seq_len = {}          # tokens of a sequence\nlocal_batch_size = {}   # sequences of a rank and step\n"
        "global_batch_size = {} # of all ranks: {} tokens a step\n"
        "steps = {}           # {:.1f} times the text; planned: {} each, {:.1f} minutes\n"
        "mixed_precision_param = \"float32\"  # bfloat16 is for GPUs, and for processors that multiply it faster\n",
        quoted(r.data), telemetry::grouped(r.train_tokens), telemetry::grouped(r.vocabulary), f.seq_len, f.batch / r.ranks,
        f.batch, telemetry::grouped(r.tokens_per_step), r.steps, r.epochs(), seconds_text(r.step_s), r.minutes());
    out += fmt::format(
        "\n[optimizer]\nlr = {:g}  # if the loss jumps, halve it\n\n[lr_scheduler]\nwarmup_steps = {}\ndecay_type = \"cosine\"\n"
        "min_lr_factor = 0.1\n",
        f.shape.lr, std::max<int64_t>(1, r.steps / 20));
    out += fmt::format(
        "\n[parallelism]  # one rank a core: each trains on its part of a batch\ndata_parallel_replicate_degree = {}\n"
        "data_parallel_shard_degree = 1\n",
        r.ranks);
    if (f.has_heldout)
        out += fmt::format("\n[validation]  # the loss on text that is held out\nenable = true\nfreq = {}\nsteps = 5\n",
                           std::max<int64_t>(1, r.steps / 5));
    out += fmt::format(
        "\n[checkpoint]  # the same command goes on from the last one\nenable = true\ninterval = {}\nkeep_latest_k = 2\n"
        "last_save_model_only = false\n\n[activation_checkpoint]\nmode = \"none\"  # nothing is computed twice: memory "
        "suffices\n",
        std::max<int64_t>(1, r.steps / 4));
    return out + fmt::format("\n[cluster]\nfile = {}  # what was measured of this machine; `lockstep plan` reads it\n",
                             quoted(r.machine));
}

// Plans a shape for as many steps as fit into the time, and not more than the text is good for.
void plan_steps(FirstRecipe& f, const sim::Cluster& cluster, double minutes) {
    NewRun& r = f.run;
    r.steps = 1, r.step_s = 1;
    compile::Recipe recipe = compile::Recipe::from_text(toml_of(f, minutes), r.recipe);
    recipe.set("model.vocab_size", std::to_string(r.vocabulary));
    const compile::Config config = compile::config_of(recipe);
    const planning::Plan plan = planning::make_plan(config, planning::described_machine(config, cluster, r.machine));
    r.step_s = plan.step_s(), r.parameters = runtime::parameter_count(plan.compiled.programs);
    r.dim = f.shape.dim, r.layers = f.shape.layers, r.heads = f.shape.heads;
    const double in_time = kShareOfSteps * 60 * minutes / r.step_s;
    const double of_text = kMostEpochs * static_cast<double>(r.train_tokens) / static_cast<double>(r.tokens_per_step);
    r.steps = std::max<int64_t>(1, static_cast<int64_t>(std::min(in_time, of_text)));
    if (!plan.fits) r.steps = 0;
}

bool learns_enough(const FirstRecipe& f) {
    const auto tokens = static_cast<double>(f.run.steps * f.run.tokens_per_step);
    return f.run.steps >= kFewestSteps && tokens >= kTokensPerParameter * f.shape.body();
}

FirstRecipe fitted(const NewRunOptions& o, FirstRecipe f, const sim::Cluster& cluster) {
    for (const FirstShape& shape : kFirstShapes) {
        f.shape = shape;
        // What no planned step can be fast enough for is not compiled: a core does less than 500 GFLOP/s.
        const double flops = 6 * kTokensPerParameter * shape.body() * shape.body();
        if (flops > 5e11 * 60 * o.minutes * static_cast<double>(f.run.ranks)) continue;
        plan_steps(f, cluster, o.minutes);
        if (learns_enough(f)) return f;
    }
    if (f.run.steps == 0)
        throw UserError("new.memory", "--minutes",
                        "no model of those that are tried fits this machine's memory, or has a step in that time: give more "
                        "--minutes");
    return f;
}

}  // namespace

NewRun new_run(const NewRunOptions& o) {
    if (o.folder.empty() || fs::exists(fs::symlink_status(o.folder)))
        throw UserError("new.exists", o.folder, fmt::format("{}: is there already; choose another name, or remove it", o.folder));
    FirstRecipe f;
    NewRun& r = f.run;
    const fs::path folder = o.folder;
    r.recipe = (folder / "recipe.toml").string(), r.data = (folder / "data").string();
    r.machine = o.cluster.empty() ? (folder / "machine.toml").string() : fs::absolute(o.cluster).lexically_normal().string();
    r.dump_folder = (folder / "run").string(), r.model = o.model;
    FirstFolder made(folder);
    const sim::Cluster described = o.cluster.empty() ? sim::Cluster() : described_here(o.cluster);
    const data::Manifest data = data::prepare(prepare_options(o, r.data), o.preparing).manifest;
    r.vocabulary = data.vocab_size, r.train_tokens = data.train.tokens;
    r.ranks = ranks_here();
    f.batch = std::max(kFirstBatch, r.ranks), f.seq_len = kFirstSeqLen;
    while (f.seq_len > 32 && r.train_tokens < f.batch * (f.seq_len + 1)) f.seq_len /= 2;
    if (r.train_tokens < f.batch * (f.seq_len + 1))
        throw UserError("new.too_little_text", "--data",
                        fmt::format("{} tokens to train on are less than one step takes ({} sequences of {}): give more text; a "
                                    "model that writes words needs a few hundred thousand characters",
                                    r.train_tokens, f.batch, f.seq_len));
    r.tokens_per_step = f.batch * f.seq_len;
    f.has_heldout = data.heldout.tokens > 2 * f.seq_len;
    f = fitted(o, f, o.cluster.empty() ? measured_here(o, r.machine) : described);
    write_whole_file(r.recipe, toml_of(f, o.minutes));
    made.keep();
    return f.run;
}

}  // namespace lockstep::job
