"""What python/lockstep/follow.py reads of a run, without the packages that it sends to."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python", "lockstep"))
import follow  # noqa: E402


class Recorder:
    def __init__(self):
        self.steps, self.starts, self.events, self.closed = [], [], [], None

    def open(self, name, state):
        state.setdefault("id", "x")

    def start(self, config, event):
        self.starts.append(config)

    def step(self, step, values, time_s):
        self.steps.append((step, values["loss"], time_s))

    def event(self, event):
        self.events.append(event["event"])

    def close(self, reason):
        self.closed = reason
        return "nowhere"


def line(step, loss):
    return json.dumps({"step": step, "loss": loss, "time_metrics/end_to_end(s)": 2, "bad": float("nan")}) + "\n"


class Reader(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_folder = folder.name
        self.write("events.jsonl", json.dumps({"time": "2026-01-01T00:00:00Z", "event": "start", "step": 0, "job": {"ranks": 2}, "recipe":
                                               "[optimizer]\nlr = 0.5\n[training]\ndataset = \"synthetic\"\n"}) + "\n")

    def write(self, name, text):
        with open(os.path.join(self.run_folder, name), "a") as f:
            f.write(text)

    def follower(self):
        return follow.Follower(self.run_folder, Recorder(), "test of/names")

    def test_each_step_once_over_restarts(self):
        self.write("metrics.jsonl", line(1, 9) + line(2, 8) + "damaged\n[1]\n" + line(2, 7) + line(3, 6) + line(4, 5)[:10])
        first = self.follower()
        self.assertTrue(first.look())
        self.assertEqual([s[:2] for s in first.sink.steps], [(1, 9), (2, 7), (3, 6)])  # of a step done again the last
        self.assertEqual([s[2] - first.sink.steps[0][2] for s in first.sink.steps], [0, 2, 4])
        self.assertEqual(first.sink.starts, [{"optimizer.lr": "0.5", "training.dataset": "synthetic", "job/ranks": "2"}])
        self.assertFalse(first.look())
        self.write("metrics.jsonl", line(4, 5)[10:])
        second = self.follower()
        second.look()
        self.assertEqual([s[:2] for s in second.sink.steps], [(4, 5)])
        self.assertEqual(second.sink.starts, [])
        self.write("metrics.jsonl", line(3, 2) + line(4, 2) + line(5, 2))  # after a resume from step 2
        third = self.follower()
        third.look()
        self.assertEqual([s[:2] for s in third.sink.steps], [(5, 2)])
        self.assertEqual(third.repeated, 2)

    def test_ends_with_the_run_or_its_job(self):
        self.write("metrics.jsonl", line(1, 9))
        lost = self.follower()
        self.assertIsNone(lost.follow(0.01))  # nobody holds the folder
        lost.close()
        self.assertEqual(lost.sink.closed, "lost")
        self.write(".lock", f"process {os.getpid()} on {follow.socket.gethostname()}")
        self.assertTrue(follow.is_held(follow.Path(self.run_folder)))
        self.write("events.jsonl", json.dumps({"event": "end", "step": 1, "reason": "done"}) + "\n")
        done = self.follower()
        self.assertEqual(done.follow(0.01), "done")
        done.close()
        self.assertEqual(done.sink.closed, "done")

    def test_what_is_no_file_is_not_waited_for(self):
        os.mkfifo(os.path.join(self.run_folder, "metrics.jsonl"))
        pipe = self.follower()
        pipe.look()
        self.assertEqual(pipe.sink.steps, [])

    def test_names_that_mlflow_takes(self):
        for name, theirs in (("mfu(%)", "mfu_percent"), ("memory/resident(GiB)", "memory/resident_GiB"), ("time_metrics/end_to_end(s)", "time_metrics/end_to_end_s"),
                             ("loss_metrics/global_avg_loss", "loss_metrics/global_avg_loss"), ("validation_metrics/a:b/loss", "validation_metrics/a_b/loss")):
            self.assertEqual(follow.metric_name(name), theirs)

    def test_refusals(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(follow.main([os.path.join(self.run_folder, "none"), "--wandb", "p"]), 1)
        self.assertIn("holds no run: give the job.dump_folder", said.getvalue())
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as usage:
            follow.main([self.run_folder])
        self.assertEqual(usage.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
