"""Kept checkpoints: which are there, that each is the state of its step, going back to one, space, exports."""
import json
import os
import pathlib
import re
import subprocess
import unittest

import field_case
import zinf_runner as z
from field_case import ON_HOST, ON_NVME, run_mounted, sets

KEEP = ("checkpoint.keep=3", "checkpoint.keep_every=2")


class KeptCase(field_case.RunCase):
    def kept(self, folder=None):
        return sorted(int(re.search(r"(\d+)\.json", file.name)[1])
                      for file in (folder or self.folder).glob("kept-manifest-*.json"))

    def areas(self):
        return sorted(file.name for file in (self.workspace.path / "swap").iterdir())

    def state_of(self, folder, *arguments):
        code, out, err = z.run("verify", folder, "--json", *arguments)
        self.assertEqual(code, 0, err)
        return json.loads(out)["state_hash"]


class Kept(KeptCase):
    def test_each_kept_checkpoint_is_the_state_of_its_step(self):
        """Everywhere the state may live; the ones kept are the newest, and what they cost no bit of the run."""
        sections = z.mlp_sections(self.workspace, steps=9)
        expected = {}
        for steps in (6, 8):
            self.trained(sections, "--steps", str(steps), *sets(ON_NVME))
            expected[steps] = z.summary(self.folder)["state_hash"]
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        for place in (ON_NVME, ON_HOST, "placement={weights: host, optimizer: nvme}"):
            self.assertEqual(self.trained(sections, *sets(place, *KEEP))["state_hash"], whole)
            self.assertEqual(self.kept(), [6, 8], self.log)
            for step, state in expected.items():
                self.assertEqual(self.state_of(self.folder, "--step", str(step)), state)
            self.assertIn("nothing is committed until its copy is whole", self.log)
            self.assertIn("the kept checkpoint of step 2 is dropped", self.log)
            _, out, _ = z.run("inspect", self.folder)
            self.assertRegex(out, r"kept step 6  [0-9.]+ [KM]iB\nkept step 8  [0-9.]+ [KM]iB\n")
            names = " ".join(self.areas())
            self.assertNotIn("partial", names)
            self.assertNotIn("-kept-4.", names)

    def test_the_loss_of_a_kept_checkpoint_is_that_which_was_logged(self):
        """The batch of step 5 by the weights of step 4: what training logged, to the bit."""
        for sections in (z.mlp_sections(self.workspace, steps=6), z.llama_sections(self.workspace, steps=6)):
            for place in (ON_NVME, ON_HOST):
                self.trained(sections, *sets(place, "checkpoint.keep=2", "checkpoint.keep_every=4"))
                code, out, err = z.run("verify", self.folder, "--loss", "--step", "4", "--json")
                self.assertEqual(code, 0, err)
                found, logged = json.loads(out), z.metrics(self.folder)
                self.assertEqual(found["loss_of_next_batch"], logged[4]["loss"])
                self.assertEqual(found["logged"], logged[4]["loss"])
                self.assertEqual(found["loss_before_update"], logged[3]["loss"])
                code, out, err = z.run("verify", self.folder, "--loss", "--json")
                self.assertEqual(code, 0, err)
                self.assertIsNone(json.loads(out)["logged"])
        file = self.folder / "metrics.jsonl"
        lines = file.read_text().splitlines()
        line = json.loads(lines[4])
        line["loss"] += 1e-6
        lines[4] = json.dumps(line)
        file.write_text("\n".join(lines) + "\n")
        code, _, err = z.run("verify", self.folder, "--loss", "--step", "4")
        self.assertEqual(code, 1, err)
        self.assertIn("another loss than the run logged for step 5", err)

    def test_going_back_to_a_kept_checkpoint(self):
        sections = z.mlp_sections(self.workspace, steps=9)
        whole = self.trained(sections, *sets(ON_NVME, *KEEP))["state_hash"]
        config = self.workspace.path / "run1.yaml"
        for step, place in ((8, ON_NVME), (6, ON_HOST)):
            code, _, err = z.train(config, self.folder, "--resume-from", str(step), *sets(place, *KEEP))
            self.assertEqual(code, 0, err)
            self.assertIn(f"resumed after step {step} of 9", err)
            self.assertEqual(z.summary(self.folder)["state_hash"], whole)
            self.assertEqual([line["step"] for line in z.metrics(self.folder)], list(range(1, 10)))
            self.assertEqual(self.kept(), [6, 8])
        code, _, err = z.train(config, self.folder, "--resume-from", "5", *sets(*KEEP))
        self.assertEqual(code, 2)
        self.assertIn("kept are the steps 6, 8", err)
        code, _, err = z.train(config, self.folder, "--resume-from", "9", *sets(ON_NVME, *KEEP))
        self.assertEqual(code, 0, err)
        self.assertIn("this run is finished", err)
        code, _, err = z.train(config, self.folder, "--resume-from", "6", "--fresh")
        self.assertEqual(code, 2, err)

    def test_a_kept_checkpoint_outlives_the_live_state(self):
        sections = z.mlp_sections(self.workspace, steps=7)
        whole = self.trained(sections, *sets(ON_NVME, *KEEP))["state_hash"]
        (live,) = (file for file in (self.workspace.path / "swap").iterdir() if "kept" not in file.name)
        live.unlink()
        config = self.workspace.path / "run1.yaml"
        for manifest in self.folder.glob("manifest-*.json"):
            manifest.write_text("torn")
        code, _, err = z.train(config, self.folder, *sets(ON_NVME, *KEEP))
        self.assertEqual(code, 1, err)
        self.assertIn("no commit in", err)
        code, _, err = z.train(config, self.folder, "--resume-from", "4", *sets(ON_NVME, *KEEP))
        self.assertEqual(code, 0, err)
        self.assertEqual(z.summary(self.folder)["state_hash"], whole)

    def test_two_drives(self):
        """A copy lies beside its run on each; gone back to; and two files that changed places are named, live and kept."""
        drives = [self.workspace.path / name for name in ("drive-a", "drive-b")]
        for drive in drives:
            drive.mkdir()
        sections = z.mlp_sections(self.workspace, width=256, steps=9)
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        sections["memory"]["nvme"] = [{"path": str(drive), "capacity": "1GiB"} for drive in drives]
        self.assertEqual(self.trained(sections, *sets(ON_NVME, *KEEP))["state_hash"], whole)
        names = [sorted(file.name for file in drive.iterdir()) for drive in drives]
        self.assertEqual(names[0], names[1])
        self.assertEqual(len(names[0]), 3)
        config = self.workspace.path / "run2.yaml"
        code, _, err = z.train(config, self.folder, "--resume-from", "6", *sets(ON_NVME, *KEEP))
        self.assertEqual(code, 0, err)
        self.assertEqual(z.summary(self.folder)["state_hash"], whole)
        for name in names[0]:
            files = [drive / name for drive in drives]

            def change_places():
                aside = drives[0] / "aside"
                files[0].rename(aside)
                files[1].rename(files[0])
                aside.rename(files[1])
            change_places()
            step = re.search(r"-kept-(\d+)", name)
            for command in (["verify", self.folder, *(("--step", step[1]) if step else ())],
                            ["train", config, "--run-dir", self.folder, *sets(ON_NVME, *KEEP), *(("--resume-from", step[1]) if step else ("--steps", "10"))]):
                code, _, err = z.run(*command)
                self.assertEqual(code, 1, err)
                self.assertRegex(err, rf"swap area .*{name} does not fit this run: it is drive 1 of its area, not 0")
            change_places()
        self.assertEqual(self.state_of(self.folder), whole)

    def test_damage_to_a_kept_checkpoint_is_named(self):
        self.trained(z.mlp_sections(self.workspace, steps=5, width=128), *sets(ON_NVME, "checkpoint.keep=2", "checkpoint.keep_every=4"))
        (copy,) = (file for file in (self.workspace.path / "swap").iterdir() if "-kept-4" in file.name)
        with open(copy, "r+b") as file:
            data = os.lseek(file.fileno(), 1 << 20, os.SEEK_DATA)
            file.seek(data + 4096)
            byte = file.read(1)[0]
            file.seek(data + 4096)
            file.write(bytes([byte ^ 1]))
        code, _, err = z.run("verify", self.folder, "--step", "4")
        self.assertEqual(code, 1, err)
        self.assertRegex(err, rf"page \d+ .*{copy.name}")
        code, _, err = z.train(self.workspace.path / "run1.yaml", self.folder, "--resume-from", "4",
                               *sets(ON_NVME, "checkpoint.keep=2", "checkpoint.keep_every=4"))
        self.assertEqual(code, 1, err)
        self.assertRegex(err, rf"page \d+ .*{copy.name}")
        # The newest commit is untouched by the attempt.
        self.assertEqual(self.state_of(self.folder), z.summary(self.folder)["state_hash"])

    def test_what_a_killed_process_left_is_removed(self):
        sections = z.mlp_sections(self.workspace, steps=7)
        self.trained(sections, "--steps", "4", *sets(ON_NVME, *KEEP))
        self.assertEqual(self.kept(), [2])
        (live,) = (file for file in (self.workspace.path / "swap").iterdir() if "kept" not in file.name)
        area = live.name.removesuffix(".zinf-area")
        for left in (f"{area}-kept-4-partial", f"{area}-kept-3"):
            (live.parent / f"{left}.zinf-area").write_bytes(b"x" * 4096)
        code, _, err = z.train(self.workspace.path / "run1.yaml", self.folder, *sets(ON_NVME, *KEEP))
        self.assertEqual(code, 0, err)
        self.assertEqual(self.kept(), [2, 6])
        self.assertEqual(self.areas(), sorted([live.name, f"{area}-kept-2.zinf-area", f"{area}-kept-6.zinf-area"]))

    def test_fresh_drops_them(self):
        sections = z.mlp_sections(self.workspace, steps=5)
        self.trained(sections, *sets(ON_NVME, *KEEP))
        code, _, err = z.train(self.workspace.path / "run1.yaml", self.folder, "--fresh", "--steps", "2", *sets(ON_NVME))
        self.assertEqual(code, 0, err)
        self.assertEqual(self.kept(), [])
        self.assertEqual(len(self.areas()), 1, self.areas())

    def test_one_slot_cannot_keep(self):
        text = self.refused(2, z.mlp_sections(self.workspace), *sets("checkpoint.slots=1", *KEEP))
        self.assertIn("checkpoint.slots: 2", text)

    def test_exports_at_kept_checkpoints(self):
        sections = z.llama_sections(self.workspace, steps=6, zero_optimization={"stage": 3, "stage3_gather_16bit_weights_on_model_save": True})
        self.trained(sections, *sets(ON_NVME, "checkpoint.keep=2", "checkpoint.keep_every=2"))
        self.assertEqual([file.name for file in self.folder.glob("model-step-*")], ["model-step-4"])
        there = field_case.tensors_of(self.folder / "model-step-4")
        self.assertEqual({kind for kind, _, _ in there.values()}, {"BF16"})
        to = self.workspace.path / "step4"
        code, out, err = z.run("export", self.folder, to, "--step", "4", "--dtype", "bf16")
        self.assertEqual(code, 0, err)
        self.assertIn("step 4 exported", out)
        self.assertEqual(field_case.tensors_of(to), there)
        self.trained(sections, "--steps", "4", *sets(ON_NVME))
        self.assertEqual(field_case.tensors_of(self.exported("--dtype", "bf16")), there)

    def test_the_size_of_exported_files(self):
        """export.shard_size at kept checkpoints, at the end, and by zinf export, whose flags win; a larger tensor is alone."""
        largest = 100 << 10
        sections = z.llama_sections(self.workspace, steps=6, zero_optimization={"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
                                    export={"shard_size": f"{largest >> 10}KiB", "dtype": "bf16"})
        self.trained(sections, *sets(ON_NVME, "checkpoint.keep=2", "checkpoint.keep_every=2"))
        shards = {}
        for name, folder in (("kept", self.folder / "model-step-4"), ("end", self.folder / "model"), ("command", self.exported())):
            files = list(folder.glob("*.safetensors"))
            self.assertGreater(len(files), 2, name)
            for file in files:
                alone = len(field_case.tensors_in(file)) == 1
                self.assertTrue(alone or file.stat().st_size <= largest + (8 << 10), f"{name}: {file.stat().st_size}")
            shards[name] = {file.name: sorted(field_case.tensors_in(file)) for file in files}
        self.one_hash({name: json.dumps(files, sort_keys=True) for name, files in shards.items()})
        for number, arguments in enumerate((("--single-file",), ("--shard-size", "1GB"))):
            to = self.workspace.path / f"flags{number}"
            code, _, err = z.run("export", self.folder, to, *arguments)
            self.assertEqual(code, 0, err)
            self.assertEqual([file.name for file in to.glob("*.safetensors")], ["model.safetensors"])
            self.assertEqual(field_case.tensors_of(to), field_case.tensors_of(self.folder / "model"))


class Space(KeptCase):
    @unittest.skipUnless(field_case.can_mount(), "no mount namespace can be made here")
    def test_it_is_checked_before_the_first_step(self):
        """BR-038: two slots fit, three copies more do not."""
        sections = z.mlp_sections(self.workspace, width=256, layers=4, steps=3)
        config = self.workspace.config("small", **sections)
        folder = self.workspace.path / "small"
        code, _, err = run_mounted(f"mount -t tmpfs -o size=96m tmpfs {self.workspace.path / 'swap'}", "train", config,
                                   "--run-dir", folder, *sets(ON_NVME, "checkpoint.keep=4", "checkpoint.keep_every=1"))
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"not enough space in .*swap for kept checkpoints and exports: needed .*\(\d+ bytes\), free")
        self.assertFalse((folder / "metrics.jsonl").exists())

    @unittest.skipUnless(field_case.can_mount_ext2(), "no mount namespace can be made here, or no ext2 on a loop device")
    def test_space_that_could_not_be_reserved_is_not_free(self):
        """ext2: the area is there and takes nothing yet. Two slots fit, and copies fit, but not both."""
        sections = z.mlp_sections(self.workspace, width=256, layers=4, steps=3)
        folder, swap, image = (self.workspace.path / name for name in ("sparse", "sparse-swap", "image"))
        swap.mkdir()
        config = self.workspace.config("sparse", **sections)
        settings = sets(ON_NVME, "checkpoint.keep_every=1", f"memory.nvme=[{{path: {swap}, capacity: 1GiB}}]")
        codes, said = field_case.run_script(f"""
            truncate -s 88M {image} && mkfs.ext2 -q -m 0 {image} && mount -o loop {image} {swap} || exit
            "$@" --set checkpoint.keep=2 2> {folder}.1; echo $?
            "$@" --set checkpoint.keep=1 2> {folder}.2; echo $?""", "train", config, "--run-dir", folder, *settings)
        refused, trained = (pathlib.Path(f"{folder}.{part}").read_text() for part in "12")
        self.assertEqual(codes, ["3", "0"], said + refused + trained)
        found = re.search(r"not enough space in .*sparse-swap for kept checkpoints and exports beside the swap area, which could not be "
                          r"reserved: needed .*\((\d+) bytes\), free .*\((\d+) bytes\)", refused)
        needed, free = map(int, found.groups())
        self.assertLess(free, needed)
        self.assertLess(needed, 2 * free)  # either alone fits

    @unittest.skipUnless(field_case.can_mount(), "no mount namespace can be made here")
    def test_a_drive_that_fills_up_while_training(self):
        """BR-038: the copy fails, the run stops with its newest step committed, and goes on once there is room."""
        steps = 60
        sections = z.mlp_sections(self.workspace, width=256, layers=4, steps=steps)
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        config = self.workspace.config("full", **sections)
        folder, swap = self.workspace.path / "full", self.workspace.path / "full-swap"
        swap.mkdir()
        command = [os.path.abspath(z.ZINF), "train", str(config), "--run-dir", str(folder), *sets(
            ON_NVME, "checkpoint.keep=2", "checkpoint.keep_every=2", f"memory.nvme=[{{path: {swap}, capacity: 1GiB}}]")]
        # Another program takes the space once training has begun.
        script = f"""mount -t tmpfs -o size=128m tmpfs {swap}
            (until [ -s {folder}/metrics.jsonl ]; do sleep 0.01; done; head -c 128m /dev/zero > {swap}/other) 2>/dev/null &
            "$@" 2> {folder}.first; echo $?; wait; rm {swap}/other; "$@" 2> {folder}.second; echo $?"""
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *command], capture_output=True, text=True, timeout=300)
        first, second = (pathlib.Path(f"{folder}.{part}").read_text() for part in ("first", "second"))
        codes = [line for line in done.stdout.splitlines() if line and line in "0123"]
        self.assertEqual(codes, ["1", "0"], first + second)
        self.assertRegex(first, r"keeping a copy of step \d+: not enough space in .*full-swap: needed .* bytes\), free")
        self.assertRegex(second, r"resumed after step \d+ of 60")
        self.assertEqual(z.summary(folder)["state_hash"], whole)
        self.assertEqual([line["step"] for line in z.metrics(folder)], list(range(1, steps + 1)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
