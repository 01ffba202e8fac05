"""TensorBoard's own EventAccumulator reads what `train` writes: training, validation, planned figures, after a resume, too. Nothing
is served.

Arguments: the lockstep binary."""
import json
import os
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing import event_accumulator

RECIPE = """[job]
dump_folder = "run"
[model]
dim = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 64
[lr_scheduler]
warmup_steps = 2
total_steps = 30
[training]
dataset_path = "data"
local_batch_size = 2
seq_len = 32
steps = 30
[validation]
enable = true
freq = 10
steps = 2
[checkpoint]
enable = true
interval = 20
last_save_model_only = false
[metrics]
log_freq = 5
enable_tensorboard = true
"""
TAGS = {"loss_metrics/global_avg_loss", "grad_norm", "lr", "n_tokens_seen", "throughput(tps)", "tflops", "mfu(%)",
        "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)", "time_metrics/data_loading(%)", "memory/max_active(GiB)",
        "memory/max_active(%)", "validation_metrics/loss", "plan/resident(GiB)", "plan/step_time(s)"}


def main():
    lockstep = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        def run(*arguments):
            subprocess.run([lockstep, *arguments, "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)

        os.mkdir(f"{folder}/text")
        for document in range(20):  # of which some are held out
            with open(f"{folder}/text/{document}.txt", "w") as f:
                f.write(f"document {document} has words that it says again. " * 30)
        with open(f"{folder}/r.toml", "w") as f:
            f.write(RECIPE)
        run("data", "prepare", "text", "--out", "data", "--tokenizer", "bytes", "--heldout", "0.3")
        run("bench", "--quick", "--seconds", "2", "--out", "machine.toml")
        run("train", "r.toml", "--training.steps", "20", "--cluster", "machine.toml")
        run("train", "r.toml", "--training.steps", "30", "--cluster", "machine.toml")
        # A run that goes on from an older checkpoint does steps again: what was said of them no longer counts.
        subprocess.run(["rm", "-rf", f"{folder}/run/checkpoint/step-00000030"], check=True)
        run("train", "r.toml", "--cluster", "machine.toml", "--debug.seed", "0")
        with open(f"{folder}/run/metrics.jsonl") as f:
            lines = {m["step"]: m for m in map(json.loads, f)}  # of a step done again the last
        events = event_accumulator.EventAccumulator(f"{folder}/run/tb")
        events.Reload()
        tags = set(events.Tags()["scalars"])
        assert TAGS <= tags, f"missing: {TAGS - tags}"
        loss = events.Scalars("loss_metrics/global_avg_loss")
        assert [e.step for e in loss] == sorted(lines), f"{[e.step for e in loss]} are not {sorted(lines)}"
        for e in loss:
            want = lines[e.step]["loss_metrics/global_avg_loss"]
            assert abs(e.value - want) <= 1e-6 * want, f"step {e.step}: {e.value} is not {want}"
        heldout = [e.step for e in events.Scalars("validation_metrics/loss")]
        assert heldout == [10, 20, 30], heldout
        planned, measured = events.Scalars("plan/step_time(s)")[-1].value, events.Scalars("time_metrics/end_to_end(s)")[-1].value
        assert planned > 0 and measured > 0
        texts = events.Tags()["tensors"]
        assert "recipe" in texts and "plan" in texts, texts
        assert b"dump_folder" in events.Tensors("recipe")[0].tensor_proto.string_val[0]
        print(f"TensorBoard read {len(tags)} scalars and {len(texts)} texts of {len(loss)} steps; "
              f"step time planned {planned:.4g} s, measured {measured:.4g} s")


if __name__ == "__main__":
    main()
