"""--fresh drops a run only when nothing can refuse the new one; who trains in a folder holds it; stops before the first step."""
import json
import os
import pty
import signal
import subprocess
import unittest

import field_case
import zinf_runner as z
from field_case import ENDLESS, ON_NVME, sets

KEEP = ("checkpoint.every=1", "checkpoint.keep=2", "checkpoint.keep_every=2")


class Fresh(field_case.RunCase):
    def contents(self):
        """All that the run left, but its log."""
        return {str(file.relative_to(self.folder)): file.read_bytes() for file in sorted(self.folder.rglob("*"))
                if file.is_file() and file.name != "zinf.log"}

    def test_a_refused_run_drops_nothing(self):
        sections = z.mlp_sections(self.workspace, steps=5)
        self.trained(sections, *sets(ON_NVME, *KEEP))
        before = self.contents()
        self.assertIn("metrics.jsonl", before)
        config = self.workspace.config("again", **sections)
        for code, setting in ((3, ("memory.device=1MiB", "model.width=1024")), (2, ("data.samples=0",)), (2, ("data.path=/nothing",))):
            found, _, err = z.train(config, self.folder, "--fresh", "--yes", *sets(ON_NVME, *KEEP, *setting))
            self.assertEqual(found, code, err)
            self.assertEqual(self.contents(), before, setting)
        found, _, err = z.train(config, self.folder, "--fresh", *sets(ON_NVME, "train.steps=3"))
        self.assertEqual(found, 0, err)
        self.assertIn(f"--fresh drops the run in {self.folder}: step 5 and 1 kept checkpoints", err)
        self.assertEqual(z.summary(self.folder)["steps"], 3)
        self.assertEqual(list(self.folder.glob("kept-*")), [])

    def test_a_second_process_is_refused_and_the_first_goes_on(self):
        config, process = self.started(z.mlp_sections(self.workspace, steps=ENDLESS), *sets(ON_NVME))
        for arguments in (("--fresh", "--yes"), ()):
            code, _, err = z.train(config, self.folder, *arguments, "--set", "train.seed=7")
            self.assertEqual(code, 1, err)
            self.assertIn("is in use by another process", err)
        self.assertNotIn("seed: 7", (self.folder / "config.yaml").read_text())
        process.send_signal(signal.SIGUSR1)
        _, text = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGUSR1, text)
        steps = [line["step"] for line in z.metrics(self.folder)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_it_asks_on_a_terminal(self):
        sections = z.mlp_sections(self.workspace, steps=5)
        self.trained(sections, *sets(ON_NVME, *KEEP))
        config = self.workspace.config("again", **sections)
        for torn in (False, True):  # kept checkpoints alone are worth a question
            if torn:
                for manifest in self.folder.glob("manifest-*.json"):
                    manifest.write_text("{}")
            before = self.contents()
            code, text = self.answered("n\n", config, *sets(ON_NVME, *KEEP))
            self.assertEqual(code, 2, text)
            self.assertIn("Go on? [y/N]", text)
            self.assertIn("kept checkpoints", text)
            self.assertEqual(self.contents(), before)
        code, text = self.answered("y\n", config, *sets(ON_NVME, "train.steps=2"))
        self.assertEqual(code, 0, text)
        self.assertEqual(z.summary(self.folder)["steps"], 2)

    def answered(self, answer, config, *arguments):
        """Exit code and text of `zinf train --fresh` in a terminal."""
        master, slave = pty.openpty()
        command = [z.ZINF, "train", str(config), "--run-dir", str(self.folder), "--fresh", *map(str, arguments)]
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        os.write(master, answer.encode())
        text = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
        os.close(master)
        return process.wait(timeout=60), text.decode(errors="replace")


class Length(field_case.RunCase):
    def test_a_run_does_not_become_shorter(self):
        config, process = self.started(z.mlp_sections(self.workspace, steps=ENDLESS), *sets(ON_NVME))
        z.stop(process)
        made, before = len(z.metrics(self.folder)), (self.folder / "summary.json").read_bytes()
        code, _, err = z.train(config, self.folder, "--steps", "2", *sets(ON_NVME))
        self.assertEqual(code, 2, err)
        self.assertIn(f"expected at least the {made} steps that the run has made, found 2", err)
        self.assertEqual((self.folder / "summary.json").read_bytes(), before)


class Finished(field_case.RunCase):
    def test_it_says_what_it_was_made_with(self):
        """Who changed a setting and starts a finished run again is told that the change trains nothing."""
        config = self.workspace.config("finished", **z.mlp_sections(self.workspace, steps=2))
        self.folder = self.workspace.path / "finished"
        for arguments, lines in (((), []), ((), []), (("optimizer.params.lr=2e-3", "io.depth=8"), ["optimizer.params.lr: 0.001 -> 0.002"])):
            code, _, err = z.train(config, self.folder, *sets(ON_NVME, *arguments))
            self.assertEqual(code, 0, err)
            said = [line.split("another setting: ")[1] for line in err.splitlines() if "it was made with another setting" in line]
            self.assertEqual(said, lines, err)
        self.assertIn("this run is finished (step 2)", err)


class EarlyStop(field_case.RunCase):
    def test_a_signal_during_the_start_is_heard(self):
        """No step is made, whatever the grace time; the same command goes on."""
        sections = z.mlp_sections(self.workspace, width=512, layers=8, steps=2)
        config = self.workspace.config("early", **sections)
        self.folder = self.workspace.path / "early"
        command = [z.ZINF, "train", str(config), "--run-dir", str(self.folder), *sets(ON_NVME, "checkpoint.grace=600")]
        with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            process.stderr.readline()  # the handlers are there before anything is said
            process.send_signal(signal.SIGTERM)
            text = process.stderr.read()
            self.assertEqual(process.wait(timeout=120), 128 + signal.SIGTERM, text)
        self.assertIn("before a step was made", text)
        metrics = self.folder / "metrics.jsonl"
        self.assertFalse(metrics.exists() and metrics.read_text(), text)
        status = self.folder / "status.json"
        if status.exists():  # once the area is the run's own
            self.assertEqual(json.loads(status.read_text())["exit_code"], 128 + signal.SIGTERM)
        code, _, err = z.train(config, self.folder, *sets(ON_NVME))
        self.assertEqual(code, 0, err)
        self.assertEqual(z.summary(self.folder)["steps"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
