"""Going on after a stop: exact whatever the state, its format and its place; learning rates; changed data; longer runs."""
import ctypes
import json
import os
import pathlib
import random
import signal
import struct
import unittest

import field_case
import zinf_runner as z
from field_case import ON_DEVICE, ON_HOST, ON_NVME, sets

MIXED = "placement={weights: host, optimizer: nvme}"
DIE_AT = pathlib.Path(z.ZINF).resolve().parent / "tests" / "cli" / "libdie_at.so"


class ResumeCase(field_case.RunCase):
    def begun(self, name, sections):
        """A config and the folder of its run."""
        return self.workspace.config(name, **sections), self.workspace.path / name

    def goes_on(self, config, folder, *arguments):
        """The log of a run, or a part of it, that ends well."""
        code, _, err = z.train(config, folder, *arguments)
        self.assertEqual(code, 0, err)
        return err

    def killed(self, config, folder, *arguments, **when):
        """A run that dies at the moment that die_at.cc's variable names."""
        code, _, err = z.train(config, folder, *arguments, env={**os.environ, "LD_PRELOAD": str(DIE_AT), **when})
        self.assertEqual(code, -signal.SIGKILL, err)

    def figures(self, folder):
        """What a run leaves that a stop must not change."""
        lines = z.metrics(folder)
        self.assertEqual([line["step"] for line in lines], list(range(1, len(lines) + 1)))
        return ([(line["loss"], line["lr"], line["grad_norm"], line.get("loss_scale")) for line in lines],
                z.summary(folder)["state_hash"])


class Exactness(ResumeCase):
    def test_three_steps_and_three_more_are_six(self):
        """BR-011, BR-036, BR-040: weights, both moments, step, loss scale, rates and losses, for every type, by a new process,
        where the state was and elsewhere."""
        for number, kind in enumerate(({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 30}})):
            sections = z.llama_sections(self.workspace, steps=6, **kind)
            sections["scheduler"] = {"type": "linear", "params": {"warmup_num_steps": 2, "total_num_steps": 8}}
            self.trained(sections, *sets(ON_NVME))
            whole = self.figures(self.folder)
            for where, (place, then) in enumerate(((ON_NVME, ON_NVME), (ON_HOST, ON_HOST), (MIXED, ON_DEVICE))):
                with self.subTest(kind=kind, place=place, then=then):
                    config, folder = self.begun(f"halves{number}-{where}", sections)
                    self.goes_on(config, folder, "--steps", "3", *sets(place))
                    self.assertIn("resumed after step 3", self.goes_on(config, folder, *sets(then)))
                    self.assertEqual(self.figures(folder), whole)

    def test_bf16_gradients_go_on_where_they_stopped(self):
        """In other groups, to the bit; with fp32 gradients it is another training."""
        sections = z.llama_sections(self.workspace, steps=6, gradients={"dtype": "bf16"})
        self.trained(sections, *sets(ON_NVME))
        whole = self.figures(self.folder)
        config, folder = self.begun("bf16-gradients", sections)
        self.goes_on(config, folder, "--steps", "3", *sets(ON_NVME))
        code, _, err = z.train(config, folder, *sets("gradients.dtype=fp32"))
        self.assertEqual(code, 2, err)
        self.assertIn("gradients.dtype: bf16 -> fp32", err)
        self.assertIn("resumed after step 3", self.goes_on(config, folder, *sets(ON_HOST, "step.group=1")))
        self.assertEqual(self.figures(folder), whole)

    def test_dropout_goes_on_where_it_stopped(self):
        """The masks of step 4 are those of a run that never stopped; another rate is another training."""
        sections = z.llama_sections(self.workspace, folder=z.gpt2_folder(self.workspace), steps=6)
        sections["train"]["dropout"] = "config"  # GPT-2's own: 0.1 everywhere
        self.trained(sections, *sets(ON_NVME))
        whole = self.figures(self.folder)
        config, folder = self.begun("dropout", sections)
        self.goes_on(config, folder, "--steps", "3", *sets(ON_NVME))
        self.assertIn("resumed after step 3", self.goes_on(config, folder, *sets(ON_HOST)))
        self.assertEqual(self.figures(folder), whole)
        # A logged loss is compared with the same elements dropped.
        config, folder = self.begun("verified", sections)
        self.goes_on(config, folder, "--steps", "5", *sets(ON_NVME, "checkpoint.keep=2", "checkpoint.every=1", "checkpoint.keep_every=2"))
        code, out, err = z.run("verify", folder, "--loss", "--step", "4", "--json")
        self.assertEqual(code, 0, err)
        verified = json.loads(out)
        self.assertEqual(verified["loss_of_next_batch"], z.metrics(folder)[4]["loss"])
        self.assertTrue(verified["same_machine"])
        code, _, err = z.train(config, folder, "--steps", "8", *sets("train.dropout=0.3"))
        self.assertEqual(code, 2, err)
        self.assertIn("train.dropout", err)

    def test_rates_after_a_resume(self):
        """BR-039: warm-up 10 of 20 steps, stopped after 4 and 13: the rates of one run, which are those of the schedule."""
        sections = z.mlp_sections(self.workspace, width=8, layers=1, steps=20)
        sections["scheduler"] = {"type": "linear", "params": {"warmup_num_steps": 10, "total_num_steps": 20}}
        config, folder = self.begun("rates", sections)
        for steps in (4, 13, 20):
            self.goes_on(config, folder, "--steps", steps, *sets(ON_NVME))
        rates = [line["lr"] for line in z.metrics(folder)]
        for step, rate in enumerate(rates, 1):  # transformers' linear schedule: 0 at update 1
            done = step - 1
            self.assertAlmostEqual(rate, 1e-3 * (done / 10 if done < 10 else (20 - done) / 10), delta=1e-12)
        # What was applied is what is logged: the bits of a run that never stopped.
        self.trained(sections, *sets(ON_NVME))
        self.assertEqual(self.figures(folder), self.figures(self.folder))


