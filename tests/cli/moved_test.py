"""Run folders that were moved or copied: a moved one goes on, and two never share a swap area."""
import os
import re
import shutil
import signal
import unittest

import zinf_runner as z
from field_case import ENDLESS, ON_HOST, ON_NVME, sets
from resume_test import ResumeCase

KEEP = ("checkpoint.keep=2", "checkpoint.keep_every=2")


class MovedCase(ResumeCase):
    def setUp(self):
        super().setUp()
        self.sections = z.mlp_sections(self.workspace, steps=6)

    def half(self, name, *arguments):
        """A config of six steps and the folder of its run after four."""
        config, folder = self.begun(name, self.sections)
        self.goes_on(config, folder, "--steps", "4", *arguments)
        return config, folder

    def whole(self, *arguments):
        self.trained(self.sections, *arguments)
        return self.figures(self.folder)

    def areas(self, drive=None):
        return sorted(file.name for file in (drive or self.workspace.path / "swap").glob("*.zinf-area"))

    def refused_here(self, config, folder, *expected, code=2):
        found, _, err = z.train(config, folder, *sets(ON_NVME))
        self.assertEqual(found, code, err)
        for text in (*expected, "two run folders never share an area"):
            self.assertIn(str(text), err)


class Moved(MovedCase):
    def test_it_goes_on(self):
        """With the area on a drive, and with it in the run folder itself; it can be read before."""
        settings = {"drive": sets(ON_NVME, *KEEP), "folder": sets(ON_HOST, "checkpoint.every=1", *KEEP)}
        for name, arguments in settings.items():
            with self.subTest(name):
                if name == "folder":
                    del self.sections["memory"]["nvme"]
                whole = self.whole(*arguments)
                config, folder = self.half(f"before-{name}", *arguments)
                area = re.search(r'"area": "(run-\w+)"', (folder / "manifest-4.json").read_text())[1]
                moved = self.workspace.path / "elsewhere" / name
                moved.parent.mkdir(exist_ok=True)
                shutil.move(folder, moved)
                for step in ((), ("--step", "2")):
                    code, _, err = z.run("verify", moved, *step)
                    self.assertEqual(code, 0, err)
                code, out, err = z.run("inspect", moved)
                self.assertEqual(code, 0, err)
                self.assertRegex(out, r"kept step 2  [0-9.]+ [KM]iB")
                err = self.goes_on(config, moved, *arguments)
                self.assertIn("was moved from", err)
                self.assertIn("resumed after step 4", err)
                self.assertEqual(self.figures(moved), whole)
                self.assertIn(area, (moved / "manifest-6.json").read_text())
                # And back: the mark goes with it.
                shutil.move(moved, folder)
                self.assertIn("was moved from", self.goes_on(config, folder, "--steps", "7", *arguments))
                self.assertNotIn("was moved from", self.goes_on(config, folder, "--steps", "8", *arguments))

    def test_a_new_run_in_its_old_place_leaves_its_area_alone(self):
        whole = self.whole(*sets(ON_NVME))
        config, folder = self.half("place", *sets(ON_NVME))
        (area,) = (name for name in self.areas() if name.removesuffix(".zinf-area") in (folder / "manifest-4.json").read_text())
        moved = self.workspace.path / "moved"
        shutil.move(folder, moved)
        err = self.goes_on(config, folder, *sets(ON_NVME))
        self.assertRegex(err, rf"{area} \(.*\) is of an earlier run in .*unless that run was moved elsewhere: zinf doctor")
        self.assertEqual(self.figures(folder), whole)
        self.goes_on(config, moved, *sets(ON_NVME))
        self.assertEqual(self.figures(moved), whole)

    def test_with_its_drive(self):
        """Folder and area copied to other places, where both go on, each with its own."""
        whole = self.whole(*sets(ON_NVME))
        config, folder = self.half("first", *sets(ON_NVME, *KEEP))
        other, drive = self.workspace.path / "other", self.workspace.path / "other-swap"
        shutil.copytree(folder, other)
        shutil.copytree(self.workspace.path / "swap", drive)
        self.assertIn("resumed after step 4", self.goes_on(config, other, *sets(ON_NVME, *KEEP, f"memory.nvme=[{{path: {drive}}}]")))
        self.assertIn("resumed after step 4", self.goes_on(config, folder, *sets(ON_NVME, *KEEP)))
        for one in (other, folder):
            self.assertEqual(self.figures(one), whole)
            code, _, err = z.run("verify", one)
            self.assertEqual(code, 0, err)


