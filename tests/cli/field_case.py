"""What the field-case tests share: runs in a folder of their own, limits on a process, tensors of exports."""
import ctypes
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import tempfile
import unittest

import zinf_runner as z

ON_NVME = "placement={weights: nvme, optimizer: nvme, gradients: nvme, activations: nvme}"
ON_HOST = "placement={weights: host, optimizer: host, gradients: host, activations: host}"
ON_DEVICE = "placement={weights: device, optimizer: device, gradients: device, activations: device}"

ENDLESS = 100000  # steps


def sets(*assignments):
    return [part for assignment in assignments for part in ("--set", assignment)]


class RunCase(unittest.TestCase):
    """A workspace per test; runs are numbered."""

    def setUp(self):
        self.workspace = z.Workspace()
        self.addCleanup(self.workspace.close)
        self.runs = 0
        self.folder = self.log = None

    def run_train(self, sections, *arguments, **options):
        """(exit code, stdout, stderr) of a run in a new folder, self.folder."""
        self.runs += 1
        self.folder = self.workspace.path / f"run{self.runs}"
        config = self.workspace.config(f"run{self.runs}", **sections)
        return z.train(config, self.folder, *arguments, **options)

    def trained(self, sections, *arguments, **options):
        """The summary of a run that must end well; self.log is its stderr."""
        code, _, self.log = self.run_train(sections, *arguments, **options)
        self.assertEqual(code, 0, self.log)
        return z.summary(self.folder)

    def refused(self, code, sections, *arguments, **options):
        """The error line (and its hint) of a run that must end with this code, with one error."""
        found, _, err = self.run_train(sections, *arguments, **options)
        self.assertEqual(found, code, err)
        lines = err.splitlines()
        errors = [i for i, line in enumerate(lines) if " error " in line]
        self.assertEqual(len(errors), 1, err)
        return "\n".join(lines[errors[0]:])

    def started(self, sections, *arguments):
        """Config and process of a run, in self.folder, that has made a few of its steps: `sections` gives it very many."""
        config = self.workspace.config("running", **sections)
        self.folder = self.workspace.path / "running"
        process = z.start(config, self.folder, *arguments)
        self.addCleanup(process.kill)
        self.assertTrue(z.wait_for_step(self.folder, 3, process), "the run ended early")
        return config, process

    def one_hash(self, hashes, what=""):
        """All runs gave one state hash; the message names those that differ."""
        self.assertEqual(len(set(hashes.values())), 1, f"{what}: {json.dumps(hashes, indent=1)}")

    def exported(self, *arguments):
        """Exports self.folder; the path of the HF folder."""
        to = self.workspace.path / f"exported{self.runs}"
        code, _, err = z.run("export", self.folder, to, *arguments)
        self.assertEqual(code, 0, err)
        return to


def limits(**by_name):
    """A preexec_fn that sets soft and hard limits: limits(FSIZE=4096)."""
    def apply():
        for name, value in by_name.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    return apply


def without_memory_lock(limit):
    """A preexec_fn: at most so much memory can be locked. A process that root starts would not be limited, so it loses that right too."""
    libc = ctypes.CDLL(None, use_errno=True)

    def apply():
        limits(MEMLOCK=limit)()
        drop_from_bounding_set, ipc_lock = 24, 14
        if os.geteuid() == 0 and libc.prctl(drop_from_bounding_set, ipc_lock, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "capabilities")
    return apply


def deny_system_calls(numbers, error):
    """A preexec_fn: these system calls of the process fail with this errno (seccomp, as containers do)."""
    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]

    load_number, jump_equal, ret = 0x20, 0x15, 0x06
    lines = [Filter(load_number, 0, 0, 0)]
    for number in numbers:
        lines += [Filter(jump_equal, 0, 1, number), Filter(ret, 0, 0, 0x00050000 | error)]
    lines.append(Filter(ret, 0, 0, 0x7FFF0000))
    program = Program(len(lines), (Filter * len(lines))(*lines))
    libc = ctypes.CDLL(None, use_errno=True)

    def apply():
        no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
        if (libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0
                or libc.prctl(set_seccomp, mode_filter, ctypes.byref(program), 0, 0) != 0):
            raise OSError(ctypes.get_errno(), "seccomp")
    return apply


def can_mount():
    """A mount namespace of one's own can be had here."""
    unshare = shutil.which("unshare")
    return bool(unshare) and subprocess.run(
        [unshare, "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0


def can_mount_ext2():
    """So is a small file system on a loop device, of the kind that can't reserve space."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        image = pathlib.Path(folder) / "image"
        image.write_bytes(bytes(1 << 20))
        script = f"PATH=$PATH:/sbin:/usr/sbin; mkfs.ext2 -q {image} && unshare --mount mount -o loop {image} /mnt"
        return can_mount() and subprocess.run(["sh", "-c", script], capture_output=True).returncode == 0


def run_script(script, *command):
    """Runs this in a mount namespace of its own, "$@" standing for zinf with this command; (exit codes that it echoed, all it said)."""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", f"PATH=$PATH:/sbin:/usr/sbin; {script}", "sh", os.path.abspath(z.ZINF),
                           *map(str, command)], capture_output=True, text=True, timeout=300)
    return [line for line in done.stdout.splitlines() if line and line in "0123"], done.stdout + done.stderr


def run_mounted(mounts, *arguments, timeout=300):
    """Runs zinf in a mount namespace of its own, after these shell commands."""
    script = mounts + '\nexec "$@"'
    done = subprocess.run(["unshare", "--mount", "sh", "-ec", script, "sh", os.path.abspath(z.ZINF), *map(str, arguments)],
                          capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def tensors_in(file):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    found = {}
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            found[name] = (entry["dtype"], entry["shape"], data[8 + size + first:8 + size + last])
    return found


def tensors_of(folder):
    """The same over all safetensors files of a folder."""
    found = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        found |= tensors_in(file)
    return found


def write_tensors(file, tensors, header_text=None):
    """Writes {name: (dtype, shape, bytes)} as safetensors; header_text replaces the header."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = (json.dumps(header) if header_text is None else header_text).encode()
    pathlib.Path(file).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
