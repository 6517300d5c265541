"""zinf::Engine, through the example program: in memory and out of core it is one computation."""
import os
import pathlib
import subprocess
import unittest

import zinf_runner as z

EXAMPLE = os.environ.get("ZINF_EXAMPLE", "build/tools/engine_example")
SOURCE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "examples" / "engine_example.cc"


class EngineTest(unittest.TestCase):
    def test_out_of_core_equals_in_memory(self):
        workspace = z.Workspace()
        self.addCleanup(workspace.close)
        outputs = []
        for arguments in (["6"], ["6", str(workspace.path / "swap")]):
            done = subprocess.run([EXAMPLE, *arguments], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            outputs.append(done.stdout)
        self.assertEqual(outputs[0], outputs[1])
        first, last = (float(line.split()[-1]) for line in outputs[0].splitlines())
        self.assertLess(last, first)
        self.assertEqual(list((workspace.path / "swap").iterdir()), [], "the engine leaves no swap area")

    def test_the_example_is_short(self):
        self.assertLess(len(SOURCE.read_text().splitlines()), 60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
