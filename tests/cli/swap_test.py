"""Field cases of the NVMe swap area, end to end: odd sizes, full disks, blocked io_uring, bad directories."""
import errno
import json
import os
import pathlib
import re
import unittest

import field_case
import zinf_runner as z
from field_case import ON_HOST, ON_NVME, deny_system_calls, limits, run_mounted, sets, without_memory_lock

KIB, MIB = 1 << 10, 1 << 20
IO_URING_SETUP = 425
STOP_AT = pathlib.Path(z.ZINF).resolve().parent / "tests" / "cli" / "libstop_at.so"
LIBAIO_SETUP = {"x86_64": 206, "aarch64": 0}.get(os.uname().machine)


class OddSizes(field_case.RunCase):
    def test_a_vector_that_ends_in_a_partial_sector(self):
        """BR-001: a bf16 table of 1,573,088 elements (3 MiB + 448 bytes) and blocks of 1 MiB."""
        folder = z.llama_folder(self.workspace, vocab_size=98318, hidden_size=16, intermediate_size=17,
                                num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
        sections = z.llama_sections(self.workspace, steps=3, folder=folder, bf16={"enabled": True})
        on_nvme = self.trained(sections, *sets(ON_NVME, "io.block_size=1MiB"))
        in_memory = self.trained(sections, *sets(ON_HOST))
        self.assertEqual(on_nvme["state_hash"], in_memory["state_hash"])
        self.assertEqual(on_nvme["parameters"], in_memory["parameters"])

    def test_vectors_of_one_element_up_to_just_above_the_quantum(self):
        """BR-001, BR-022: an mlp of width 1 has biases of 1 and 4 elements; 255 to 257 surround the quantum."""
        for width in (1, 2, 255, 256, 257):
            sections = z.mlp_sections(self.workspace, width=width, layers=2, steps=3)
            hashes = {place: self.trained(sections, *sets(place))["state_hash"] for place in (ON_NVME, ON_HOST)}
            self.one_hash(hashes, f"width {width}")

    def test_four_hundred_small_tensors_in_short_file_names(self):
        """BR-014: the number of tensors does not lengthen a file name."""
        sections = z.mlp_sections(self.workspace, width=4, layers=100, steps=2)
        on_nvme = self.trained(sections, *sets(ON_NVME))
        names = [path.name for path in self.workspace.path.rglob("*")]
        self.assertLess(max(map(len, names)), 100)
        self.assertEqual(on_nvme["state_hash"], self.trained(sections, *sets(ON_HOST))["state_hash"])


class BlocksAndDepths(field_case.RunCase):
    def test_block_size_depth_and_engine_change_no_bit(self):
        """BR-003, BR-017, BR-030: from one request of 4 KiB at a time to blocks larger than any tensor."""
        sections = z.mlp_sections(self.workspace, width=67, layers=3, steps=4)
        hashes = {}
        for depth, block in ((1, "4KiB"), (2, "1MiB"), (128, "1MiB"), (128, "64MiB"), (3, "12KiB"), (4096, "256KiB")):
            for engine in ("io_uring", "threads"):
                name = f"depth {depth}, block {block}, {engine}"
                hashes[name] = self.trained(sections, *sets(
                    ON_NVME, f"io.depth={depth}", f"io.block_size={block}", f"io.engine={engine}"))["state_hash"]
        hashes["in memory"] = self.trained(sections, *sets(ON_HOST))["state_hash"]
        self.one_hash(hashes)

    def test_impossible_sizes_are_refused_with_key_value_and_bound(self):
        """BR-004: before the model is opened (its folder does not exist)."""
        sections = z.mlp_sections(self.workspace)
        sections["model"] = {"path": str(self.workspace.path / "absent")}
        for key, value, bound in (("io.block_size", "0", "4KiB"), ("io.block_size", "1000B", "4KiB"),
                                  ("io.depth", "0", "1"), ("io.depth", "70000", "4096"), ("step.group", "0", "1"),
                                  ("checkpoint.slots", "3", "2"), ("memory.device", "100000B", "1MiB")):
            text = self.refused(2, sections, *sets(f"{key}={value}"))
            self.assertIn(key, text)
            self.assertIn(value, text)
            self.assertRegex(text, bound)
            self.assertNotIn("absent", text)

    def test_other_engines_buffer_sizes_decide_nothing(self):
        """BR-004: a table of 262,144 elements with buffers smaller than it, one buffer, none: it trains, and the keys are named."""
        folder = z.llama_folder(self.workspace, vocab_size=4096, hidden_size=64)
        sections = z.llama_sections(self.workspace, steps=2, folder=folder)
        hashes = {"without": self.trained(sections, *sets(ON_NVME))["state_hash"]}
        for size, count in ((100000, 5), (100000, 1), (0, 5), (100000, 0)):
            offload = {"device": "nvme", "buffer_size": size, "buffer_count": count}
            sections["zero_optimization"] = {"stage": 3, "offload_param": offload, "offload_optimizer": offload}
            hashes[f"{count} of {size}"] = self.trained(sections, *sets(ON_NVME))["state_hash"]
            (said,) = [line for line in self.log.splitlines() if "buffer_size" in line]
            for section in ("offload_param", "offload_optimizer"):
                self.assertIn(f"{section}.{{buffer_size, buffer_count}}", said)
        self.one_hash(hashes)

    def test_a_table_larger_than_the_device_is_sliced_or_refused_with_numbers(self):
        """BR-004: 262,144 elements against 1 MiB (weight, gradient and states do not fit at once)."""
        folder = z.llama_folder(self.workspace, vocab_size=4096, hidden_size=64)
        sections = z.llama_sections(self.workspace, steps=2, folder=folder)
        code, _, err = self.run_train(sections, *sets("memory.device=1MiB", ON_NVME))
        if code == 0:
            return
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"device needs .*\(\d+ bytes\), given 1.00 MiB")
        change = err.split("the smallest change that fits: --set ")[1].split()[0].rstrip(",")
        code, _, err = z.train(self.workspace.path / "run1.yaml", self.folder, *sets(ON_NVME, change))
        self.assertEqual(code, 0, err)


