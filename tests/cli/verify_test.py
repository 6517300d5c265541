"""zinf verify: whole runs are whole, and every kind of damage is named."""
import json
import os
import pathlib
import shutil
import unittest

import zinf_runner as z

ON_NVME = ("--set", "placement={weights: nvme, optimizer: nvme}")
DATA_START = 1 << 20  # of an area: docs/formats has the layout


class VerifyTest(unittest.TestCase):
    def setUp(self):
        self.workspace = z.Workspace()
        self.addCleanup(self.workspace.close)

    def trained(self, name, sections=None, *arguments):
        """A finished run: its folder, its area."""
        swap = self.workspace.path / f"swap-{name}"
        swap.mkdir()
        sections = sections or z.mlp_sections(self.workspace, steps=3)
        sections["memory"]["nvme"][0]["path"] = str(swap)
        folder = self.workspace.path / name
        code, _, err = z.train(self.workspace.config(name, **sections), folder, *(arguments or ON_NVME))
        self.assertEqual(code, 0, err)
        (area,) = swap.glob("*.zinf-area")
        return folder, area

    def verify(self, folder):
        code, out, err = z.run("verify", folder, "--json")
        return code, json.loads(out) if out else None, err

    def manifest(self, folder):
        newest = max(folder.glob("manifest-*.json"), key=lambda file: int(file.stem.split("-")[1]))
        return newest, json.loads(newest.read_text().rsplit("\n", 2)[0])

    def state_offset(self, folder, piece, state):
        """Where the committed slot of a state begins in the (only) area file."""
        _, manifest = self.manifest(folder)
        offset = DATA_START
        for extent in manifest["extents"]:
            if (extent["piece"], extent["state"]) == (piece, state):
                return offset + (manifest["slot"] if extent["slots"] > 1 else 0) * extent["bytes"]
            offset += extent["bytes"] * extent["slots"]
        self.fail(f"no {piece} {state}")

    def flip(self, area, offset, data):
        with open(area, "r+b") as file:
            file.seek(offset)
            file.write(data)

    def test_whole_runs(self):
        llama = z.llama_sections(self.workspace, steps=2, bf16={"enabled": True})
        llama["optimizer"] = {**llama["optimizer"], "state_dtype": "int8"}
        for name, sections, arguments in (("fp32", None, ()), ("llama", llama, ()),
                                          ("host", None, ("--set", "placement={weights: host, optimizer: host}"))):
            folder, _ = self.trained(name, sections, *arguments)
            code, report, err = self.verify(folder)
            self.assertEqual(code, 0, err)
            self.assertTrue(report["whole"])
            self.assertTrue(report["checksums"])
            self.assertTrue(report["compared_with_summary"])
            self.assertEqual(report["state_hash"], z.summary(folder)["state_hash"])
            self.assertEqual(report["weights_hash"], z.summary(folder)["weights_hash"])
            _, manifest = self.manifest(folder)
            self.assertEqual(report["states"], len(manifest["extents"]))
        code, out, err = z.run("verify", folder)
        self.assertEqual(code, 0, err)
        self.assertIn("whole: every state was read", out)
        self.assertNotIn("\x1b", out + err)

    def test_a_run_without_checksums_is_not_called_whole(self):
        folder, _ = self.trained("unverified", None, *ON_NVME, "--set", "io.verify=false")
        code, report, err = self.verify(folder)
        self.assertEqual(code, 0, err)
        self.assertFalse(report["checksums"])
        code, out, err = z.run("verify", folder)
        self.assertEqual(code, 0, err)
        self.assertIn("no checksums: io.verify was false", out)
        self.assertNotIn("whole", out)

    def test_a_flipped_byte(self):
        folder, area = self.trained("flipped")
        _, manifest = self.manifest(folder)
        piece = manifest["extents"][0]["piece"]
        offset = self.state_offset(folder, piece, "exp_avg")
        with open(area, "rb") as file:
            file.seek(offset + 4)
            byte = file.read(1)[0]
        self.flip(area, offset + 4, bytes([byte ^ 1]))
        code, report, err = self.verify(folder)
        self.assertEqual(code, 1)
        self.assertRegex(err, rf"{piece}: exp_avg: page 0 .*{area.name} at offset {offset}")
        self.assertFalse(report["whole"])
        self.assertEqual(len(report["problems"]), 1)

    def test_a_value_that_is_not_finite(self):
        folder, area = self.trained("nan")
        _, manifest = self.manifest(folder)
        piece = manifest["extents"][0]["piece"]
        self.flip(area, self.state_offset(folder, piece, "weight") + 4 * 7, b"\x00\x00\xc0\x7f")
        code, report, err = self.verify(folder)
        self.assertEqual(code, 1)
        self.assertRegex(err, rf"{piece}: weight: 1 of \d+ values are not finite, the first is element 7|page")

    def test_a_truncated_area(self):
        """BR-037: by one byte, and by half."""
        folder, area = self.trained("short")
        size = area.stat().st_size
        for less in (size - 1, size // 2):
            os.truncate(area, less)
            code, _, err = self.verify(folder)
            self.assertEqual(code, 1)
            self.assertIn(str(area), err)
            self.assertIn(f"its size is {less} bytes, expected {size}", err)

    def test_a_missing_area(self):
        folder, area = self.trained("gone")
        area.unlink()
        code, _, err = self.verify(folder)
        self.assertNotEqual(code, 0)
        self.assertIn(str(area), err)

    def test_areas_of_two_runs_swapped(self):
        one, first = self.trained("one")
        other, second = self.trained("other", z.mlp_sections(self.workspace, steps=3, train={"steps": 3, "seed": 7}))
        aside = pathlib.Path(str(first) + ".aside")
        shutil.move(first, aside)
        shutil.move(second, first)
        shutil.move(aside, second)
        for folder in (one, other):
            code, _, err = self.verify(folder)
            self.assertEqual(code, 1)
            self.assertRegex(err, r"is damaged|state_hash|another run")

    def test_a_damaged_header(self):
        folder, area = self.trained("header")
        self.flip(area, 40, b"\xff\xff")
        code, _, err = self.verify(folder)
        self.assertEqual(code, 1)
        self.assertIn(str(area), err)

    def test_a_damaged_manifest(self):
        folder, _ = self.trained("manifest")
        newest, _ = self.manifest(folder)
        text = newest.read_text()
        newest.write_text(text.replace('"step"', '"stop"', 1))
        code, _, err = self.verify(folder)
        self.assertNotEqual(code, 0)
        self.assertRegex(err, rf"{newest.name}.*damaged")
        newest.write_text(text[:len(text) // 2])
        code, _, err = self.verify(folder)
        self.assertNotEqual(code, 0)
        self.assertRegex(err, rf"{newest.name}.*(torn|damaged)")

    def test_a_manifest_of_another_run(self):
        one, _ = self.trained("mine")
        other, _ = self.trained("theirs")
        newest, _ = self.manifest(other)
        shutil.copy(newest, one / newest.name)
        code, _, err = self.verify(one)
        self.assertEqual(code, 1)
        self.assertIn("belongs to another run", err)

    def test_resume_names_the_same_damage(self):
        """Truncated, deleted, swapped, another version, another model, another run's manifest: each by name, nothing written."""
        folder, area = self.trained("resumed")
        other, other_area = self.trained("elsewhere", z.mlp_sections(self.workspace, steps=3, train={"steps": 3, "seed": 7}))
        newest, _ = self.manifest(folder)
        manifests = {file: file.read_bytes() for file in folder.glob("manifest-*.json")}
        bytes_before = area.read_bytes()

        def refused(*expected, code=1, more=()):
            found, _, err = z.train(self.workspace.path / "resumed.yaml", folder, "--steps", "5", *ON_NVME, *more)
            self.assertEqual(found, code, err)
            errors = [line for line in err.splitlines() if " error " in line]
            self.assertEqual(len(errors), 1, err)
            for text in expected:
                self.assertRegex(err, text)

        os.truncate(area, area.stat().st_size // 2)
        refused(area.name, r"its size is \d+ bytes, expected \d+")
        area.unlink()
        refused(f"{area.name} is missing")
        shutil.copy(other_area, area)
        refused(rf"{area.name} belongs to another run, in {other}")
        with open(area, "r+b") as file:  # without the mark of its owner
            file.seek(4096)
            file.write(bytes(4096))
        refused(rf"page \d+ of extent \d+, .*{area.name}.* is damaged")
        area.write_bytes(bytes_before)

        def with_format(version):
            for file, data in manifests.items():
                file.write_bytes(data.replace(b'"format": 1', b'"format": ' + version))
        with_format(b"2")  # the checksum no longer holds either; the unit tests have the version alone
        refused("no commit in", newest.name)
        for file, data in manifests.items():
            file.write_bytes(data)
        refused(r"model \(sizes, names, frozen tensors\)", code=2, more=("--set", "model.layers=4"))
        theirs, _ = self.manifest(other)
        newest.write_bytes(theirs.read_bytes())
        refused("the run's state area is", code=2)
        newest.write_bytes(manifests[newest])
        code, _, err = z.train(self.workspace.path / "resumed.yaml", folder, "--steps", "5", *ON_NVME)
        self.assertEqual(code, 0, err)

    def test_no_run(self):
        code, _, err = self.verify(self.workspace.path / "absent")
        self.assertEqual(code, 2)
        self.assertIn("absent", err)
        code, _, err = self.verify(self.workspace.path / "swap")
        self.assertEqual(code, 2)
        self.assertIn("no whole commit", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
