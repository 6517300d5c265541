"""tools/kill_test sees a run that starts over, that goes back, and that loses a commit."""
import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "kill_test"
loader = importlib.machinery.SourceFileLoader("kill_test", str(TOOL))
kill_test = importlib.util.module_from_spec(importlib.util.spec_from_loader("kill_test", loader))
loader.exec_module(kill_test)

KILLED = -9
STEP = "10:00:00 step 1/9 | loss 1.0 | 5 ms\n"


class CheckStart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_folder = pathlib.Path(folder.name)

    def check(self, committed, now, code, err, back=None):
        """Of a process that found the commit of a step (-1: none) and left the newest one of another; None: no complaint."""
        for file in self.run_folder.iterdir():
            file.unlink()
        if now >= 0:
            (self.run_folder / f"manifest-{now}.json").touch()
        try:
            kill_test.check_start(self.run_folder, committed, code, err, back)
        except SystemExit as found:
            return str(found)
        return None

    def test_what_is_right(self):
        resumed = "info resumed after step 5 of 9\n"
        for committed, now, code, err in ((-1, -1, KILLED, ""), (-1, 3, KILLED, STEP), (-1, 9, 0, STEP), (5, 5, KILLED, ""), (5, 5, KILLED, resumed),
                                          (5, 7, KILLED, resumed + STEP), (4, 9, 0, resumed + STEP), (9, 9, 0, "this run is finished")):
            self.assertIsNone(self.check(committed, now, code, err))

    def test_a_start_over(self):
        for code, now in ((KILLED, 5), (KILLED, 7), (0, 9)):
            self.assertIn("started over, but step 5", self.check(5, now, code, STEP))
        self.assertIn("started over", self.check(5, 9, 0, ""))

    def test_a_commit_that_is_gone(self):
        for now in (-1, 0, 4):
            self.assertIn("but step 5 was committed", self.check(5, now, KILLED, ""))
        self.assertIn("resumed after step 4, but step 5", self.check(5, 5, KILLED, "resumed after step 4 of 9"))


    def test_going_back(self):
        resumed = "info resumed after step 4 of 9\n"
        for now, code, err in ((8, KILLED, ""), (4, KILLED, resumed), (6, KILLED, resumed + STEP), (9, 0, resumed + STEP)):
            self.assertIsNone(self.check(8, now, code, err, back=4))
        self.assertIn("resumed after step 8, not from step 4", self.check(8, 8, KILLED, "resumed after step 8 of 9", back=4))
        self.assertIn("but step 4 was committed", self.check(8, 3, KILLED, "", back=4))


if __name__ == "__main__":
    unittest.main(verbosity=2)
