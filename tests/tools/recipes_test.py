"""Every recipe in configs/ runs: planned as it is written, and trained for three steps on tiny models and data."""

import json
import os
import pathlib
import re
import struct
import subprocess

import pytest
import tokenizers
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
ZINF = os.environ.get("ZINF_PROGRAM", str(ROOT / "build" / "zinf"))
RECIPES = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def zinf(*arguments):
    result = subprocess.run([ZINF, *map(str, arguments)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return result.returncode, result.stdout, result.stderr


def write_tokenizer(folder):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((ROOT / "configs" / "data" / "chat.jsonl").read_text().splitlines(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<|im_start|>",
        "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}))
    return tokenizer.get_vocab_size()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny Llama folder, a GPT-2 config, a text and a token file."""
    folder = tmp_path_factory.mktemp("tiny")
    llama = folder / "llama"
    llama.mkdir()
    vocabulary = write_tokenizer(llama)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=2)).save_pretrained(llama)
    gpt2 = folder / "gpt2"
    gpt2.mkdir()
    (gpt2 / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 300, "n_positions": 64, "n_embd": 32,
        "n_layer": 2, "n_head": 2, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True}))
    (folder / "text.txt").write_text("She opened the letter, and read it twice before she spoke.\n\n" * 400)
    ids = [(7 * i * i + 3 * i) % 300 for i in range(20000)]
    (folder / "tokens.bin").write_bytes(
        struct.pack("<256i", 20240520, 1, len(ids), *([0] * 253)) + struct.pack(f"<{len(ids)}H", *ids))
    return folder


def overrides(recipe, tiny, run):
    """--set options that put tiny things in the place of what the recipe names."""
    text = (ROOT / "configs" / recipe).read_text()
    options = {}
    if "nvme" in text or "deepspeed" in text:
        options["memory.nvme"] = f"[{{path: {run}/swap}}]"
        (run / "swap").mkdir(parents=True)
    if recipe in ("quickstart.yaml", "finetune_chat.yaml", "deepspeed.yaml"):
        options["model.path"] = tiny / "llama"
        options["data.seq_len"] = 64
    if recipe == "quickstart.yaml":
        options["data.train"] = options["data.eval"] = f"[{tiny}/text.txt]"
    if recipe == "pretrain_gpt2.yaml":
        options["model.path"] = tiny / "gpt2"
        options["data.train"] = options["data.eval"] = f"[{tiny}/tokens.bin]"
        options["data.seq_len"] = 64
    if "warmup_num_steps" in text or recipe == "deepspeed.yaml":
        options["scheduler.params.warmup_num_steps"] = 1  # these runs are short
    if "epochs:" in text:
        options["train.epochs"] = "auto"
    return [part for key, value in options.items() for part in ("--set", f"{key}={value}")]


def test_there_are_recipes():
    assert {"quickstart.yaml", "finetune_chat.yaml", "pretrain_gpt2.yaml", "mlp_csv.yaml", "deepspeed.yaml"} <= set(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_trains(recipe, tiny, tmp_path):
    run = tmp_path / "run"
    code, out, err = zinf("train", ROOT / "configs" / recipe, *overrides(recipe, tiny, tmp_path), "--steps", 3, "--run-dir", run)
    assert code == 0, err
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["loss"] > 0 and row["grad_norm"] > 0 for row in rows)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 3
    for tier, peak in summary["peak_bytes"].items():
        if peak.get("budget"):
            assert peak["measured"] <= peak["budget"], tier


def test_quickstart_puts_its_states_on_the_drive_and_says_a_sample(tiny, tmp_path):
    run = tmp_path / "run"
    options = overrides("quickstart.yaml", tiny, tmp_path)
    code, _, err = zinf("train", ROOT / "configs" / "quickstart.yaml", *options, "--steps", 8, "--run-dir", run)
    assert code == 0, err
    log = (run / "zinf.log").read_text()
    assert re.search(r"sample before: She opened the letter, and", log)
    assert re.search(r"sample after step 8: She opened the letter, and", log)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["lanes"]["nvme_write"]["bytes_per_parameter_step"] >= 12
    model = transformers.AutoModelForCausalLM.from_pretrained(run / "model")
    assert model.config.num_hidden_layers == 2
    report = subprocess.run(
        ["python3", ROOT / "tools" / "lib" / "quickstart_report.py", run], capture_output=True, text=True, check=True).stdout
    assert "what it says before training:" in report
    assert "after step 8:" in report
    assert str(run / "model") in report


def test_recipes_name_no_key_that_has_no_effect(tiny, tmp_path):
    for recipe in RECIPES:
        if recipe == "deepspeed.yaml":
            continue  # that is its point
        _, _, err = zinf("train", ROOT / "configs" / recipe, *overrides(recipe, tiny, tmp_path / recipe), "--dry-run",
                         "--run-dir", tmp_path / recipe / "run")
        assert "no effect" not in err, recipe
