"""zinf plan: the contract's fields, the textbook column, planning for hardware that is not here."""
import json
import pathlib
import re
import time
import unittest

import zinf_runner as z

GIVEN = ("--gpu", "RTX4090", "--host-memory", "64GiB", "--nvme", "2TB,6,5,1200TB")
KEYS = ("fits", "peak_bytes", "step_seconds", "bottleneck", "lanes", "textbook_bytes_per_rank", "state_bytes_per_rank",
        "written_bytes_per_step", "exposed_optimizer_seconds")


class PlanTest(unittest.TestCase):
    def setUp(self):
        self.workspace = z.Workspace()
        self.addCleanup(self.workspace.close)

    def seven_billion(self, layers=32, **changes):
        """config.json alone of a Llama with 7 billion parameters: 6,738,415,616 as published for these sizes."""
        folder = z.llama_folder(self.workspace, "7b", vocab_size=32000, hidden_size=4096, intermediate_size=11008,
                                num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=32,
                                max_position_embeddings=2048, tie_word_embeddings=False)
        sections = z.llama_sections(self.workspace, folder=folder, bf16={"enabled": True})
        sections["data"]["seq_len"] = 1024
        sections["train_micro_batch_size_per_gpu"] = 1
        sections["gradient_accumulation_steps"] = 8
        del sections["memory"]
        sections.update(changes)
        return self.workspace.config("seven", **sections)

    def plan(self, config, *arguments):
        code, out, err = z.run("plan", config, *arguments, "--json")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_the_textbook_column(self):
        config = self.seven_billion()
        plan = self.plan(config, "--ranks", "8", *GIVEN)
        for key in KEYS:
            self.assertIn(key, plan)
        # (2 + 2 + 12) bytes a parameter, ever more of it divided by 8.
        for stage, per_parameter in (("0", 16), ("1", 4 + 12 / 8), ("2", 2 + 14 / 8), ("3", 16 / 8)):
            self.assertAlmostEqual(plan["textbook_bytes_per_rank"][stage] / 6738415616, per_parameter, places=6)
        code, out, err = z.run("plan", config, "--ranks", "8", *GIVEN)
        self.assertEqual(code, 0, err)
        # For a round 7 billion, as in the books: 112 / 38.5 / 26.25 / 14 GB.
        found = re.search(r"stage 0 ([\d.]+) GB, 1 ([\d.]+), 2 ([\d.]+), 3 ([\d.]+)", out)
        scale = 7e9 / 6738415616
        for text, book in zip(found.groups(), (112, 38.5, 26.25, 14)):
            self.assertAlmostEqual(float(text) * scale, book, delta=0.02)

    def test_given_hardware_in_seconds(self):
        start = time.monotonic()
        plan = self.plan(self.seven_billion(), *GIVEN)
        print(f"{time.monotonic() - start:.1f} s for 32 layers")  # a figure, not a verdict
        self.assertTrue(plan["fits"])
        self.assertLessEqual(plan["peak_bytes"]["device"], 24 << 30)
        self.assertLessEqual(plan["peak_bytes"]["host"], 64 << 30)
        self.assertGreater(plan["written_bytes_per_step"], 0)
        self.assertLessEqual(plan["written_bytes_per_step"], 12.5 * 6738415616)
        self.assertIn(plan["bottleneck"], plan["lanes"])

    def test_wear(self):
        drive = f"memory.nvme=[{{path: {self.workspace.path / 'swap'}}}]"
        code, out, err = z.run("plan", self.seven_billion(), *GIVEN, "--set", drive, "--set", "placement={weights: nvme, optimizer: nvme}")
        self.assertEqual(code, 0, err)
        found = re.search(r"Wear: ([\d.]+) GiB written a step; an endurance of .* lasts (\d+) steps, this run's 6 take ([\d.]+) % of it", out)
        self.assertIsNotNone(found, out)
        # 12 bytes a parameter and step with a split master, padding aside.
        self.assertAlmostEqual(float(found[1]) * 2**30 / 6738415616, 12, delta=0.1)
        self.assertAlmostEqual(int(found[2]), 1200e12 / (12 * 6738415616), delta=200)
        self.assertAlmostEqual(float(found[3]), 100 * 6 / int(found[2]), delta=1e-4)

    def test_what_does_not_fit_names_a_change_that_does(self):
        config = self.workspace.config("small", **z.mlp_sections(self.workspace, width=512))
        code, out, err = z.run("plan", config, "--set", "memory.device=1MiB")
        self.assertEqual(code, 3, err)
        self.assertEqual(out, "")
        change = re.search(r"the smallest change that fits: --set (\S+)", err)[1]
        code, _, err = z.run("plan", config, "--set", change)
        self.assertEqual(code, 0, err)
        code, out, _ = z.run("plan", config, "--set", "memory.device=1MiB", "--json")
        self.assertEqual(code, 3)
        refused = json.loads(out)
        self.assertFalse(refused["fits"])
        self.assertIn("the smallest change that fits", refused["reason"])
        self.assertEqual(refused["budget_bytes"]["device"], 1 << 20)

    def refused_changes(self, config, *arguments):
        """Of a run that does not fit: the arguments that each change named stands for."""
        code, _, err = z.run("plan", config, *arguments)
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"needs .* \(\d+ bytes\), given ")
        return err, [change.split() for change in re.search(r"the smallest change that fits: (.*)", err)[1].split(" or ")]

    def test_every_change_named_fits_when_typed(self):
        """As it stands; a MiB less of the device's is too little. (The host's base moves a little from run to run.)"""
        mlp = self.workspace.config("mlp", **z.mlp_sections(self.workspace, width=512))
        folder = z.llama_folder(self.workspace, hidden_size=128, intermediate_size=320)
        llama = self.workspace.config("llama", **z.llama_sections(self.workspace, folder=folder))
        cases = [(mlp, "memory.device=1MiB"), (mlp, "memory.host=100MiB"), (mlp, "memory.device=2MiB", "memory.host=90MiB"),
                 (mlp, "memory.device=20MiB", "placement.gradients=device"), (mlp, "memory.device=17MiB", "placement={weights: device}"),
                 (mlp, "memory.nvme=[]", "memory.host=240MiB"), (llama, "memory.device=1MiB", "memory.host=80MiB"),
                 (llama, "memory.nvme=[]", "memory.device=1MiB")]
        kinds = set()
        for config, *settings in cases:
            given = [argument for setting in settings for argument in ("--set", setting)]
            _, changes = self.refused_changes(config, *given)
            for change in changes:
                if change[0] != "--set":
                    continue
                with self.subTest(settings=settings, change=change):
                    kinds.add(change[1].split("=")[0])
                    code, _, err = z.run("plan", config, *given, *change)
                    self.assertEqual(code, 0, err)
                    device = re.fullmatch(r"memory\.device=(\d+)MiB", change[1])
                    if device:
                        less = [change[0], f"memory.device={int(device[1]) - 1}MiB", *change[2:]]
                        self.assertEqual(z.run("plan", config, *given, *less)[0], 3, less)
        self.assertLessEqual({"memory.device", "memory.host", "placement.gradients", "placement"}, kinds)

    def test_a_change_names_the_option_that_was_given(self):
        config = self.seven_billion()
        _, changes = self.refused_changes(config, "--device-memory", "256MiB", "--host-memory", "64GiB", "--nvme", "2TB,6,5")
        self.assertEqual(changes[0][0], "--device-memory")
        code, _, err = z.run("plan", config, *changes[0], "--host-memory", "64GiB", "--nvme", "2TB,6,5")
        self.assertEqual(code, 0, err)

    def test_what_a_needless_placement_costs_is_told(self):
        config = self.workspace.config("small", **z.mlp_sections(self.workspace, width=512))
        code, out, err = z.run("plan", config, "--set", "placement={weights: nvme, optimizer: nvme}")
        self.assertEqual(code, 0, err)
        found = re.search(r"Placement as set costs time: ([\d.]+) s a step, ([\d.]+) s with --set placement=auto", out)
        self.assertIsNotNone(found, out)
        self.assertGreater(float(found[1]), float(found[2]))
        self.assertNotIn("costs time", z.run("plan", config)[1])

    def test_a_dry_run_as_json(self):
        """The plan with one sample and its mask; where nothing fits, why and what would, with the same sample."""
        folder = z.llama_folder(self.workspace, hidden_size=128, intermediate_size=320)
        config = self.workspace.config("dry", **z.llama_sections(self.workspace, folder=folder))
        command = ("train", config, "--run-dir", self.workspace.path / "dry", "--dry-run", "--json")
        code, out, err = z.run(*command)
        self.assertEqual(code, 0, err)
        plan = json.loads(out)
        self.assertTrue(plan["fits"])
        self.assertEqual(len(plan["sample"]["ids"]), len(plan["sample"]["learn"]))
        self.assertEqual(plan["sample"]["learn"][:2], [False, True])
        self.assertIn("learn", plan["sample"]["text"])
        code, out, err = z.run(*command, "--set", "memory.device=1MiB")
        self.assertEqual(code, 3, err)
        refused = json.loads(out)
        self.assertFalse(refused["fits"])
        self.assertIn("the smallest change that fits: --set memory.device=", refused["reason"])
        self.assertEqual(refused["sample"], plan["sample"])
        config = self.workspace.config("rows", **z.mlp_sections(self.workspace))
        code, out, err = z.run("train", config, "--run-dir", self.workspace.path / "rows", "--dry-run", "--json")
        self.assertEqual(code, 0, err)
        sample = json.loads(out)["sample"]
        self.assertIsInstance(sample["label"], float)
        self.assertGreater(len(sample["features"]), 0)
        code, out, err = z.run("train", config, "--run-dir", self.workspace.path / "rows", "--dry-run")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"First sample:\nfeatures( -?[\d.e-]+)+.*\nlearn    -?[\d.e-]+\n")

    def test_the_command_of_the_guide(self):
        """docs/will_it_fit.md: units as the datasheets write them; the drive of the config need not be here."""
        config = self.seven_billion(memory={"nvme": [{"path": "/nothing/here"}]})
        guide = (pathlib.Path(__file__).parents[2] / "docs/will_it_fit.md").read_text()
        (arguments,) = re.findall(r"zinf plan \S+ (--device-memory .*)", guide)
        self.assertIn("1200TBW", arguments)
        plan = self.plan(config, *arguments.split())
        self.assertTrue(plan["fits"])
        self.assertEqual(self.plan(config, *arguments.replace("GBs", "").replace("TBW", "TB").split())["peak_bytes"]["nvme"], plan["peak_bytes"]["nvme"])

    def test_a_drive_too_small(self):
        code, _, err = z.run("plan", self.seven_billion(), "--gpu", "RTX4090", "--host-memory", "16GiB", "--nvme", "50GB,6,5")
        self.assertEqual(code, 3)
        self.assertIn("NVMe needs", err)

    def test_numbers_that_are_none(self):
        for drive in ("2TB,nan,5", "2TB,7,inf", "0B,7,5", "2TB,-1,5"):
            code, _, err = z.run("plan", self.seven_billion(), "--gpu", "RTX4090", "--host-memory", "16GiB", "--nvme", drive)
            self.assertEqual(code, 2, drive)
            self.assertIn("--nvme", err)

    def test_usage(self):
        config = self.seven_billion()
        code, _, err = z.run("plan", config, "--gpu", "RTX9999")
        self.assertEqual(code, 2)
        self.assertIn("RTX4090", err)
        code, _, err = z.run("plan", config, "--nvme", "2TB,fast", "--gpu", "RTX4090")
        self.assertEqual(code, 2)
        self.assertIn("2TB,7GBs,5GBs,1200TBW", err)
        code, _, err = z.run("plan", config, "--host-memory", "lots")
        self.assertEqual(code, 2)
        self.assertIn("--host-memory: expected a size", err)
        code, _, err = z.run("plan", config, "--ranks", "0")
        self.assertEqual(code, 2)
        code, _, err = z.run("plan", config, "--set", "gradient_accumulation_steps=1000000000")
        self.assertEqual(code, 2)
        self.assertRegex(err, r"gradient_accumulation_steps: expected at most \d+ micro-batches a step for \d+ stages, found 1000000000")


if __name__ == "__main__":
    unittest.main(verbosity=2)
