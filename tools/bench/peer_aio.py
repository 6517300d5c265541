"""DeepSpeed's aio, one thread a handle, for tools/bench/nvme: FILE BYTES BLOCK DEPTH SECONDS READ_SHARE. Takes "read", "write" or "mixed"
from stdin, moves the whole file over and over until the time is up, and prints "RESULT GB/s CPU-seconds-per-GB". A handle does one direction
at a time, so for mixed one reads the first half while another writes into the second, in the ratio asked for; a pass ends when both have."""
import os
import sys
import time

import torch
from deepspeed.ops.op_builder import AsyncIOBuilder


class Handle:
    """A handle and its page-locked buffer: memory that it has not locked itself would be moved through a copy."""

    def __init__(self, block, depth, size):
        self.aio = AsyncIOBuilder().load().aio_handle(block, depth, False, True, 1)
        self.buffer = self.aio.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        self.buffer.view(torch.int64).random_()


def check(good):
    if not good:
        sys.exit(f"aio on {sys.argv[1]} failed")


def main():
    path = sys.argv[1]
    total, block, depth = map(int, sys.argv[2:5])
    seconds, read_share = map(float, sys.argv[5:7])
    half = total // 2 // block * block
    written = int(half * (1 - read_share) / read_share) // block * block
    whole, reader, writer = (Handle(block, depth, size) for size in (total, half, written))

    def both_ways():
        check(reader.aio.async_pread(reader.buffer, path, 0) >= 0 and writer.aio.async_pwrite(writer.buffer, path, half) >= 0)
        check(reader.aio.wait() == 1 and writer.aio.wait() == 1)

    passes = {"read": (total, lambda: check(whole.aio.sync_pread(whole.buffer, path, 0) >= 0)),
              "write": (total, lambda: check(whole.aio.sync_pwrite(whole.buffer, path, 0) >= 0)),
              "mixed": (half + written, both_ways)}
    print("READY ", flush=True)
    for line in sys.stdin:
        size, run = passes[line.strip()]
        moved, cpu, start = 0, sum(os.times()[:2]), time.perf_counter()
        while moved == 0 or time.perf_counter() - start < seconds:
            run()
            moved += size
        elapsed, gb = time.perf_counter() - start, moved / 1e9
        print(f"RESULT {gb / elapsed} {(sum(os.times()[:2]) - cpu) / gb}", flush=True)


if __name__ == "__main__":
    main()
