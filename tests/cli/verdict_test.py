"""Verdicts through the command line: bad configs, bad model folders, bad data. Exit 2, and the message names what is wrong."""
import json
import struct
import unittest

import field_case
import zinf_runner as z
from field_case import sets, tensors_of, write_tensors


class Configs(field_case.RunCase):
    def sections(self, **changes):
        """The model's folder does not exist: what is refused earlier does not name it."""
        sections = z.mlp_sections(self.workspace, **changes)
        sections["model"] = {"path": str(self.workspace.path / "absent-model")}
        return sections

    def refused_text(self, text, *parts):
        """A config file with this text is refused with its path, line and these parts."""
        file = self.workspace.path / "config.yaml"
        file.write_text(text)
        code, _, err = z.train(file, self.workspace.path / "run")
        self.assertEqual(code, 2, err)
        self.assertIn("config.yaml", err)
        for part in parts:
            self.assertIn(part, err)

    def test_unknown_keys_at_any_depth(self):
        """BR-050: path, line and the nearest key."""
        start = "model: {type: mlp, width: 8, layers: 1}\ndata: {format: random}\n"
        self.refused_text(start + "gradient_cliping: 1\n", "config.yaml:3", "gradient_cliping", "gradient_clipping")
        self.refused_text(start + "optimizer:\n  type: AdamW\n  params:\n    betaz: [0.9, 0.99]\n", "config.yaml:6", "betaz", "betas")
        self.refused_text(start + "stage: 3\n", "config.yaml:3", "zero_optimization.stage")
        self.refused_text(start + "train:\n\tsteps: 3\n", "config.yaml:4")
        self.refused_text(start + "train: {steps: 3}\ntrain: {steps: 4}\n", "config.yaml:4", "train")
        self.refused_text("")
        self.refused_text("- model\n- data\n")

    def test_contradictions(self):
        """BR-052: each has its verdict before the model is opened."""
        nvme_without_path = self.sections()
        del nvme_without_path["memory"]["nvme"]
        nvme_without_path["zero_optimization"] = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
        stage_1 = self.sections(zero_optimization={"stage": 1, "offload_param": {"device": "cpu"}})
        both = self.sections(bf16={"enabled": True}, fp16={"enabled": True})
        for sections, parts in ((nvme_without_path, ("offload_optimizer.device", "nvme_path")),
                                (stage_1, ("offload_param", "stage")), (both, ("bf16", "fp16")),
                                (self.sections(gradient_clipping=-1), ("gradient_clipping", "-1"))):
            text = self.refused(2, sections)
            for part in parts:
                self.assertIn(part, text)
            self.assertNotIn("absent-model", text)

    def test_a_ratio_without_effect_is_said(self):
        """BR-052: a partial-offload ratio does nothing here, and that is told once."""
        sections = z.mlp_sections(self.workspace, steps=1)
        sections["zero_optimization"] = {"offload_optimizer": {"device": "cpu", "ratio": 0.1}}
        self.trained(sections)
        self.assertEqual(len([line for line in self.log.splitlines() if "ratio" in line]), 1, self.log)

    def test_batch_arithmetic(self):
        """BR-027: two of the three numbers give the third; a conflict prints all of them."""
        def batch(**numbers):
            sections = z.mlp_sections(self.workspace, steps=1)
            del sections["train_micro_batch_size_per_gpu"], sections["gradient_accumulation_steps"]
            return {**sections, **numbers}
        for numbers, tokens in (({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2}, 12),
                                ({"train_micro_batch_size_per_gpu": 2}, 2),
                                ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 6)):
            self.trained(batch(**numbers))
            self.assertEqual(z.metrics(self.folder)[0]["tokens"], tokens, numbers)
        text = self.refused(2, batch(train_batch_size=13, train_micro_batch_size_per_gpu=2))
        self.assertIn("13", text)
        self.assertIn("train_micro_batch_size_per_gpu", text)
        self.assertIn("0", self.refused(2, batch(train_batch_size=0)))
        self.assertIn("-1", self.refused(2, batch(train_micro_batch_size_per_gpu=-1)))

    def test_warm_up_at_the_edges(self):
        """BR-051: the table of the linear schedule (as Transformers', 0 at update 1); warm-up above the total is refused."""
        def rates(warmup, steps):
            sections = z.mlp_sections(self.workspace, width=4, layers=1, steps=steps)
            sections["scheduler"] = {"type": "linear", "params": {"warmup_num_steps": warmup}}
            self.trained(sections)
            return [line["lr"] for line in z.metrics(self.folder)]
        for warmup, shares in ((0, (1, 2 / 3, 1 / 3)), (1, (0, 1, 1 / 2)), (2, (0, 1 / 2, 1, 3 / 4, 1 / 2, 1 / 4))):
            found = rates(warmup, len(shares))
            for rate, share in zip(found, shares, strict=True):
                self.assertAlmostEqual(rate, 1e-3 * share, delta=1e-12, msg=f"warm-up {warmup}: {found}")
        sections = self.sections(train={"steps": 4})
        sections["scheduler"] = {"type": "linear", "params": {"warmup_num_steps": 8}}
        text = self.refused(2, sections)
        self.assertIn("warmup_num_steps", text)


