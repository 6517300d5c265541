"""Writes torch_golden.h: where PyTorch's optimizers end after 1,000 steps, in fp32 and in fp64.

usage: python tests/cpu_optim/make_torch_golden.py > tests/cpu_optim/torch_golden.h
Lion is not in PyTorch; its published formula is written out in tensor operations.
"""
import torch

ELEMENTS, STEPS = 32, 1000
M32 = (1 << 32) - 1


def mix(x):
    """32-bit integer mix, the same in torch_golden_test.cc."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & M32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & M32
    return x ^ (x >> 16)


def number(index, spread):
    """A value of [-1, 1) on a grid of 2^-11, times a power of 2 of the element: exact in fp32."""
    return (mix(index) % 4096 - 2048) / 2048.0 * 2.0 ** spread


def gradient(step, dtype):
    """A drift that differs by element, and noise."""
    return torch.tensor([number(step * ELEMENTS + i, -(i % 8)) + (i % 3 - 1) * 2.0 ** (-2 - i % 8)
                         for i in range(ELEMENTS)], dtype=dtype)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                b1, b2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b2)


RUNS = {
    "kAdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, foreach=False),
    "kAdam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.01, foreach=False),
    "kLion": lambda p: Lion(p, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1),
    "kAdagrad": lambda p: torch.optim.Adagrad(p, lr=1e-1, lr_decay=1e-3, weight_decay=0.01, eps=1e-10,
                                              initial_accumulator_value=0.5, foreach=False),
    "kSgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.1, weight_decay=0.01, foreach=False),
    "kNesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=False),
}


def run(make, dtype):
    p = torch.nn.Parameter(torch.tensor([number(i + 7777777, 0) for i in range(ELEMENTS)], dtype=dtype))
    optimizer = make([p])
    for step in range(STEPS):
        p.grad = gradient(step, dtype)
        optimizer.step()
    return [value.item().hex() for value in p.detach()]


def row(values):
    lines = ["      " + ", ".join(values[i:i + 4]) for i in range(0, len(values), 4)]
    return "{\n" + ",\n".join(lines) + "}"


print("// Written by make_torch_golden.py with PyTorch " + torch.__version__.split("+")[0] + ".")
print("#pragma once\n\nnamespace zinf::optim::golden {\n")
print(f"constexpr int kElements = {ELEMENTS};\nconstexpr int kSteps = {STEPS};\n")
print("struct Golden {\n  double fp32[kElements];  // PyTorch in fp32\n  double fp64[kElements];\n};\n")
for name, make in RUNS.items():
    print(f"constexpr Golden {name} = {{\n    {row(run(make, torch.float32))},\n    {row(run(make, torch.float64))}}};\n")
print("}  // namespace zinf::optim::golden")
