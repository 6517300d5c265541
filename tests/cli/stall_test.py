"""train.stall_timeout: data that never come end the run with the lane named; the last commit is whole."""
import json
import os
import pathlib
import struct
import unittest

import field_case
import zinf_runner as z
from field_case import ON_NVME, sets

HANG_AT = pathlib.Path(z.ZINF).resolve().parent / "tests" / "cli" / "libhang_at.so"


class Stalls(field_case.RunCase):
    def test_a_read_that_never_returns(self):
        """The data's file system hangs in the middle of the run; once it answers, the same command goes on."""
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack("<512H", *(17 * i % 1000 for i in range(512))))
        sections = z.llama_sections(self.workspace, train={"steps": 12, "stall_timeout": "4s"})
        sections["data"] = {"train": str(tokens), "format": "tokens", "seq_len": 8, "token_width": 16}
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        environment = {**os.environ, "LD_PRELOAD": str(HANG_AT), "ZINF_HANG_FILE": str(tokens), "ZINF_HANG_AT": "40"}
        config, folder = self.workspace.config("hung", **sections), self.workspace.path / "hung"
        code, _, err = z.train(config, folder, *sets(ON_NVME), env=environment)
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
