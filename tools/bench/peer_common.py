"""What the peer runners share: the GPT-2 shapes, random tokens, timing, and one JSON line as the result."""
import json
import os
import resource
import time

import torch

SHAPES = {"tiny": (2, 4, 128), "125m": (12, 12, 768), "350m": (24, 16, 1024)}  # layers, heads, width


def make_model(name):
    from transformers import GPT2Config, GPT2LMHeadModel
    layers, heads, width = SHAPES[name]
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=heads, n_embd=width, n_positions=1024, vocab_size=50257,
                                      use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def disk_bytes():
    fields = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def measure(micro_step, options, parameters):
    """micro_step(ids, last) runs one micro-batch, and the update after the last. Prints the result."""
    generator = torch.Generator().manual_seed(1)
    seconds, losses, before = [], [], (0, 0)
    for step in range(options.steps):
        if step == options.warmup:
            before = disk_bytes()
        start = time.perf_counter()
        for micro in range(options.accumulation):
            ids = torch.randint(0, 50257, (options.micro_batch, options.length), generator=generator)
            loss = micro_step(ids, micro + 1 == options.accumulation)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - start)
    counted = options.steps - options.warmup
    read, written = (after - first for after, first in zip(disk_bytes(), before))
    print("RESULT " + json.dumps({
        "step_seconds": seconds[options.warmup:],
        "tokens": options.micro_batch * options.length * options.accumulation,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "read_per_parameter": read / counted / parameters, "written_per_parameter": written / counted / parameters,
        "first_loss": losses[0], "last_loss": losses[-1], "parameters": parameters}), flush=True)


def parser(description):
    import argparse
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--model", default="125m", choices=SHAPES)
    arguments.add_argument("--micro-batch", type=int, default=1)
    arguments.add_argument("--length", type=int, default=256)
    arguments.add_argument("--accumulation", type=int, default=8)
    arguments.add_argument("--steps", type=int, default=6)
    arguments.add_argument("--warmup", type=int, default=2)
    arguments.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    return arguments
