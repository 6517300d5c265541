"""bench, tune and doctor: their fields, their files, their refusals. Times decide nothing here."""
import fcntl
import json
import os
import re
import subprocess
import time
import unittest

import zinf_runner as z
from field_case import limits, without_memory_lock

QUICK = ("--file-size", "64MiB", "--seconds", "0.02")


def open_files(pid):
    links = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(entry.path))
        except FileNotFoundError:
            pass  # closed meanwhile
    return links


class DriveToolsTest(unittest.TestCase):
    def setUp(self):
        self.workspace = z.Workspace()
        self.addCleanup(self.workspace.close)
        self.swap = self.workspace.path / "swap"

    def assert_plain(self, text):
        self.assertNotIn("\x1b", text)
        self.assertNotIn("\r", text)

    def test_bench_nvme(self):
        code, out, err = z.run("bench", "nvme", self.swap, "--block-size", "512KiB", "--depth", "4", "--engine", "threads",
                               "--json", *QUICK)
        self.assertEqual(code, 0, err)
        self.assert_plain(out + err)
        row = json.loads(out)
        self.assertEqual((row["engine"], row["block_size"], row["depth"]), ("threads", 512 * 1024, 4))
        for key in ("read_gb_per_second", "write_gb_per_second", "mixed_gb_per_second", "p99_ms"):
            self.assertGreater(row[key], 0, key)
        self.assertGreaterEqual(row["cpu_seconds_per_gb"], 0)
        self.assertGreaterEqual(row["written_bytes"], 64 << 20)
        self.assertEqual(list(self.swap.iterdir()), [])
        code, out, err = z.run("bench", "nvme", self.swap, *QUICK)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"blocks of 1\.00 MiB, depth 32")
        self.assertEqual([line.split()[0] for line in out.splitlines()[2:5]], ["read", "write", "mixed"])

    def test_a_killed_measurement_leaves_nothing(self):
        """BR-012: its scratch file has no name, so that no signal has to be waited for."""
        for arguments in (("bench", "nvme", self.swap), ("tune", self.swap)):
            process = subprocess.Popen([z.ZINF, *map(str, arguments), "--file-size", "64MiB", "--seconds", "60"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                end = time.monotonic() + 60
                while not any(link.startswith(str(self.swap)) and link.endswith("(deleted)") for link in open_files(process.pid)):
                    self.assertIsNone(process.poll())
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.01)
            finally:
                process.kill()
                process.wait()
            self.assertEqual(list(self.swap.iterdir()), [])

    def test_bench_nvme_on_a_kept_file(self):
        for _ in range(2):
            code, out, err = z.run("bench", "nvme", self.swap, "--keep-file", "--traffic", "write,read", "--repetitions", "1", "--json",
                                   *QUICK)
            self.assertEqual(code, 0, err)
            row = json.loads(out)
            self.assertIsNone(row["mixed_gb_per_second"])
            self.assertGreater(row["write_gb_per_second"], 0)
            self.assertEqual([str(file) for file in self.swap.iterdir()], [row["file"]])

    def test_bench_nvme_refuses(self):
        code, _, err = z.run("bench", "nvme", self.swap / "absent", *QUICK)
        self.assertEqual(code, 2)
        self.assertIn("absent", err)
        code, _, err = z.run("bench", "nvme", self.swap, "--engine", "posix", *QUICK)
        self.assertEqual(code, 2)
        self.assertIn("io_uring", err)
        code, _, err = z.run("bench", "nvme", self.swap, "--block-size", "1MBit", *QUICK)
        self.assertEqual(code, 2)
        self.assertIn("--block-size: expected a size", err)
        code, _, err = z.run("bench", "nvme", self.swap, "--file-size", "100TB")
        self.assertEqual(code, 3)
        self.assertEqual(z.run("bench")[0], 2)

    def test_bench_optimizer(self):
        code, out, err = z.run("bench", "optimizer", "--elements", "65536", "--repetitions", "2", "--threads", "1", "--json")
        self.assertEqual(code, 0, err)
        rows = json.loads(out)
        for row in rows:
            for key in ("state_dtype", "master_weights", "isa", "threads", "elements", "elements_per_second", "gb_per_second",
                        "share_of_bandwidth"):
                self.assertIn(key, row)
            self.assertEqual((row["threads"], row["elements"]), (1, 65536))
        formats = {(row["weights"], row["state_dtype"], row["master_weights"]) for row in rows}
        self.assertEqual(len(formats), len(rows))
        for moments in ("fp32", "bf16", "int8"):
            for master in ("fp32", "split", "bf16-sr"):
                self.assertIn(("bf16", moments, master), formats)
        # Loaded and stored an element, the gradient's 4 included: fp32 AdamW 3 x 8 + 4, split and int8 moments 2 x 6.03 + 4.
        by_format = {(row["weights"], row["state_dtype"], row["master_weights"]): row["bytes_per_element"] for row in rows}
        self.assertAlmostEqual(by_format["fp32", "fp32", "fp32"], 28, places=3)
        self.assertAlmostEqual(by_format["bf16", "int8", "split"], 2 * (4 + 2 * 260 / 256) + 4, places=3)
        code, out, err = z.run("bench", "optimizer", "--elements", "65536", "--repetitions", "2")
        self.assertEqual(code, 0, err)
        self.assert_plain(out)
        code, _, err = z.run("bench", "optimizer", "--elements", str(1 << 38))
        self.assertEqual(code, 3)
        self.assertIn("--elements", err)

    def test_tune_writes_the_profile_that_train_uses(self):
        code, out, err = z.run("tune", self.swap, "--quick", "--under-load", "--json", *QUICK)
        self.assertEqual(code, 0, err)
        self.assert_plain(out + err)
        self.assertLess(err.index("this writes at most"), err.index("zinf-nvme.yaml written"))
        report = json.loads(out)[0]
        self.assertEqual(sum(row["chosen"] for row in report["rows"]), 1)
        self.assertTrue(report["under_load"])
        self.assertEqual([file.name for file in self.swap.iterdir()], ["zinf-nvme.yaml"])
        profile = (self.swap / "zinf-nvme.yaml").read_text()
        self.assertIn(f"engine: {report['chosen']['engine']}", profile)
        self.assertIn(f"depth: {report['chosen']['depth']}", profile)
        config = self.workspace.config("tuned", **z.mlp_sections(self.workspace, steps=2))
        code, out, err = z.run("plan", config)
        self.assertEqual(code, 0, err)
        code, out, err = z.run("doctor", self.swap)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, rf"profile +{report['chosen']['engine']}, blocks of")
        # A profile that can't be read is an error that names the line, not a silent default.
        (self.swap / "zinf-nvme.yaml").write_text(profile.replace("depth:", "dpeth:"))
        code, _, err = z.run("plan", config)
        self.assertEqual(code, 2)
        self.assertIn("dpeth", err)

    def test_tune_all_measures_the_machine_for_the_plan(self):
        config = self.workspace.config("machine", **z.mlp_sections(self.workspace, steps=2))
        code, out, err = z.run("tune", "--all", "--config", config, "--quick", "--json", *QUICK)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(file.name for file in self.swap.iterdir()), ["zinf-hardware.yaml", "zinf-nvme.yaml"])
        machine = json.loads(out)[-1]
        for key in ("copy_to_device_gb_per_second", "copy_from_device_gb_per_second", "host_gb_per_second", "optimizer_gb_per_second",
                    "forward_flops_per_second"):
            self.assertGreater(machine[key], 0, key)
        code, _, err = z.run("plan", config)
        self.assertEqual(code, 0, err)
        file = self.swap / "zinf-hardware.yaml"
        file.write_text(file.read_text().replace("optimizer:", "optimiser:"))
        for command in ("plan", "train"):
            code, _, err = z.run(command, config)
            self.assertEqual(code, 2)
            self.assertRegex(err, r"zinf-hardware\.yaml:\d+: unknown key optimiser")

    def test_tune_takes_the_folders_of_a_config(self):
        config = self.workspace.config("some", **z.mlp_sections(self.workspace))
        code, out, err = z.run("tune", "--config", config, "--quick", *QUICK)
        self.assertEqual(code, 0, err)
        self.assertTrue((self.swap / "zinf-nvme.yaml").exists())
        self.assertRegex(out, r"(?m)^> (io_uring|libaio|threads) ")
        self.assertRegex(out, r"fio line \(.*\): GLIBC_TUNABLES=\S+ fio --name=zinf")
        code, _, err = z.run("tune")
        self.assertEqual(code, 2)
        self.assertIn("zinf tune DIR", err)
        other = self.workspace.path / "other"
        code, _, err = z.run("tune", other, *QUICK)
        self.assertEqual(code, 2)

    def test_doctor(self):
        code, out, err = z.run("doctor", self.swap, self.workspace.path / "absent")
        self.assertEqual(code, 1)
        self.assert_plain(out)
        for name in ("zinf", "LibTorch", "features", "kernels", "cores", "memory", "locked memory", "huge pages", "io_uring",
                     "libaio", "threads", "GPU"):
            self.assertRegex(out, rf"(?m)^{name} +\S")
        self.assertRegex(out, r"O_DIRECT +(works, aligned to \d+ bytes|does not: )")
        self.assertRegex(out, r"unfit +\S.*absent")
        code, out, err = z.run("doctor", self.swap, "--json")
        self.assertEqual(code, 0, err)
        report = json.loads(out)
        self.assertEqual(report["directories"][0]["path"], str(self.swap))
        self.assertTrue(report["directories"][0]["fit"])

    def test_doctor_advises_more_locked_memory_only_where_the_limit_binds(self):
        for prepare, binds in ((limits(MEMLOCK=1 << 16), os.geteuid() != 0), (without_memory_lock(1 << 16), True)):
            code, out, err = z.run("doctor", preexec_fn=prepare)
            self.assertEqual(code, 0, err)
            self.assertRegex(out, r"(?m)^locked memory +at most 64\.0 KiB")
            if "io_uring        refused" in out:
                continue
            self.assertEqual("limit of locked memory is small" in out, binds, out)
            self.assertEqual("does not bind" in out, not binds, out)

    def test_doctor_lists_areas_and_removes_only_on_request(self):
        config = self.workspace.config("run", **z.mlp_sections(self.workspace, steps=2))
        folder = self.workspace.path / "run"
        code, _, err = z.train(config, folder, "--set", "placement={weights: nvme, optimizer: nvme}")
        self.assertEqual(code, 0, err)
        (area,) = self.swap.glob("*.zinf-area")
        code, out, err = z.run("doctor", self.swap)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, rf"area +{re.escape(area.name)}, [0-9.]+ [KMG]iB, last written .* ago, of the run in {re.escape(str(folder))}\n")
        self.assertTrue(area.exists())
        folder.rename(self.workspace.path / "aside")
        self.assertIn(f"of a run that is no longer in {folder}\n", z.run("doctor", self.swap)[1])
        code, _, err = z.run("doctor", self.swap, "--remove", "run-of-nobody")
        self.assertEqual(code, 2)
        self.assertIn(area.name, err)
        with open(area, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            code, out, _ = z.run("doctor", self.swap)
            self.assertIn(f"{area.name}, ", out)
            self.assertIn("in use now", out)
            code, _, err = z.run("doctor", self.swap, "--remove", area.name)
            self.assertEqual(code, 1)
            self.assertIn("in use", err)
        self.assertTrue(area.exists())
        code, _, err = z.run("doctor", "--remove", area.name)
        self.assertEqual(code, 2)
        code, out, err = z.run("doctor", self.swap, "--remove", area.stem)
        self.assertEqual(code, 0, err)
        self.assertFalse(area.exists())
        # Other files are not areas, whatever is asked.
        (self.swap / "notes.txt").write_text("mine")
        self.assertEqual(z.run("doctor", self.swap, "--remove", "notes.txt")[0], 2)
        self.assertTrue((self.swap / "notes.txt").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
