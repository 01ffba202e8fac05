// Every refusal of a recipe, by its text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "data/synthetic_source.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

void compile_with(const Settings& settings) { program_after("plan_memory", settings); }
void parse(const std::string& toml) { compile::Recipe::from_text(toml, "run.toml"); }

// Builds a trainer; `edit` may change the compiled recipe before.
void train_with(const Settings& settings, const std::function<void(compile::Compiled&)>& edit = {}) {
    const compile::Recipe recipe = small_recipe(settings);
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    compile::Compiled compiled = compile::compile(recipe, options);
    if (edit) edit(compiled);
    data::SyntheticOptions data;
    data.vocab_size = 16, data.seq_len = 8;
    const data::SyntheticSource source(data);
    runtime::Trainer trainer(compile::config_of(recipe), compiled, source);
}

const char* const kPipeline = "parallelism.pipeline_parallel_degree";
const char* const kLayersPerStage = "parallelism.pipeline_parallel_layers_per_stage";
const char* const kParts = "parallelism.module_fqns_per_model_part";

// Two pipeline ranks, cut as the lists say.
void compile_parts(const std::string& parts) { compile_with({{kPipeline, "2"}, {kParts, "[" + parts + "]"}}); }

struct ErrorCase {
    const char* name;
    std::function<void()> act;
    const char *id, *key, *text;
};
void PrintTo(const ErrorCase& c, std::ostream* stream) { *stream << c.name; }

const std::string kTp = "parallelism.tensor_parallel_degree", kShard = "parallelism.data_parallel_shard_degree",
                  kReplicate = "parallelism.data_parallel_replicate_degree";