class ModelFolders(field_case.RunCase):
    def setUp(self):
        super().setUp()
        shape = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=1, tie_word_embeddings=True)
        self.trained(z.llama_sections(self.workspace, steps=1, folder=z.llama_folder(self.workspace, **shape)))
        self.model = self.exported("--dtype", "fp32")
        self.file = self.model / "model.safetensors"
        self.tensors = tensors_of(self.model)

    def verdict(self, code, *parts):
        sections = z.llama_sections(self.workspace, steps=1, folder=self.model)
        sections["model"] = {"path": str(self.model)}
        sections["data"]["seq_len"] = 8
        if code == 0:
            self.trained(sections)
            return
        text = self.refused(code, sections)
        for part in parts:
            self.assertIn(part, text)

    def edit_config(self, **changes):
        config = json.loads((self.model / "config.json").read_text())
        config.update(changes)
        (self.model / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    def header(self):
        data = self.file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        return json.loads(data[8:8 + size])

    def test_malformed_safetensors(self):
        """BR-068: the message names the file; where a tensor is at fault, the tensor."""
        good = self.file.read_bytes()
        for length in (2**63, 2**64 - 1, 100000001, len(good)):
            self.file.write_bytes(struct.pack("<Q", length) + good[8:])
            self.verdict(2, "model.safetensors")
        for data in (good[:3], good[:-1], good + b"\0"):
            self.file.write_bytes(data)
            self.verdict(2, "model.safetensors")
        name = "model.norm.weight"
        for change in ({"shape": [2**32, 2**32]}, {"shape": [15]}, {"dtype": "F13"}, {"data_offsets": [4, 0]}):
            self.file.write_bytes(good)
            header = self.header()
            header[name].update(change)
            write_tensors(self.file, self.tensors, json.dumps(header))
            self.verdict(2, "model.safetensors", name)

    def test_unusual_but_valid_safetensors(self):
        """BR-069: empty metadata, blanks around the header, another order of keys."""
        header = self.header()
        header["__metadata__"] = {}
        text = json.dumps(dict(reversed(header.items())))
        ordered = {name: self.tensors[name] for name in sorted(
            (n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])}
        write_tensors(self.file, ordered, text + " " * (4096 - len(text) % 4096))
        self.verdict(0)

    def test_tied_flag_and_head(self):
        """BR-070: equal head accepted, another head refused, missing head refused by name."""
        table = self.tensors["model.embed_tokens.weight"]
        write_tensors(self.file, {**self.tensors, "lm_head.weight": table})
        self.verdict(0)
        write_tensors(self.file, {**self.tensors, "lm_head.weight": (table[0], table[1], bytes(len(table[2])))})
        self.verdict(2, "lm_head.weight")
        write_tensors(self.file, self.tensors)
        self.edit_config(tie_word_embeddings=False)
        self.verdict(2, "lm_head.weight")

    def test_missing_and_unknown_tensors(self):
        """BR-073: a missing or unknown tensor is refused with its name."""
        write_tensors(self.file, {**self.tensors, "model.extra": ("F32", [1], bytes(4))})
        self.verdict(2, "model.extra")
        less = dict(self.tensors)
        del less["model.norm.weight"]
        write_tensors(self.file, less)
        self.verdict(2, "model.norm.weight")

    def test_head_counts_and_sizes(self):
        """BR-071, BR-072: head counts that do not divide are refused with both numbers."""
        self.edit_config(num_attention_heads=10, num_key_value_heads=4, head_dim=8)
        self.verdict(2, "10", "4")
        self.edit_config(num_attention_heads=2, num_key_value_heads=0)
        self.verdict(2, "num_key_value_heads")
        self.edit_config(num_attention_heads=3, num_key_value_heads=3, head_dim=None)
        self.verdict(2, "16", "3")

    def test_unknown_rope_scaling(self):
        """BR-074: refused by its name, never ignored."""
        self.edit_config(rope_scaling={"rope_type": "spiral", "factor": 2.0})
        self.verdict(2, "spiral")

    def test_missing_files(self):
        self.file.unlink()
        self.verdict(2, str(self.model))
        (self.model / "config.json").unlink()
        self.verdict(2, "config.json")


class DataFiles(field_case.RunCase):
    def verdict(self, code, file, data_format, *parts):
        sections = z.llama_sections(self.workspace, steps=1)
        sections["data"] = {"train": str(file), "format": data_format, "seq_len": 8, "token_width": 16}
        if code == 0:
            return self.trained(sections)
        text = self.refused(code, sections)
        for part in parts:
            self.assertIn(part, text)

    def test_unreadable_files(self):
        self.verdict(2, self.workspace.path / "absent.bin", "tokens", "absent.bin")
        folder = self.workspace.path / "folder.bin"
        folder.mkdir()
        self.verdict(2, folder, "tokens", "folder.bin")

    def test_token_ids_are_checked(self):
        """BR-060: an id equal to the vocabulary, with file, position and value; an odd number of bytes."""
        file = self.workspace.path / "tokens.bin"
        file.write_bytes(struct.pack("<512H", *([7] * 300 + [1000] + [7] * 211)))
        self.verdict(2, file, "tokens", "tokens.bin", "1000", "300")
        file.write_bytes(struct.pack("<512H", *[7] * 512) + b"\0")
        self.verdict(2, file, "tokens", "tokens.bin")
        file.write_bytes(struct.pack("<512H", *[7] * 512))
        self.verdict(0, file, "tokens")


class Talk(field_case.RunCase):
    def test_quiet_says_nothing_but_the_result(self):
        config = self.workspace.config("quiet", **z.mlp_sections(self.workspace, steps=2))
        code, out, err = z.run("-q", "train", config, "--run-dir", self.workspace.path / "quiet")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("Finished after 2 steps", out)

    def test_a_dry_run_shows_settings_and_a_sample_without_a_tokenizer(self):
        """An "auto" is said with what it stands for; ids take the place of text that nothing can decode."""
        sections = z.llama_sections(self.workspace, gradient_clipping="auto", optimizer={"type": "AdamW", "params": {"lr": "auto"}})
        config = self.workspace.config("dry", **sections)
        code, out, err = z.run("train", config, "--run-dir", self.workspace.path / "dry", "--dry-run")
        self.assertEqual(code, 0, err)
        for key, value in (("gradient_clipping", "1"), ("optimizer.params.lr", "5e-5")):
            self.assertRegex(err, rf"info {key} = {value} \(auto, .*:\d+\)")
        self.assertRegex(out, r"(?m)^  optimizer\.params\.lr = 5e-5 \(auto, ")
        self.assertRegex(out, r"(?m)^  step\.overlap = true \(default\)")
        self.assertRegex(out, r"First sample:\nread      1 tokens  \[\d+\]\nlearn +\d+ tokens  \[\d+,")


if __name__ == "__main__":
    unittest.main(verbosity=2)
