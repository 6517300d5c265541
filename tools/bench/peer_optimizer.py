"""The optimizer phase of a peer, as training needs it: from an accumulated fp32 gradient to the updated 16-bit weight.

norm, clip and unscale, AdamW step in fp32, copy to bf16 (left out with --weights fp32). Prints one JSON line.
"""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--peer", choices=["torch", "deepspeed"], required=True)
    arguments.add_argument("--elements", type=int, required=True)
    arguments.add_argument("--repetitions", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--weights", choices=["bf16", "fp32"], default="bf16")
    options = arguments.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch
    torch.set_num_threads(options.threads)
    master = torch.nn.Parameter(torch.full((options.elements,), 0.02))
    gradient = torch.empty(options.elements).uniform_(-1e-3, 1e-3)
    weight = torch.zeros(options.elements, dtype=torch.bfloat16) if options.weights == "bf16" else None
    settings = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    master.grad = gradient
    if options.peer == "torch":
        optimizer = torch.optim.AdamW([master], fused=True, **settings)

        def clip():
            torch.nn.utils.clip_grad_norm_([master], 1.0)
    else:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        optimizer = DeepSpeedCPUAdam([master], adamw_mode=True, **settings)

        def clip():  # as its ZeRO optimizers do it: one factor for the loss scale and the norm, multiplied in place
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_(1.0 / max(1.0, (float(norm) + 1e-6) / 1.0))

    seconds, parts = [], []
    for repetition in range(options.repetitions + 1):
        gradient.uniform_(-1e-3, 1e-3)
        begin = time.perf_counter()
        clip()
        clipped = time.perf_counter()
        optimizer.step()
        stepped = time.perf_counter()
        if weight is not None:
            weight.copy_(master.data)
        end = time.perf_counter()
        if repetition > 0:
            seconds.append(end - begin)
            parts.append((clipped - begin, stepped - clipped, end - stepped))
    version = torch.__version__
    if options.peer == "deepspeed":
        version = sys.modules["deepspeed"].__version__ + " on torch " + version
    print("RESULT " + json.dumps({"phase_seconds": seconds, "version": version,
                                  "clip_step_copy_seconds": [sorted(p)[len(p) // 2] for p in zip(*parts)]}), flush=True)


if __name__ == "__main__":
    main()