class Rates(ResumeCase):
    def test_tokens_per_second_are_those_of_the_steps_made(self):
        """Not of those that were there before: tokens a step over the step's time."""
        config, folder = self.begun("rates", z.mlp_sections(self.workspace, steps=60))
        for steps in ("50", "60"):
            self.goes_on(config, folder, "--steps", steps)
            summary = z.summary(folder)
            lines = z.metrics(folder)[50:] or z.metrics(folder)
            tokens = sum(line["tokens"] for line in lines) / len(lines)
            self.assertEqual(summary["tokens"], sum(line["tokens"] for line in lines))
            self.assertAlmostEqual(summary["tokens_per_second"] * summary["step_seconds"]["measured"] / tokens, 1, delta=1e-6)


class Machines(ResumeCase):
    def test_another_instruction_set_is_said(self):
        """Bits may then be others; on the machine as it was nothing is said."""
        sections = z.llama_sections(self.workspace, steps=6)
        config, folder = self.begun("machine", sections)
        old = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
        said = "; results may not be those of the run undisturbed"
        code, _, err = z.train(config, folder, "--steps", "2", env=old)
        self.assertEqual(code, 0, err)
        code, _, err = z.train(config, folder, "--steps", "4", env=old)
        self.assertEqual(code, 0, err)
        self.assertNotIn(said, err)
        err = self.goes_on(config, folder)
        self.assertRegex(err, rf"warning resume: instruction set: .+ -> AVX.*{said}")


