"""tools/lib/gguf_to_hf.py: a tiny GGUF file becomes an HF folder that transformers loads and that computes the same."""

import json
import pathlib
import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
import transformers

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "lib" / "gguf_to_hf.py"
CHARACTERS = [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a"]  # "\u0120" is a blank in byte-level BPE
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + CHARACTERS + ["he", "the", "\u0120the"]
MERGES = ["h e", "t he", "\u0120 the"]
TO_GGUF = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def tiny_model():
    config = transformers.LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():  # the folder holds bf16: start from values that bf16 has
        for value in model.parameters():
            value.copy_(value.bfloat16().float())
    return model


def permute(weight, heads):
    """The row order that GGUF wants for q and k: the halves of each head alternate."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, model, architecture="llama", pre="smollm"):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        value = value.numpy()
        parts = name.split(".")
        if parts[1] == "layers":
            inner = TO_GGUF[".".join(parts[3:-1])]
            if inner == "attn_q":
                value = permute(value, config.num_attention_heads)
            if inner == "attn_k":
                value = permute(value, config.num_key_value_heads)
            name = f"blk.{parts[2]}.{inner}.weight"
        else:
            name = {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[1]] + ".weight"
        writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(source, folder):
    folder.mkdir()
    command = [sys.executable, str(SCRIPT), str(source), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    work = tmp_path_factory.mktemp("gguf")
    model = tiny_model()
    write_gguf(work / "tiny.gguf", model)
    result = convert(work / "tiny.gguf", work / "hf")
    assert result.returncode == 0, result.stderr
    return model, work / "hf"


def test_transformers_loads_it_and_computes_the_same(converted):
    model, folder = converted
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    ids = torch.arange(40).remainder(len(TOKENS))[None]
    assert torch.equal(model(ids).logits, loaded(ids).logits)


def test_config_is_complete(converted):
    config = json.loads((converted[1] / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert (config["head_dim"], config["num_key_value_heads"], config["tie_word_embeddings"]) == (16, 2, True)


def test_tokenizer_is_the_one_in_the_file(converted):
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted[1])
    assert tokenizer.convert_tokens_to_ids(TOKENS) == list(range(len(TOKENS)))
    assert tokenizer.tokenize("the the 42<|im_end|>") == ["the", "\u0120the", "\u0120", "4", "2", "<|im_end|>"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


def test_safetensors_header_is_a_multiple_of_eight(converted):
    head = (converted[1] / "model.safetensors").read_bytes()[:8]
    assert int.from_bytes(head, "little") % 8 == 0


def test_other_architecture_is_refused(tmp_path):
    write_gguf(tmp_path / "other.gguf", tiny_model(), architecture="falcon")
    result = convert(tmp_path / "other.gguf", tmp_path / "hf")
    assert result.returncode == 1
    assert "architecture falcon: only llama can be written" in result.stderr


def test_damaged_files_are_refused_in_one_line(tmp_path):
    write_gguf(tmp_path / "whole.gguf", tiny_model())
    whole = (tmp_path / "whole.gguf").read_bytes()
    without_merges = whole.replace(b"tokenizer.ggml.merges", b"tokenizer.ggml.murges")
    no_heads = whole.replace(b"llama.attention.head_count_kv\x04\0\0\0\x02", b"llama.attention.head_count_kv\x04\0\0\0\0")
    assert len({whole, without_merges, no_heads}) == 3
    damaged = {"empty": b"", "text": b"no model at all" * 100, "short": whole[:100], "cut": whole[:-1000],
               "many tensors": whole[:8] + b"\xff" * 7 + whole[15:], "many keys": whole[:16] + b"\xff" * 7 + whole[23:],
               "merges": without_merges, "heads": no_heads}
    for name, data in damaged.items():
        (tmp_path / "bad.gguf").write_bytes(data)
        result = convert(tmp_path / "bad.gguf", tmp_path / name)
        assert result.returncode == 1, name
        assert "bad.gguf is damaged, or no GGUF file" in result.stderr, (name, result.stderr)
        assert len(result.stderr.splitlines()) == 1, (name, result.stderr)
