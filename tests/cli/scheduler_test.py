"""The scripts for schedulers in docs/checkpoints.md do what they say: the one for Slurm is run, the others are read."""
import json
import os
import pathlib
import re
import signal
import subprocess
import unittest

import field_case
import zinf_runner as z
from field_case import ENDLESS, ON_NVME

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"


def block(title):
    """The indented text below a heading of the document."""
    section = DOCUMENT.read_text().split(f"### {title}\n")[1].split("\n### ")[0]
    lines = section.splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("    "))
    return "\n".join(line[4:] for line in lines[:last + 1]) + "\n"


class Slurm(field_case.RunCase):
    def batch(self):
        """The script as a job, in a folder with run.yaml, zinf and a scontrol that writes down what it is told."""
        script = self.workspace.path / "job.sh"
        script.write_text(block("Slurm"))
        tools = self.workspace.path / "tools"
        tools.mkdir(exist_ok=True)
        for name, text in (("zinf", f'exec "{pathlib.Path(z.ZINF).resolve()}" "$@"'), ("scontrol", f'echo "$@" >> {self.workspace.path}/told')):
            (tools / name).write_text(f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)
        return subprocess.Popen(["bash", str(script)], cwd=self.workspace.path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                                env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"})

    def told(self):
        file = self.workspace.path / "told"
        return file.read_text() if file.exists() else ""

    def test_it_is_requeued_at_its_time_limit_and_goes_on(self):
        sections = z.mlp_sections(self.workspace, steps=ENDLESS, output_dir=str(self.workspace.path / "run"))
        sections["placement"] = json.loads(re.sub(r"(\w+)", r'"\1"', ON_NVME.removeprefix("placement=")))
        self.workspace.config("run", **sections)
        run = self.workspace.path / "run"
        made = 0
        for turn in (1, 2):
            with self.batch() as job:
                self.addCleanup(job.kill)
                self.assertTrue(z.wait_for_step(run, made + 3, job), "the job ended early")
                job.send_signal(signal.SIGUSR1)
                log = job.stderr.read()
                self.assertEqual(job.wait(timeout=60), 138, log)
            status = json.loads((run / "status.json").read_text())
            self.assertEqual((status["state"], status["exit_code"]), ("interrupted", 138))
            self.assertEqual(status["step"], status["last_commit"])
            self.assertEqual(self.told(), "requeue 7\n" * turn)
            if turn == 2:
                self.assertIn(f"resumed after step {made}", log)
            made = status["step"]
            self.assertEqual(len(z.metrics(run)), made)
        sections["train"]["steps"] = made + 2
        self.workspace.config("run", **sections)
        for line in (f"resumed after step {made}", "this run is finished"):
            with self.batch() as job:
                log = job.stderr.read()
                self.assertEqual(job.wait(timeout=60), 0, log)
            self.assertIn(line, log)
        self.assertEqual(self.told(), "requeue 7\n" * 2)


class Times(unittest.TestCase):
    def test_they_are_longer_than_the_grace_time(self):
        grace = int(re.search(r"`checkpoint.grace` \| [^|]* \| (\d+)s \|", (DOCUMENT.parent / "config.md").read_text())[1])
        for title, pattern in (("systemd", r"TimeoutStopSec=(\d+)"), ("Slurm", r"--signal=B:USR1@(\d+)"),
                               ("Kubernetes", r"terminationGracePeriodSeconds: (\d+)")):
            self.assertGreater(int(re.search(pattern, block(title))[1]), grace, title)

    def test_usage_errors_are_not_repeated(self):
        self.assertIn("RestartPreventExitStatus=2 3\n", block("systemd"))
        self.assertIn("values: [2, 3]", block("Kubernetes"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