class Ranks(ResumeCase):
    """A commit holds every state of every piece whole, whatever the stage: ranks read and write ranges of it."""

    def checksum(self, text):
        """32 digits of XXH3-128, as in docs/formats/manifest.md."""
        class Words(ctypes.Structure):
            _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]
        hash_of = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
        hash_of.restype, hash_of.argtypes = Words, [ctypes.c_char_p, ctypes.c_size_t]
        words = hash_of(text.encode(), len(text.encode()))
        return f"{words.high:016x}{words.low:016x}"

    def test_from_any_stage_to_any_other(self):
        sections = z.llama_sections(self.workspace, steps=6)
        self.trained(sections, *sets(ON_NVME))
        whole = self.figures(self.folder)
        for stage, then in ((0, 3), (1, 2), (2, 0), (3, 1)):
            with self.subTest(stage=stage, then=then):
                config, folder = self.begun(f"stage{stage}", {**sections, "zero_optimization": {"stage": stage}})
                self.goes_on(config, folder, "--steps", "3", *sets(ON_NVME))
                config = self.workspace.config(f"then{then}", **{**sections, "zero_optimization": {"stage": then}})
                self.assertIn("resumed after step 3", self.goes_on(config, folder, *sets(ON_NVME)))
                self.assertEqual(self.figures(folder), whole)

    def test_a_manifest_of_other_ranks_is_said(self):
        """Where the number of ranks differs, sums may; the state itself is read all the same."""
        sections = z.llama_sections(self.workspace, steps=6)
        self.trained(sections, *sets(ON_NVME))
        whole = self.figures(self.folder)
        config, folder = self.begun("ranks", sections)
        self.goes_on(config, folder, "--steps", "3", *sets(ON_NVME))
        file = folder / "manifest-3.json"
        text, checksum, _ = file.read_text().rsplit("\n", 2)
        self.assertEqual(self.checksum(text), checksum)
        manifest = json.loads(text)
        self.assertEqual(manifest["world"], 1)
        manifest["world"], manifest["mesh"] = 4, {**manifest["mesh"], "dp": 4}
        text = json.dumps(manifest)
        file.write_text(f"{text}\n{self.checksum(text)}\n")
        err = self.goes_on(config, folder, *sets(ON_NVME))
        self.assertIn("warning resume: ranks: 4 -> 1; results may not be those of the run undisturbed", err)
        self.assertEqual(self.figures(folder), whole)


class Commits(ResumeCase):
    def whole_commits(self, folder):
        """How many manifests read whole just now."""
        whole = 0
        for file in folder.glob("manifest-*.json"):
            try:
                body, checksum, end = file.read_text().rsplit("\n", 2)
            except FileNotFoundError:
                continue  # dropped meanwhile: a newer one is there
            self.assertEqual((len(checksum), end), (32, ""), file)
            json.loads(body)
            whole += 1
        return whole

    def test_there_is_a_whole_one_at_every_instant(self):
        """BR-038: keep 1, a commit each step: from the first on there is one, and one area; never a heap of old ones."""
        config, folder = self.begun("instants", z.mlp_sections(self.workspace, steps=40))
        process = z.start(config, folder, *sets(ON_NVME))
        looks, begun = 0, False
        while process.poll() is None:
            if self.whole_commits(folder) == 0 and begun:
                # The only one may have been dropped for a newer between listing and reading.
                self.assertGreater(self.whole_commits(folder), 0)
            looks += begun
            begun = begun or self.whole_commits(folder) > 0
            self.assertLessEqual(len(list(folder.glob("manifest-*.json"))), 3)
        _, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        self.assertGreater(looks, 0)
        self.assertEqual(sorted(file.name for file in folder.glob("manifest-*.json")), ["manifest-39.json", "manifest-40.json"])
        self.assertEqual(len(list((self.workspace.path / "swap").iterdir())), 1)


