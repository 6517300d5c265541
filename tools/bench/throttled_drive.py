"""A drive slowed by the kernel for some processes: a control group with a limit on the drive's bytes per second. Needs root."""
import os
import pathlib


class ThrottledDrive:
    """Processes that join read and write the drive below `folder` at no more than `rate` bytes per second each way."""

    def __init__(self, folder, rate):
        device = os.stat(folder).st_dev
        block = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        if (block / "partition").exists():
            block = block.parent
        number = (block / "dev").read_text().strip()
        if pathlib.Path("/sys/fs/cgroup/blkio").exists():  # version 1
            self.path = pathlib.Path(f"/sys/fs/cgroup/blkio/zinf-bench-{os.getpid()}")
            limits = {f"blkio.throttle.{way}_bps_device": f"{number} {rate}" for way in ("read", "write")}
        else:
            self.path = pathlib.Path(f"/sys/fs/cgroup/zinf-bench-{os.getpid()}")
            limits = {"io.max": f"{number} rbps={rate} wbps={rate}"}
        self.path.mkdir()
        for name, limit in limits.items():
            (self.path / name).write_text(limit)

    def join(self):
        """In the child, before it becomes another program."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        self.path.rmdir()
