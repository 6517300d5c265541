"""Going on with the state in another layout: on other drives, on more or fewer of them, with another number of slots."""
import copy
import json
import os
import pathlib
import shutil
import signal
import time
import unittest

import zinf_runner as z
from field_case import ON_HOST, ON_NVME, sets
from resume_test import DIE_AT, ResumeCase
from swap_test import STOP_AT

KEEP = ("checkpoint.keep=3", "checkpoint.keep_every=2")


class RelocationCase(ResumeCase):
    def setUp(self):
        super().setUp()
        self.sections = z.mlp_sections(self.workspace, steps=12)
        for name in "abc":
            (self.workspace.path / name).mkdir()

    def on(self, folder, *drives, slots=2):
        """The config of the run in this folder with its state on these drives; none: in the folder."""
        sections = copy.deepcopy(self.sections)
        sections["memory"]["nvme"] = [{"path": str(self.workspace.path / drive), "capacity": "1GiB"} for drive in drives]
        if not drives:
            del sections["memory"]["nvme"]
        sections["checkpoint"] = {"slots": slots}
        return self.workspace.config(f"{folder.name}-{''.join(drives)}-{slots}", **sections)

    def areas(self, folder):
        """Names of the areas by place."""
        places = {name: self.workspace.path / name for name in "abc"} | {"": folder}
        return {name: sorted(file.stem for file in place.glob("*.zinf-area")) for name, place in places.items()}

    def only_on(self, folder, *drives):
        """One area, on these drives, and the file `area` speaks of no other."""
        found = self.areas(folder)
        names = {name for there in found.values() for name in there}
        self.assertEqual(len(names), 1, found)
        self.assertEqual(sorted(place for place, there in found.items() if there), sorted(drives or [""]))
        note = json.loads((folder / "area").read_text())
        self.assertNotIn("move", note)
        self.assertEqual({note["area"]}, names)

    def dropped(self, folder):
        shutil.rmtree(folder)
        for name in "abc":
            for file in (self.workspace.path / name).iterdir():
                file.unlink()

    def whole(self, *arguments):
        self.trained(self.sections, *arguments)
        return self.figures(self.folder)

    def verified(self, folder, *arguments):
        code, out, err = z.run("verify", folder, "--json", *arguments)
        self.assertEqual(code, 0, err)
        return json.loads(out)


class Relocated(RelocationCase):
    def test_other_drives_and_slots(self):
        """Each part of the run elsewhere; every commit on the way can be read; one area is left."""
        for number, formats in enumerate(((), ("bf16.enabled=true", "optimizer.state_dtype=int8"))):
            whole = self.whole(*sets(ON_NVME, *formats))
            folder = self.workspace.path / f"run-{number}"
            settings = sets(ON_NVME, *formats)
            parts = ((("a",), 2), (("a", "b"), 2), (("c",), 2), (("c",), 1), (("b", "c", "a"), 2), ((), 2), (("b",), 1))
            for part, (drives, slots) in enumerate(parts):
                with self.subTest(formats=formats, drives=drives, slots=slots):
                    steps = str(12 if part == len(parts) - 1 else part + 1)
                    place = settings if drives else sets(ON_HOST, *formats)
                    err = self.goes_on(self.on(folder, *drives, slots=slots), folder, "--steps", steps, *place)
                    if part > 0:
                        self.assertIn(f"resumed after step {part} of {steps}", err)
                        self.assertIn("the state is copied to a new area", err)
                    self.only_on(folder, *drives)
                    self.assertEqual(self.verified(folder)["state_hash"], z.summary(folder)["state_hash"])
                    code, _, err = z.run("inspect", folder)
                    self.assertEqual(code, 0, err)
            self.assertEqual(self.figures(folder), whole)
            self.dropped(folder)

    def test_without_checksums(self):
        whole = self.whole(*sets(ON_NVME, "io.verify=false"))
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "4", *sets(ON_NVME, "io.verify=false"))
        self.goes_on(self.on(folder, "b", "c"), folder, *sets(ON_NVME))
        self.assertEqual(self.figures(folder), whole)

    def test_without_a_page_table(self):
        """io.verify: false says that it does not matter."""
        whole = self.whole(*sets(ON_NVME))
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "4", *sets(ON_NVME))
        for file in folder.glob("pages-*.bin"):
            file.unlink()
        err = self.goes_on(self.on(folder, "b"), folder, *sets(ON_NVME, "io.verify=false"))
        self.assertIn("copied without checksums", err)
        self.assertEqual(self.figures(folder), whole)

    def test_a_dry_run_says_it_and_moves_nothing(self):
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "4", *sets(ON_NVME))
        code, _, err = z.train(self.on(folder, "a", "b"), folder, "--dry-run", *sets(ON_NVME))
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"drives: \S+/a -> \S+/a \S+/b: the state is copied to a new area")
        self.only_on(folder, "a")

    def test_a_damaged_page_is_found_on_the_way(self):
        """And the run stays where it was."""
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "4", *sets(ON_NVME))
        area = next((self.workspace.path / "a").glob("*.zinf-area"))
        with open(area, "r+b") as file:
            file.seek(1 << 20)
            data = file.read()
            file.seek(1 << 20)
            file.write(bytes(byte ^ 1 for byte in data))
        code, _, err = z.train(self.on(folder, "b"), folder, *sets(ON_NVME))
        self.assertEqual(code, 1, err)
        self.assertIn("is damaged: its checksum is not that of what was written", err)
        self.assertTrue(area.exists())
        self.assertTrue((folder / "manifest-4.json").exists())