class Copied(MovedCase):
    def test_it_is_refused_while_the_first_trains(self):
        config, process = self.started(z.mlp_sections(self.workspace, steps=ENDLESS), *sets(ON_NVME))
        copy = self.workspace.path / "copy"
        # Held still while it is copied, or a manifest that was listed is gone before it is read.
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        shutil.copytree(self.folder, copy)
        process.send_signal(signal.SIGCONT)
        self.refused_here(config, copy, copy, "is a copy of", self.folder)
        code, _, err = z.run("export", copy, self.workspace.path / "exported")
        self.assertEqual(code, 2, err)
        self.assertIn("is a copy of", err)
        self.assertIsNone(process.poll())
        code, err = z.stop(process)
        self.assertEqual(code, 143, err)
        steps = [line["step"] for line in z.metrics(self.folder)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_fresh_in_a_copy_takes_nothing_from_the_first(self):
        whole = self.whole(*sets(ON_NVME))
        config, folder = self.half("first", *sets(ON_NVME, *KEEP))
        before = self.areas()
        copy = self.workspace.path / "copy"
        shutil.copytree(folder, copy)
        self.refused_here(config, copy, "is a copy of")
        self.goes_on(config, copy, "--fresh", "--yes", *sets(ON_NVME))
        self.assertEqual(self.figures(copy), whole)
        self.assertEqual(set(before) - set(self.areas()), set())
        code, _, err = z.run("verify", folder, "--step", "2")
        self.assertEqual(code, 0, err)
        self.assertIn("resumed after step 4", self.goes_on(config, folder, *sets(ON_NVME, *KEEP)))
        self.assertEqual(self.figures(folder), whole)

    def test_the_first_to_go_on_has_the_area(self):
        """Where the folder that was copied is gone; whether the second has its file `area` or has lost it."""
        config, folder = self.half("gone", *sets(ON_NVME))
        one, two = self.workspace.path / "one", self.workspace.path / "two"
        shutil.copytree(folder, one)
        shutil.move(folder, two)
        self.goes_on(config, one, "--steps", "5", *sets(ON_NVME))
        self.refused_here(config, two, "belongs to another run", one, code=1)
        (two / "area").unlink()
        self.refused_here(config, two, "belongs to another run", one, code=1)
        self.assertIn("resumed after step 5", self.goes_on(config, one, *sets(ON_NVME)))
        # A lost file is made again where nobody else claims the area.
        (one / "area").unlink()
        self.goes_on(config, one, "--steps", "7", *sets(ON_NVME))
        self.assertTrue((one / "area").exists())

    def test_a_damaged_file_is_named(self):
        config, folder = self.half("damaged", *sets(ON_NVME))
        text = (folder / "area").read_text()
        for damage in (text[:20], text.replace('"format": 1', '"format": 2'), text.replace('"owners": [\n  "', '"owners": [\n  "x')):
            (folder / "area").write_text(damage)
            code, _, err = z.train(config, folder, *sets(ON_NVME))
            self.assertEqual(code, 1, err)
            self.assertRegex(err, rf"{folder}/area can't be read: .*(expected|parse error)")
        (folder / "area").write_text(text)
        self.goes_on(config, folder, *sets(ON_NVME))


if __name__ == "__main__":
    unittest.main(verbosity=2)