class Figures(ResumeCase):
    def test_a_committed_step_has_its_line(self):
        """Killed right after a commit's manifest has its name: at a step beside the next forward, at one that drains for an
        evaluation, at the last one; with states on the drive and in memory."""
        tokens = self.workspace.path / "tokens.bin"
        draw = random.Random(3)
        tokens.write_bytes(struct.pack("<2000H", *(draw.randrange(1000) for _ in range(2000))))
        sections = z.llama_sections(self.workspace, steps=5, eval={"every": 2, "steps": 2})
        sections["data"] = {"train": str(tokens), "eval": str(tokens), "format": "tokens", "token_width": 16, "seq_len": 32}
        for where, place in enumerate((ON_NVME, ON_HOST)):
            settings = sets(place, "checkpoint.every=1")
            self.trained(sections, *settings)
            whole, evaluations = self.figures(self.folder), [line.get("eval_loss") for line in z.metrics(self.folder)]
            self.assertEqual([loss is not None for loss in evaluations], [False, True, False, True, True])
            for step in (2, 3, 5):
                with self.subTest(place=place, step=step):
                    config, folder = self.begun(f"killed{where}-{step}", sections)
                    self.killed(config, folder, *settings, ZINF_DIE_AFTER=f"manifest-{step}.json")
                    self.assertTrue((folder / f"manifest-{step}.json").exists())
                    self.assertEqual([line["step"] for line in z.metrics(folder)][:step], list(range(1, step + 1)))
                    self.assertIn(f"resumed after step {step} of 5", self.goes_on(config, folder, *settings))
                    self.assertEqual(self.figures(folder), whole)
                    self.assertEqual([line.get("eval_loss") for line in z.metrics(folder)], evaluations)


    def test_a_run_is_finished_once_its_model_is_there(self):
        """Killed while it exports: status.json does not say finished, and the same command makes the model."""
        config, folder = self.begun("exporting", z.llama_sections(self.workspace, steps=3))
        self.killed(config, folder, *sets(ON_NVME), ZINF_DIE_AFTER="model.safetensors")
        status = json.loads((folder / "status.json").read_text())
        self.assertEqual((status["state"], status["last_commit"], status["exit_code"]), ("saving", 3, None))
        self.assertFalse((folder / "model").exists())
        self.goes_on(config, folder, *sets(ON_NVME))
        self.assertTrue((folder / "model" / "model.safetensors").exists())
        status = json.loads((folder / "status.json").read_text())
        self.assertEqual((status["state"], status["exit_code"]), ("finished", 0))