class Killed(RelocationCase):
    def test_at_every_file_operation(self):
        """(Every third.) Then the run goes on with the old layout or the new one, and leaves one area."""
        whole = self.whole(*sets(ON_NVME))
        settings = sets(ON_NVME)
        seen, ended = set(), False
        for call in range(1, 60, 3):
            folder = self.workspace.path / f"killed-{call}"
            before, after = self.on(folder, "a"), self.on(folder, "b", "c")
            self.goes_on(before, folder, "--steps", "4", *settings)
            code, _, err = z.train(after, folder, "--steps", "5", *settings, env={**os.environ, "LD_PRELOAD": str(DIE_AT), "ZINF_DIE_AT": str(call)})
            if code == 0:
                ended = True
                break
            self.assertEqual(code, -signal.SIGKILL, err)
            found = self.areas(folder)
            seen.add((bool(found["a"]), bool(found["b"])))
            config, drives = ((before, ("a",)), (after, ("b", "c")))[call % 4 > 1]
            err = self.goes_on(config, folder, *settings)
            self.assertRegex(err, "resumed after step [45] of 12")
            self.only_on(folder, *drives)
            self.assertEqual(self.figures(folder), whole)
            self.dropped(folder)
        self.assertTrue(ended)
        self.assertEqual(seen, {(True, False), (True, True), (False, True)})


    def test_before_the_old_area_is_dropped(self):
        """It stays until the new one is seen to be there."""
        whole = self.whole(*sets(ON_NVME))
        folder, away = self.workspace.path / "run", self.workspace.path / "away"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "4", *sets(ON_NVME))
        to = self.on(folder, "b")
        self.killed(to, folder, *sets(ON_NVME), ZINF_DIE_AFTER="manifest-4.json")
        found = self.areas(folder)
        self.assertEqual((len(found["a"]), bool(found["b"])), (1, True), found)
        (self.workspace.path / "b").rename(away)
        for config in (to, self.on(folder, "a")):
            self.assertNotEqual(z.train(config, folder, *sets(ON_NVME))[0], 0)
            self.assertEqual(self.areas(folder)["a"], found["a"])
        away.rename(self.workspace.path / "b")
        self.goes_on(to, folder, *sets(ON_NVME))
        self.only_on(folder, "b")
        self.assertEqual(self.figures(folder), whole)


