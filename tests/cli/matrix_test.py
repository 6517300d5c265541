"""Field cases whose answer is "the same result": offload, accumulation, clipping, recompute, freezing, tied tables."""
import json
import math
import os
import struct
import unittest

import field_case
import zinf_runner as z
from field_case import ON_DEVICE, ON_HOST, ON_NVME, sets

MODEL = os.environ.get("ZINF_MATRIX_MODEL")
PLACES = {"device": ON_DEVICE, "host": ON_HOST, "nvme": ON_NVME}


class SameBits(field_case.RunCase):
    def test_offload_with_accumulation_and_clipping(self):
        """BR-010: none, host and NVMe agree to the bit for every combination."""
        for accumulation in (1, 3):
            for clip in (0, 0.5):
                sections = z.mlp_sections(self.workspace, width=33, steps=5, gradient_accumulation_steps=accumulation,
                                          gradient_clipping=clip)
                hashes = {name: self.trained(sections, *sets(place))["state_hash"] for name, place in PLACES.items()}
                factors = [line["clip_factor"] for line in z.metrics(self.folder)]
                self.assertEqual(min(factors) < 1, clip > 0, f"clip {clip}: {factors}")
                self.one_hash(hashes, f"accumulation {accumulation}, clip {clip}")

    def test_recompute_with_swapped_weights(self):
        """BR-013: recompute on and off, weights in memory and on NVMe: identical losses."""
        sections = z.llama_sections(self.workspace, steps=4)
        losses = {}
        for recompute in ("true", "false"):
            for place in ("host", "nvme"):
                self.trained(sections, *sets(f"placement.weights={place}", f"step.recompute={recompute}"))
                losses[f"recompute {recompute}, weights {place}"] = str([line["loss"] for line in z.metrics(self.folder)])
        self.one_hash(losses)

    def test_groups_slots_and_budgets(self):
        """BR-017, BR-030: how much is moved at a time changes no bit."""
        sections = z.mlp_sections(self.workspace, width=67, steps=4)
        settings = ("step.group=1", "step.group=2", "step.overlap=false", "checkpoint.slots=1", "checkpoint.every=1",
                    "memory.device=2MiB", "io.block_size=4KiB", "io.threads=3")
        hashes = {setting: self.trained(sections, *sets(ON_NVME, setting))["state_hash"] for setting in settings}
        self.one_hash(hashes)

    def test_bf16_gradients(self):
        """Another result than fp32 gradients give, and the same one wherever they wait and however a step is cut into groups. Half
        the bytes to where they wait."""
        for tied in (True, False):
            folder = z.llama_folder(self.workspace, name=f"bf16-gradients-{tied}", tie_word_embeddings=tied)
            sections = z.llama_sections(self.workspace, folder=folder, steps=4, bf16={"enabled": True})
            runs = {}
            for where in ("host", "nvme", "device"):
                for group in (1, 3) if tied else (3,):
                    runs[f"{where}, group {group}"] = self.trained(sections, *sets(
                        "placement.weights=nvme", "placement.optimizer=nvme", f"placement.gradients={where}", f"step.group={group}",
                        "gradients.dtype=bf16"))
            self.one_hash({name: run["state_hash"] for name, run in runs.items()})
            bf16 = runs["host, group 3"]
            fp32 = self.trained(sections, *sets("placement.weights=nvme", "placement.optimizer=nvme", "placement.gradients=host"))
            self.assertNotEqual(bf16["state_hash"], fp32["state_hash"])
            bytes_of = {lane: [run["lanes"][lane]["bytes_per_parameter_step"] for run in (fp32, bf16)] for lane in ("d2h", "nvme_write")}
            self.assertEqual(*bytes_of["nvme_write"])
            # A table that is only looked up has its gradient made on the host, from its rows.
            summed = (fp32["parameters"] - (0 if tied else 64000)) / fp32["parameters"]
            self.assertAlmostEqual(bytes_of["d2h"][0] - bytes_of["d2h"][1], 2 * summed, delta=0.15)

    def test_dropout(self):
        """Masks depend on step, micro-batch and layer alone: a recompute, a group, a place or the next step beside the update
        drops the same elements; evaluation drops none."""
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack("<4000H", *((i * 7919 + i * i) % 997 for i in range(4000))))
        data = {"train": str(tokens), "eval": str(tokens), "format": "tokens", "token_width": 16, "seq_len": 32}
        sections = z.llama_sections(self.workspace, folder=z.gpt2_folder(self.workspace), steps=3, data=data,
                                    eval={"every": 3, "steps": 2})
        settings = ("step.group=1", "step.recompute=false", "step.overlap=false", "placement.weights=host")
        hashes = {setting: self.trained(sections, *sets(ON_NVME, setting, "train.dropout=0.1"))["state_hash"] for setting in settings}
        self.one_hash(hashes)
        dropped = hashes["step.group=1"]
        others = {rate: self.trained(sections, *sets(ON_NVME, f"train.dropout={rate}", "optimizer.params.lr=0"))["eval_loss"]
                  for rate in ("0", "0.5")}
        losses = [line["loss"] for line in z.metrics(self.folder)]
        self.assertEqual(len(set(others.values())), 1, f"weights stay the same, so do losses without dropout: {others}")
        self.assertNotIn(others["0"], losses)
        self.assertIn("dropout: embedding 0.5, residual 0.5, attention 0.5", self.log)
        self.assertNotEqual(self.trained(sections, *sets(ON_NVME, "train.dropout=0"))["state_hash"], dropped)

    def test_a_table_larger_than_the_device(self):
        """The head's table in slices where the device can't hold it: the bits of a run where it can, in evaluation too."""
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack("<4000H", *((i * 7919 + i * i) % 7001 for i in range(4000))))
        data = {"train": str(tokens), "eval": str(tokens), "format": "tokens", "token_width": 16, "seq_len": 32}
        for tied in (True, False):
            folder = z.llama_folder(self.workspace, name=f"large-table-{tied}", vocab_size=7001, hidden_size=512, intermediate_size=64,
                                    num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=tied)
            sections = z.llama_sections(self.workspace, steps=3, folder=folder, gradient_clipping=0.5, data=data,
                                        eval={"every": 2, "steps": 3})
            hashes, losses = {}, {}
            for device in ("200MiB", "22MiB"):
                hashes[device] = self.trained(sections, *sets(ON_NVME, f"memory.device={device}"))["state_hash"]
                losses[device] = str([line["eval_loss"] for line in z.metrics(self.folder) if "eval_loss" in line])
                self.assertEqual("table in slices of" in self.log.split("Rejected")[0], device == "22MiB", self.log)
            self.assertIn(".", losses["200MiB"])
            self.one_hash(hashes, f"tied {tied}")
            self.one_hash(losses, f"tied {tied}")


