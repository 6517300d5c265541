"""Memory, end to end: predictions against measured peaks, what NVMe saves, a run inside a memory cgroup, kill -9.

Sizes come from ZINF_MEMORY_TEST: small (the default) takes seconds, long takes the shapes of the field cases.
"""
import json
import math
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import field_case
import zinf_runner as z
from field_case import ON_HOST, ON_NVME, sets

LONG = os.environ.get("ZINF_MEMORY_TEST") == "long"
MIB = 1 << 20
# With transformers.
PYTHON = pathlib.Path(os.environ.get("ZINF_TEST_PYTHON", pathlib.Path(__file__).resolve().parents[2] / ".venv-test/bin/python"))
CGROUPS = pathlib.Path("/sys/fs/cgroup")


class Cgroup:
    """A memory cgroup of its own, of whichever version is mounted, with a limit; the process that joins it stays in it."""

    def __init__(self, limit, root=CGROUPS):
        version_1 = (root / "memory/memory.limit_in_bytes").exists()
        self.path = root / ("memory" if version_1 else ".") / f"zinf-test-{os.getpid()}"
        if not version_1:
            self.share_memory(root)
        self.path.mkdir()
        try:
            if version_1:
                (self.path / "memory.limit_in_bytes").write_text(str(limit))
            else:
                (self.path / "memory.max").write_text(str(limit))
                swap = self.path / "memory.swap.max"  # what goes to swap would not count; absent where there is none
                if swap.exists():
                    swap.write_text("0")
        except OSError:
            self.close()
            raise

    @staticmethod
    def share_memory(root):
        """Version 2: the children of a group have the controllers that it passes on."""
        passed_on = root / "cgroup.subtree_control"
        if "memory" not in passed_on.read_text().split():
            passed_on.write_text("+memory")

    def join(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        self.path.rmdir()


def why_no_cgroup(root=CGROUPS):
    version_2 = root / "cgroup.controllers"
    if not (root / "memory/memory.limit_in_bytes").exists() and not (version_2.exists() and "memory" in version_2.read_text().split()):
        return "no memory controller of cgroup version 1 or 2 is mounted here"
    try:
        Cgroup(64 * MIB, root).close()
    except OSError as error:
        return f"no memory cgroup can be made here: {error}"
    return ""


def gpt2_folder(workspace, **changes):
    shape = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_embd": 1024, "n_layer": 24,
             "n_head": 16, "n_positions": 1024, "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
             "initializer_range": 0.02, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": True}
    shape.update(changes)
    folder = workspace.path / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text(z.json.dumps(shape))
    return folder


class Peaks(field_case.RunCase):
    def sections(self, width, layers):
        sections = z.mlp_sections(self.workspace, width=width, layers=layers, steps=4, gradient_accumulation_steps=1)
        sections["memory"].update(device="1GiB" if LONG else "256MiB", host="8GiB",
                                  nvme=[{"path": str(self.workspace.path / "swap"), "capacity": "8GiB"}])
        return sections

    def test_predicted_host_peak_and_exact_disk_bytes(self):
        """BR-053: the host peak within 20 % of the measured one and never below it; disk bytes exact."""
        for width, layers in ((1024, 6), (2048, 6)) if LONG else ((512, 6),):
            for place in (ON_HOST, ON_NVME):
                for recompute in ("true", "false"):
                    summary = self.trained(self.sections(width, layers), *sets(place, f"step.recompute={recompute}"))
                    host, nvme = summary["peak_bytes"]["host"], summary["peak_bytes"]["nvme"]
                    self.assertLessEqual(host["measured"], host["predicted"])
                    self.assertLess(host["predicted"], 1.2 * host["measured"], f"{width} x {layers}, {place}: {host}")
                    self.assertEqual(nvme["measured"], nvme["predicted"])
                    area = sum(file.stat().st_size for file in (self.workspace.path / "swap").iterdir())
                    # Gradients and activations lie in a scratch area, which is gone when the run has ended.
                    states = nvme["measured"] - (4 * summary["parameters"] if place == ON_NVME else 0)
                    self.assertLess(abs(area - states), 0.05 * states + 4 * MIB)
                    for file in (self.workspace.path / "swap").iterdir():
                        file.unlink()

    def test_nvme_saves_what_it_holds(self):
        """BR-055: the states on NVMe take at least 10 of their 12 bytes a parameter from resident memory."""
        sections = self.sections(*((1448, 6) if LONG else (768, 6)))
        states = "placement={{weights: host, optimizer: {0}, gradients: device}}"
        peaks = {tier: self.trained(sections, *sets(states.format(tier))) for tier in ("host", "nvme")}
        saved = peaks["host"]["peak_bytes"]["process"]["measured"] - peaks["nvme"]["peak_bytes"]["process"]["measured"]
        moved = 8 * peaks["host"]["parameters"]  # moments; in fp32 the weight is the master
        self.assertEqual(peaks["host"]["state_hash"], peaks["nvme"]["state_hash"])
        self.assertGreater(saved, 0.8 * moved - 64 * MIB if not LONG else 0.8 * moved)

    def test_what_is_reported_was_measured(self):
        """Peaks and the bottleneck are the run's own: the plan's stand beside them."""
        summary = self.trained(z.llama_sections(self.workspace, steps=8), *sets(ON_NVME))
        device = summary["peak_bytes"]["device"]
        self.assertGreater(device["measured"], 0)
        self.assertLessEqual(device["measured"], device["predicted"])
        self.assertIn(summary["bottleneck"]["predicted"], summary["lanes"])
        busy = {name: lane["busy_share"] for name, lane in summary["lanes"].items()}
        self.assertEqual(summary["bottleneck"]["measured"], max(busy, key=busy.get))
        for lane, share in busy.items():
            self.assertLessEqual(share, 1, lane)
        lines = z.metrics(self.folder)
        for line in lines:
            self.assertEqual(line["bottleneck"], max(line["lane_busy"], key=line["lane_busy"].get))
            for lane, share in line["lane_busy"].items():
                self.assertGreaterEqual(share, 0, lane)
                self.assertLessEqual(share, 1, lane)
        peaks = [line["peak_bytes"]["device"] for line in lines]
        self.assertEqual(peaks, sorted(peaks))
        self.assertEqual(peaks[-1], device["measured"])


class Cgroups(unittest.TestCase):
    """The helper itself, on folders that look like either version's: only one of them is mounted here."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)

    def test_version_2_passes_the_controller_on(self):
        (self.root / "cgroup.controllers").write_text("cpu io memory\n")
        (self.root / "cgroup.subtree_control").write_text("cpu\n")
        cgroup = Cgroup(64 * MIB, self.root)
        self.assertEqual((self.root / "cgroup.subtree_control").read_text(), "+memory")
        self.assertEqual((cgroup.path / "memory.max").read_text(), str(64 * MIB))
        self.assertEqual(cgroup.path.parent, self.root)

    def test_version_1_has_a_folder_of_its_own(self):
        (self.root / "memory").mkdir()
        (self.root / "memory/memory.limit_in_bytes").write_text("9223372036854771712")
        cgroup = Cgroup(64 * MIB, self.root)
        self.assertEqual((cgroup.path / "memory.limit_in_bytes").read_text(), str(64 * MIB))
        self.assertEqual(cgroup.path.parent, self.root / "memory")

    def test_a_machine_without_either_is_said(self):
        (self.root / "cgroup.controllers").write_text("hugetlb\n")
        self.assertIn("no memory controller", why_no_cgroup(self.root))


class Caps(field_case.RunCase):
    def test_a_model_larger_than_its_memory(self):
        """A GPT-2 trains under a memory cgroup that holds a fraction of its state; the peak stays within the plan."""
        why = why_no_cgroup()
        if why:
            self.skipTest(why)
        if LONG:
            folder, limit, host = gpt2_folder(self.workspace), 1434 * MIB, "1300MiB"
        else:
            folder, limit, host = gpt2_folder(self.workspace, vocab_size=16384, n_embd=512, n_layer=12, n_head=8), 600 * MIB, "560MiB"
        sections = z.llama_sections(self.workspace, steps=2, folder=folder)
        sections.update({"data": {"format": "random", "samples": 64, "seq_len": 128}, "train_micro_batch_size_per_gpu": 1,
                         "gradient_accumulation_steps": 1, "bf16": {"enabled": LONG}})
        sections["memory"] = {"host": host, "nvme": [{"path": str(self.workspace.path / "swap"), "capacity": "16GiB"}]}
        cgroup = Cgroup(limit)
        try:
            summary = self.trained(sections, *sets("placement={optimizer: nvme, weights: nvme, gradients: nvme}",
                                                   f"memory.device={'500MiB' if LONG else '200MiB'}"),
                                   preexec_fn=cgroup.join, timeout=3000)
        finally:
            cgroup.close()
        state = 16 * summary["parameters"]
        self.assertGreater(state, limit, "the model would fit: the cap tests nothing")
        process = summary["peak_bytes"]["process"]
        self.assertLessEqual(process["measured"], process["predicted"])
        self.assertLessEqual(process["predicted"], limit)


class Start(field_case.RunCase):
    """What is measured before the plan exists keeps the budgets too."""

    def test_a_table_that_no_plan_has_in_memory(self):
        folder = z.llama_folder(self.workspace, vocab_size=65536, hidden_size=512, intermediate_size=64, num_hidden_layers=1,
                                num_attention_heads=4, num_key_value_heads=4)
        sections = z.llama_sections(self.workspace, steps=1, folder=folder, gradient_accumulation_steps=1)
        sections["memory"].update(device="48MiB", host="330MiB")
        summary = self.trained(sections, *sets(ON_NVME))
        self.assertIn("table in slices", self.log)
        self.assertGreater(12 * summary["parameters"], 330 * MIB, "weights and gradients of the table would fit")
        self.assertLessEqual(summary["peak_bytes"]["process"]["measured"], 330 * MIB)

    def test_a_host_budget_that_the_machine_does_not_have(self):
        """What is planned inside it would be killed by the system half way: refused before anything is allocated."""
        there = int(re.search(r"MemTotal: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text())[1]) << 10
        layers, bytes_a_parameter = 64, 16
        width = math.isqrt(2 * there // (bytes_a_parameter * layers * 8))
        sections = z.mlp_sections(self.workspace, width=width, layers=layers, steps=1)
        sections["memory"] = {"device": there, "host": 4 * there}
        text = self.refused(3, sections, *sets(ON_HOST))
        self.assertRegex(text, r"the run keeps up to .* in memory, as memory\.host allows; this machine, or this process's cgroup, has ")
        self.assertRegex(text, r"hint: --set memory\.host=\d+MiB")

    def test_what_does_not_fit_is_refused_before_it_is_there(self):
        sections = z.mlp_sections(self.workspace, width=4096, layers=2, steps=1)
        sections["memory"].update(device="64MiB", host="512MiB")
        config = self.workspace.config("large", **sections)
        resident = peak("train", config, "--run-dir", self.workspace.path / "large", code=3)
        self.assertLess(resident, 512 * MIB)


def peak(*arguments, code=0):
    """Peak resident bytes of a zinf command."""
    script = ("import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
              "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    done = subprocess.run([sys.executable, "-c", script, z.ZINF, *map(str, arguments)], capture_output=True, text=True, check=True)
    found, kilobytes = map(int, done.stdout.split())
    assert found == code, done.stderr
    return kilobytes << 10


class Exports(field_case.RunCase):
    def test_export_takes_memory_for_one_piece_of_the_work(self):
        """BR-041: what an export keeps in memory does not grow with the model."""
        peaks, weights = {}, {}
        for layers in (1, 24 if LONG else 8):
            folder = z.llama_folder(self.workspace, name=f"llama{layers}", hidden_size=512, intermediate_size=2048,
                                    num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=8)
            sections = z.llama_sections(self.workspace, steps=1, folder=folder)
            sections["memory"]["nvme"][0]["capacity"] = "4GiB"
            self.trained(sections, *sets(ON_NVME, "export.at_end=false"))
            to = self.workspace.path / f"exported{layers}"
            peaks[layers] = peak("export", self.folder, to, "--dtype", "fp32")
            weights[layers] = sum(file.stat().st_size for file in to.glob("*.safetensors"))
        small, large = peaks
        self.assertGreater(weights[large] - weights[small], 100 * MIB)
        self.assertLess(peaks[large] - peaks[small], 24 * MIB)

    @unittest.skipUnless(PYTHON.exists(), f"no Python with transformers: {PYTHON} (ZINF_TEST_PYTHON)")
    def test_a_model_four_times_its_memory(self):
        """BR-041, BR-033: exported inside a memory cgroup of a quarter of its weights; transformers loads it, with the run's loss."""
        why = why_no_cgroup()
        if why:
            self.skipTest(why)
        limit, length = 80 * MIB, 16  # LibTorch alone takes most of the limit
        folder = z.llama_folder(self.workspace, vocab_size=20480, hidden_size=1024, intermediate_size=2816, num_hidden_layers=5,
                                num_attention_heads=16, num_key_value_heads=16)
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack(f"<{8 * length}H", *(1 + 37 * i * i % 16000 for i in range(8 * length))))
        sections = z.llama_sections(self.workspace, steps=1, folder=folder, train_micro_batch_size_per_gpu=4,
                                    gradient_accumulation_steps=2)
        # All rows are one step's batch, in whatever order.
        sections["data"] = {"train": str(tokens), "format": "tokens", "seq_len": length, "token_width": 16}
        sections["memory"].update(device="512MiB", host="4GiB", nvme=[{"path": str(self.workspace.path / "swap"), "capacity": "8GiB"}])
        self.trained(sections, *sets(ON_NVME, "export.at_end=false"))
        to = self.workspace.path / "exported"
        cgroup = Cgroup(limit)
        try:
            code, _, err = z.run("export", self.folder, to, "--dtype", "fp32", preexec_fn=cgroup.join)
        finally:
            cgroup.close()
        self.assertEqual(code, 0, err)
        self.assertGreaterEqual(sum(file.stat().st_size for file in to.glob("*.safetensors")), 4 * limit)
        code, out, err = z.run("verify", self.folder, "--loss", "--json")
        self.assertEqual(code, 0, err)
        done = subprocess.run([str(PYTHON), str(pathlib.Path(__file__).with_name("exported_loss.py")), str(to), str(tokens), str(length)],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertAlmostEqual(float(done.stdout) / json.loads(out)["loss_of_next_batch"], 1, delta=2e-6)


class Kills(field_case.RunCase):
    def test_kill_in_the_middle_goes_on_from_the_last_commit(self):
        """kill -9 on a run with everything on NVMe: the same command goes on, to the same bits."""
        sections = z.mlp_sections(self.workspace, width=128, steps=60)
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        config, folder = self.workspace.config("killed", **sections), self.workspace.path / "killed"
        process = z.start(config, folder, *sets(ON_NVME))
        z.wait_for_step(folder, 5, process)
        code, _ = z.stop(process, signal.SIGKILL)
        if code != 0:  # it may have finished first
            self.assertEqual(code, -signal.SIGKILL)
            code, _, err = z.train(config, folder, *sets(ON_NVME))
            self.assertEqual(code, 0, err)
            self.assertIn("resumed after step", err)
        self.assertEqual(z.summary(folder)["state_hash"], whole)
        self.assertEqual([line["step"] for line in z.metrics(folder)], list(range(1, 61)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