class Begun(RelocationCase):
    def test_anew_elsewhere_and_back(self):
        """What the dropped run left on its drive is not taken for the new one's state."""
        whole = self.whole(*sets(ON_NVME))
        for slots in (2, 1):
            folder = self.workspace.path / f"run-{slots}"
            settings = sets(ON_NVME, "io.verify=false")
            self.goes_on(self.on(folder, "a", slots=slots), folder, "--steps", "6", *settings, *sets("optimizer.params.lr=0.1"))
            err = self.goes_on(self.on(folder, "b", slots=slots), folder, "--fresh", "--yes", "--steps", "4", *settings)
            self.assertRegex(err, r"the dropped run's area stays: \S+/a/run-\w+.zinf-area; .*zinf doctor \S+/a --remove run-")
            self.goes_on(self.on(folder, "a", slots=slots), folder, *settings)
            self.assertEqual(self.figures(folder), whole)
            self.dropped(folder)


class Kept(RelocationCase):
    def test_kept_checkpoints_stay_where_they_are(self):
        """They can be read and gone back to; one that is dropped goes from the drive that has it."""
        whole = self.whole(*sets(ON_NVME))
        folder = self.workspace.path / "run"
        settings = sets(ON_NVME, *KEEP)
        self.goes_on(self.on(folder, "a"), folder, "--steps", "5", *settings)
        kept = [name for name in self.areas(folder)["a"] if "-kept-" in name]
        self.assertEqual(len(kept), 2, kept)
        self.goes_on(self.on(folder, "b", "c"), folder, "--steps", "6", *settings)
        self.assertEqual(sorted(self.areas(folder)["a"]), kept)
        for step in (2, 4):
            self.assertEqual(self.verified(folder, "--step", str(step))["step"], step)
        err = self.goes_on(self.on(folder, "b", "c"), folder, "--resume-from", "4", *settings)
        self.assertIn("resumed after step 4 of 12", err)
        self.assertEqual(self.figures(folder), whole)
        self.assertEqual(self.areas(folder)["a"], [], "steps 8 and 10 took their places")

    def test_back_and_elsewhere_at_once(self):
        whole = self.whole(*sets(ON_NVME))
        folder = self.workspace.path / "run"
        settings = sets(ON_NVME, *KEEP)
        self.goes_on(self.on(folder, "a"), folder, "--steps", "6", *settings)
        err = self.goes_on(self.on(folder, "c", "b"), folder, "--resume-from", "4", *settings)
        self.assertIn("resumed after step 4 of 12", err)
        self.assertEqual(self.figures(folder), whole)
        self.assertEqual(self.areas(folder)["a"], [])

    def test_fresh_drops_them(self):
        folder = self.workspace.path / "run"
        settings = sets(ON_NVME, *KEEP)
        self.goes_on(self.on(folder, "a"), folder, "--steps", "5", *settings)
        self.goes_on(self.on(folder, "b"), folder, "--steps", "6", *settings)
        self.goes_on(self.on(folder, "b"), folder, "--fresh", "--yes", "--steps", "3", *sets(ON_NVME))
        self.only_on(folder, "b")


    def test_back_with_one_slot(self):
        """The newest commit is in the only slot: it stays whole until the kept one is elsewhere."""
        whole = self.whole(*sets(ON_NVME))
        folder = self.workspace.path / "run"
        settings = sets(ON_NVME)
        self.goes_on(self.on(folder, "a"), folder, "--steps", "6", *settings, *sets(*KEEP))
        one = self.on(folder, "a", slots=1)
        self.goes_on(one, folder, "--steps", "7", *settings)
        self.killed(one, folder, "--resume-from", "4", *settings, ZINF_DIE_AFTER="area")
        self.assertEqual(self.verified(folder)["step"], 7)
        err = self.goes_on(one, folder, "--resume-from", "4", *settings)
        self.assertIn("resumed after step 4 of 12", err)
        self.assertEqual(self.figures(folder), whole)

    def test_after_the_folder_was_moved(self):
        """The area and the kept ones lie in the run folder itself, in two layouts."""
        whole = self.whole(*sets(ON_NVME))
        folder, moved = self.workspace.path / "run", self.workspace.path / "moved"
        settings = sets(ON_HOST, "checkpoint.every=1", "checkpoint.keep=2", "checkpoint.keep_every=2")
        self.goes_on(self.on(folder), folder, "--steps", "3", *settings)
        shutil.move(folder, moved)
        self.goes_on(self.on(moved, slots=1), moved, "--steps", "4", *sets(ON_HOST))
        self.assertEqual(self.verified(moved, "--step", "2")["step"], 2)
        err = self.goes_on(self.on(moved), moved, "--resume-from", "2", *settings)
        self.assertIn("resumed after step 2 of 12", err)
        self.assertEqual(self.figures(moved), whole)
        self.assertEqual(len(self.areas(moved)[""]), 2, "its own and one kept")

    def test_doctor_knows_them(self):
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "5", *sets(ON_NVME, *KEEP))
        self.goes_on(self.on(folder, "b"), folder, "--steps", "6", *sets(ON_NVME, *KEEP))
        code, out, err = z.run("doctor", self.workspace.path / "a")
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count(f"of the run in {folder}"), 2, out)
        self.assertNotIn("no longer", out)