@unittest.skipUnless(MODEL, "a real model: under --long (ZINF_MATRIX_MODEL)")
class RealModel(field_case.RunCase):
    # state_hash after 10 steps of SmolLM2-135M, four micro-batches a step, where clipping is active and where it is not.
    def test_ten_steps_with_accumulation(self):
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack("<8000H", *((i * 7919 + i * i) % 49000 for i in range(8000))))
        data = {"train": str(tokens), "format": "tokens", "token_width": 16, "seq_len": 64}
        variants = {
            "device": (ON_DEVICE, "memory.device=3GiB"), "host": (ON_HOST,), "nvme": (ON_NVME,),
            "mixed": ("placement={weights: host, optimizer: nvme, gradients: nvme}",), "budgets that spill": (ON_NVME, "memory.host=900MiB"),
            "group 1": (ON_NVME, "step.group=1"), "group 2": (ON_NVME, "step.group=2"), "kept": (ON_HOST, "step.recompute=false"),
            "no overlap": (ON_NVME, "step.overlap=false"), "threads": (ON_NVME, "io.engine=threads", "io.threads=3", "io.block_size=128KiB"),
            "libaio": (ON_NVME, "io.engine=libaio", "io.depth=3"), "table in slices": (ON_NVME, "memory.device=80MiB"),
            "early": (ON_NVME, "step.speculate=always"),
        }
        for clip, active in ((0.5, True), (1e6, False)):
            sections = z.llama_sections(self.workspace, steps=10, folder=MODEL, data=data, bf16={"enabled": True}, gradient_clipping=clip,
                                        gradient_accumulation_steps=4, train_micro_batch_size_per_gpu=1)
            sections["model"] = {"path": MODEL}
            sections["memory"].update(device="1GiB", host="8GiB", nvme=[{"path": str(self.workspace.path / "swap"), "capacity": "16GiB"}])
            hashes = {}
            for name, (place, *settings) in variants.items():
                hashes[name] = self.trained(sections, *sets(place, *settings, "export.at_end=false"), timeout=1800)["state_hash"]
                factors = [line["clip_factor"] for line in z.metrics(self.folder)]
                self.assertEqual(min(factors) < 1, active, f"{name}: {factors}")
                for file in (self.workspace.path / "swap").iterdir():  # 3 GB each
                    file.unlink()
            self.one_hash(hashes, f"clipping {clip}")


