"""PyTorch in memory: autocast (bf16) or fp32, fused AdamW, checkpointing on request."""
import torch

import peer_common as common

arguments = common.parser(__doc__)
arguments.add_argument("--no-checkpointing", action="store_true")
options = arguments.parse_args()
model = common.make_model(options.model)
model.train()
if not options.no_checkpointing:
    model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def micro_step(ids, last):
    with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
        loss = model(input_ids=ids, labels=ids).loss
    (loss / options.accumulation).backward()
    if last:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss


common.measure(micro_step, options, sum(p.numel() for p in model.parameters()))
