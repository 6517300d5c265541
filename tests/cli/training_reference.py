"""PyTorch's side of training_parity_test.py: the same training steps with transformers.

Every step trains on all rows, `size` of them per micro-batch, in their order (order 0) or in one drawn anew each step from the seed
`order`. dtype: fp64, fp32, bf16 (bf16 weights and arithmetic, fp32 masters and accumulated gradients) or rounded (fp32, the
accumulated gradients rounded to bf16; of a tied table the output layer's part first, then its sum with the lookup's). AdamW, clipping and schedule as in training_parity_test.py.
"""
import torch
from transformers import AutoModelForCausalLM

LR, BETAS, EPS, DECAY, CLIP, WARMUP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 0.5, 4


def rate(update, steps):
    """Linear warm-up from 0, then linear to 0: that of update 1, 2, ... (transformers' linear schedule)."""
    done = update - 1
    return LR * (done / WARMUP if done < WARMUP else (steps - done) / (steps - WARMUP))


def gradients(model, rows, targets, parts):
    """Loss and norms' worth of gradients of one step, summed in fp32 (fp64 for an fp64 model)."""
    total, sums = 0.0, {}
    for part in parts:
        logits = model(input_ids=rows[part], use_cache=False).logits[:, :-1]
        logits = logits.float() if logits.dtype == torch.bfloat16 else logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[part][:, 1:].reshape(-1), reduction="sum")
        model.zero_grad(set_to_none=True)
        (loss / targets).backward()
        total += float(loss.detach())
        for name, parameter in model.named_parameters():
            gradient = parameter.grad.float() if parameter.dtype == torch.bfloat16 else parameter.grad
            sums[name] = gradient.clone() if name not in sums else sums[name] + gradient
    return total / targets, sums


def untie(model):
    """Gives the output layer a copy of a tied table, so that its gradient is apart from the lookup's: both parameters' names."""
    table = model.get_input_embeddings().weight
    names = [name for name, parameter in model.named_parameters() if parameter is table]
    model.get_output_embeddings().weight = torch.nn.Parameter(table.detach().clone())
    names += [name for name, parameter in model.named_parameters() if parameter is model.get_output_embeddings().weight]
    return names


def train(folder, rows, steps, dtype, size, order):
    """Losses, norms and masters of one run."""
    generator = torch.Generator().manual_seed(order) if order else None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64 if dtype == "fp64" else torch.float32,
                                                 attn_implementation="eager").train()
    masters = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    if dtype == "bf16":
        model = model.bfloat16()
    table, head = untie(model) if dtype == "rounded" and model.config.tie_word_embeddings else (None, None)
    optimizer = torch.optim.AdamW(masters.values(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    targets = rows.shape[0] * (rows.shape[1] - 1)
    losses, norms = [], []
    for step in range(1, steps + 1):
        permutation = torch.randperm(rows.shape[0], generator=generator) if order else torch.arange(rows.shape[0])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(masters[table if name == head else name])
        loss, sums = gradients(model, rows, targets, permutation.split(size))
        if head:
            sums[table] = sums.pop(head).bfloat16().float() + sums[table]
        for name, master in masters.items():
            master.grad = sums[name].bfloat16().float() if dtype == "rounded" else sums[name]
        norms.append(float(torch.nn.utils.clip_grad_norm_(masters.values(), CLIP)))
        losses.append(loss)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        optimizer.step()
    return losses, norms, {name: master.detach().contiguous() for name, master in masters.items()}