class Evaluation(field_case.RunCase):
    def test_weights_move_once_for_a_group_of_micro_batches(self):
        """The evaluation's loss has the same bits in every group; its reads grow with the number of visits."""
        tokens = self.workspace.path / "tokens.bin"
        tokens.write_bytes(struct.pack("<4000H", *((i * 7919 + i * i) % 997 for i in range(4000))))
        data = {"train": str(tokens), "eval": str(tokens), "format": "tokens", "token_width": 16, "seq_len": 32}
        sections = z.llama_sections(self.workspace, steps=1, data=data)

        def evaluated(group, micro_batches):
            """Loss, and what the drive read beyond what a run with one micro-batch's evaluation does."""
            summary = self.trained(sections, "--trace", *sets(ON_NVME, f"step.group={group}", f"eval.steps={micro_batches}"))
            spans = json.loads((self.folder / "trace.json").read_text())
            return summary["eval_loss"], sum(span["args"].get("bytes", 0) for span in spans if span.get("cat") == "nvme_read")

        losses, read = {}, {}
        for group, micro_batches in ((3, 1), (3, 3), (3, 6), (1, 1), (1, 6)):
            losses[group, micro_batches], read[group, micro_batches] = evaluated(group, micro_batches)
        self.assertEqual(losses[1, 6], losses[3, 6])
        self.assertNotEqual(losses[3, 3], losses[3, 6])
        # Stage inputs are on the drive too: a little more for each micro-batch.
        one = (read[1, 6] - read[1, 1]) / 5
        self.assertGreater(one, 100000)
        self.assertAlmostEqual((read[3, 3] - read[3, 1]) / one, 0, delta=0.3)
        self.assertAlmostEqual((read[3, 6] - read[3, 3]) / one, 1, delta=0.3)


