"""The train command end to end: same bits over placements, exit codes, signals, resume, refusals, bytes."""
import json
import os
import pathlib
import re
import signal
import struct
import unittest

import zinf_runner as z


class TrainTest(unittest.TestCase):
    def setUp(self):
        self.workspace = z.Workspace()
        self.addCleanup(self.workspace.close)
        self.runs = 0

    def trained(self, sections, *arguments):
        """Trains in a new run folder; its summary."""
        self.runs += 1
        config = self.workspace.config(f"run{self.runs}", **sections)
        folder = self.workspace.path / f"run{self.runs}"
        code, out, err = z.train(config, folder, *arguments)
        self.assertEqual(code, 0, err)
        return z.summary(folder)

    def test_same_bits_wherever_the_state_lives(self):
        """state_hash is one value over placements, group, recompute, overlap and I/O engine, for both models."""
        variants = {
            "all on NVMe": ["--set", "placement={weights: nvme, optimizer: nvme}"],
            "all in host memory": ["--set", "placement={weights: host, optimizer: host, gradients: host, activations: host}"],
            "all on the device": ["--set", "placement={weights: device, optimizer: device, gradients: device, activations: device}"],
            "gradients and activations on NVMe": ["--set", "placement={gradients: nvme, activations: nvme, weights: host}"],
            "group 1": ["--set", "step.group=1"],
            "group 2": ["--set", "step.group=2"],
            "recompute": ["--set", "step.recompute=true"],
            "kept activations": ["--set", "step.recompute=false"],
            "no overlap": ["--set", "step.overlap=false"],
            "threads engine": ["--set", "io.engine=threads", "--set", "placement={weights: nvme, optimizer: nvme}"],
            "updates during backward": ["--set", "step.speculate=always", "--set", "placement={weights: nvme, optimizer: nvme}"],
            "no updates during backward": ["--set", "step.speculate=never", "--set", "placement={weights: nvme, optimizer: nvme}"],
            "one slot": ["--set", "checkpoint.slots=1", "--set", "placement={weights: nvme, optimizer: nvme}"],
        }
        for name, sections in (("mlp", z.mlp_sections(self.workspace)), ("llama", z.llama_sections(self.workspace)),
                               ("llama bf16", z.llama_sections(self.workspace, bf16={"enabled": True}))):
            hashes = {}
            for variant, arguments in variants.items():
                summary = self.trained(sections, *arguments)
                hashes[variant] = summary["state_hash"]
                if variant == "all on NVMe":  # the first layer waits for its update
                    self.assertGreater(summary["exposed_optimizer_seconds"], 0)
                    self.assertIsNotNone(summary["predicted_exposed_optimizer_seconds"])
                if "updates during backward" in variant:
                    early = 0 if variant.startswith("no ") else sections["train"]["steps"]
                    self.assertEqual(summary["speculated_steps"], early, f"{name}: {variant}")
            self.assertEqual(len(set(hashes.values())), 1, f"{name}: {hashes}")

    def test_different_data_gives_different_bits(self):
        """The hash above can differ at all."""
        one = self.trained(z.mlp_sections(self.workspace))
        other = self.trained(z.mlp_sections(self.workspace, train={"steps": 6, "seed": 43}))
        self.assertNotEqual(one["state_hash"], other["state_hash"])

    def test_optimizer_threads_follow_the_affinity_mask(self):
        """Not the one thread that a launcher exports; a key names another number. The log says how many there are, and which kernels."""
        config = self.workspace.config("threads", **z.mlp_sections(self.workspace, steps=1))
        mask = os.sched_getaffinity(0)
        hashes = []
        for allowed, named in (({min(mask)}, None), (mask, None), (mask, len(mask) + 1)):
            folder = self.workspace.path / f"threads-{len(allowed)}-{named}"
            code, _, err = z.train(config, folder, "--fresh", *(["--set", f"optimizer.threads={named}"] if named else []),
                                   env={**os.environ, "OMP_NUM_THREADS": "1"}, preexec_fn=lambda: os.sched_setaffinity(0, allowed))
            self.assertEqual(code, 0, err)
            found = re.search(r"optimizer: adamw \(betas 0.9 and 0.999, eps 1e-08, weight decay \S+\) with (?:scalar|avx2|avx512) kernels on (\d+) threads", err)
            self.assertIsNotNone(found, err)
            siblings = {pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in allowed}
            self.assertEqual(int(found[1]), named or len(siblings))
            hashes.append(z.summary(folder)["state_hash"])
        self.assertEqual(hashes[1], hashes[2])

    def test_lion_has_the_betas_of_its_paper(self):
        for arguments, betas in ((("optimizer.type=Lion",), "0.9 and 0.99"),
                                 (("optimizer.type=Lion", "optimizer.params.betas=[0.8, 0.999]"), "0.8 and 0.999")):
            config = self.workspace.config("lion", **z.mlp_sections(self.workspace, steps=1))
            code, _, err = z.train(config, self.workspace.path / "lion", "--fresh", "--yes",
                                   *[part for one in arguments for part in ("--set", one)])
            self.assertEqual(code, 0, err)
            self.assertRegex(err, rf"optimizer: lion \(betas {betas}, weight decay \S+\) with")

    def test_forced_kernels_give_the_same_bits(self):
        """BR-018: ZINF_ISA forces a set, the log names it, the result stays."""
        sections = z.mlp_sections(self.workspace)
        expected = self.trained(sections)["state_hash"]
        config = self.workspace.config("forced", **sections)
        folder = self.workspace.path / "forced"
        code, _, err = z.train(config, folder, "--fresh", env={**os.environ, "ZINF_ISA": "scalar"})
        self.assertEqual(code, 0, err)
        self.assertIn("with scalar kernels", err)
        self.assertEqual(z.summary(folder)["state_hash"], expected)
        code, _, err = z.train(config, self.workspace.path / "refused", env={**os.environ, "ZINF_ISA": "sse9"})
        self.assertEqual(code, 2, err)
        self.assertIn('ZINF_ISA: expected auto, scalar, avx2 or avx512, found "sse9"', err)

    def test_interrupted_runs_go_on_to_the_same_bits(self):
        for tier in ("nvme", "host"):
            placement = f"{{weights: {tier}, optimizer: {tier}}}"
            arguments = ["--set", f"placement={placement}"]
            sections = z.mlp_sections(self.workspace, steps=120, width=256)
            whole = self.trained(sections, *arguments)
            config = self.workspace.config("interrupted", **sections)
            folder = self.workspace.path / f"interrupted-{tier}"
            process = z.start(config, folder, *arguments)
            z.wait_for_step(folder, 5, process)
            code, text = z.stop(process, signal.SIGTERM)
            if code != 0:  # it may have finished first on a fast machine
                self.assertEqual(code, 128 + signal.SIGTERM, text)
                code, _, err = z.train(config, folder, *arguments)
                self.assertEqual(code, 0, err)
                self.assertIn("resumed after step", err)
            self.assertEqual(z.summary(folder)["state_hash"], whole["state_hash"])
            self.assertEqual([line["step"] for line in z.metrics(folder)], list(range(1, 121)))

    def test_resume_on_another_placement(self):
        sections = z.mlp_sections(self.workspace, steps=8)
        whole = self.trained(sections)
        config = self.workspace.config("moved", **sections)
        folder = self.workspace.path / "moved"
        code, _, err = z.train(config, folder, "--steps", "4", "--set", "placement={weights: nvme, optimizer: nvme}")
        self.assertEqual(code, 0, err)
        code, _, err = z.train(config, folder, "--set", "placement={weights: host, optimizer: device, gradients: nvme}")
        self.assertEqual(code, 0, err)
        self.assertEqual(z.summary(folder)["state_hash"], whole["state_hash"])

    def test_a_run_killed_after_its_last_commit_owes_its_summary(self):
        sections = z.mlp_sections(self.workspace, steps=3)
        config, folder = self.workspace.config("owes", **sections), self.workspace.path / "owes"
        self.assertEqual(z.train(config, folder)[0], 0)
        before = z.summary(folder)
        (folder / "summary.json").unlink()
        code, _, err = z.train(config, folder)
        self.assertEqual(code, 0, err)
        after = z.summary(folder)
        for key in ("steps", "state_hash", "weights_hash", "final_loss"):
            self.assertEqual(after[key], before[key], key)
        self.assertEqual([line["step"] for line in z.metrics(folder)], [1, 2, 3])
        code, _, err = z.train(config, folder)
        self.assertIn("this run is finished (step 3)", err)

    def test_a_finished_run_says_so(self):
        config = self.workspace.config("done", **z.mlp_sections(self.workspace, steps=2))
        folder = self.workspace.path / "done"
        self.assertEqual(z.train(config, folder)[0], 0)
        before = (folder / "summary.json").read_text()
        code, _, err = z.train(config, folder)
        self.assertEqual(code, 0)
        self.assertIn("this run is finished (step 2)", err)
        self.assertEqual(before, (folder / "summary.json").read_text())

    def test_a_changed_config_is_refused_by_name(self):
        config = self.workspace.config("changed", **z.mlp_sections(self.workspace, steps=2))
        folder = self.workspace.path / "changed"
        self.assertEqual(z.train(config, folder)[0], 0)
        code, _, err = z.train(config, folder, "--steps", "4", "--set", "gradient_clipping=0.25")
        self.assertEqual(code, 2)
        self.assertIn("what is trained would change: gradient_clipping: 0.5 -> 0.25", err)
        code, _, err = z.train(config, folder, "--steps", "4", "--set", "gradient_clipping=0.25", "--allow")
        self.assertEqual(code, 0, err)

    def test_what_does_not_fit_is_refused_with_a_change_that_fits(self):
        sections = z.mlp_sections(self.workspace, width=512)
        config = self.workspace.config("small", **sections)
        folder = self.workspace.path / "small"
        code, _, err = z.train(config, folder, "--set", "memory.device=1MiB")
        self.assertEqual(code, 3)
        self.assertRegex(err, r"device needs [0-9.]+ MiB \([0-9]+ bytes\), given 1.00 MiB")
        change = err.split("the smallest change that fits: --set ")[1].split()[0]
        code, _, err = z.train(config, folder, "--fresh", "--set", change)
        self.assertEqual(code, 0, err)

    def test_bytes_are_the_closed_form(self):
        """fp32 AdamW, all on NVMe: 16 read (4 of them for the backward), 12 written, a parameter and step."""
        sections = z.mlp_sections(self.workspace, width=256, layers=6, steps=6)
        summary = self.trained(sections, "--set", "placement={weights: nvme, optimizer: nvme}")
        lanes = summary["lanes"]
        # Padding to tiles and pages adds; weights kept at the turn save.
        self.assertAlmostEqual(lanes["nvme_write"]["bytes_per_parameter_step"], 12, delta=0.3)
        self.assertLess(lanes["nvme_read"]["bytes_per_parameter_step"], 16.3)
        self.assertGreater(lanes["nvme_read"]["bytes_per_parameter_step"], 14)

    def test_peaks_stay_within_plan_and_budget(self):
        summary = self.trained(z.llama_sections(self.workspace))
        for tier in ("device", "host", "nvme", "process"):
            peak = summary["peak_bytes"][tier]
            self.assertLessEqual(peak["measured"], peak["predicted"], tier)
            self.assertLessEqual(peak["predicted"], peak["budget"], tier)

    def test_a_loss_that_blows_up_stops_the_run(self):
        """It names step, piece and last commit: with everything on NVMe that of the step before, else (here) the first."""
        config = self.workspace.config("nan", **z.mlp_sections(self.workspace, optimizer={"type": "SGD", "params": {"lr": 1e30}}))
        for tier in ("nvme", "host"):
            folder = self.workspace.path / f"nan-{tier}"
            code, _, err = z.train(config, folder, "--set", f"placement={{weights: {tier}, optimizer: {tier}}}")
            self.assertEqual(code, 1, err)
            found = re.search(r"step (\d+): (the gradient of \S+ is not finite|the loss is \S+, first seen in the output of [\w ]+); no state was changed by this step; "
                              r"the last commit is step (\d+)\n", err)
            self.assertTrue(found, err)
            self.assertEqual(int(found[3]), int(found[1]) - 1 if tier == "nvme" else 0)

    def test_the_layer_whose_values_overflow_is_named(self):
        """Huge weights of one layer, in the middle or last, make the loss NaN and with it every gradient."""
        sections = z.llama_sections(self.workspace, steps=1)
        self.trained(sections)
        model = self.workspace.path / "run1" / "model"
        whole = (model / "model.safetensors").read_bytes()
        start = 8 + struct.unpack("<Q", whole[:8])[0]
        tensors = json.loads(whole[8:start])
        for layer in (1, 2):
            data = bytearray(whole)
            for name, tensor in tensors.items():
                if name.startswith(f"model.layers.{layer}.mlp."):
                    self.assertEqual(tensor["dtype"], "F32")
                    begin, end = (start + offset for offset in tensor["data_offsets"])
                    data[begin:end] = struct.pack("<f", 1e25) * ((end - begin) // 4)
            (model / "model.safetensors").write_bytes(data)
            sections["model"] = {"path": str(model)}
            config = self.workspace.config(f"overflow{layer}", **sections)
            for group in (1, 3):
                code, _, err = z.train(config, self.workspace.path / f"overflow{layer}-{group}", "--set", f"step.group={group}")
                self.assertEqual(code, 1, err)
                self.assertRegex(err, rf"step 1: the loss is -?nan, first seen in the output of layer {layer}; no state was changed")

    def test_skipped_steps_end_too(self):
        sections = z.mlp_sections(self.workspace, steps=40, optimizer={"type": "SGD", "params": {"lr": 1e30}})
        sections["train"]["on_nonfinite"] = "skip"
        config = self.workspace.config("skips", **sections)
        folder = self.workspace.path / "skips"
        code, _, err = z.train(config, folder)
        self.assertEqual(code, 1, err)
        skipped = err.count("is skipped:")
        self.assertEqual(skipped, 9, err)
        learning_rates = {line["lr"] for line in z.metrics(folder)}
        self.assertEqual(learning_rates, {1e30})

    def half_run(self, name, *arguments):
        """A run of 8 steps that was left after 4, all on NVMe: (config, folder, area file)."""
        config = self.workspace.config(name, **z.mlp_sections(self.workspace, steps=8, width=128))
        folder = self.workspace.path / name
        code, _, err = z.train(config, folder, "--steps", "4", "--set", "placement={weights: nvme, optimizer: nvme}", *arguments)
        self.assertEqual(code, 0, err)
        area = json.loads((folder / "manifest-4.json").read_text().rsplit("\n", 2)[0])["area"]
        return config, folder, self.workspace.path / "swap" / f"{area}.zinf-area"

    def flip(self, file, at):
        with open(file, "r+b") as handle:
            handle.seek(at)
            byte = handle.read(1)
            handle.seek(at)
            handle.write(bytes([byte[0] ^ 0x10]))

    def test_a_flipped_bit_is_an_error_not_a_worse_model(self):
        found = 0
        size = None
        for tenth in range(1, 10):
            config, folder, area = self.half_run(f"flip{tenth}")
            size = area.stat().st_size
            self.flip(area, size * tenth // 10)
            code, _, err = z.train(config, folder, "--set", "placement={weights: nvme, optimizer: nvme}")
            if code != 0:  # else it hit the slot that is not committed, which nobody reads
                self.assertEqual(code, 1, err)
                self.assertRegex(err, rf"page \d+ of extent \d+, .*{area.name} at offset \d+, is damaged")
                found += 1
        self.assertGreaterEqual(found, 2)

    def test_a_damaged_or_missing_manifest_gives_way_to_the_one_before(self):
        """BR-037."""
        config, folder, _ = self.half_run("torn")
        manifest = folder / "manifest-4.json"
        manifest.write_text(manifest.read_text()[:-40])
        code, _, err = z.train(config, folder)
        self.assertEqual(code, 0, err)
        self.assertIn("manifest-4.json", err)
        self.assertIn("resumed after step 3", err)
        config, folder, _ = self.half_run("gone")
        (folder / "manifest-4.json").unlink()
        code, _, err = z.train(config, folder)
        self.assertEqual(code, 0, err)
        self.assertIn("resumed after step 3", err)

    def test_a_missing_or_damaged_page_table_gives_way_to_the_commit_before(self):
        """A commit that can't be verified is no whole commit; the one before is, as long as no later step has written to its slot."""
        whole = None
        for name, damage in (("missing", lambda file: file.unlink()), ("damaged", lambda file: self.flip(file, 20))):
            config, folder, _ = self.half_run(f"pages-{name}")
            damage(folder / "pages-4.bin")
            code, _, err = z.train(config, folder, "--set", "placement={weights: nvme, optimizer: nvme}")
            self.assertEqual(code, 0, err)
            self.assertRegex(err, rf"warning resume: skipped \S*pages-4.bin: {name}")
            self.assertIn("resumed after step 3", err)
            whole = whole or z.summary(folder)["state_hash"]
            self.assertEqual(z.summary(folder)["state_hash"], whole)
        _, folder, _ = self.half_run("pages-undisturbed")
        code, _, err = z.train(config, folder)
        self.assertEqual(code, 0, err)
        self.assertEqual(z.summary(folder)["state_hash"], whole)

    def test_the_commit_before_is_not_taken_once_it_is_overwritten(self):
        """One page of it is another's: refused by name, and nothing is written; without verification one may go on from the newest."""
        for kind in ("page table", "manifest"):
            config, folder, area = self.half_run(f"overwritten {kind}")
            manifests = {step: json.loads((folder / f"manifest-{step}.json").read_text().rsplit("\n", 2)[0]) for step in (3, 4)}
            self.assertNotEqual(manifests[3]["slot"], manifests[4]["slot"])
            extent = manifests[3]["extents"][0]
            self.flip(area, (1 << 20) + manifests[3]["slot"] * extent["bytes"])  # the layout: docs/formats
            if kind == "manifest":
                (folder / "manifest-4.json").write_text("torn")
            else:
                (folder / "pages-4.bin").unlink()
            before = area.read_bytes()
            code, _, err = z.train(config, folder, "--set", "placement={weights: nvme, optimizer: nvme}")
            self.assertEqual(code, 1, err)
            self.assertRegex(err, r"the commit before, step 3, is no longer whole: page 0 of extent [01], .*is damaged")
            self.assertEqual(area.read_bytes(), before)
        config, folder, _ = self.half_run("unverified")
        (folder / "pages-4.bin").unlink()
        code, _, err = z.train(config, folder, "--set", "io.verify=false")
        self.assertEqual(code, 0, err)
        self.assertIn("resumed after step 4", err)

    def test_a_fresh_dry_run_does_not_mind_what_it_would_drop(self):
        config, folder, _ = self.half_run("dropped")
        for file in folder.glob("manifest-*.json"):
            file.write_text("torn")
        code, _, err = z.train(config, folder, "--dry-run")
        self.assertEqual(code, 1, err)
        code, _, err = z.train(config, folder, "--fresh", "--dry-run")
        self.assertEqual(code, 0, err)

    def test_usage_errors(self):
        code, _, err = z.run("train", self.workspace.path / "absent.yaml")
        self.assertEqual(code, 2)
        code, _, err = z.run("train")
        self.assertEqual(code, 2)
        bad = z.mlp_sections(self.workspace)
        bad["gradient_cliping"] = bad.pop("gradient_clipping")
        code, _, err = z.train(self.workspace.config("bad", **bad), self.workspace.path / "bad")
        self.assertEqual(code, 2)
        self.assertIn("gradient_clipping", err)

    def test_export_of_a_finished_run(self):
        config = self.workspace.config("exported", **z.llama_sections(self.workspace, steps=2))
        folder = self.workspace.path / "exported"
        self.assertEqual(z.train(config, folder)[0], 0)
        code, out, err = z.run("export", folder, self.workspace.path / "hf", "--dtype", "fp32")
        self.assertEqual(code, 0, err)
        with open(self.workspace.path / "hf" / "model.safetensors", "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self.assertIn("model.embed_tokens.weight", header)
        self.assertNotIn("lm_head.weight", header)
        self.assertEqual(header["model.embed_tokens.weight"]["shape"], [1000, 64])

    def test_files_of_an_export(self):
        config = self.workspace.config("shards", **z.llama_sections(self.workspace, steps=1))
        folder = self.workspace.path / "shards"
        self.assertEqual(z.train(config, folder)[0], 0)
        most = 100_000
        for name, arguments, many in (("cut", ("--shard-size", "100KB"), True), ("single", ("--single-file",), False)):
            hf = self.workspace.path / name
            code, _, err = z.run("export", folder, hf, *arguments)
            self.assertEqual(code, 0, err)
            files = sorted(hf.glob("*.safetensors"))
            self.assertEqual(len(files) > 1, many, files)
            self.assertEqual((hf / "model.safetensors.index.json").exists(), many)
            for file in files if many else []:
                with open(file, "rb") as opened:
                    header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
                tensors = [entry["data_offsets"] for tensor, entry in header.items() if tensor != "__metadata__"]
                if len(tensors) > 1:  # a larger tensor has a file of its own
                    self.assertLessEqual(sum(last - first for first, last in tensors), most)
        for arguments in (("--shard-size", "100KB", "--single-file"), ("--shard-size", "0"), ("--shard-size", "much")):
            code, _, err = z.run("export", folder, self.workspace.path / "none", *arguments)
            self.assertEqual(code, 2, err)
            self.assertIn("--shard-size", err)
            self.assertFalse((self.workspace.path / "none").exists())

    def test_a_deepspeed_checkpoint_is_recognised_by_every_command(self):
        folder = self.workspace.path / "deepspeed"
        (folder / "global_step10").mkdir(parents=True)
        (folder / "zero_to_fp32.py").write_text("raise SystemExit('never run')")
        (folder / "global_step10" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"x")
        for command in (("inspect", folder), ("verify", folder), ("export", folder, self.workspace.path / "none")):
            code, _, err = z.run(*command)
            self.assertEqual(code, 2, err)
            self.assertIn("is a DeepSpeed ZeRO checkpoint", err)
            self.assertIn("python zero_to_fp32.py", err)

    def test_inspect_of_a_run(self):
        """Sizes of layers and states, parameters, free space; the sums are those of the manifest."""
        _, folder, _ = self.half_run("inspected")
        code, out, err = z.run("inspect", folder)
        self.assertEqual(code, 0, err)
        self.assertIn(f"parameters {z.summary(folder)['parameters']}\n", out)
        self.assertRegex(out, rf"free on {self.workspace.path / 'swap'} [0-9.]+ .?i?B\n")
        for state in ("weight", "exp_avg", "exp_avg_sq"):
            self.assertRegex(out, rf"\n  {state} +[0-9.]+ [KM]iB\n")
        manifest = json.loads((folder / "manifest-4.json").read_text().rsplit("\n", 2)[0])
        for piece in {extent["piece"] for extent in manifest["extents"]}:
            self.assertRegex(out, rf"\n  {re.escape(piece)} +\d+ parameters +[0-9.]+ [KM]iB  norm [0-9.]+")

    def test_inspect_of_safetensors(self):
        """What a model's folder holds, without a run."""
        config = self.workspace.config("shown", **z.llama_sections(self.workspace, steps=1))
        folder = self.workspace.path / "shown"
        self.assertEqual(z.train(config, folder)[0], 0)
        for path in (folder / "model", folder / "model" / "model.safetensors"):
            code, out, err = z.run("inspect", path)
            self.assertEqual(code, 0, err)
            self.assertRegex(out, r"model.embed_tokens.weight +F32 +\[1000, 64\] +250 KiB  norm [0-9.]+")
            self.assertRegex(out, r"in all [0-9.]+ KiB")

    def test_changes_of_the_config_are_named_by_key(self):
        """Harmless ones are said, the schedule's stretch by an edited length needs --allow, by --steps it is meant."""
        sections = z.mlp_sections(self.workspace, steps=3, scheduler={"type": "WarmupDecayLR", "params": {"warmup_num_steps": 1}})
        config = self.workspace.config("keys", **sections)
        folder = self.workspace.path / "keys"
        self.assertEqual(z.train(config, folder)[0], 0)
        sections["train"]["steps"] = 5
        config = self.workspace.config("keys", **sections)
        code, _, err = z.train(config, folder)
        self.assertEqual(code, 2, err)
        self.assertIn("train.steps: 3 -> 5, which stretches the learning rate's schedule", err)
        harmless = ("--set", "io.depth=7", "--set", "step.group=1", "--set", "checkpoint.grace=9")
        code, _, err = z.train(config, folder, "--steps", "5", "--set", "train_micro_batch_size_per_gpu=2",
                               "--set", "gradient_accumulation_steps=6", *harmless)
        self.assertEqual(code, 0, err)
        self.assertIn("resume: io.depth: auto -> 7, which changes no result", err)
        self.assertIn("resume: step.group: auto -> 1, which changes no result", err)
        self.assertRegex(err, r"warning resume: micro-batch x accumulation: 4 x 3 -> 2 x 6")
        self.assertRegex(err, r"warning resume: train.steps: 3 -> 5")
        for change, named in (("train.seed=7", "train.seed: 42 -> 7"), ("optimizer.params.lr=1e-4", "optimizer.params.lr: 0.001 -> 1e-4"),
                              ("gradient_accumulation_steps=4", "micro-batch x accumulation: 2 x 6 -> 4 x 4"),
                              ("data.samples=100", "data.samples: 512 -> 100")):
            code, _, err = z.train(config, folder, "--steps", "7", "--set", change)
            self.assertEqual(code, 2, err)
            self.assertIn(named, err)
        code, _, err = z.train(config, folder, "--steps", "6", "--set", "optimizer.master_weights=fp32")
        self.assertEqual(code, 0, err)  # what auto stood for
        self.assertNotIn("master_weights", err)
        code, _, err = z.train(config, folder, "--steps", "7", "--set", "model.width=65")
        self.assertEqual(code, 2, err)
        self.assertIn("model (sizes, names, frozen tensors)", err)
        self.assertIn("model.width: 64 -> 65", err)

    def test_status_tells_how_it_ended(self):
        config = self.workspace.config("status", **z.mlp_sections(self.workspace, steps=3))
        folder = self.workspace.path / "status"
        self.assertEqual(z.train(config, folder)[0], 0)
        status = json.loads((folder / "status.json").read_text())
        self.assertEqual((status["state"], status["step"], status["last_commit"], status["exit_code"]), ("finished", 3, 3, 0))
        bad = self.workspace.config("status", **z.mlp_sections(self.workspace, optimizer={"type": "SGD", "params": {"lr": 1e30}}))
        code, _, err = z.train(bad, folder, "--fresh", "--yes")
        self.assertEqual(code, 1, err)
        status = json.loads((folder / "status.json").read_text())
        self.assertEqual((status["state"], status["exit_code"]), ("failed", 1))
        self.assertIn("no state was changed by this step", status["message"])
        self.assertGreater(status["pid"], 0)
        code, out, err = z.run("inspect", folder)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^state failed, step \d+ of 6, exit code 1 \(.*\)\nmessage step \d+: ")

    def test_plan_as_json(self):
        config = self.workspace.config("planned", **z.llama_sections(self.workspace))
        code, out, err = z.run("plan", config, "--json")
        self.assertEqual(code, 0, err)
        plan = json.loads(out)
        for key in ("fits", "peak_bytes", "step_seconds", "bottleneck", "lanes", "textbook_bytes_per_rank",
                    "state_bytes_per_rank", "written_bytes_per_step", "exposed_optimizer_seconds"):
            self.assertIn(key, plan)
        code, _, err = z.run("plan", config, "--device-memory", "64KiB", "--json")
        self.assertEqual(code, 3, err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