class Costs(ResumeCase):
    """What docs/checkpoints.md says of a commit."""
    COUNT_SYNCS = pathlib.Path(z.ZINF).resolve().parent / "tests" / "cli" / "libcount_syncs.so"

    def syncs(self, steps, *arguments):
        """(of files in the run folder, of drives) of a run of so many steps."""
        count = self.workspace.path / "count"
        sections = z.mlp_sections(self.workspace, steps=steps)
        self.trained(sections, *sets(ON_NVME, "io.engine=threads", *arguments),
                     env={**os.environ, "LD_PRELOAD": str(self.COUNT_SYNCS), "ZINF_COUNT_FILE": str(count)})
        return [int(number) for number in count.read_text().split()]

    def test_syncs_of_a_commit(self):
        for arguments, files in (((), 4), (("io.verify=false",), 3)):
            few, many = self.syncs(3, *arguments), self.syncs(8, *arguments)
            self.assertEqual([b - a for a, b in zip(few, many)], [5 * files, 5], arguments)

    def test_the_last_step_is_published_once(self):
        """It has as many syncs as any other: with commits by hand at its end there would be more."""
        one, two = self.syncs(1), self.syncs(2)
        self.assertEqual(two[0] - one[0], 4)
        # Before the first step, when there is no metrics.jsonl, and after it; the file `area`; summary.json.
        self.assertEqual(one[0], 3 + 4 + 2 + 2)

    def test_bytes_of_a_commit(self):
        self.trained(z.mlp_sections(self.workspace, width=300, steps=2), *sets(ON_NVME))
        manifest = json.loads((self.folder / "manifest-2.json").read_text().rsplit("\n", 2)[0])
        pages = sum(-(-extent["bytes"] // (256 << 10)) for extent in manifest["extents"])  # fp32
        self.assertGreater(pages, len(manifest["extents"]))
        self.assertEqual((self.folder / "pages-2.bin").stat().st_size, 16 + 8 * pages)
        self.assertLess((self.folder / "manifest-2.json").stat().st_size, 16 << 10)


class ChangedData(ResumeCase):
    ROWS, LENGTH = 30, 8

    def write_tokens(self, file, seed, rows=ROWS):
        draw = random.Random(seed)
        file.write_bytes(struct.pack(f"<{rows * self.LENGTH}H", *(draw.randrange(1000) for _ in range(rows * self.LENGTH))))

    def setUp(self):
        super().setUp()
        self.tokens = self.workspace.path / "tokens.bin"

    def sections(self, **train):
        sections = z.llama_sections(self.workspace, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=2)
        sections["data"] = {"train": str(self.tokens), "format": "tokens", "seq_len": self.LENGTH, "token_width": 16}
        return {**sections, "train": train}

    def test_it_is_refused_by_hash_or_restarted(self):
        """With restart the steps (and the rates) go on and the data begin: the losses of its first steps, at a rate that moves
        no weight, are those of a new run on it."""
        sections = self.sections(steps=12)
        sections["optimizer"]["params"]["lr"] = 1e-30
        sections["scheduler"] = {"type": "linear", "params": {"warmup_num_steps": 6, "total_num_steps": 12}}
        config, folder = self.begun("changed", sections)
        self.write_tokens(self.tokens, 1)
        self.goes_on(config, folder, "--steps", "3", *sets(ON_NVME))
        self.write_tokens(self.tokens, 2)
        code, _, err = z.train(config, folder, *sets(ON_NVME))
        self.assertEqual(code, 2, err)
        self.assertRegex(err, r"the data changed: .*tokens.bin had hash [0-9a-f]{32}, now .*tokens.bin has [0-9a-f]{32}")
        restart = sets(ON_NVME, "data.on_change=restart")
        err = self.goes_on(config, folder, "--steps", "5", *restart)
        self.assertIn("step 4 begins the new data at its start", err)
        # Data that is known already is gone on with, in whatever file it lies.
        moved = self.workspace.path / "moved.bin"
        self.tokens.rename(moved)
        err = self.goes_on(config, folder, *restart, *sets(f"data.train={moved}"))
        self.assertNotIn("the data changed", err)
        moved.rename(self.tokens)
        self.trained(sections, *sets(ON_NVME))
        fresh = z.metrics(self.folder)
        lines = z.metrics(folder)
        self.assertEqual([line["loss"] for line in lines[3:]], [line["loss"] for line in fresh[:9]])
        self.assertNotEqual([line["loss"] for line in lines[:3]], [line["loss"] for line in fresh[:3]])
        self.assertEqual([line["lr"] for line in lines], [line["lr"] for line in fresh])

    def test_a_stop_after_the_restart_changes_nothing(self):
        sections = self.sections(steps=9)
        hashes = {}
        for stops in ((9,), (5, 7, 9)):
            config, folder = self.begun(f"stops{len(stops)}", sections)
            self.write_tokens(self.tokens, 1)
            self.goes_on(config, folder, "--steps", "4", *sets(ON_NVME))
            self.write_tokens(self.tokens, 2)
            for steps in stops:
                self.goes_on(config, folder, "--steps", steps, *sets(ON_NVME, "data.on_change=restart"))
                if steps == 5:
                    code, out, err = z.run("verify", folder, "--loss", "--json")
                    self.assertEqual(code, 0, err)
                    next_loss = json.loads(out)["loss_of_next_batch"]
            hashes[str(stops)] = str(self.figures(folder))
        self.one_hash(hashes)
        self.assertEqual(z.metrics(folder)[5]["loss"], next_loss)
        self.write_tokens(self.tokens, 3)
        code, _, err = z.run("verify", folder, "--loss")
        self.assertEqual(code, 2, err)
        self.assertIn("the data of step 9 changed", err)

    def test_epochs_count_from_the_restart(self):
        """One epoch of each: 30 rows are 8 steps, 10 rows are 3. And a finished run goes on when it is given more epochs."""
        sections = self.sections(epochs=1)
        sections["data"]["on_change"] = "restart"
        config, folder = self.begun("epochs", sections)
        self.write_tokens(self.tokens, 1)
        self.goes_on(config, folder, *sets(ON_NVME))
        self.assertEqual(len(z.metrics(folder)), 8)
        self.assertIn("this run is finished (step 8)", self.goes_on(config, folder, *sets(ON_NVME)))
        self.write_tokens(self.tokens, 2, rows=10)
        self.assertIn("step 9 begins the new data", self.goes_on(config, folder, *sets(ON_NVME)))
        self.assertEqual(len(z.metrics(folder)), 11)
        self.assertIn("this run is finished (step 11)", self.goes_on(config, folder, *sets(ON_NVME)))
        self.goes_on(config, folder, *sets(ON_NVME, "train.epochs=2"))
        self.assertEqual(len(z.metrics(folder)), 14)


if __name__ == "__main__":
    unittest.main(verbosity=2)
