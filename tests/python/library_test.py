#!/usr/bin/env python3
"""Drives every function of the Python module as a user would: library_test.py FOLDER_OF_THE_PACKAGE|installed"""

import importlib.util
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = pathlib.Path(__file__).with_name("tiny.toml")
CLUSTER = ROOT / "clusters/h100.toml"
if sys.argv[1] != "installed":
    sys.path.insert(0, sys.argv[1])

import numpy as np  # noqa: E402

import lockstep  # noqa: E402


class LibraryTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.run_folder = pathlib.Path(self.folder.name) / "run"

    def recipe(self, **settings):
        given = {"job.dump_folder": self.run_folder}
        given.update({key.replace("__", "."): value for key, value in settings.items()})
        return lockstep.Recipe.read(RECIPE, settings=given)

    def test_recipe(self):
        recipe = self.recipe(training__steps=7, checkpoint__enable=False, optimizer__lr=1e-4)
        self.assertEqual(recipe.get("training.steps"), "7")
        self.assertEqual(recipe.get("checkpoint.enable"), "false")
        self.assertEqual(float(recipe.get("optimizer.lr")), 1e-4)
        recipe.set("checkpoint.exclude_from_loading", ["optimizer", "dataloader"])
        self.assertIn("optimizer", recipe.get("checkpoint.exclude_from_loading"))
        self.assertEqual(recipe.config()["training.steps"], "7")
        again = lockstep.Recipe.parse(recipe.toml())
        self.assertEqual(again.toml(), recipe.toml())

    def test_errors_have_id_key_and_message(self):
        with self.assertRaises(lockstep.UserError) as raised:
            self.recipe(training__step=7)
        self.assertEqual(raised.exception.id, "recipe.unknown_key")
        self.assertIn("training.steps", raised.exception.message)
        self.assertEqual(str(raised.exception), raised.exception.message)
        with self.assertRaises(lockstep.UserError) as raised:
            self.recipe().plan()
        self.assertEqual((raised.exception.id, raised.exception.key), ("plan.no_cluster", "--cluster"))
        with self.assertRaises(lockstep.UserError) as raised:
            lockstep.read_metrics(self.run_folder / "nothing")
        self.assertEqual(raised.exception.id, "metrics.cannot_read")
        with self.assertRaises(lockstep.UserError) as raised:
            lockstep.Checkpoint(self.run_folder)
        self.assertEqual(raised.exception.id, "checkpoint.not_found")

    def test_compile_and_show(self):
        program = self.recipe().compile()
        self.assertEqual(program.ranks, 2)
        self.assertEqual(program.seq_len, 16)
        self.assertGreater(program.parameters, 10_000)
        self.assertGreater(program.bytes_of_a_rank, 4 * program.parameters // 2)
        self.assertIn("shard", [p.name for p in program.passes])
        self.assertEqual(program.text, self.recipe().show())
        with self.assertRaises(lockstep.UserError) as raised:
            self.recipe().show(after="no_pass")
        self.assertEqual(raised.exception.id, "show.unknown_pass")

    def test_check(self):
        check = self.recipe().check(cluster=CLUSTER)
        self.assertTrue(check.fits)
        self.assertIsNone(check.refusal)
        self.assertIn("h100", check.machine)
        stage = check.stages[0]
        self.assertEqual(sum(stage.bytes.values()), stage.total_bytes)
        self.assertGreater(check.capacity_bytes, stage.total_bytes)
        small = self.recipe(cluster__memory_gib_per_rank=0.0001).check()
        self.assertFalse(small.fits)
        self.assertEqual(small.refusal.id, "check.does_not_fit")
        self.assertGreater(small.stages[0].total_bytes, small.capacity_bytes)

    def test_plan(self):
        plan = lockstep.Recipe.read(ROOT / "recipes/llama3_8b.toml").plan(cluster=CLUSTER)
        self.assertTrue(0.1 < plan.mfu < 0.7, plan.mfu)
        self.assertGreaterEqual(plan.hfu, plan.mfu)
        self.assertTrue(plan.declared)
        ops = plan.stages[0].compute
        self.assertGreater(ops[0].time_s, ops[-1].time_s)
        self.assertLess(sum(op.time_s for op in ops), 1.01 * plan.step_time_s)

    def test_train_checkpoint_metrics_evaluate(self):
        affinity, steps, threads = os.sched_getaffinity(0), [], set()

        def on_step(step):
            steps.append(step)
            threads.add(threading.get_ident())

        result = lockstep.train(self.recipe(), on_step)
        self.assertTrue(result.done)
        self.assertEqual([s.step for s in steps], list(range(1, 13)))
        self.assertEqual(threads, {threading.get_ident()})
        self.assertEqual(os.sched_getaffinity(0), affinity)
        self.assertEqual(result.final_loss, steps[-1].loss)
        self.assertLess(steps[-1].loss, steps[0].loss)
        self.assertEqual(steps[-1].steps, 12)
        self.assertTrue(steps[-1].checkpoint.endswith("step-00000010"))
        self.assertTrue(result.checkpoint.endswith("step-00000012"))

        metrics = lockstep.read_metrics(self.run_folder)
        np.testing.assert_array_equal(metrics["step"], np.arange(1, 13))
        np.testing.assert_allclose(metrics["loss_metrics/global_avg_loss"], [s.loss for s in steps], rtol=1e-6)
        self.assertEqual(lockstep.read_metrics(self.run_folder / "metrics.jsonl").keys(), metrics.keys())

        checkpoint = lockstep.Checkpoint(self.run_folder)
        self.assertEqual((checkpoint.step, checkpoint.folder), (12, result.checkpoint))
        self.assertEqual(checkpoint.recipe.get("model.dim"), "32")
        embedding = checkpoint["model.embed_tokens.weight"]
        self.assertEqual((embedding.shape, embedding.dtype), ((64, 32), np.float32))
        self.assertTrue(np.isfinite(embedding).all() and embedding.std() > 0)
        self.assertGreater(len(checkpoint), 2 * sum(1 for n in checkpoint if n.endswith("embed_tokens.weight")))
        self.assertIsNone(checkpoint.get("no such tensor"))
        raw = (pathlib.Path(checkpoint.folder) / "model.safetensors").read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        begin, end = header["model.embed_tokens.weight"]["data_offsets"]
        offset = 8 + int.from_bytes(raw[:8], "little")
        self.assertEqual(raw[offset + begin : offset + end], embedding.tobytes())

        again = lockstep.train(self.recipe(training__steps=14))  # goes on
        self.assertEqual(again.steps, 14)
        np.testing.assert_array_equal(lockstep.read_metrics(self.run_folder)["step"], np.arange(1, 15))
        with self.assertRaises(lockstep.UserError) as raised:
            lockstep.evaluate(self.run_folder)
        self.assertEqual(raised.exception.id, "eval.no_data")

    def test_bfloat16(self):
        recipe = self.recipe(training__dtype="bfloat16", training__mixed_precision_param="bfloat16", training__steps=1)
        lockstep.train(recipe)
        checkpoint = lockstep.Checkpoint(self.run_folder)
        name = "model.norm.weight"
        self.assertEqual(checkpoint.info(name).dtype, "BF16")
        had = lockstep.ml_dtypes
        try:
            lockstep.ml_dtypes = None
            floats = checkpoint[name]
        finally:
            lockstep.ml_dtypes = had
        self.assertEqual((floats.dtype, floats.shape), (np.float32, (32,)))
        np.testing.assert_allclose(floats, np.ones(32), atol=0.05)
        if had is not None:
            self.assertEqual(checkpoint[name].dtype, had.bfloat16)
            np.testing.assert_array_equal(checkpoint[name].astype(np.float32), floats)

    def test_evaluate(self):
        folder = pathlib.Path(self.folder.name)
        program = os.path.abspath(os.environ.get("LOCKSTEP_BINARY", "")) if os.environ.get("LOCKSTEP_BINARY") else None
        if not program:
            self.skipTest("LOCKSTEP_BINARY is not set: nothing prepares data")
        text = "".join(json.dumps({"text": f"sentence {i} after the other, and again. " * 20}) + "\n" for i in range(20))
        (folder / "text.jsonl").write_text(text)
        subprocess.run([program, "data", "prepare", folder / "text.jsonl", "--out", folder / "data", "--tokenizer", "bytes",
                        "--heldout", "0.3"], check=True, capture_output=True)
        recipe = lockstep.Recipe.parse("\n".join(line for line in self.recipe().toml().splitlines() if "vocab_size" not in line))
        recipe.set("training.dataset", "prepared")
        recipe.set("training.dataset_path", str(folder / "data"))
        lockstep.train(recipe)
        whole = lockstep.evaluate(self.run_folder)
        self.assertAlmostEqual(whole.perplexity, math.exp(whole.loss))
        self.assertTrue(0 < whole.bits_per_byte < 16)
        part = lockstep.evaluate(self.run_folder, split="train", steps=1, settings={"training.local_batch_size": 1})
        self.assertLess(part.tokens, whole.tokens)

    def test_false_stops_with_a_checkpoint(self):
        result = lockstep.train(self.recipe(), lambda step: step.step < 3)
        self.assertEqual((result.done, result.stopped, result.steps), (False, "caller", 3))
        self.assertTrue(result.checkpoint.endswith("step-00000003"))

    def test_an_exception_of_the_callback_comes_out_behind_the_checkpoint(self):
        def on_step(step):
            if step.step == 2:
                raise ZeroDivisionError("mine")

        with self.assertRaisesRegex(ZeroDivisionError, "mine"):
            lockstep.train(self.recipe(), on_step)
        self.assertEqual(lockstep.Checkpoint(self.run_folder).step, 2)

    def test_ctrl_c_stops_with_a_checkpoint(self):
        def interrupt():
            while not (self.run_folder / "metrics.jsonl").exists() or not (self.run_folder / "metrics.jsonl").read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        other = threading.Thread(target=interrupt)  # runs while train computes
        other.start()
        with self.assertRaises(KeyboardInterrupt):
            lockstep.train(self.recipe(training__steps=100_000, checkpoint__interval=1_000_000))
        other.join()
        self.assertGreater(lockstep.Checkpoint(self.run_folder).step, 0)

    def test_messages(self):
        heard = []
        lockstep.set_messages(lambda level, text: heard.append((level, text)))
        try:
            lockstep.train(self.recipe(training__steps=1))
        finally:
            lockstep.set_messages(None)
        self.assertTrue(any(level == "info" and "checkpoint of step 1" in text for level, text in heard), heard)

    def test_nothing_is_printed_unless_asked_for(self):
        code = (f"import sys; sys.path[:] = {sys.path!r}; import lockstep; "
                f"r = lockstep.Recipe.read({str(RECIPE)!r}, {{'job.dump_folder': {str(self.run_folder)!r}, 'training.steps': 2}}); ")
        quiet = subprocess.run([sys.executable, "-c", code + "lockstep.train(r)"], capture_output=True, text=True, check=True)
        self.assertEqual((quiet.stdout, quiet.stderr), ("", ""))
        told = subprocess.run([sys.executable, "-c", code + "r.set('training.steps', 4); lockstep.train(r, progress=True); lockstep.train(r)"],
                              capture_output=True, text=True, check=True)
        self.assertEqual(told.stdout, "")
        self.assertIn("step    loss", told.stderr)
        self.assertNotIn("no step is left", told.stderr)


class StubTest(unittest.TestCase):
    def test_stubs_are_what_the_module_has(self):
        if importlib.util.find_spec("mypy") is None:
            self.skipTest("mypy is not installed")
        package = pathlib.Path(lockstep.__file__).parent
        environment = dict(os.environ) if sys.argv[1] == "installed" else {**os.environ, "MYPYPATH": str(package.parent)}

        def mypy(*words):
            return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-incremental", *words], env=environment,
                                  capture_output=True, text=True)

        done = mypy("-p", "lockstep")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        user = 'import lockstep\nr = lockstep.train(lockstep.Recipe.read("x"), lambda s: s.loss < 9)\nreveal_type(r.final_loss)\n'
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "user.py").write_text(user)
            self.assertRegex(mypy(f"{folder}/user.py").stdout, r'Revealed type is "(builtins\.)?float"')
            (pathlib.Path(folder) / "wrong.py").write_text(user.replace("s.loss", "s.los"))
            self.assertIn('has no attribute "los"', mypy(f"{folder}/wrong.py").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
