"""Reading a run that goes on training: exact for one committed step, and the run is none the worse."""
import json
import signal
import unittest

import field_case
import zinf_runner as z
from field_case import ENDLESS, ON_HOST, ON_NVME, sets


class Running(field_case.RunCase):
    def read_while_training(self, place, *more):
        sections = z.llama_sections(self.workspace, steps=ENDLESS)
        config, process = self.started(sections, *sets(place), *more)
        exports = {}
        for name in ("first", "second"):
            code, out, err = z.run("export", self.folder, self.workspace.path / name, "--dtype", "fp32")
            self.assertEqual(code, 0, err)
            exports[name] = int(out.split()[1])
        code, out, err = z.run("verify", self.folder, "--json")
        self.assertEqual(code, 0, err)
        verified = json.loads(out)
        self.assertIsNone(process.poll())
        seen = len(z.metrics(self.folder))
        self.assertTrue(z.wait_for_step(self.folder, seen + 3, process), "the run does not go on")
        code, log = z.stop(process)
        self.assertEqual(code, 128 + signal.SIGTERM, log)
        self.assertIn("a command reads the state", log)
        self.assertIn("the state has been read: commits go on", log)
        # What was read is the state of its step, to the bit.
        sections["train"]["steps"] = ENDLESS
        for name, step in {**exports, "verified": verified["step"]}.items():
            whole = self.trained(sections, "--steps", str(step), *sets(ON_HOST))
            if name == "verified":
                self.assertEqual(verified["state_hash"], whole["state_hash"])
            else:
                self.assertEqual(field_case.tensors_of(self.exported("--dtype", "fp32")),
                                 field_case.tensors_of(self.workspace.path / name), f"step {step}")

    def test_with_a_commit_each_step(self):
        self.read_while_training(ON_NVME)

    def test_with_rare_commits(self):
        """The newest commit is held at once, however long the next one takes."""
        self.read_while_training(ON_HOST, "--set", "checkpoint.every=2")

    def test_inspect(self):
        _, process = self.started(z.mlp_sections(self.workspace, steps=ENDLESS), *sets(ON_NVME))
        code, out, err = z.run("inspect", self.folder)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"(?m)^step \d+ of 100000$")
        self.assertRegex(out, rf"^state (training|saving), step \d+ of 100000, process {process.pid}\b")
        code, log = z.stop(process)
        self.assertEqual(code, 128 + signal.SIGTERM, log)

    def test_a_killed_run_is_said_to_be_so(self):
        """status.json keeps its last word; inspect looks whether the process is there."""
        _, process = self.started(z.mlp_sections(self.workspace, steps=ENDLESS), *sets(ON_NVME))
        process.kill()
        process.communicate()
        status = json.loads((self.folder / "status.json").read_text())
        self.assertIsNone(status["exit_code"])
        code, out, err = z.run("inspect", self.folder)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, rf"^state killed: no process holds the folder; the last word of process {process.pid} was {status['state']}, step {status['step']} ")
        (self.folder / "status.json").write_text("{")
        code, out, err = z.run("inspect", self.folder)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^state unknown: .*status.json: .*\nstep \d+ of 100000\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