class Copied(RelocationCase):
    """A copy of a run folder is not that run: what the first one has is never taken or dropped."""

    def half(self, *drives):
        folder = self.workspace.path / "first"
        place = ON_NVME if drives else ON_HOST
        self.goes_on(self.on(folder, *drives), folder, "--steps", "5", *sets(place, "checkpoint.every=1", *KEEP))
        return folder

    def test_to_another_drive(self):
        first, second = self.half("a"), self.workspace.path / "second"
        shutil.copytree(first, second)
        before = self.areas(first)
        code, _, err = z.train(self.on(second, "b"), second, *sets(ON_NVME))
        self.assertEqual(code, 2, err)
        self.assertIn("is a copy of", err)
        self.assertEqual(self.areas(first), before)
        (second / "area").unlink()  # nor without what it knows of its area
        code, _, err = z.train(self.on(second, "b"), second, *sets(ON_NVME))
        self.assertEqual(code, 1, err)
        self.assertIn("belongs to another run", err)
        self.assertEqual(self.areas(first), before)

    def test_with_the_state_in_it(self):
        whole = self.whole(*sets(ON_NVME))
        first, second = self.half(), self.workspace.path / "second"
        shutil.copytree(first, second)
        before = self.areas(first)[""]
        self.goes_on(self.on(second, "b"), second, *sets(ON_NVME, *KEEP))
        self.assertEqual(self.figures(second), whole)
        self.assertEqual(self.areas(first)[""], before)
        self.goes_on(self.on(first), first, *sets(ON_HOST))
        self.assertEqual(self.figures(first), whole)

    def test_with_its_drive_too(self):
        """Kept checkpoints of the first stay when those of the second are dropped."""
        first, second = self.half("a"), self.workspace.path / "second"
        shutil.copytree(first, second)
        for file in (self.workspace.path / "a").iterdir():
            shutil.copy(file, self.workspace.path / "b")
        before = self.areas(first)["a"]
        self.goes_on(self.on(second, "b"), second, *sets(ON_NVME, *KEEP))
        self.assertEqual(self.areas(first)["a"], before)
        for step in (2, 4):
            self.assertEqual(self.verified(first, "--step", str(step))["step"], step)

    def test_of_a_run_that_has_gone_elsewhere(self):
        """Made before; what the first has kept since then lies where the copy would look."""
        first, second = self.half("a"), self.workspace.path / "second"
        shutil.copytree(first, second)
        self.goes_on(self.on(first, "a"), first, "--steps", "7", *sets(ON_NVME, *KEEP))
        self.goes_on(self.on(first, "b"), first, "--steps", "8", *sets(ON_NVME, "checkpoint.keep=3", "checkpoint.keep_every=100"))
        before = self.areas(first)
        self.assertEqual(len(before["a"]), 2, before)
        code, _, err = z.train(self.on(second, "a"), second, "--resume-from", "4", *sets(ON_NVME, *KEEP))
        self.assertEqual(code, 2, err)
        self.assertIn("is a copy of", err)
        self.assertEqual(self.areas(first), before)


