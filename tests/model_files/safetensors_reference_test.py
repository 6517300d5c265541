"""The safetensors reader and writer beside the reference implementation, and exports beside transformers.

ZINF_MODEL_FILES_PROBE names the probe program.
"""

import json
import os
import random
import struct
import subprocess

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

PROBE = os.environ["ZINF_MODEL_FILES_PROBE"]


def probe(*arguments):
    return subprocess.run([PROBE, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def reference_verdict(path):
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            opened.keys()
        return "ok"
    except Exception as error:  # the reference throws several kinds
        return f"refused: {error}"


def raw(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TWO = {"a": entry(0, 8, [2]), "b": entry(8, 16, [2])}
CASES = {
    "length 2^63": raw(b"{}", length=1 << 63),
    "length 2^64-1": raw(b"{}", length=(1 << 64) - 1),
    "length over the limit": raw(b"{}", length=100_000_001),
    "length beyond the file": raw(b"{}", length=100),
    "three bytes": b"abc",
    "empty": b"",
    "overlap": raw({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(16)),
    "same range twice": raw({"a": entry(0, 8, [2]), "b": entry(0, 8, [2])}, bytes(8)),
    "hole": raw({"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}, bytes(20)),
    "begin after end": raw({"a": entry(8, 0, [2])}, bytes(8)),
    "negative": raw({"a": entry(-8, 0, [2])}, bytes(8)),
    "negative shape": raw({"a": entry(0, 8, [-2])}, bytes(8)),
    "shape and bytes differ": raw({"a": entry(0, 8, [3])}, bytes(8)),
    "2^32 x 2^32": raw({"a": entry(0, 0, [1 << 32, 1 << 32])}),
    "2^32 x 2^32 x 0": raw({"a": entry(0, 0, [1 << 32, 1 << 32, 0])}),
    "0 x 2^32 x 2^32": raw({"a": entry(0, 0, [0, 1 << 32, 1 << 32])}),
    "trailing bytes": raw(TWO, bytes(17)),
    "truncated": raw(TWO, bytes(15)),
    "unknown type": raw({"a": entry(0, 8, [2], "F33")}, bytes(8)),
    "metadata of numbers": raw({"__metadata__": {"a": 1}}),
    "empty metadata": raw({"__metadata__": {}}),
    "null metadata": raw({"__metadata__": None}),
    "list as metadata": raw({"__metadata__": []}),
    "zero elements": raw({"a": entry(0, 0, [0, 5])}),
    "zero elements between": raw({"b": entry(8, 16, [2]), "z": entry(8, 8, [0]), "a": entry(0, 8, [2])}, bytes(16)),
    "scalar": raw({"a": entry(0, 4, [])}, bytes(4)),
    "trailing spaces": raw(json.dumps(TWO).encode() + b"   ", bytes(16)),
    "leading space": raw(b" " + json.dumps(TWO).encode(), bytes(16)),
    "trailing NUL": raw(json.dumps(TWO).encode() + b"\0", bytes(16)),
    "byte-order mark": raw(b"\xef\xbb\xbf" + json.dumps(TWO).encode(), bytes(16)),
    "key order": raw({"b": TWO["b"], "a": TWO["a"]}, bytes(16)),
    "no tensors": raw({}),
    "extra field": raw({"a": {**TWO["a"], "more": [1, {"x": None}]}}, bytes(8)),
    "missing field": raw({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "three offsets": raw({"a": {**TWO["a"], "data_offsets": [0, 8, 8]}}, bytes(8)),
    "one offset": raw({"a": {**TWO["a"], "data_offsets": [0]}}, bytes(8)),
    "real shape": raw({"a": {**TWO["a"], "shape": [2.0]}}, bytes(8)),
    "header is a list": raw([]),
    "empty header": raw(b""),
    "half a byte": raw({"a": entry(0, 8, [15], "F4")}, bytes(8)),
    "sub-byte": raw({"a": entry(0, 8, [16], "F4")}, bytes(8)),
    **{f"header of {size}": raw(json.dumps(TWO).encode().ljust(size), bytes(16)) for size in (4088, 4096, 65528, 65536)},
}


def test_verdicts_are_the_reference_s(tmp_path):
    paths = []
    for number, data in enumerate(CASES.values()):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(data)
    ours = probe("verdict", *paths).splitlines()
    assert len(ours) == len(CASES)
    differing = [
        (name, mine, theirs)
        for name, mine, theirs in zip(CASES, ours, map(reference_verdict, paths))
        if (mine == "ok") != (theirs == "ok")
    ]
    assert differing == []


def test_random_damage_is_judged_alike(tmp_path):
    """Ours may be stricter in one point only: a name or field that appears twice."""
    dice = random.Random(5)
    text = json.dumps({"__metadata__": {"format": "pt"}, **TWO, "c": entry(16, 20, [2, 1], "BF16")})
    tokens = ["{", "}", "[", "]", ",", "0", "8", "16", "-1", "4294967296", '"F32"', '"BF16"', '"x"', " ", "null", "1.0"]
    paths = []
    for number in range(1500):
        header = text
        for _ in range(dice.randint(1, 2)):
            at = dice.randrange(len(header))
            cut = dice.choice([0, 1, 1, 2])
            header = header[:at] + dice.choice(tokens) + header[at + cut:]
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(raw(header.encode(), bytes(20)))
    ours = probe("verdict", *paths).splitlines()
    accepted = 0
    for path, mine in zip(paths, ours):
        theirs = reference_verdict(path)
        accepted += mine == "ok"
        if (mine == "ok") != (theirs == "ok"):
            assert "appears twice" in mine, (path.read_bytes(), mine, theirs)
    assert accepted > 10


def test_reads_what_the_reference_writes(tmp_path):
    torch.manual_seed(0)
    types = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
             torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]
    tensors = {f"t.{i}": torch.randn(3, i + 1).to(kind) for i, kind in enumerate(types)}
    tensors["scalar"] = torch.tensor(1.5)
    tensors["empty"] = torch.zeros(0, 4)
    save_file(tensors, tmp_path / "reference.safetensors", {"format": "pt"})
    rows = [line.split("\t") for line in probe("list", tmp_path / "reference.safetensors").splitlines()]
    assert {row[0]: row[2] for row in rows} == {name: str(list(tensor.shape)) for name, tensor in tensors.items()}


def test_the_reference_reads_what_we_write(tmp_path):
    torch.manual_seed(0)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "any", "dtype": "float32"}))
    tensors = {"w": torch.randn(70, 30), "h": torch.randn(17, 3).half(), "b": torch.randn(5).bfloat16(),
               "ids": torch.arange(7), "flags": torch.tensor([True, False, True])}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    probe("export", folder, tmp_path / "fp32", "fp32", 0)
    probe("export", folder, tmp_path / "bf16", "bf16", 4000)
    whole = load_file(tmp_path / "fp32/model.safetensors")
    index = json.loads((tmp_path / "bf16/model.safetensors.index.json").read_text())
    halves = {}
    for file in set(index["weight_map"].values()):
        halves.update(load_file(tmp_path / "bf16" / file))
    assert set(whole) == set(halves) == set(tensors) == set(index["weight_map"])
    for name, tensor in tensors.items():
        floating = tensor.is_floating_point()
        assert torch.equal(whole[name], tensor.float() if floating else tensor), name
        assert torch.equal(halves[name], tensor.float().bfloat16() if floating else tensor), name
    assert sum(t.numel() * t.element_size() for t in halves.values()) == index["metadata"]["total_size"]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_exports_load_in_transformers(tmp_path, family):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    if family == "llama":
        config = transformers.LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=40, num_hidden_layers=2,
                                          num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    else:
        config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path / "in")
    for kind, shard in (("fp32", 0), ("fp32", 3000), ("bf16", 0)):
        out = tmp_path / f"{kind}-{shard}"
        probe("export", tmp_path / "in", out, kind, shard)
        loaded, report = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        assert not any(report.values()), report
        assert loaded.dtype == (torch.float32 if kind == "fp32" else torch.bfloat16)
        ids = torch.arange(12).reshape(1, 12)
        with torch.no_grad():
            logits = loaded.eval()(ids).logits
            expected = (model if kind == "fp32" else model.bfloat16())(ids).logits
        assert torch.equal(logits, expected)