const ErrorCase kErrors[] = {
    // The text of a recipe.
    {"unknown_key", [] { parse("[training]\nsteps = 3\nsequence_len = 4\n"); }, "recipe.unknown_key", "training.sequence_len",
     "run.toml:3: there is no key training.sequence_len; the nearest is training.seq_len"},
    {"unknown_flag",
     [] {
         small_recipe({{"optimizer.learning", "1"}});
     },
     "recipe.unknown_key", "optimizer.learning",
     "flag --optimizer.learning: there is no key optimizer.learning; the nearest is optimizer.lr"},
    {"wrong_type", [] { parse("[training]\nsteps = \"many\"\n"); }, "recipe.wrong_type", "training.steps",
     "run.toml:2: training.steps = \"many\" must be an integer"},
    {"fraction_for_an_integer", [] { parse("[training]\nsteps = 1.5\n"); }, "recipe.wrong_type", "training.steps",
     "run.toml:2: training.steps = 1.5 must be an integer"},
    {"flag_of_wrong_type",
     [] {
         small_recipe({{"training.fuse_loss", "maybe"}});
     },
     "recipe.wrong_type", "training.fuse_loss",
     "flag --training.fuse_loss: training.fuse_loss = \"maybe\" must be true or false"},
    {"list_of_numbers", [] { parse("[model]\nconverters = [1, 2]\n"); }, "recipe.wrong_type", "model.converters",
     "run.toml:2: model.converters = [1.0, 2.0] must be a list of strings"},
    {"date", [] { parse("[training]\nsteps = 2020-01-01\n"); }, "recipe.wrong_type", "training.steps",
     "run.toml:2: training.steps must be an integer"},
    {"not_available",
     [] {
         compile::Recipe::from_text(
             "[model]\nname = \"llama4\"\nconverters = [\"quantize.linear.float8\"]\n"
             "[parallelism]\nexpert_parallel_degree = 2\n[fault_tolerance]\nfragment_sync_delay = 1\n",
             "run.toml")
             .require_available();
     },
     "recipe.not_available", "model.name",
     "run.toml:2: asks for what this version of Lockstep does not have:\n"
     "  experts (model.name = \"llama4\", parallelism.expert_parallel_degree = 2)\n"
     "  meetings that end while later steps run (fault_tolerance.fragment_sync_delay = 1)\n"
     "Leave these keys out, or set them to their defaults (`lockstep recipe KEY` prints a default)"},
    {"two_families_of_converters",
     [] {
         compile_with({{"model.converters", "[\"mx\", \"float8\"]"}});
     },
     "recipe.converters", "model.converters",
     "flag --model.converters: model.converters names float8 and MX: a linear layer has one of them; leave one out"},
    {"float8_rows_that_are_gathered",
     [] {
         compile_with({{"model.converters", "float8"},
                       {"quantize.linear.float8.recipe_name", "rowwise"},
                       {"quantize.linear.float8.enable_fsdp_float8_all_gather", "true"}});
     },
     "recipe.float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather",
     "flag --quantize.linear.float8.enable_fsdp_float8_all_gather: quantize.linear.float8.enable_fsdp_float8_all_gather = true "
     "with quantize.linear.float8.recipe_name = \"rowwise\": forward and backward scale a weight by other rows, so that no one "
     "copy in float8 serves both; set it to false, or the recipe to tensorwise"},
    {"no_rule_of_small_products",
     [] {
         compile_with({{"model.converters", "float8"},
                       {"quantize.linear.float8.recipe_name", "blockwise"},
                       {"quantize.linear.float8.filter_fqns", "auto_filter_small_kn"}});
     },
     "recipe.auto_filter", "quantize.linear.float8.filter_fqns",
     "flag --quantize.linear.float8.filter_fqns: quantize.linear.float8.filter_fqns names auto_filter_small_kn, but nothing says "
     "which products are small for quantize.linear.float8.recipe_name = \"blockwise\": leave it out, and name the layers, or "
     "set the recipe to tensorwise or rowwise"},
    {"several_mistakes", [] { parse("[training]\nstepz = 3\nseq_len = \"many\"\n"); }, "recipe.unknown_key", "training.stepz",
     "run.toml:2: there is no key training.stepz; the nearest is training.steps\n"
     "  run.toml:3: training.seq_len = \"many\" must be an integer"},
    {"absent_flavor",
     [] {
         compile_with({{"model.name", "qwen3"}, {"model.flavor", "30B-A3B"}});
     },
     "recipe.not_available", "model.flavor",
     "flag --model.flavor: asks for what this version of Lockstep does not have:\n"
     "  experts (model.flavor = \"30B-A3B\")\n"
     "Leave these keys out, or set them to their defaults (`lockstep recipe KEY` prints a default)"},
    {"list_in_a_list", [] { parse("[parallelism]\nmodule_fqns_per_model_part = [[1]]\n"); }, "recipe.wrong_type",
     "parallelism.module_fqns_per_model_part", "run.toml:2: parallelism.module_fqns_per_model_part must be a list of strings"},
    {"no_section", [] { parse("steps = 3\n"); }, "recipe.no_section", "steps", "run.toml:1: steps is outside any [section]"},
    {"syntax", [] { parse("[training\nsteps = 3\n"); }, "recipe.syntax", "", "run.toml:1: not TOML: "},
    {"unreadable", [] { compile::Recipe::from_file("/no/such/file.toml"); }, "recipe.unreadable", "/no/such/file.toml",
     "recipe /no/such/file.toml: cannot be read (No such file or directory); give the path of a TOML file"},
    {"validation_of_another_shape",
     [] {
         compile_with({{"validation.enable", "true"}, {"training.dataset", "prepared"}, {"validation.seq_len", "9"}});
     },
     "recipe.validation_shape", "validation.seq_len",
     "validation.seq_len = 9, but training.seq_len = 8: batches of validation have the shape of those of training; leave "
     "validation.seq_len out"},
    // The model.
    {"unknown_model",
     [] {
         compile_with({{"model.name", "gpt5"}});
     },
     "recipe.unknown_model", "model.name", "model.name = \"gpt5\": known models are llama3, qwen3, gpt2"},
    {"unknown_flavor",
     [] {
         compile_with({{"model.flavor", "9B"}});
     },
     "recipe.unknown_flavor", "model.flavor",
     "model.flavor = \"9B\": llama3 has the flavors debugmodel, 8B, 70B, 405B, mistral-7B, qwen2.5-0.5B, qwen2.5-7B, "
     "qwen3-0.6B; any other shape is made by keys of [model]"},
    {"key_of_another_model",
     [] {
         compile_with({{"model.name", "gpt2"}, {"model.rope_theta", "100.0"}});
     },
     "recipe.model_key", "model.rope_theta",
     "flag --model.rope_theta: the model gpt2 has no key rope_theta; `lockstep recipe` lists what it has"},
    {"too_few_positions",
     [] {
         compile_with({{"model.name", "gpt2"}, {"model.n_positions", "7"}});
     },
     "model.positions", "model.n_positions",
     "model.n_positions = 7: a sequence has 8 tokens (training.seq_len), and each needs a learned position"},
    {"dropout",
     [] {
         compile_with({{"model.name", "gpt2"}, {"model.attn_pdrop", "1.0"}});
     },
     "recipe.out_of_range", "model.attn_pdrop",
     "flag --model.attn_pdrop: model.attn_pdrop = 1.0: must be at least 0 and below 1, or -1"},
    {"not_positive",
     [] {
         compile_with({{"model.n_layers", "0"}});
     },
     "recipe.out_of_range", "model.n_layers", "flag --model.n_layers: model.n_layers = 0: must be from 1 to 2048"},
    {"kv_heads",
     [] {
         compile_with({{"model.n_kv_heads", "3"}});
     },
     "model.kv_heads", "model.n_kv_heads", "model.n_heads = 4 is not a multiple of model.n_kv_heads = 3: choose a divisor"},
    {"head_dim",
     [] {
         compile_with({{"model.head_dim", "0"}, {"model.dim", "10"}});
     },
     "model.head_dim", "model.n_heads",
     "model.dim = 10 is not a multiple of model.n_heads = 4: set model.head_dim, or choose a divisor"},
    {"odd_head_dim",
     [] {
         compile_with({{"model.head_dim", "5"}});
     },
     "model.odd_head_dim", "model.head_dim",
     "the head dimension 5 is odd: rotary positions need pairs; choose an even model.head_dim"},
    {"rope",
     [] {
         compile_with({{"model.rope_low_freq_factor", "4.0"}});
     },
     "model.rope", "model.rope_high_freq_factor",
     "model.rope_high_freq_factor = 4: must be above model.rope_low_freq_factor = 4"},
    {"shape_out_of_range",
     [] {
         compile_with({{"model.vocab_size", "9223372036854775807"}});
     },
     "recipe.out_of_range", "model.vocab_size",
     "flag --model.vocab_size: model.vocab_size = 9223372036854775807: must be from 2 to 1073741824"},
    {"no_ffn",
     [] {
         compile_with({{"model.ffn_dim", "0"}, {"model.ffn_dim_multiplier", "1e-9"}});
     },
     "model.ffn", "model.ffn_dim_multiplier",
     "model.ffn_dim_multiplier = 1e-09: makes a feed-forward width of 0; raise it, or set model.ffn_dim"},
    {"norm_eps",
     [] {
         compile_with({{"model.norm_eps", "-1.0"}});
     },
     "recipe.out_of_range", "model.norm_eps", "flag --model.norm_eps: model.norm_eps = -1.0: must be at least 0 and below 1"},
    {"too_large",
     [] {
         compile_with({{"training.local_batch_size", "9223372036854775807"}});
     },
     "recipe.out_of_range", "training.local_batch_size",
     "flag --training.local_batch_size: training.local_batch_size = 9223372036854775807: must be from 1 to 1073741824"},
    // The layout.
    {"degree",
     [] {
         compile_with({{kTp, "0"}});
     },
     "recipe.out_of_range", "parallelism.tensor_parallel_degree",
     "parallelism.tensor_parallel_degree = 0: must be from 1 to 1048576"},
    {"shard_degree",
     [] {
         compile_with({{kShard, "0"}});
     },
     "recipe.out_of_range", "parallelism.data_parallel_shard_degree",
     "parallelism.data_parallel_shard_degree = 0: must be from 1 to 1048576, or -1"},
    {"global_batch",
     [] {
         compile_with({{"training.global_batch_size", "0"}});
     },
     "recipe.out_of_range", "training.global_batch_size", "training.global_batch_size = 0: must be from 1 to 1073741824, or -1"},
    {"prefetch",
     [] {
         compile_with({{"parallelism.prefetch", "-1"}});
     },
     "recipe.out_of_range", "parallelism.prefetch", "parallelism.prefetch = -1: must be from 0 to 1024"},
    {"out_of_range",
     [] {
         compile_with({{"optimizer.beta2", "1.0"}});
     },
     "recipe.out_of_range", "optimizer.beta2", "optimizer.beta2 = 1.0: must be from 0 to 0.999999999"},
    {"eps",
     [] {
         compile_with({{"optimizer.eps", "0.0"}});
     },
     "recipe.out_of_range", "optimizer.eps", "optimizer.eps = 0.0: must be from 1e-30 to 1"},
    {"narrow_moments_of_sgd",
     [] {
         compile_with({{"optimizer.implementation", "fused_opt_states_bf16"}, {"optimizer.name", "SGD"}});
     },
     "recipe.opt_states_bf16", "optimizer.implementation",
     "optimizer.implementation = \"fused_opt_states_bf16\" is for AdamW and Adam, whose exp_avg and exp_avg_sq it keeps in "
     "bfloat16; SGD keeps a momentum buffer: leave it out, or say optimizer.name = \"AdamW\""},
    {"narrow_moments_of_sgd_without_any",
     [] {
         compile_with(
             {{"optimizer.implementation", "fused_opt_states_bf16"}, {"optimizer.name", "SGD"}, {"optimizer.momentum", "0.0"}});
     },
     "recipe.opt_states_bf16", "optimizer.implementation",
     "optimizer.implementation = \"fused_opt_states_bf16\" is for AdamW and Adam, whose exp_avg and exp_avg_sq it keeps in "
     "bfloat16; SGD keeps no moments: leave it out, or say optimizer.name = \"AdamW\""},
    {"narrow_moments_of_muon",
     [] {
         compile_with({{"optimizer.implementation", "fused_opt_states_bf16"}, {"optimizer.name", "Muon"}});
     },
     "recipe.opt_states_bf16", "optimizer.implementation",
     "optimizer.implementation = \"fused_opt_states_bf16\" is for AdamW and Adam, whose exp_avg and exp_avg_sq it keeps in "
     "bfloat16; Muon keeps a momentum buffer: leave it out, or say optimizer.name = \"AdamW\""},
    {"indivisible_ranks",
     [] {
         compile_with({{"cluster.ranks", "6"}, {kTp, "4"}, {kShard, "-1"}});
     },
     "recipe.ranks", "cluster.ranks",
     "6 ranks are not divisible by pipeline_parallel_degree x data_parallel_replicate_degree x tensor_parallel_degree = 4"},
    {"other_ranks",
     [] {
         compile_with({{"cluster.ranks", "8"}, {kTp, "2"}, {kShard, "2"}});
     },
     "recipe.ranks", "cluster.ranks",
     "the degrees make dp_replicate 1 x dp_shard 2 x tp 2 = 4 ranks, but 8 are asked for: change a degree or cluster.ranks"},
    // The pipeline.
    {"reshard",
     [] {
         compile_with({{"parallelism.fsdp_reshard_after_forward", "often"}});
     },
     "recipe.unknown_word", "parallelism.fsdp_reshard_after_forward",
     "parallelism.fsdp_reshard_after_forward = \"often\": must be default, always or never"},
    {"unknown_schedule",
     [] {
         compile_with({{"parallelism.pipeline_parallel_schedule", "2F2B"}});
     },
     "recipe.unknown_word", "parallelism.pipeline_parallel_schedule",
     "parallelism.pipeline_parallel_schedule = \"2F2B\": must be GPipe, 1F1B, Interleaved1F1B, LoopedBFS, ZB-H1, "
     "InterleavedZeroBubble or ZBVZeroBubble; the nearest is 1F1B"},
    {"too_many_stages",
     [] {
         compile_with({{kPipeline, "5"}});
     },
     "pipeline.too_many_stages", kPipeline,
     "5 stages, but the model has 4 blocks (embedding, layers and head): lower parallelism.pipeline_parallel_degree, or have "
     "more layers a stage"},
    {"stages_divide",
     [] {
         compile_with({{kPipeline, "2"}, {"model.n_layers", "7"}, {kLayersPerStage, "3"}});
     },
     "pipeline.stages_divide", kLayersPerStage,
     "3 stages cannot be divided evenly over parallelism.pipeline_parallel_degree = 2 ranks: change the cut or the degree"},
    {"less_layers",
     [] {
         compile_with({{kPipeline, "2"}, {"parallelism.pipeline_parallel_first_stage_less_layers", "4"}});
     },
     "pipeline.less_layers", "parallelism.pipeline_parallel_first_stage_less_layers",
     "2 layers, with 4 fewer in the first stage and 1 fewer in the last, do not fill 2 stages of 3: lower "
     "parallelism.pipeline_parallel_first_stage_less_layers or parallelism.pipeline_parallel_last_stage_less_layers, or have "
     "fewer stages"},
    {"less_layers_negative",
     [] {
         compile_with({{kPipeline, "2"}, {"parallelism.pipeline_parallel_last_stage_less_layers", "-2"}});
     },
     "recipe.out_of_range", "parallelism.pipeline_parallel_last_stage_less_layers",
     "parallelism.pipeline_parallel_last_stage_less_layers = -2: must be from 0 to 1073741824, or -1"},
    {"layers_per_stage",
     [] {
         compile_with({{kPipeline, "2"}, {kLayersPerStage, "-1"}});
     },
     "recipe.out_of_range", kLayersPerStage, "parallelism.pipeline_parallel_layers_per_stage = -1: must be from 0 to 1073741824"},
    {"model_part_order", [] { compile_parts("[\"tok_embeddings\", \"layers.1\"], [\"layers.0\", \"norm\", \"output\"]"); },
     "pipeline.model_part", kParts,
     "parallelism.module_fqns_per_model_part: \"layers.1\" is where layers.0 comes next; give each module once, in the order of "
     "the model"},
    {"model_part_missing", [] { compile_parts("[\"tok_embeddings\", \"layers.0\"], [\"layers.1\"]"); }, "pipeline.model_part",
     kParts, "parallelism.module_fqns_per_model_part: norm is in no part"},
    {"model_part_of_the_head", [] { compile_parts("[\"tok_embeddings\", \"layers.0\", \"layers.1\", \"norm\"], [\"output\"]"); },
     "pipeline.model_part", kParts,
     "parallelism.module_fqns_per_model_part: norm and output are one block: put both into the same part"},
    {"model_part_too_much",
     [] { compile_parts("[\"tok_embeddings\", \"layers.0\"], [\"layers.1\", \"norm\", \"output\", \"layers.2\"]"); },
     "pipeline.model_part", kParts,
     "parallelism.module_fqns_per_model_part: \"layers.2\" comes after the whole model; give each module once"},
    {"csv_unreadable",
     [] {
         compile_with({{kPipeline, "2"}, {"parallelism.pipeline_parallel_schedule_csv", "/no/such.csv"}});
     },
     "pipeline.csv_unreadable", "parallelism.pipeline_parallel_schedule_csv",
     "parallelism.pipeline_parallel_schedule_csv = \"/no/such.csv\": cannot be read (No such file or directory); give the path "
     "of a CSV file"},
    {"sequence",
     [] {
         compile_with({{"training.seq_len", "9"}, {kTp, "2"}});
     },
     "recipe.divides", "training.seq_len",
     "training.seq_len = 9 is not divisible by parallelism.tensor_parallel_degree = 2: change one of them"},
    {"ffn",
     [] {
         compile_with({{"model.ffn_dim", "13"}, {kTp, "2"}});
     },
     "recipe.divides", "model.ffn_dim",
     "the feed-forward width 13 is not divisible by parallelism.tensor_parallel_degree = 2: change model.ffn_dim or the degree"},
    {"heads",
     [] {
         compile_with({{"training.seq_len", "24"}, {kTp, "3"}});
     },
     "recipe.heads_divide", "parallelism.tensor_parallel_degree",
     "parallelism.tensor_parallel_degree = 3: 4 heads in 2 groups cannot be split evenly; choose a degree that divides "
     "model.n_heads"},
    {"dtype",
     [] {
         compile_with({{"training.dtype", "float16"}});
     },
     "recipe.unknown_word", "training.dtype",
     "training.dtype = \"float16\": must be float32, bfloat16 or float64; the nearest is bfloat16"},
    {"mixed_precision",
     [] {
         compile_with({{"training.dtype", "bfloat16"}, {"training.mixed_precision_param", "float32"}});
     },
     "recipe.mixed_precision", "training.mixed_precision_param",
     "training.mixed_precision_param = \"float32\" is wider than training.dtype = \"bfloat16\", the type of the master weights: "
     "lower the first or raise the second"},
    {"logits_of_a_third_type",
     [] {
         compile_with({{"training.mixed_precision_param", "bfloat16"}, {"training.logits", "float16"}});
     },
     "recipe.mixed_precision", "training.logits",
     "training.logits = \"float16\": must be the type of parameters and activations (bf16) or f32"},
    {"any_order_where_one_is_asked_for",
     [] {
         compile_with({{"runtime.deterministic", "false"}, {"debug.deterministic", "true"}});
     },
     "recipe.deterministic", "runtime.deterministic",
     "flag --runtime.deterministic: runtime.deterministic = false, and flag --debug.deterministic: debug.deterministic = true: "
     "leave one of them out"},
    {"norms_beside_narrow_masters",
     [] {
         compile_with({{"training.dtype", "bfloat16"}, {"training.mixed_precision_norm", "float32"}});
     },
     "recipe.mixed_precision", "training.mixed_precision_norm",
     "training.mixed_precision_norm = \"float32\": must be the type of the other parameters (bf16) or of the master weights "
     "(bf16)"},
    {"norms_of_no_type_at_hand",
     [] {
         compile_with({{"training.mixed_precision_norm", "bfloat16"}});
     },
     "recipe.mixed_precision", "training.mixed_precision_norm",
     "training.mixed_precision_norm = \"bfloat16\": must be the type of the other parameters (f32) or of the master weights "
     "(f32)"},
    {"recompute",
     [] {
         compile_with({{"activation_checkpoint.mode", "some"}});
     },
     "recipe.unknown_word", "activation_checkpoint.mode",
     "activation_checkpoint.mode = \"some\": must be none, full, selective, budget or memory_budget; the nearest is none"},
    {"selective",
     [] {
         compile_with({{"activation_checkpoint.mode", "selective"}, {"activation_checkpoint.selective_ac_option", "0"}});
     },
     "recipe.unknown_word", "activation_checkpoint.selective_ac_option",
     "activation_checkpoint.selective_ac_option = \"0\": must be op or a number of 1 or more: every n-th layer is computed "
     "again"},
    {"memory_budget",
     [] {
         compile_with({{"activation_checkpoint.mode", "memory_budget"}, {"activation_checkpoint.memory_budget", "1.5"}});
     },
     "recipe.out_of_range", "activation_checkpoint.memory_budget",
     "activation_checkpoint.memory_budget = 1.5: must be from 0 to 1"},
    {"budget_bytes",
     [] {
         compile_with({{"activation_checkpoint.mode", "budget"}});
     },
     "recipe.budget_bytes", "activation_checkpoint.budget_bytes",
     "activation_checkpoint.mode = \"budget\" needs activation_checkpoint.budget_bytes, the bytes that a rank's arena may have"},
    {"recompute_budget",
     [] {
         compile_with({{"activation_checkpoint.mode", "budget"}, {"activation_checkpoint.budget_bytes", "1"}});
     },
     "recipe.recompute_budget", "activation_checkpoint.budget_bytes",
     "activation_checkpoint.budget_bytes allows 0.000 GiB per rank, but even full recompute needs 0.000 GiB: raise the budget, "
     "lower the batch size, or use more ranks"},
    {"preset",
     [] {
         compile_with({{"partition.preset", "zero4"}});
     },
     "recipe.unknown_word", "partition.preset",
     "partition.preset = \"zero4\": must be default, none, ddp, zero1, zero2, zero3, hsdp, mics, hpz, zeropp or three_level; the "
     "nearest "
     "is zero1"},
    {"split",
     [] {
         compile_with({{"partition.weights", "some"}});
     },
     "recipe.unknown_word", "partition.weights",
     "partition.weights = \"some\": must be empty, none, package, node, shard, world or a number of data ranks; the nearest is "
     "none"},
    {"split_divides",
     [] {
         compile_with({{kShard, "4"}, {kReplicate, "2"}, {"partition.optimizer", "3"}});
     },
     "recipe.split_divides", "partition.optimizer",
     "partition.optimizer = 3: must divide data_parallel_shard_degree (4) or be a multiple of it that divides the 8 data ranks"},
    {"level_unknown",
     [] {
         compile_with({{kShard, "4"}, {"partition.preset", "three_level"}});
     },
     "recipe.level_unknown", "cluster.ranks_per_package",
     "flag --partition.preset: partition.preset = three_level makes partition.weights = package: nothing says how many ranks a "
     "package has; set cluster.ranks_per_package, or cluster.file to a file with links of packages, nodes and all"},
    {"level_divides",
     [] {
         compile_with({{kShard, "4"}, {kTp, "2"}, {"partition.weights", "node"}, {"cluster.ranks_per_node", "3"}});
     },
     "recipe.level_divides", "partition",
     "flag --partition.weights: partition.weights = node: its 3 ranks are no multiple of parallelism.tensor_parallel_degree = 2, "
     "whose ranks hold different parts of each parameter; choose a wider level or a lower degree"},
    {"level_of_other_ranks",
     [] {
         compile_with({{kShard, "4"}, {"partition.preset", "mics"}, {"cluster.ranks_per_node", "3"}});
     },
     "recipe.split_divides", "partition.weights",
     "partition.weights = 3: must divide data_parallel_shard_degree (4) or be a multiple of it that divides the 4 data ranks"},
    {"hsdp",
     [] {
         compile_with({{kShard, "4"}, {"partition.preset", "hsdp"}});
     },
     "recipe.hsdp", "partition.preset",
     "flag --partition.preset: partition.preset = hsdp: nothing is replicated with parallelism.data_parallel_replicate_degree = "
     "1; raise it, or say zero3"},
    {"copy_of_nothing",
     [] {
         compile_with({{kShard, "4"}, {"partition.preset", "zero2"}, {"partition.secondary_weights", "2"}});
     },
     "recipe.secondary_weights", "partition.secondary_weights",
     "flag --partition.secondary_weights: partition.secondary_weights over 2 data ranks: partition.weights = none leaves nothing "
     "to copy; leave it out, or say partition.weights"},
    {"copy_divides",
     [] {
         compile_with({{kShard, "4"}, {"partition.secondary_weights", "3"}});
     },
     "recipe.secondary_weights", "partition.secondary_weights",
     "flag --partition.secondary_weights: partition.secondary_weights over 3 data ranks: must divide the 4 data ranks of "
     "partition.weights"},
    {"whole_copy",
     [] {
         compile_with({{kShard, "4"}, {"partition.preset", "hpz"}, {"cluster.ranks_per_node", "1"}});
     },
     "recipe.secondary_weights", "partition.secondary_weights",
     "partition.secondary_weights over 1 data rank: each rank would keep all weights; say "
     "parallelism.fsdp_reshard_after_forward = never, or choose a wider level"},
    {"islands_without_a_method",
     [] {
         compile_with({{"fault_tolerance.enable", "true"}, {"fault_tolerance.group_size", "2"}});
     },
     "recipe.fault_tolerance", "fault_tolerance.enable",
     "flag --fault_tolerance.enable: fault_tolerance.enable = true without fault_tolerance.semi_sync_method: replicas that meet "
     "each step and may be lost are not in this version; say diloco or local_sgd, or leave it out"},
    {"one_island",
     [] {
         compile_with({{"fault_tolerance.enable", "true"}, {"fault_tolerance.semi_sync_method", "diloco"}});
     },
     "recipe.fault_tolerance", "fault_tolerance.group_size",
     "fault_tolerance.group_size = 0: it is the number of islands that meet, 2 at least"},
    {"batch_of_islands",
     [] {
         compile_with({{"fault_tolerance.enable", "true"},
                       {"fault_tolerance.semi_sync_method", "diloco"},
                       {"fault_tolerance.group_size", "3"},
                       {"training.global_batch_size", "4"}});
     },
     "recipe.fault_tolerance", "training.global_batch_size",
     "flag --training.global_batch_size: training.global_batch_size = 4 is not divisible by fault_tolerance.group_size = 3, the "
     "number of islands: change one of them"},
    {"fragments_of_meetings",
     [] {
         compile_with({{"fault_tolerance.enable", "true"},
                       {"fault_tolerance.semi_sync_method", "diloco"},
                       {"fault_tolerance.group_size", "2"},
                       {"fault_tolerance.num_fragments", "2"}});
     },
     "recipe.fault_tolerance", "fault_tolerance.sync_steps",
     "fault_tolerance.sync_steps = 5 is not divisible by fault_tolerance.num_fragments = 2, whose parts of the model meet one "
     "after "
     "the other: change one of them"},
    {"fragments_of_blocks",
     [] {
         compile_with({{"fault_tolerance.enable", "true"},
                       {"fault_tolerance.semi_sync_method", "diloco"},
                       {"fault_tolerance.group_size", "2"},
                       {"fault_tolerance.num_fragments", "5"}});
     },
     "recipe.fault_tolerance", "fault_tolerance.num_fragments",
     "flag --fault_tolerance.num_fragments: fault_tolerance.num_fragments = 5: the model has 4 blocks; lower it"},
    {"outer_lr_of_local_sgd",
     [] {
         compile_with({{"fault_tolerance.enable", "true"},
                       {"fault_tolerance.semi_sync_method", "local_sgd"},
                       {"fault_tolerance.group_size", "2"},
                       {"fault_tolerance.outer_lr", "0.5"}});
     },
     "recipe.fault_tolerance", "fault_tolerance.outer_lr",
     "flag --fault_tolerance.outer_lr: fault_tolerance.outer_lr acts only with fault_tolerance.semi_sync_method = diloco: leave "
     "it "
     "out"},
    {"quantized_to_int4",
     [] {
         compile_with({{kShard, "4"}, {"partition.quantized_weights", "int4"}});
     },
     "recipe.quantized_weights", "partition.quantized_weights",
     "flag --partition.quantized_weights: partition.quantized_weights = int4: weights of 15 values are too coarse to train with; "
     "say int8. Gradients may be int4 (partition.quantized_gradients)"},
    {"quantized_nothing",
     [] {
         compile_with({{kShard, "4"}, {"partition.preset", "zero2"}, {"partition.quantized_weights", "int8"}});
     },
     "recipe.quantized_weights", "partition.quantized_weights",
     "flag --partition.quantized_weights: partition.quantized_weights = int8: partition.weights = none, so that no weights are "
     "gathered; leave it out, or split them"},
    {"split_order",
     [] {
         compile_with({{kShard, "4"}, {"partition.gradients", "2"}});
     },
     "recipe.partition_order", "partition.optimizer",
     "weights are split over 4 data ranks, gradients over 2, optimizer states over 4: each must be a multiple of the one before"},
    // The learning rate.
    {"decay_type",
     [] {
         small_recipe({{"lr_scheduler.decay_type", "cosin"}});
     },
     "recipe.unknown_word", "lr_scheduler.decay_type",
     "flag --lr_scheduler.decay_type: lr_scheduler.decay_type = \"cosin\": must be linear, sqrt or cosine; the nearest is "
     "cosine"},
    {"min_lr_factor",
     [] {
         small_recipe({{"lr_scheduler.min_lr_factor", "nan"}});
     },
     "recipe.out_of_range", "lr_scheduler.min_lr_factor", "lr_scheduler.min_lr_factor = nan: must be from 0 to 1"},
    {"decay_ratio",
     [] {
         small_recipe({{"lr_scheduler.decay_ratio", "2.0"}});
     },
     "recipe.out_of_range", "lr_scheduler.decay_ratio", "lr_scheduler.decay_ratio = 2.0: must be from 0 to 1, or -1"},
    // Keys that depend on each other.
    {"too_many_ranks",
     [] {
         compile_with({{kShard, "1048576"}, {kTp, "2"}});
     },
     "recipe.too_many_ranks", "parallelism",
     "the degrees of [parallelism] make dp_replicate 1 x dp_shard 1048576 x tp 2 ranks: at most 1048576 can be planned; lower "
     "one of them"},
    {"too_many_microbatches",
     [] {
         compile_with({{"training.global_batch_size", "1000000000"}});
     },
     "recipe.too_many_microbatches", "training.global_batch_size",
     "flag --training.global_batch_size: training.global_batch_size = 1000000000 makes 1000000000 microbatches of 1 sequences on "
     "1 "
     "data ranks: at most 65536 can be planned; lower it, or raise training.local_batch_size"},
    {"processes",
     [] {
         compile_with({{"cluster.ranks_per_host", "4"}, {"cluster.ranks_per_process", "3"}});
     },
     "recipe.divides", "cluster.ranks_per_process", "cluster.ranks_per_process = 3: must divide cluster.ranks_per_host = 4"},
    // The start of a run.
    {"threads",
     [] {
         compile_with({{"runtime.threads_per_rank", "-1"}});
     },
     "recipe.out_of_range", "runtime.threads_per_rank", "runtime.threads_per_rank = -1: must be from 0 to 1024"},
    {"comm_thread",
     [] {
         train_with({{"runtime.comm_thread", "maybe"}});
     },
     "recipe.unknown_word", "runtime.comm_thread", "runtime.comm_thread = \"maybe\": must be auto, on or off"},
    {"out_of_memory",
     [] { train_with({}, [](compile::Compiled& c) { c.programs[0].arena_bytes[Place::Device] = int64_t{1} << 60; }); },
     "runtime.out_of_memory", "training.local_batch_size",
     "rank 0: the system refused 1152921504606846976 bytes for the arena: end other programs, raise the limit of the container "
     "or of "
     "ulimit -v, or lower training.local_batch_size"},
    {"out_of_host_memory",
     [] { train_with({}, [](compile::Compiled& c) { c.programs[0].arena_bytes[Place::Host] = int64_t{1} << 60; }); },
     "runtime.out_of_host_memory", "checkpoint.async_mode",
     "rank 0: the system refused 1152921504606846976 bytes of memory for copies of the states, from which checkpoints are "
     "written "
     "during training: end other programs, raise the limit of the container or of ulimit, or set checkpoint.async_mode = "
     "\"disabled\", which needs no copies"},
};

class RecipeError : public ::testing::TestWithParam<ErrorCase> {};

TEST_P(RecipeError, SaysWhatToChange) {
    const ErrorCase& c = GetParam();
    try {
        c.act();
        FAIL() << "accepted";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), c.id);
        EXPECT_EQ(e.key(), c.key);
        std::string text = e.what();
        const std::string flag = fmt::format("flag --{}: ", c.key);  // where the value came from; cases leave it out
        if (text.starts_with(flag) && !std::string(c.text).starts_with(flag)) text = text.substr(flag.size());
        EXPECT_EQ(std::string(c.id) == "recipe.syntax" ? text.substr(0, std::string(c.text).size()) : text, c.text);
    }
}
INSTANTIATE_TEST_SUITE_P(All, RecipeError, ::testing::ValuesIn(kErrors),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::testing
