"""TensorBoard's own EventAccumulator reads what `train` writes: training, validation, planned figures, after a resume, too. Nothing
is served.

Arguments: the lockstep binary."""
import json
import os
import shutil
import sys
import tempfile

from tensorboard.backend.event_processing import event_accumulator

import small_run

TAGS = {"loss_metrics/global_avg_loss", "grad_norm", "lr", "n_tokens_seen", "throughput(tps)", "tflops", "mfu(%)",
        "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)", "time_metrics/data_loading(%)", "memory/max_active(GiB)",
        "memory/max_active(%)", "validation_metrics/loss", "plan/resident(GiB)", "plan/step_time(s)"}


def main():
    lockstep = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        run = small_run.prepare(lockstep, folder)
        run("bench", "--quick", "--seconds", "2", "--out", "machine.toml")
        train = ("train", "r.toml", "--metrics.enable_tensorboard", "true", "--cluster", "machine.toml")
        run(*train, "--training.steps", "20")
        run(*train)
        # A run that goes on from an older checkpoint repeats steps. What was said of them before no longer counts.
        shutil.rmtree(f"{folder}/run/checkpoint/step-00000040")
        run(*train, "--debug.seed", "1")
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
        assert heldout == [10, 20, 30, 40], heldout
        planned, measured = events.Scalars("plan/step_time(s)")[-1].value, events.Scalars("time_metrics/end_to_end(s)")[-1].value
        assert planned > 0 and measured > 0
        texts = events.Tags()["tensors"]
        assert "recipe" in texts and "plan" in texts, texts
        assert b"dump_folder" in events.Tensors("recipe")[0].tensor_proto.string_val[0]
        print(f"TensorBoard read {len(tags)} scalars and {len(texts)} texts of {len(loss)} steps; "
              f"step time planned {planned:.4g} s, measured {measured:.4g} s")


if __name__ == "__main__":
    main()
