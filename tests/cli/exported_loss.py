"""transformers' side of memory_test.py: the loss of an exported model, in fp32.

usage: exported_loss.py MODEL_FOLDER TOKENS LENGTH

TOKENS holds 16-bit ids, one document cut into rows of LENGTH: a row's last position still predicts the next row's first token.
"""
import sys

import numpy
import torch
from transformers import AutoModelForCausalLM

folder, tokens, length = sys.argv[1:]
ids = torch.from_numpy(numpy.fromfile(tokens, "<u2").astype("int64"))
targets = torch.cat([ids[1:], torch.tensor([-100])])
model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
assert not any(loading.values()), loading  # missing, unexpected, mismatched
with torch.no_grad():
    logits = model(input_ids=ids.view(-1, int(length)), use_cache=False).logits.double()
print(float(torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets)))