class FullDisks(field_case.RunCase):
    """BR-002, BR-038: one message with path, bytes needed and bytes free; the last commit stays."""

    def assert_one_error(self, err, path):
        errors = [line for line in err.splitlines() if " error " in line]
        self.assertEqual(len(errors), 1, err)
        self.assertIn(str(path), errors[0])

    def test_file_size_limit(self):
        """Three 1 MiB writes would pass under the limit of 3 MiB + 4 KiB; the area needs more."""
        sections = z.mlp_sections(self.workspace, width=256, layers=4, steps=3)
        code, _, err = self.run_train(sections, *sets(ON_NVME), preexec_fn=limits(FSIZE=3 * MIB + 4 * KIB))
        self.assertIn(code, (1, 3), err)
        self.assert_one_error(err, self.workspace.path / "swap")
        self.assertRegex(err, r"file[- ]size limit|EFBIG|File too large|RLIMIT_FSIZE")
        self.assertEqual(list((self.workspace.path / "swap").iterdir()), [])

    def test_the_limit_leaves_the_last_commit_intact(self):
        sections = z.mlp_sections(self.workspace, width=64, layers=3, steps=6)
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        self.trained(sections, "--steps", "3", *sets(ON_NVME))
        config = self.workspace.path / "run2.yaml"
        code, _, err = z.train(config, self.folder, *sets(ON_NVME), preexec_fn=limits(FSIZE=2 * KIB))
        self.assertEqual(code, 1, err)
        self.assert_one_error(err, self.folder)
        code, _, err = z.train(config, self.folder, *sets(ON_NVME))
        self.assertEqual(code, 0, err)
        self.assertIn("resumed after step", err)
        self.assertEqual(z.summary(self.folder)["state_hash"], whole)

    @unittest.skipUnless(field_case.can_mount(), "no mount namespace can be made here")
    def test_a_swap_drive_that_is_too_small(self):
        sections = z.mlp_sections(self.workspace, width=256, layers=4, steps=3)
        swap = self.workspace.path / "swap"
        config = self.workspace.config("small", **sections)
        code, _, err = run_mounted(f"mount -t tmpfs -o size=4m tmpfs {swap}", "train", config, "--run-dir",
                                   self.workspace.path / "small", *sets(ON_NVME))
        self.assertEqual(code, 3, err)
        self.assertRegex(err, "NVMe needs [0-9.]+ MiB.*, given [0-9.]+ MiB")
        self.assertEqual(len([line for line in err.splitlines() if " error " in line]), 1, err)

    @unittest.skipUnless(field_case.can_mount(), "no mount namespace can be made here")
    def test_a_run_folder_that_is_full(self):
        sections = z.mlp_sections(self.workspace, width=64, layers=3, steps=50)
        folder = self.workspace.path / "full"
        folder.mkdir()
        config = self.workspace.config("full", **sections)
        code, _, err = run_mounted(f"mount -t tmpfs -o size=24k tmpfs {folder}", "train", config, "--run-dir", folder, *sets(ON_NVME))
        self.assertEqual(code, 1, err)
        self.assert_one_error(err, folder)
        self.assertRegex(err, r"No space left on device: needed .* \(\d+ bytes\), free .* \(\d+ bytes\)")


    @unittest.skipUnless(field_case.can_mount(), "no mount namespace can be made here")
    def test_a_run_folder_that_fills_up_while_training(self):
        """The metrics grow until the folder is full: the last commit is whole, and the run goes on once there is room."""
        steps = 150
        sections = z.mlp_sections(self.workspace, width=64, layers=3, steps=steps)
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        blocks = sum(-(-file.stat().st_size // 4096) for file in self.folder.rglob("*") if file.is_file())
        folder, copy = self.workspace.path / "full", self.workspace.path / "copy"
        folder.mkdir()
        config = self.workspace.config("full", **sections)
        codes, said = field_case.run_script(f"""
            mount -t tmpfs -o size={blocks * 4096 * 3 // 4} tmpfs {folder}
            "$@" 2> {folder}.1; echo $?
            cp {folder}/status.json {folder}.status
            "$1" verify {folder}; echo $?
            mount -o remount,size=64m tmpfs {folder}
            "$@" 2> {folder}.2; echo $?
            cp -r {folder} {copy}""", "train", config, "--run-dir", folder, *sets(ON_NVME))
        first, second = (pathlib.Path(f"{folder}.{part}").read_text() for part in "12")
        self.assertEqual(codes, ["1", "0", "0"], said + first + second)
        self.assert_one_error(first, folder)
        self.assertRegex(first, r"No space left on device: needed .* \(\d+ bytes\), free .* \(\d+ bytes\)")
        (step,) = re.findall(rf"resumed after step (\d+) of {steps}", second)
        self.assertGreater(int(step), 0)
        status = json.loads(pathlib.Path(f"{folder}.status").read_text())  # it can be written even there
        self.assertEqual((status["state"], status["exit_code"], status["last_commit"]), ("failed", 1, int(step)))
        self.assertIn("No space left on device", status["message"])
        self.assertEqual(z.summary(copy)["state_hash"], whole)
        self.assertEqual([line["step"] for line in z.metrics(copy)], list(range(1, steps + 1)))

    @unittest.skipUnless(field_case.can_mount_ext2(), "no mount namespace can be made here, or no ext2 on a loop device")
    def test_a_swap_drive_that_fills_up_while_training(self):
        """ext2 reserves no space: after step 1 another program takes what the check has found, before the first slot has its moments."""
        sections = z.mlp_sections(self.workspace, width=256, layers=4, steps=6)
        whole = self.trained(sections, *sets(ON_NVME))["state_hash"]
        folder, swap, image = (self.workspace.path / name for name in ("full", "full-swap", "image"))
        swap.mkdir()
        config = self.workspace.config("full", **sections)
        codes, said = field_case.run_script(f"""
            truncate -s 64M {image} && mkfs.ext2 -q -m 0 {image} && mount -o loop {image} {swap} || exit
            LD_PRELOAD={STOP_AT} ZINF_STOP_AT=manifest-1.json "$@" 2> {folder}.1 & run=$!
            until grep -q '^State:.[TZ]' /proc/$run/status; do sleep 0.02; done
            cat /dev/zero > {swap}/other 2> /dev/null; truncate -s -256K {swap}/other
            kill -CONT $run; wait $run; echo $?
            "$1" verify {folder}; echo $?
            "$@" 2> {folder}.2; echo $?
            rm {swap}/other
            "$@" 2> {folder}.3; echo $?""", "train", config, "--run-dir", folder,
                                           *sets(ON_NVME, f"memory.nvme=[{{path: {swap}, capacity: 1GiB}}]"))
        full, refused, resumed = (pathlib.Path(f"{folder}.{part}").read_text() for part in "123")
        self.assertEqual(codes, ["1", "0", "3", "0"], said + full + refused + resumed)
        self.assertIn("full-swap can't reserve space in advance", full)
        self.assert_one_error(full, swap)
        self.assertRegex(full, r"writing \d+ bytes at offset \d+ of .*\.zinf-area: No space left on device \(ENOSPC\)")
        needed, free = map(int, re.search(r"needed (\d+) bytes, free (\d+) bytes", full).groups())
        self.assertGreater(needed, free)
        self.assertRegex(refused, r"NVMe needs [0-9.]+ MiB \([0-9]+ bytes\), given [0-9.]+ MiB")  # a new start sees it before step 1
        self.assertIn("resumed after step 1 of 6", resumed)
        self.assertEqual(z.summary(folder)["state_hash"], whole)


class BlockedKernelFeatures(field_case.RunCase):
    def test_locked_memory_limit(self):
        """BR-005: pinning asked for with 64 KiB and 0 of lockable memory: same bits, one warning with size and limit, exit 0."""
        sections = z.mlp_sections(self.workspace, steps=3)
        sections["zero_optimization"] = {"stage": 3, "offload_optimizer": {"device": "nvme", "pin_memory": True}}
        free = self.trained(sections, *sets(ON_NVME))["state_hash"]
        for limit in (64 * KIB, 0):
            self.assertEqual(self.trained(sections, *sets(ON_NVME), preexec_fn=without_memory_lock(limit))["state_hash"], free)
            warnings = [line for line in self.log.splitlines() if " warning " in line and "lock" in line]
            self.assertEqual(len(warnings), 1, self.log)
            self.assertRegex(warnings[0], rf"(iB of I/O buffers can't be registered|io_uring is unavailable) .*is {limit // KIB} KiB")

    def test_pin_memory_false_pins_nothing(self):
        """BR-005: the plan tells pinned bytes; false really means none, so that not even a limit of 0 is noticed."""
        sections = z.mlp_sections(self.workspace, steps=3)
        pinned = self.trained(sections, *sets(ON_NVME))
        bytes_of = pinned["peak_bytes"]["pinned"]
        self.assertGreater(bytes_of["predicted"], 0)
        self.assertIn(bytes_of["measured"], (0, bytes_of["predicted"]))  # 0 where the machine's own limit is too small
        sections["zero_optimization"] = {"stage": 3, "offload_optimizer": {"device": "nvme", "pin_memory": False}}
        without = self.trained(sections, *sets(ON_NVME), preexec_fn=without_memory_lock(64 * KIB))
        self.assertEqual(without["peak_bytes"]["pinned"], {"predicted": 0, "measured": 0, "budget": 0, "by_class": {}})
        self.assertNotIn("registered", self.log)
        self.assertIn("read as memory.pin: false", self.log)
        self.assertEqual(without["state_hash"], pinned["state_hash"])
        config = self.workspace.config("plan", **sections)
        for more, expected in (([], 0), (sets("memory.pin=true"), bytes_of["predicted"])):
            code, out, err = z.run("plan", config, "--json", *sets(ON_NVME), *more)
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out)["pinned_bytes"] > 0, expected > 0)

    def test_blocked_io_uring(self):
        """BR-006: seccomp returns EPERM or ENOSYS: auto goes on with another engine, same bits, and says so."""
        sections = z.mlp_sections(self.workspace, steps=3)
        free = self.trained(sections, *sets(ON_NVME))["state_hash"]
        self.assertNotRegex(self.log, "io_uring")
        for error in (errno.EPERM, errno.ENOSYS):
            blocked = deny_system_calls([IO_URING_SETUP], error)
            self.assertEqual(self.trained(sections, *sets(ON_NVME), preexec_fn=blocked)["state_hash"], free)
            said = [line for line in self.log.splitlines() if "io_uring" in line]
            self.assertEqual(len(said), 1, self.log)
            self.assertIn(errno.errorcode[error], said[0])
            text = self.refused(1, sections, *sets(ON_NVME, "io.engine=io_uring"), preexec_fn=blocked)
            self.assertIn("io_uring", text)
            self.assertRegex(text, "seccomp|sandbox|container|io_uring_disabled|kernel")

    @unittest.skipUnless(LIBAIO_SETUP is not None, "the number of io_setup is not known for this processor")
    def test_no_asynchronous_interface_at_all(self):
        sections = z.mlp_sections(self.workspace, steps=3)
        free = self.trained(sections, *sets(ON_NVME))["state_hash"]
        blocked = deny_system_calls([IO_URING_SETUP, LIBAIO_SETUP], errno.EPERM)
        self.assertEqual(self.trained(sections, *sets(ON_NVME), preexec_fn=blocked)["state_hash"], free)
        self.assertIn("threads", self.log)


