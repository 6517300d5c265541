"""Writes tiny random checkpoints with transformers, and what PyTorch computes on them, for parity_test.

usage: parity_reference.py FOLDER

FOLDER/<case>/            an HF folder
FOLDER/<case>/batch.st    m<i>.{ids,targets,positions,documents}: int32 [rows, length], per micro-batch
FOLDER/<case>/reference.st   loss and token losses in fp64 (from an fp64 model) and fp32; every gradient: g64.<name>,
                             g32.<name>; inverse frequencies of rotary positions
"""
import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

VOCABULARY = 97


def llama(**changes):
    settings = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                    attn_implementation="eager", initializer_range=0.2)
    settings.update(changes)
    return settings


def rope(kind, **values):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


CASES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**llama())),
    "llama_tied": lambda: LlamaForCausalLM(LlamaConfig(**llama(tie_word_embeddings=True))),
    "llama_biases": lambda: LlamaForCausalLM(LlamaConfig(**llama(attention_bias=True, mlp_bias=True))),
    "llama_head_dim": lambda: LlamaForCausalLM(LlamaConfig(**llama(hidden_size=40, head_dim=16))),
    "llama_heads_5_5": lambda: LlamaForCausalLM(LlamaConfig(**llama(
        hidden_size=40, num_attention_heads=5, num_key_value_heads=5))),
    "llama_heads_5_1": lambda: LlamaForCausalLM(LlamaConfig(**llama(
        hidden_size=40, num_attention_heads=5, num_key_value_heads=1))),
    "llama_heads_9_3": lambda: LlamaForCausalLM(LlamaConfig(**llama(
        hidden_size=72, num_attention_heads=9, num_key_value_heads=3))),
    "llama_gelu": lambda: LlamaForCausalLM(LlamaConfig(**llama(hidden_act="gelu"))),
    "rope_linear": lambda: LlamaForCausalLM(LlamaConfig(**llama(**rope("linear", factor=2.0)))),
    "rope_dynamic": lambda: LlamaForCausalLM(LlamaConfig(**llama(**rope("dynamic", factor=2.0)))),
    "rope_llama3": lambda: LlamaForCausalLM(LlamaConfig(**llama(**rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)))),
    "rope_yarn": lambda: LlamaForCausalLM(LlamaConfig(**llama(**rope(
        "yarn", factor=4.0, original_max_position_embeddings=16)))),
    "mistral_window": lambda: MistralForCausalLM(MistralConfig(**llama(sliding_window=5))),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**llama())),
    "qwen2_window": lambda: Qwen2ForCausalLM(Qwen2Config(**llama(
        use_sliding_window=True, sliding_window=6, max_window_layers=1))),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**llama(head_dim=16))),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, attn_implementation="eager", initializer_range=0.2)),
    "gpt2_scales": lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=64, n_inner=100, resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, scale_attn_by_inverse_layer_idx=True, activation_function="gelu",
        attn_implementation="eager", initializer_range=0.2)),
    "dropout_gpt2": lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.25, embd_pdrop=0.1,
        attn_pdrop=0.4, attn_implementation="eager", initializer_range=0.2)),
    "dropout_llama": lambda: LlamaForCausalLM(LlamaConfig(**llama(attention_dropout=0.3))),
    "dropout_window": lambda: MistralForCausalLM(MistralConfig(**llama(sliding_window=5, attention_dropout=0.3))),
}


DROPOUT_SEED, DROPOUT_STEP = 7, 3  # also in parity_test.cc


def mix64(x):
    """SplitMix64's finaliser, on arrays of uint64."""
    with np.errstate(over="ignore"):
        x = np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def random_key(*words):
    key = mix64(words[0])
    for word in words[1:]:
        key = mix64(key ^ np.uint64(word))
    return key


