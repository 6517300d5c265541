"""Runs in which something hangs: train.stall_timeout ends them with the lane named, a signal after checkpoint.grace; the last
commit is whole."""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import time
import unittest

import field_case
import zinf_runner as z
from field_case import ON_HOST, ON_NVME, sets

HANG_AT = pathlib.Path(z.ZINF).resolve().parent / "tests" / "cli" / "libhang_at.so"


def hanging(file, at):
    """The environment of a program whose reads and syncs of this file hang, from the at-th on."""
    return {**os.environ, "LD_PRELOAD": str(HANG_AT), "ZINF_HANG_FILE": str(file), "ZINF_HANG_AT": str(at)}


class Stalls(field_case.RunCase):
    def test_a_read_that_never_returns(self):
        """The data's file system hangs in the middle of the run; once it answers, the same command goes on."""
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack("<512H", *(17 * i % 1000 for i in range(512))))
        sections = z.llama_sections(self.workspace, train={"steps": 12, "stall_timeout": "4s"})
        sections["data"] = {"train": str(tokens), "format": "tokens", "seq_len": 8, "token_width": 16}
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        config, folder = self.workspace.config("hung", **sections), self.workspace.path / "hung"
        code, _, err = z.train(config, folder, *sets(ON_NVME), env=hanging(tokens, 40))
        self.assertEqual(code, 1, err)
        self.assertRegex(err, rf"the data lane hangs: reading {tokens} has been under way for \d+ s, longer than train.stall_timeout "
                              r"\(4 s\); the last commit, step \d+, is whole")
        status = json.loads((folder / "status.json").read_text())
        self.assertEqual((status["state"], status["exit_code"]), ("failed", 1))
        self.assertIn("the data lane hangs", status["message"])
        self.assertTrue(0 < status["last_commit"] < 12, status)
        code, _, err = z.train(config, folder, *sets(ON_NVME))
        self.assertEqual(code, 0, err)
        self.assertIn(f"resumed after step {status['last_commit']} of 12", err)
        self.assertEqual(z.summary(folder)["state_hash"], whole)

    def test_a_run_folder_that_never_answers(self):
        """The sync of a manifest hangs: in the program, where each step is committed, and by hand, where states are in memory."""
        sections = z.mlp_sections(self.workspace, train={"steps": 6, "stall_timeout": "5s"})
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        for name, place, lane, before in (("program", ON_NVME, "(commit|files)", 3), ("hand", ON_HOST, "files", 2)):
            config, folder = self.workspace.config(name, **sections), self.workspace.path / name
            settings = sets(place, f"checkpoint.every={4 - before}")
            code, _, err = z.train(config, folder, *settings, env=hanging(folder / "manifest-4.json.tmp", 1))
            self.assertEqual(code, 1, err)
            self.assertRegex(err, rf"the {lane} lane hangs: .*, longer than train.stall_timeout \(5 s\); the last commit, step {before}, is whole")
            status = json.loads((folder / "status.json").read_text())
            self.assertEqual((status["state"], status["exit_code"], status["last_commit"]), ("failed", 1, before))
            code, _, err = z.train(config, folder, *settings)
            self.assertEqual(code, 0, err)
            self.assertIn(f"resumed after step {before} of 6", err)
            self.assertEqual(z.summary(folder)["state_hash"], whole)

    def test_a_tokenizer_that_says_nothing(self):
        text = self.workspace.path / "text.txt"
        text.write_text("once upon a time\n")
        tool = self.workspace.path / "python"
        tool.write_text(f"#!/bin/sh\necho $$ > {self.workspace.path}/pid\nexec sleep 600\n")
        tool.chmod(0o755)
        sections = z.llama_sections(self.workspace, train={"steps": 2, "stall_timeout": "1s"})
        sections["data"] = {"train": str(text), "seq_len": 8}
        text = self.refused(1, sections, *sets(ON_NVME), env={**os.environ, "ZINF_PYTHON": str(tool)})
        self.assertRegex(text, r"the data lane hangs: preparing .*text.txt: the tool has said nothing for \d+ s, longer than train.stall_timeout")
        status = json.loads((self.folder / "status.json").read_text())
        self.assertEqual((status["state"], status["exit_code"], status["last_commit"]), ("failed", 1, None))
        self.assertIn("the data lane hangs", status["message"])
        child = int((self.workspace.path / "pid").read_text())
        self.assertFalse(pathlib.Path(f"/proc/{child}").exists())