class BadDirectories(field_case.RunCase):
    """BR-008: each kind has its own message, with the path; nothing is trained."""

    def refused_drive(self, path, *pattern, codes=(2,)):
        sections = z.mlp_sections(self.workspace, steps=2)
        sections["memory"]["nvme"] = [{"path": str(path), "capacity": "1GiB"}]
        code, _, err = self.run_train(sections, *sets(ON_NVME))
        self.assertIn(code, codes, err)
        errors = [line for line in err.splitlines() if " error " in line]
        self.assertEqual(len(errors), 1, err)
        self.assertIn(str(path), errors[0])
        for part in pattern:
            self.assertRegex(errors[0], part)
        self.assertFalse((self.folder / "summary.json").exists())

    def test_missing(self):
        self.refused_drive(self.workspace.path / "absent", "does not exist|No such file|ENOENT")

    def test_a_file(self):
        file = self.workspace.path / "file"
        file.write_text("not a folder")
        self.refused_drive(file, "not a directory|not a folder|is a file|no directory")
        self.assertEqual(file.read_text(), "not a folder")

    @unittest.skipUnless(field_case.can_mount(), "no mount namespace can be made here")
    def test_mounted_read_only(self):
        swap = self.workspace.path / "swap"
        config = self.workspace.config("read-only", **z.mlp_sections(self.workspace, steps=2))
        code, _, err = run_mounted(f"mount --bind {swap} {swap}; mount -o remount,ro,bind {swap}", "train", config,
                                   "--run-dir", self.workspace.path / "run", *sets(ON_NVME))
        self.assertIn(code, (1, 2), err)
        self.assertRegex(err, f"error .*{re.escape(str(swap))}.*read-only")

    @unittest.skipUnless(field_case.can_mount(), "no mount namespace can be made here")
    def test_a_file_system_in_memory_gives_the_same_bits(self):
        sections = z.mlp_sections(self.workspace, steps=3)
        config = self.workspace.config("tmpfs", **sections)
        run = self.workspace.path / "tmpfs"
        code, _, err = run_mounted(f"mount -t tmpfs -o size=64m tmpfs {self.workspace.path / 'swap'}", "train", config,
                                   "--run-dir", run, *sets(ON_NVME))
        self.assertEqual(code, 0, err)
        said = "lies in memory (tmpfs), not on a drive"
        self.assertEqual(err.count(said), 1, err)
        self.assertEqual(z.summary(run)["state_hash"], self.trained(sections, *sets(ON_NVME))["state_hash"])
        self.assertNotIn(said, self.log)


