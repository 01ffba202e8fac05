// Rows of the table of recipe keys: job, model, optimizer, lr_scheduler and training.
#include "compile/key_field.h"
#include "compile/limits.h"

namespace lockstep::compile {
namespace {

bool is_duration(const std::string& text) { return seconds_of(text).has_value(); }

// The data sets that torchtitan's job files name.
bool is_downloaded(const std::string& text) {
    for (const char* name : {"c4", "c4_test", "c4_validation", "cc12m", "cc12m-test", "cc12m-wds", "obelics"}) {
        if (text == name) return true;
    }
    return false;
}

}  // namespace

std::span<const KeyRow> keys_of_training() {
    using C = Config;
    using S = KeyStatus;
    static constexpr KeyRow rows[] = {
        acts<&C::job, &C::Job::dump_folder>("job.dump_folder", "folder for everything that a run writes"),
        acts<&C::job, &C::Job::description>("job.description", "printed and recorded with the run"),
        {"job.print_config", false, S::Ignored, "`lockstep show` prints what a recipe becomes"},
        {"job.config_file", "", S::Ignored, "the recipe is an argument"},
        {"job.save_config_file", "", S::Ignored, "a run always saves its recipe"},
        {"job.custom_config_module", "", S::Ignored, "there are no Python modules"},

        acts<&C::model, &C::Model::name>("model.name", "the model"),
        acts<&C::model, &C::Model::flavor>("model.flavor",
                                           "a named shape of the model; other keys of [model] override its numbers"),
        acts<&C::model, &C::Model::hf_assets_path>(
            "model.hf_assets_path",
            "Hugging Face folder for the initial weights, used with checkpoint.initial_load_in_hf if "
            "checkpoint.initial_load_path is empty. The tokenizer comes from the prepared data"),
        {"model.tokenizer_path", "", S::Ignored, "the tokenizer comes from the prepared data"},
        acts<&C::model, &C::Model::converters>(
            "model.converters",
            "products of linear layers in 8 bits: float8 (quantize.linear.float8.*) or MX formats (quantize.linear.mx.*)"),
        {"model.print_after_conversion", false, S::Ignored, "`lockstep show` prints what a recipe becomes"},

        acts<&C::optimizer, &C::Optimizer::name>("optimizer.name",
                                                 "AdamW, Adam, SGD, or Muon: hidden matrices by Muon, the rest by AdamW")
            .of_step(kOthers),
        acts<&C::optimizer, &C::Optimizer::lr>("optimizer.lr", "peak learning rate", from_to(0, 1e6)),
        acts<&C::optimizer, &C::Optimizer::beta1>("optimizer.beta1", "decay of the first moment", from_to(0, 0.999999999)),
        acts<&C::optimizer, &C::Optimizer::beta2>("optimizer.beta2", "decay of the second moment", from_to(0, 0.999999999)),
        acts<&C::optimizer, &C::Optimizer::eps>("optimizer.eps", "added to the root of the second moment", from_to(1e-30, 1)),
        acts<&C::optimizer, &C::Optimizer::weight_decay>(
            "optimizer.weight_decay",
            "decay of matrices and embeddings (norms have none): decoupled, or with Adam and SGD part of the gradient",
            from_to(0, 1e6)),
        acts<&C::optimizer, &C::Optimizer::momentum>("optimizer.momentum", "of SGD and Muon; 0: SGD remembers nothing",
                                                     from_to(0, 0.999999999))
            .of_step(to(0)),
        acts<&C::optimizer, &C::Optimizer::nesterov>("optimizer.nesterov",
                                                     "of SGD and Muon: the gradient is moved by the momentum to come")
            .of_step(kOthers),
        acts<&C::optimizer, &C::Optimizer::muon_ns_steps>("optimizer.muon_ns_steps", "Muon's steps of Newton and Schulz",
                                                          from_to(1, 99))
            .of_step(to(6)),
        acts<&C::optimizer, &C::Optimizer::muon_adjust_lr_fn>(
            "optimizer.muon_adjust_lr_fn",
            "Muon's learning rate for a matrix of r rows and c columns: match_rms_adamw, lr 0.2 sqrt(max(r, c)), which makes "
            "its updates as large as AdamW's; original, lr sqrt(max(1, r / c))"),
        acts<&C::optimizer, &C::Optimizer::implementation>(
            "optimizer.implementation",
            "fused_opt_states_bf16: AdamW and Adam keep exp_avg and exp_avg_sq in bfloat16, and float32 master weights. The other "
            "words mean the same: the update is always fused, with moments in training.dtype")
            .of_step(kOthers),
        {"optimizer.early_step_in_backward", false, S::Ignored, "the schedule is compiled"},

        acts<&C::lr_scheduler, &C::LrScheduler::warmup_steps>("lr_scheduler.warmup_steps", "steps of linear warm-up",
                                                              from_to(0, kSteps)),
        acts<&C::lr_scheduler, &C::LrScheduler::total_steps>(
            "lr_scheduler.total_steps", "length of the schedule in steps; 0: training.steps", from_to(0, kSteps)),
        acts<&C::lr_scheduler, &C::LrScheduler::decay_ratio>(
            "lr_scheduler.decay_ratio", "share of the steps, at the end, in which the rate decays; -1: all steps after warm-up",
            from_to(0, 1).or_value(-1)),
        acts<&C::lr_scheduler, &C::LrScheduler::decay_type>("lr_scheduler.decay_type", "linear, sqrt or cosine"),
        acts<&C::lr_scheduler, &C::LrScheduler::min_lr_factor>("lr_scheduler.min_lr_factor",
                                                               "final learning rate / peak learning rate", from_to(0, 1)),

        acts<&C::training, &C::Training::dataset>(
            "training.dataset",
            "synthetic: random tokens, for tests and timing; prepared, or a name such as c4: the folder training.dataset_path",
            one_of({"prepared", "synthetic"})
                .or_form("the name of a data set of torchtitan's, such as c4", is_downloaded)
                .advise("other text becomes a prepared folder by `lockstep data prepare`, which training.dataset_path names")),
        acts<&C::training, &C::Training::dataset_path>(
            "training.dataset_path", "folder made by `lockstep data prepare`; a list of folders is a mixture of data sets"),
        acts<&C::training, &C::Training::dataset_weights>(
            "training.dataset_weights",
            "share of each folder of training.dataset_path in the sequences, as numbers whose ratios count. Empty: as many as "
            "each has windows, so that all end their epochs together",
            from_to(1e-9, 1e9)),
        acts<&C::training, &C::Training::window_stride>(
            "training.window_stride",
            "tokens from the start of a training sequence to that of the next. 0: training.seq_len. With seq_len + 1 no two "
            "sequences share a token; with less than seq_len they overlap",
            from_to(0, kSize)),
        acts<&C::training, &C::Training::local_batch_size>(
            "training.local_batch_size", "sequences per microbatch and data rank; with a pipeline, per step and data rank",
            from_to(1, kSize))
            .of_step(kTwice),
        acts<&C::training, &C::Training::global_batch_size>(
            "training.global_batch_size",
            "sequences per step; -1: one microbatch on every data rank. A remainder is filled with masked sequences",
            from_to(1, kSize).or_value(-1))
            .of_step(kTwice),
        acts<&C::training, &C::Training::seq_len>("training.seq_len", "tokens per sequence", from_to(1, kSize)).of_step(kTwice),
        acts<&C::training, &C::Training::document_mask>("training.document_mask",
                                                        "attention stays within documents, and positions restart in each")
            .of_step(kOthers),
        acts<&C::training, &C::Training::max_norm>("training.max_norm", "gradients are scaled down to this global norm; 0: never",
                                                   from_to(0, 1e30))
            .of_step(to(0)),
        acts<&C::training, &C::Training::steps>("training.steps", "optimizer steps", from_to(0, kSteps)),
        acts<&C::training, &C::Training::dtype>(
            "training.dtype",
            "element type of the optimizer's weights and moments: float32, bfloat16, or float64 (reference kernels)",
            one_of({"float32", "bfloat16", "float64"}))
            .of_step(kOthers),
        acts<&C::training, &C::Training::mixed_precision_param>(
            "training.mixed_precision_param",
            "element type of parameters and activations: bfloat16, float16 (with training.loss_scale) or float32; empty: "
            "training.dtype. Norm statistics, softmax, loss and sums stay float32",
            one_of({"", "bfloat16", "float16", "float32", "float64"}))
            .of_step(kOthers),
        acts<&C::training, &C::Training::mixed_precision_norm>(
            "training.mixed_precision_norm",
            "element type of the weights and biases of norms. float32 with bfloat16 parameters behaves as PyTorch's autocast. "
            "Empty: training.mixed_precision_param",
            one_of({"", "bfloat16", "float16", "float32", "float64"}))
            .of_step(kOthers),
        acts<&C::training, &C::Training::mixed_precision_reduce>(
            "training.mixed_precision_reduce",
            "element type in which gradients are sent between ranks: float32, bfloat16 or float16. They accumulate in float32",
            one_of({"float32", "bfloat16", "float16"}))
            .of_step(kOthers),
        acts<&C::training, &C::Training::mixed_precision_weights>(
            "training.mixed_precision_weights",
            "kept: a copy of the weights in training.mixed_precision_param lives beside the master weights, and the optimizer "
            "writes it; cast: each gather casts the master weights. auto: kept where one data rank has whole weights, else cast")
            .of_step(kOthers),
        acts<&C::training, &C::Training::logits>(
            "training.logits",
            "element type in which logits are stored, in training and validation; the loss is computed in float32. Empty: "
            "bfloat16 if training.mixed_precision_param is bfloat16, else float32",
            one_of({"", "bfloat16", "float16", "float32", "float64"}))
            .of_step(kOthers),
        acts<&C::training, &C::Training::fp32_residual_connection>(
            "training.fp32_residual_connection",
            "with bfloat16 or float16: keep the residual stream in float32, forward and backward, as Megatron-LM and "
            "PyTorch's autocast do")
            .of_step(kOthers),
        acts<&C::training, &C::Training::loss_scale>(
            "training.loss_scale",
            "the loss is multiplied by it before backward, and gradients are divided by it again. 0: with float16 a dynamic "
            "scale, which is halved by a step whose gradients overflow, and doubled by training.loss_scale_window steps in a "
            "row that count; else none",
            from_to(1e-6, 1e30).or_value(0))
            .of_step(to(65536)),
        acts<&C::training, &C::Training::initial_loss_scale>("training.initial_loss_scale", "where a dynamic scale begins",
                                                             from_to(1e-6, 1e30)),
        acts<&C::training, &C::Training::min_loss_scale>("training.min_loss_scale", "what a dynamic scale does not go below",
                                                         from_to(1e-6, 1e30)),
        acts<&C::training, &C::Training::loss_scale_window>(
            "training.loss_scale_window", "steps in a row without overflow after which a dynamic scale is doubled",
            from_to(1, kSteps)),
        acts<&C::training, &C::Training::max_time>(
            "training.max_time",
            "time limit since the command began, in seconds or hours:minutes:seconds. The run ends with a checkpoint while "
            "one more step and a save would still fit. Empty: no limit",
            one_of({""}).or_form("seconds (\"3600\") or hours:minutes:seconds (\"1:30:00\")", is_duration)),
        acts<&C::training, &C::Training::max_nonfinite_steps>(
            "training.max_nonfinite_steps",
            "stop after this many steps in a row whose loss or gradients are not finite; 0: never", from_to(0, kSteps)),
        acts<&C::training, &C::Training::pack_products>(
            "training.pack_products",
            "read weights that are multiplied with the same rows and lie side by side as one matrix: those of SwiGLU's gate "
            "and up, and those of queries, keys and values. One product in forward and two in backward take the place of all")
            .of_step(kOthers),
        acts<&C::training, &C::Training::fuse_loss>("training.fuse_loss",
                                                    "run output projection and cross-entropy in chunks of tokens")
            .of_step(kOthers),
        acts<&C::training, &C::Training::loss_chunk_tokens>(
            "training.loss_chunk_tokens",
            "largest number of tokens in a chunk of the loss on one rank. Fewer need less memory for logits; more read the "
            "projection's weights less often. 0: 512, and 4096 with runtime.kernels = \"cuda\"",
            from_to(0, kSize))
            .of_step(to(2048)),
        {"training.enable_cpu_offload", false, S::Only, "offload to the memory of the CPU"},
        {"training.gc_freq", 50, S::Ignored, "there is no garbage collector"},
        {"training.gc_debug", false, S::Ignored, "there is no garbage collector"},
        {"training.dataloader.num_workers", 0, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.persistent_workers", false, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.pin_memory", false, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.prefetch_factor", 0, S::Ignored, "token files are memory-mapped"},
    };
    return rows;
}

}  // namespace lockstep::compile
