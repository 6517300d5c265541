"""BR-043 to BR-045, fp16: DeepSpeed's loss scale, overflows that change nothing, one result wherever the state lives, resume inside a window."""
import struct
import unittest

import field_case
import zinf_runner as z
from field_case import ON_DEVICE, ON_HOST, ON_NVME, sets

PLACES = {"device": ON_DEVICE, "host": ON_HOST, "nvme": ON_NVME, "mixed": "placement={weights: host, optimizer: nvme}"}


def scales_by_the_rules(overflows, power, window, hysteresis, consecutive, least):
    """The scale before every step: DeepSpeed's documented rules, told which steps overflowed."""
    scale, left, last_overflow = 2.0 ** power, hysteresis, -1
    scales = []
    for step, overflow in enumerate(overflows):
        scales.append(scale)
        if overflow:
            if left == 1:
                scale = max(scale / 2, least)
            else:
                left -= 1
            last_overflow = step
            continue
        if consecutive:
            left = hysteresis
        good = step - last_overflow - 1
        if good > 0 and good % window == 0:
            scale, left = scale * 2, hysteresis
    return scales


class Fp16(field_case.RunCase):
    def sections(self, steps, folder=None, **fp16):
        return z.llama_sections(self.workspace, steps=steps, folder=folder, fp16={"enabled": True, **fp16},
                                scheduler={"type": "linear", "params": {"warmup_num_steps": 3, "total_num_steps": max(steps, 24)}})

    def test_the_scale_follows_the_rules(self):
        """Overflows from a scale that is far too large, then growth until it overflows again."""
        for hysteresis, consecutive in ((1, False), (2, False), (2, True)):
            keys = {"initial_scale_power": 32, "loss_scale_window": 2, "hysteresis": hysteresis,
                    "consecutive_hysteresis": consecutive, "min_loss_scale": 0.25}
            self.trained(self.sections(60, **keys))
            lines = z.metrics(self.folder)
            skips = [line["overflow_skips"] for line in lines]
            overflows = [now > before for before, now in zip([0] + skips, skips)]
            self.assertGreater(sum(overflows), 3)
            self.assertFalse(all(overflows))
            self.assertTrue(any(b and not a for a, b in zip(overflows, overflows[1:])), "no growth led to an overflow again")
            self.assertEqual([line["loss_scale"] for line in lines], scales_by_the_rules(overflows, 32, 2, hysteresis, consecutive, 0.25))
            self.assertEqual(self.log.count("is skipped: the gradient of"), sum(overflows))
            self.assertEqual("the scale falls after 1 more (fp16.hysteresis)" in self.log, hysteresis == 2)
            # The schedule counts updates.
            rates = [line["lr"] for line in lines]
            for step in range(1, len(rates)):
                self.assertEqual(rates[step] == rates[step - 1], overflows[step - 1], f"step {step + 1}")

    def test_an_overflowed_step_changes_nothing(self):
        """One batch again and again: skipped steps and then four good ones end with the bits of the four alone."""
        def run(steps, **keys):
            sections = self.sections(steps, loss_scale_window=1000, hysteresis=1, **keys)
            sections["data"]["samples"] = sections["train_micro_batch_size_per_gpu"] = sections["gradient_accumulation_steps"] = 1
            sections["scheduler"] = {"type": "constant", "params": {"warmup_num_steps": 3}}
            summary = self.trained(sections)
            return summary["state_hash"], z.metrics(self.folder)
        _, lines = run(24, initial_scale_power=32)
        skipped = lines[-1]["overflow_skips"]
        self.assertGreater(skipped, 2)
        self.assertLess(skipped, 20)
        late, lines = run(skipped + 4, initial_scale_power=32)
        power = 32 - skipped
        self.assertEqual(lines[-1]["loss_scale"], 2.0 ** power)
        at_once, lines = run(4, initial_scale_power=power)
        self.assertEqual(lines[-1]["overflow_skips"], 0)
        self.assertEqual(late, at_once)

    def test_one_result_wherever_the_state_lives(self):
        keys = {"initial_scale_power": 31, "hysteresis": 1, "loss_scale_window": 3}
        hashes = {}
        for name, place in PLACES.items():
            hashes[name] = self.trained(self.sections(24, **keys), *sets(place))["state_hash"]
            lines = z.metrics(self.folder)
            self.assertGreater(lines[-1]["overflow_skips"], 0)
            self.assertLess(lines[-1]["overflow_skips"], 20)
        for setting in ("step.group=1", "step.overlap=false", "step.recompute=true"):
            hashes[setting] = self.trained(self.sections(24, **keys), *sets(ON_NVME, setting))["state_hash"]
        self.one_hash(hashes)

    def test_resume_in_the_middle_of_a_window(self):
        """With every cut the scale goes on as if the run had never stopped: after overflows, and inside a window."""
        keys = {"initial_scale_power": 28, "hysteresis": 2, "loss_scale_window": 4}
        sections = self.sections(24, **keys)
        for place in (ON_NVME, ON_HOST):
            whole = self.trained(sections, *sets(place))["state_hash"]
            expected = [(line["loss_scale"], line["overflow_skips"], line["loss"]) for line in z.metrics(self.folder)]
            skips = [line[1] for line in expected]
            self.assertTrue(0 < skips[-1] < 20, skips)
            folder = self.workspace.path / f"resumed{self.runs}"
            config = self.workspace.config("resumed", **sections)
            for steps in (3, 14, 19, 24):
                code, _, err = z.train(config, folder, "--steps", steps, *sets(place))
                self.assertEqual(code, 0, err)
            self.assertEqual([(line["loss_scale"], line["overflow_skips"], line["loss"]) for line in z.metrics(folder)], expected)
            self.assertEqual(z.summary(folder)["state_hash"], whole)

    def test_fixed_scale_and_close_to_fp32(self):
        sections = self.sections(12, loss_scale=1024)
        self.trained(sections)
        half = z.metrics(self.folder)
        self.assertEqual({line["loss_scale"] for line in half}, {1024})
        self.assertEqual(half[-1]["overflow_skips"], 0)
        del sections["fp16"]
        self.trained(sections)
        full = z.metrics(self.folder)
        self.assertNotIn("loss_scale", full[0])
        for a, b in zip(half, full):
            self.assertNotEqual(a["loss"], b["loss"])
            self.assertAlmostEqual(a["loss"] / b["loss"], 1, delta=2e-3)
            self.assertAlmostEqual(a["grad_norm"] / b["grad_norm"], 1, delta=2e-2)

    def test_an_overflow_at_the_least_scale_ends_the_run(self):
        text = self.refused(1, self.sections(50, initial_scale_power=32, min_loss_scale=2.0 ** 31, hysteresis=1))
        self.assertIn("at the least loss scale", text)
        self.assertIn("no state was changed by this step", text)
        self.assertIn("bf16", text)

    def test_a_fixed_scale_that_always_overflows_ends_the_run(self):
        """BR-043: no endless skipping."""
        code, _, text = self.run_train(self.sections(50, loss_scale=1e30))
        self.assertEqual(code, 1, text)
        self.assertIn("at the fixed loss scale 1e+30, in 10 steps in a row", text)
        self.assertIn("no state was changed by this step", text)
        self.assertIn("bf16", text)
        self.assertEqual(text.count("is skipped"), 9)

    def test_a_nan_in_the_weight_file_is_named(self):
        """BR-043: no loss scale helps it, so no step is tried."""
        self.trained(self.sections(2))
        folder = self.exported()
        file, = folder.glob("*.safetensors")
        tensors = field_case.tensors_of(folder)
        name = "model.layers.1.mlp.up_proj.weight"
        kind, shape, data = tensors[name]
        tensors[name] = (kind, shape, data[:4 * 77] + struct.pack("<f", float("nan")) + data[4 * 78:])
        field_case.write_tensors(file, tensors)
        sections = self.sections(4, folder=folder, min_loss_scale=1, hysteresis=1)
        sections["model"]["init"] = "pretrained"
        text = self.refused(2, sections)
        self.assertIn(file.name, text)
        self.assertRegex(text, rf'tensor "{name}" \(F32\) holds -?nan at element 77 as fp32; weights must be finite')
        field_case.write_tensors(file, {**tensors, name: (kind, shape, data)})
        self.trained(sections)

    def test_exported_weights_are_the_masters(self):
        """The export is fp32 (or bf16 on request): nothing of fp16 is left in it."""
        self.trained(self.sections(3))
        types = {tensor[0] for tensor in field_case.tensors_of(self.exported()).values()}
        self.assertEqual(types, {"F32"})
        code, _, err = z.run("verify", self.folder)
        self.assertEqual(code, 0, err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