class Changed(RelocationCase):
    def test_the_commit_keeps_its_config(self):
        """Killed once it is copied: a change that was allowed then is none before a step is made with it."""
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "4", *sets(ON_NVME))
        to = self.on(folder, "b")
        other = sets(ON_NVME, "optimizer.params.lr=0.01")
        self.killed(to, folder, "--allow", *other, ZINF_DIE_AFTER="manifest-4.json")
        code, _, err = z.train(to, folder, *other)
        self.assertEqual(code, 2, err)
        self.assertIn("optimizer.params.lr: 0.001 -> 0.01", err)
        self.goes_on(to, folder, "--steps", "5", *sets(ON_NVME))
        self.only_on(folder, "b")

    def test_a_signal_while_it_is_copied(self):
        whole = self.whole(*sets(ON_NVME))
        for slots in (2, 1):
            folder = self.workspace.path / f"run-{slots}"
            self.goes_on(self.on(folder, "a", slots=slots), folder, "--steps", "4", *sets(ON_NVME))
            to = self.on(folder, "b", slots=slots)
            env = {**os.environ, "LD_PRELOAD": str(STOP_AT), "ZINF_STOP_AT": "/area"}
            process = z.start(to, folder, *sets(ON_NVME), env=env)
            while process.poll() is None and "T (stopped)" not in pathlib.Path(f"/proc/{process.pid}/status").read_text():
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 143, err)
            self.assertIn("before a step was made; the same command goes on from here", err)
            self.assertEqual(self.verified(folder)["step"], 4)
            self.goes_on(to, folder, *sets(ON_NVME))
            self.only_on(folder, "b")
            self.assertEqual(self.figures(folder), whole)
            self.dropped(folder)


class Refused(RelocationCase):
    def test_where_the_old_drive_is_missing(self):
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a", "b"), folder, "--steps", "4", *sets(ON_NVME))
        for file in (self.workspace.path / "b").iterdir():
            file.rename(self.workspace.path / "away")
        code, _, err = z.train(self.on(folder, "c"), folder, *sets(ON_NVME))
        self.assertEqual(code, 2, err)
        self.assertRegex(err, r"the run's state area is \S+/a \S+/b run-\w+, this one's is \S+/c run-\w+")
        self.assertEqual(self.areas(folder)["c"], [])

    def test_another_runs_commit(self):
        """Its state is whole, on its own drive, and not copied here."""
        other = self.workspace.path / "other"
        self.goes_on(self.on(other, "b"), other, "--steps", "4", *sets(ON_NVME))
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "3", *sets(ON_NVME))
        for file in ("manifest-4.json", "pages-4.bin"):
            shutil.copy(other / file, folder / file)
        code, _, err = z.train(self.on(folder, "c"), folder, *sets(ON_NVME))
        self.assertEqual(code, 2, err)
        self.assertIn("the run's state area is", err)
        self.assertEqual(self.areas(folder)["c"], [])

    def test_without_space(self):
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "4", *sets(ON_NVME))
        sections = copy.deepcopy(self.sections)
        sections["memory"]["nvme"] = [{"path": str(self.workspace.path / "b"), "capacity": "100KiB"}]
        code, _, err = z.train(self.workspace.config("small", **sections), folder, *sets(ON_NVME))
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"NVMe needs .* given 100 KiB")
        self.only_on(folder, "a")
        self.goes_on(self.on(folder, "a"), folder, "--steps", "5", *sets(ON_NVME))

    def test_where_the_newest_commit_is_not_whole(self):
        folder = self.workspace.path / "run"
        self.goes_on(self.on(folder, "a"), folder, "--steps", "4", *sets(ON_NVME))
        (folder / "pages-4.bin").unlink()
        code, _, err = z.train(self.on(folder, "b"), folder, *sets(ON_NVME))
        self.assertEqual(code, 2, err)
        self.assertIn("go on with the run's own drives and slots once", err)
        self.only_on(folder, "a")


if __name__ == "__main__":
    unittest.main()