class GradientNorm(field_case.RunCase):
    def first_norm(self, sections, *arguments):
        self.trained(sections, *arguments)
        return z.metrics(self.folder)[0]["grad_norm"]

    def sections(self, micro, accumulation, **changes):
        return z.mlp_sections(self.workspace, width=32, steps=1, train_micro_batch_size_per_gpu=micro,
                              gradient_accumulation_steps=accumulation, gradient_clipping=0,
                              optimizer={"type": "AdamW", "params": {"lr": 0}}, **changes)

    def test_it_does_not_depend_on_how_the_batch_is_split(self):
        """BR-032, BR-025: 8 samples as 1 x 8, 2 x 4, 4 x 2 and 8 x 1, wherever the gradients live."""
        norms = {}
        for micro in (1, 2, 4, 8):
            for name, place in PLACES.items():
                norms[f"{micro} x {8 // micro} {name}"] = self.first_norm(self.sections(micro, 8 // micro), *sets(place))
        first = next(iter(norms.values()))
        self.assertGreater(first, 0.01)
        for name, norm in norms.items():
            self.assertAlmostEqual(norm / first, 1, delta=1e-6, msg=name)

    def test_in_bf16_with_sixty_four_micro_batches(self):
        """BR-028, BR-020: gradients are accumulated in fp32, so that 64 x 1 and 1 x 64 agree within 0.5 %."""
        bf16 = {"bf16": {"enabled": True}}
        split = self.first_norm(self.sections(1, 64, **bf16), *sets(ON_NVME))
        whole = self.first_norm(self.sections(64, 1, **bf16), *sets(ON_NVME))
        self.assertAlmostEqual(split / whole, 1, delta=5e-3)

    def test_rate_zero_changes_no_weight(self):
        sections = self.sections(2, 2)
        one = self.trained(sections, "--steps", "1")["weights_hash"]
        self.assertEqual(self.trained(sections, "--steps", "3")["weights_hash"], one)


class Decay(field_case.RunCase):
    def test_adamw_and_l2_differ_and_adam_means_adamw(self):
        """BR-016: three names, two results, on host and on NVMe alike; the mode is printed."""
        def hashes(kind, **params):
            optimizer = {"type": kind, "params": {"lr": 0.01, "weight_decay": 0.1, **params}}
            sections = z.mlp_sections(self.workspace, width=1, layers=1, steps=3, optimizer=optimizer)
            found = {name: self.trained(sections, *sets(place))["state_hash"] for name, place in PLACES.items()}
            self.one_hash(found, kind)
            return found["host"]
        decoupled = hashes("AdamW")
        self.assertEqual(hashes("Adam"), decoupled)
        self.assertIn("decoupled decay", self.log)
        self.assertNotEqual(hashes("Adam", adam_w_mode=False), decoupled)


class FrozenAndTied(field_case.RunCase):
    def test_frozen_tensors_keep_their_bytes_and_cost_no_state(self):
        """BR-023, BR-024, BR-035: every second layer frozen; the export holds all tensors."""
        sections = z.llama_sections(self.workspace, steps=3)
        self.trained(sections, "--steps", "1", *sets("optimizer.params.lr=0"))
        initial = field_case.tensors_of(self.exported("--dtype", "fp32"))
        full = self.trained(sections, *sets(ON_NVME))
        written = sum(line["nvme_write_bytes"] for line in z.metrics(self.folder))
        trained = field_case.tensors_of(self.exported("--dtype", "fp32"))
        frozen_pattern = "model.layers.1.*"
        less = self.trained(sections, *sets(ON_NVME, f'train.freeze=["{frozen_pattern}"]'))
        frozen = field_case.tensors_of(self.exported("--dtype", "fp32"))
        self.assertEqual(set(frozen), set(initial))
        for name, tensor in frozen.items():
            if name.startswith("model.layers.1."):
                self.assertEqual(tensor, initial[name], name)
                self.assertNotEqual(trained[name], initial[name], name)
            else:
                self.assertNotEqual(tensor[2], initial[name][2], name)
        self.assertLess(less["peak_bytes"]["nvme"]["measured"], full["peak_bytes"]["nvme"]["measured"])
        self.assertLess(sum(line["nvme_write_bytes"] for line in z.metrics(self.folder)), written)

    def test_an_export_has_every_tensor_of_its_source(self):
        """BR-035, BR-042: stage 3, half of it frozen, in bf16: names, shapes and one type; frozen values are the source's."""
        shape = {"tie_word_embeddings": False}
        self.trained(z.llama_sections(self.workspace, steps=1, folder=z.llama_folder(self.workspace, **shape)))
        source_folder = self.exported("--dtype", "fp32")
        source = field_case.tensors_of(source_folder)
        sections = z.llama_sections(self.workspace, steps=2, bf16={"enabled": True}, zero_optimization={"stage": 3})
        sections["model"] = {"path": str(source_folder)}
        sections["train"]["freeze"] = ["model.layers.1.*", "lm_head.*"]
        self.trained(sections, *sets(ON_NVME))
        for dtype, kind, size in (("fp32", "F32", 4), ("bf16", "BF16", 2)):
            to = self.workspace.path / f"whole-{dtype}"
            code, _, err = z.run("export", self.folder, to, "--dtype", dtype)
            self.assertEqual(code, 0, err)
            found = field_case.tensors_of(to)
            self.assertEqual({name: tensor[1] for name, tensor in found.items()}, {name: tensor[1] for name, tensor in source.items()})
            self.assertEqual({tensor[0] for tensor in found.values()}, {kind})
            for name, (_, dimensions, data) in found.items():
                self.assertEqual(len(data), size * math.prod(dimensions), name)
                if dtype == "fp32":
                    frozen = name.startswith(("model.layers.1.", "lm_head."))
                    self.assertEqual(data == source[name][2], frozen, name)

    def test_a_tied_table_counts_once(self):
        """BR-026: vocabulary 64, width 16: 1,024 parameters fewer than untied; one tensor in the export."""
        counts = {}
        for tied in (True, False):
            folder = z.llama_folder(self.workspace, name=f"tied-{tied}", vocab_size=64, hidden_size=16, intermediate_size=32,
                                    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tied)
            counts[tied] = self.trained(z.llama_sections(self.workspace, steps=2, folder=folder), *sets(ON_NVME))["parameters"]
            self.assertEqual("lm_head.weight" in field_case.tensors_of(self.exported()), not tied)
        self.assertEqual(counts[False] - counts[True], 64 * 16)

    def test_a_tied_table_gives_the_same_norm_everywhere(self):
        """BR-026: the gradient is the sum of both uses, wherever the table lives."""
        sections = z.llama_sections(self.workspace, steps=3)
        norms = {}
        for name, place in PLACES.items():
            self.trained(sections, *sets(place))
            norms[name] = str([line["grad_norm"] for line in z.metrics(self.folder)])
        self.one_hash(norms)
        self.assertTrue(all(math.isfinite(line["grad_norm"]) for line in z.metrics(self.folder)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