def dropout_factors(key, elements, rate):
    """The rule of engine/model/dropout.h, written a second time."""
    elements = np.asarray(elements, dtype=np.uint64)
    bits = mix64(key ^ mix64(elements // np.uint64(2)))
    bits = (bits >> (np.uint64(32) * (elements % np.uint64(2)))) & np.uint64(0xFFFFFFFF)
    return np.where(bits < np.uint64(round(rate * 2**32)), 0.0, 1 / (1 - rate))


class Dropout:
    """Takes the place of torch.nn.functional.dropout: the same rates at the same places, with zinf's masks."""

    def __init__(self, model):
        layers, gpt2 = model.config.num_hidden_layers, model.config.model_type == "gpt2"
        first = 2 if gpt2 else 1  # the stage of layer 0
        self.places = [(1, 0)] if gpt2 else []
        for layer in range(layers):
            self.places += [(first + layer, number) for number in range(3 if gpt2 else 1)]

    def begin_document(self, micro_batch, row, start, rows, length):
        self.step = random_key(0x64726F706F7574, DROPOUT_SEED, DROPOUT_STEP)
        self.micro_batch, self.start, self.positions, self.length = micro_batch, start, rows * length, length
        self.first = row * length + start
        self.calls = 0

    def __call__(self, x, p=0.5, training=True, inplace=False):
        stage, number = self.places[self.calls]
        self.calls += 1
        if p == 0:
            return x
        key = random_key(random_key(random_key(self.step, self.micro_batch), stage), number)
        count = x.shape[-2]
        positions = self.first + np.arange(count, dtype=np.int64)
        if x.dim() == 3:  # hidden states [1, positions, width]
            elements = positions[:, None] * x.shape[-1] + np.arange(x.shape[-1])
        else:  # attention weights [1, heads, queries, keys]
            rows = np.arange(x.shape[1])[:, None] * self.positions + positions
            elements = rows[:, :, None] * self.length + self.start + np.arange(count)
        factors = torch.from_numpy(dropout_factors(key, elements, p)).to(x.dtype)
        return x * factors.view(x.shape)


def shake(model, generator):
    """Norm weights and biases away from 1 and 0, so that dropping one shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)


def micro_batches(generator):
    """Whole rows; then packed documents with right padding and masked targets. (segments per row)"""
    batches = []
    for rows, length, documents in ((2, 24, None), (2, 24, ((4, 7, 13), (9, 10)))):
        ids = torch.randint(0, VOCABULARY, (rows, length), generator=generator, dtype=torch.int32)
        targets = torch.full((rows, length), -100, dtype=torch.int32)
        positions = torch.zeros((rows, length), dtype=torch.int32)
        numbers = torch.full((rows, length), -1, dtype=torch.int32)
        for row in range(rows):
            start = 0
            for number, size in enumerate(documents[row] if documents else (length,)):
                end = start + size
                targets[row, start:end - 1] = ids[row, start + 1:end]
                positions[row, start:end] = torch.arange(size, dtype=torch.int32)
                numbers[row, start:end] = number
                start = end
        if documents:
            targets[0, 5] = -100
            targets[1, 2:6] = -100
        batches.append(dict(ids=ids, targets=targets, positions=positions, documents=numbers))
    return batches


def token_losses(model, batch, number_of_batch):
    """Loss of every position, computed document by document: nothing else can be seen."""
    torch.nn.functional.dropout = dropout = Dropout(model)
    rows, length = batch["ids"].shape
    losses = torch.zeros((rows, length), dtype=next(model.parameters()).dtype)
    for row in range(rows):
        for number in sorted(set(batch["documents"][row].tolist()) - {-1}):
            where = (batch["documents"][row] == number).nonzero().flatten()
            ids = batch["ids"][row, where].long().unsqueeze(0)
            dropout.begin_document(number_of_batch, row, int(where[0]), rows, length)
            logits = model(input_ids=ids, use_cache=False).logits[0]
            targets = batch["targets"][row, where].long()
            losses[row, where] = torch.nn.functional.cross_entropy(logits, targets, reduction="none", ignore_index=-100)
    return losses


def compute(model, batches):
    count = sum(int((batch["targets"] != -100).sum()) for batch in batches)
    model.zero_grad()
    losses = []
    for number, batch in enumerate(batches):
        loss = token_losses(model, batch, number)
        (loss.sum() / count).backward()
        losses.append(loss.detach())
    gradients = {name: parameter.grad.detach().clone() for name, parameter in model.named_parameters()}
    return losses, gradients


def write_case(folder, name, build, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = build().train()
    shake(model, generator)
    path = os.path.join(folder, name)
    model.save_pretrained(path)
    batches = micro_batches(generator)
    save_file({f"m{i}.{key}": value.contiguous() for i, batch in enumerate(batches) for key, value in batch.items()},
              os.path.join(path, "batch.st"))
    reference = {}
    losses, gradients = compute(model, batches)
    for i, loss in enumerate(losses):
        reference[f"loss32.m{i}"] = loss
    reference.update({f"g32.{key}": value for key, value in gradients.items()})
    losses, gradients = compute(model.double(), batches)
    for i, loss in enumerate(losses):
        reference[f"loss64.m{i}"] = loss
    reference.update({f"g64.{key}": value for key, value in gradients.items()})
    save_file({key: value.contiguous() for key, value in reference.items()}, os.path.join(path, "reference.st"))


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    for number, (name, build) in enumerate(CASES.items()):
        write_case(folder, name, build, 1000 + number)
        print(name)


if __name__ == "__main__":
    main()