class Grace(field_case.RunCase):
    def test_a_step_that_does_not_end(self):
        """A read that hangs: after checkpoint.grace, or at a second signal, the process is gone; the last commit is whole."""
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack("<512H", *(17 * i % 1000 for i in range(512))))
        sections = z.llama_sections(self.workspace, steps=12)
        sections["data"] = {"train": str(tokens), "format": "tokens", "seq_len": 8, "token_width": 16}
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        said = pathlib.Path(f"{tokens}.hangs")
        for number, grace, signals, why in ((signal.SIGUSR1, "1s", 1, "the step did not end within the grace time"),
                                            (signal.SIGINT, "10m", 2, "the second signal")):
            config, folder = self.workspace.config(f"hung{number}", **sections), self.workspace.path / f"hung{number}"
            command = [z.ZINF, "train", str(config), "--run-dir", str(folder), *sets(ON_NVME, f"checkpoint.grace={grace}")]
            with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=hanging(tokens, 40)) as process:
                self.addCleanup(process.kill)
                while not said.exists():
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
                said.unlink()
                for _ in range(signals):
                    process.send_signal(number)
                    time.sleep(0.2)  # two that wait at once are one
                err = process.stderr.read()
                self.assertEqual(process.wait(timeout=120), 128 + number, err)
            (step,) = re.findall(rf"zinf: stopped by {signal.Signals(number).name}, {why}: the last commit is step (\d+)\n", err)
            self.assertTrue(0 < int(step) < 12, err)
            status = json.loads((folder / "status.json").read_text())
            if signals == 1:
                self.assertEqual((status["state"], status["exit_code"], status["last_commit"]), ("interrupted", 128 + number, int(step)))
            code, _, err = z.train(config, folder, *sets(ON_NVME))
            self.assertEqual(code, 0, err)
            (resumed,) = re.findall(r"resumed after step (\d+) of 12", err)
            self.assertGreaterEqual(int(resumed), int(step))
            self.assertEqual(z.summary(folder)["state_hash"], whole)

    def test_an_evaluation_that_takes_too_long(self):
        """It is given up in time for the commit: states in memory, and the commit before is far back."""
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack("<1000000H", *(17 * i % 1000 for i in range(1000000))))
        sections = z.llama_sections(self.workspace, steps=6, eval={"every": 3})
        sections["data"] = {"train": str(tokens), "eval": str(tokens), "format": "tokens", "seq_len": 8, "token_width": 16}
        sections["train_micro_batch_size_per_gpu"] = 1
        config, folder = self.workspace.config("long", **sections), self.workspace.path / "long"
        process = z.start(config, folder, *sets(ON_HOST, "checkpoint.grace=20s"))
        self.addCleanup(process.kill)
        status = {"state": ""}
        while status["state"] != "evaluating":
            self.assertIsNone(process.poll())
            time.sleep(0.05)
            if (folder / "status.json").exists():
                status = json.loads((folder / "status.json").read_text())
        code, err = z.stop(process)
        self.assertEqual(code, 128 + signal.SIGTERM, err)
        self.assertIn("the evaluation of step 3 is given up: a stop was asked for", err)
        self.assertIn("stopped by SIGTERM after step 3; the state is committed", err)
        self.assertIsNone(z.metrics(folder)[-1].get("eval_loss"))
        sections["eval"]["steps"] = 1
        code, _, err = z.train(self.workspace.config("long", **sections), folder, *sets(ON_HOST))
        self.assertEqual(code, 0, err)
        self.assertIn("resumed after step 3 of 6", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
