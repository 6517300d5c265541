"""Writes a llama-architecture GGUF file as a Hugging Face folder: bf16 weights, config, tokenizer, chat template.

Usage: gguf_to_hf.py FILE.gguf DIR   (DIR exists and is filled; the caller renames it into place)
Quantised tensors are dequantised, one at a time. GGUF keeps the rows of q and k in another order, which suits another
way of writing the rotary embedding; here they go back to the order of the Hugging Face implementation.
"""

import json
import pathlib
import struct
import sys

import numpy as np
import tokenizers
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import decoders, models, pre_tokenizers

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3


def fail(message):
    sys.exit(f"error: {message}")


class Gguf:
    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.architecture = self.value("general.architecture")

    def value(self, key, default=None):
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def size(self, key, default=None):
        value = self.value(f"{self.architecture}.{key}", default)
        if value is None:
            fail(f"{key} is missing in the GGUF file")
        return value


def hf_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in OTHER_NAMES:
        return f"{OTHER_NAMES[parts[0]]}.{parts[1]}"
    fail(f"unknown tensor {name}")


def rotary_rows_back(weight, heads):
    """[heads * dim, n] whose rows alternate the two halves of a head -> first half, then second half."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def to_bfloat16(values):
    """fp32 -> bf16 bits, rounded to nearest even. Weights are finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bfloat16_values(gguf, tensor):
    heads = gguf.size("attention.head_count")
    values = dequantize(tensor.data, tensor.tensor_type)
    if not np.isfinite(values).all():
        fail(f"tensor {tensor.name} has non-finite values")
    if ".attn_q." in tensor.name:
        values = rotary_rows_back(values, heads)
    if ".attn_k." in tensor.name:
        values = rotary_rows_back(values, gguf.size("attention.head_count_kv", heads))
    return to_bfloat16(values)


def write_weights(gguf, path):
    """Writes model.safetensors tensor by tensor; returns the number of parameters and whether the head is tied."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for tensor in gguf.reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]  # GGUF names the fastest dimension first
        begin, end = end, end + 2 * int(np.prod(shape))
        header[hf_name(tensor.name)] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in gguf.reader.tensors:
            out.write(bfloat16_values(gguf, tensor).tobytes())
        if out.tell() != 8 + len(text) + end:
            fail(f"{path}: wrote {out.tell()} bytes, expected {8 + len(text) + end}")
    return end // 2, "lm_head.weight" not in header


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_config(gguf, folder, tied):
    width, heads = gguf.size("embedding_length"), gguf.size("attention.head_count")
    special = {
        "bos_token_id": gguf.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.value("tokenizer.ggml.padding_token_id"),
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(gguf.value("tokenizer.ggml.tokens")),
        "hidden_size": width,
        "intermediate_size": gguf.size("feed_forward_length"),
        "num_hidden_layers": gguf.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.size("attention.head_count_kv", heads),
        "head_dim": width // heads,
        "max_position_embeddings": gguf.size("context_length"),
        "hidden_act": "silu",
        # Stored as fp32; the shortest decimal of it is what was meant.
        "rms_norm_eps": float(np.format_float_positional(np.float32(gguf.size("attention.layer_norm_rms_epsilon")))),
        "rope_theta": gguf.size("rope.freq_base", 10000.0),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        **special,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", special)


def build_tokenizer(gguf):
    tokens = gguf.value("tokenizer.ggml.tokens")
    types = gguf.value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in gguf.value("tokenizer.ggml.merges")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if gguf.value("tokenizer.ggml.pre") == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))  # every digit is a token of its own
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer, tokens, control


def write_tokenizer(gguf, folder):
    if gguf.value("tokenizer.ggml.model") != "gpt2":
        fail(f"tokenizer {gguf.value('tokenizer.ggml.model')}: only byte-level BPE (gpt2) can be written")
    tokenizer, tokens, control = build_tokenizer(gguf)
    if tokenizer.get_vocab_size() != len(tokens):
        fail(f"tokenizer has {tokenizer.get_vocab_size()} entries, the GGUF file {len(tokens)}")
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        f"{name}_token": tokens[gguf.value(f"tokenizer.ggml.{key}_token_id")]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if gguf.value(f"tokenizer.ggml.{key}_token_id") is not None
    }
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.size("context_length"),
        **special,
        "additional_special_tokens": [t for t in control if t not in special.values()],
        "chat_template": gguf.value("tokenizer.chat_template"),
    })
    write_json(folder / "special_tokens_map.json", special)


def convert(source, folder):
    gguf = Gguf(source)
    if gguf.architecture != "llama":
        fail(f"architecture {gguf.architecture}: only llama can be written")
    count, tied = write_weights(gguf, str(folder / "model.safetensors"))
    write_config(gguf, folder, tied)
    write_tokenizer(gguf, folder)
    print(f"{gguf.value('general.name', source)}: {count:,} parameters, vocabulary {len(gguf.value('tokenizer.ggml.tokens')):,}")


def main():
    source = sys.argv[1]
    try:
        convert(source, pathlib.Path(sys.argv[2]))
    except OSError as error:
        fail(str(error))
    except Exception as error:  # the reader trusts the file, so that a damaged one fails anywhere
        fail(f"{source} is damaged, or no GGUF file of a llama: {type(error).__name__}: {error}; fetch it again")


main()