class Traffic(field_case.RunCase):
    def test_overlap_and_prefetch_move_the_same_bytes(self):
        """BR-015: what overlaps is time, not traffic; 12 bytes written and at most 16 read a parameter."""
        sections = z.mlp_sections(self.workspace, width=256, layers=6, steps=6)
        place = "placement={weights: nvme, optimizer: nvme}"
        with_overlap = self.trained(sections, *sets(place))
        per_step = [(line["nvme_read_bytes"], line["nvme_write_bytes"]) for line in z.metrics(self.folder)[2:5]]
        without = self.trained(sections, *sets(place, "step.overlap=false"))
        self.assertEqual(with_overlap["state_hash"], without["state_hash"])
        self.assertEqual(len(set(per_step)), 1, per_step)
        for summary in (with_overlap, without):
            self.assertAlmostEqual(summary["lanes"]["nvme_write"]["bytes_per_parameter_step"], 12, delta=0.3)
            self.assertLess(summary["lanes"]["nvme_read"]["bytes_per_parameter_step"], 16.3)

    def test_resident_memory_is_flat(self):
        """BR-009: 200 steps on NVMe; what the process keeps from step 20 on does not grow by 5 MiB."""
        sections = z.mlp_sections(self.workspace, width=128, layers=4, steps=200)
        self.trained(sections, *sets(ON_NVME))
        kept = [line["peak_bytes"]["process"] for line in z.metrics(self.folder)]
        self.assertLess(kept[199] - kept[19], 5 * MIB)


if __name__ == "__main__":
    unittest.main(verbosity=2)
