"""Whole training runs beside PyTorch's, on the same rows: fp32 against fp64, the bf16 curve among PyTorch's own orders.

Imports torch and transformers, so it goes on under .venv-test's Python (ZINF_TEST_PYTHON). All rows are one step's batch, so that
both sides see the same data whatever their order. ZINF_PARITY_MODEL=FOLDER runs five steps of SmolLM2-135M instead of the tiny
model; tools/fetch_smollm2.sh brings it there.
"""
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = pathlib.Path(os.environ.get("ZINF_TEST_PYTHON", ROOT / ".venv-test" / "bin" / "python"))
if PYTHON.exists() and os.environ.get("ZINF_PARITY_INSIDE") != "1":
    os.environ["ZINF_PARITY_INSIDE"] = "1"
    os.execv(str(PYTHON), [str(PYTHON), __file__, *sys.argv[1:]])

sys.path.insert(0, str(ROOT / "tools"))
import zinf_runner as z  # noqa: E402

if PYTHON.exists():
    import numpy  # noqa: E402
    import torch  # noqa: E402
    from safetensors.torch import load_file  # noqa: E402
    from transformers import (AutoConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,  # noqa: E402
                              MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

    from data_prep.token_file import TokenWriter  # noqa: E402
    from training_reference import BETAS, CLIP, DECAY, EPS, LR, WARMUP, train  # noqa: E402

    torch.set_num_threads(1)

REAL_MODEL = os.environ.get("ZINF_PARITY_MODEL")


@unittest.skipUnless(PYTHON.exists(), f"no Python with transformers: {PYTHON} (ZINF_TEST_PYTHON)")
class TrainingParity(unittest.TestCase):
    rows, length, steps = (4, 32, 5) if REAL_MODEL else (8, 24, 20)

    def setUp(self):
        self.workspace = z.Workspace()
        self.addCleanup(self.workspace.close)
        self.folder = pathlib.Path(REAL_MODEL) if REAL_MODEL else self.tiny_model("llama")
        if REAL_MODEL:
            subprocess.run([str(ROOT / "tools" / "fetch_smollm2.sh"), REAL_MODEL], check=True, stdout=subprocess.DEVNULL)
        vocabulary = AutoConfig.from_pretrained(self.folder).vocab_size
        tokens = numpy.random.default_rng(5).integers(0, vocabulary, (self.rows, self.length))
        numpy.save(self.workspace.path / "tokens.npy", tokens)
        writer = TokenWriter(str(self.workspace.path / "tokens.tok"), vocabulary)
        for row in tokens:
            writer.add(row)
        writer.finish()

    @staticmethod
    def model(family):
        """One of each kind of arithmetic that a family has and the others have not. Biases and norms are drawn too."""
        sizes = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.1}
        torch.manual_seed(3)
        models = {
            "llama": lambda: LlamaForCausalLM(LlamaConfig(**sizes)),
            "gpt2, tied": lambda: GPT2LMHeadModel(GPT2Config(
                vocab_size=97, n_embd=48, n_layer=2, n_head=4, n_positions=64, initializer_range=0.1, tie_word_embeddings=True,
                resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
            "qwen2, biases": lambda: Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=False)),
            "qwen3, norms of q and k": lambda: Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=16, tie_word_embeddings=True)),
            "mistral, a window": lambda: MistralForCausalLM(MistralConfig(**sizes, sliding_window=7)),
        }
        model = models[family]()
        if family != "llama":
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if parameter.dim() == 1:
                        parameter += 0.1 * torch.randn_like(parameter)
        return model

    def tiny_model(self, family):
        folder = self.workspace.path / family.split(",")[0]
        self.model(family).save_pretrained(folder)
        return folder

    def references(self, *runs):
        """PyTorch's losses, norms and final weights of every run "dtype:rows:order"."""
        rows = torch.from_numpy(numpy.load(self.workspace.path / "tokens.npy")).long()
        found = []
        for run in runs:
            dtype, size, order = run.split(":")
            found.append(train(self.folder, rows, self.steps, dtype, int(size), int(order)))
        return found

    def ours(self, name, size, lr=None, **changes):
        """zinf's losses, norms, clip factors and final masters."""
        config = self.workspace.config(
            name, model={"path": str(self.folder)},
            data={"format": "tokens", "train": [str(self.workspace.path / "tokens.tok")], "seq_len": self.length},
            train={"steps": self.steps}, train_micro_batch_size_per_gpu=size, gradient_accumulation_steps=self.rows // size,
            gradient_clipping=CLIP, export={"at_end": False},
            memory={"host": "4GiB" if REAL_MODEL else "1GiB", "nvme": [{"path": str(self.workspace.path / "swap")}]},
            placement={"weights": "nvme", "optimizer": "nvme"},
            optimizer={"type": "AdamW", "params": {"lr": lr or LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}},
            scheduler={"type": "linear", "params": {"warmup_num_steps": WARMUP}}, **changes)
        run, exported = self.workspace.path / name, self.workspace.path / f"{name}-exported"
        code, _, err = z.train(config, run, timeout=3000)
        self.assertEqual(code, 0, err)
        code, _, err = z.run("export", run, exported, "--dtype", "fp32")
        self.assertEqual(code, 0, err)
        lines = z.metrics(run)
        self.assertEqual(lines[0]["target_tokens"], self.rows * (self.length - 1))
        weights = {}
        for file in exported.glob("*.safetensors"):
            weights |= load_file(file)
        return [line["loss"] for line in lines], [line["grad_norm"] for line in lines], weights, lines

    @staticmethod
    def distance(a, b):
        return sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5

    def test_fp32_is_as_near_to_fp64_as_pytorch(self):
        """Losses, norms and weights after accumulation, clipping, decay and schedule: at most twice PyTorch's own fp32 error."""
        self.compare_fp32("fp32")

    @unittest.skipIf(REAL_MODEL, "tiny models' test")
    def test_so_is_every_family(self):
        for family in ("gpt2, tied", "qwen2, biases", "qwen3, norms of q and k", "mistral, a window"):
            with self.subTest(family):
                self.folder = self.tiny_model(family)
                self.compare_fp32(self.folder.name)

    def compare_fp32(self, name):
        sizes = (2,) if REAL_MODEL else (2, 1, 4, 8)
        (exact_losses, exact_norms, exact), (their_losses, their_norms, theirs), *ways = self.references(
            f"fp64:{self.rows}:0", *(f"fp32:{size}:0" for size in sizes))
        losses, norms, weights, lines = self.ours(name, 2)
        self.assertLess(min(line["clip_factor"] for line in lines), 1)
        self.assertLessEqual(self.distance(losses, exact_losses), 2 * self.distance(their_losses, exact_losses) + 1e-7 * sum(exact_losses))
        self.assertLessEqual(self.distance(norms, exact_norms), 2 * self.distance(their_norms, exact_norms) + 1e-7 * sum(exact_norms))
        self.assertEqual(set(weights), set(theirs))

        def error(tensors, names=exact):
            return sum(float(((self.decided(one, tensors[one]).double() - self.decided(one, exact[one])) ** 2).sum()) for one in names) ** 0.5
        print(f"{name}: distance to fp64: losses {self.distance(losses, exact_losses):.3g}, PyTorch's {self.distance(their_losses, exact_losses):.3g}; "
              f"weights {error(weights):.3g}, PyTorch's {error(theirs):.3g}")
        self.assertLessEqual(error(weights), 2 * error(theirs))
        # Tensor by tensor PyTorch's error is the largest of its ways to cut the batch: where a gradient is hardly more than rounding
        # (key biases), Adam makes a whole step of its sign.
        for one in exact if ways else ():
            worst = max(error(way, [one]) for way in (theirs, *(way[2] for way in ways)))
            self.assertLessEqual(error(weights, [one]), 2 * worst, one)
        start = {name: tensor.double() for name, tensor in self.first_weights().items()}
        moved = sum(float(((exact[name] - start[name]) ** 2).sum()) for name in exact) ** 0.5
        self.assertLess(error(weights), 0.01 * moved)

    @staticmethod
    def decided(name, tensor):
        """Without GPT-2's key biases: one added to all keys changes no softmax, so their gradient is rounding alone."""
        if not name.endswith("attn.c_attn.bias"):
            return tensor
        query, _, value = tensor.chunk(3)
        return torch.cat([query, value])

    def test_bf16_gradients_are_pytorchs_rounded_ones(self):
        """Much nearer to PyTorch with its accumulated gradients rounded than to PyTorch without, in losses and in norms; or, where a real
        model's steps magnify every difference, at most twice as far as PyTorch's ways to cut the batch are from each other."""
        self.compare_rounded("rounded")
        if not REAL_MODEL:
            self.folder = self.tiny_model("gpt2, tied")
            self.compare_rounded("rounded-tied")

    def compare_rounded(self, name):
        more = ("rounded:1:0", "rounded:4:0", "rounded:2:11", "rounded:4:11") if REAL_MODEL else ()
        same, other, *cuts = self.references("rounded:2:0", "fp32:2:0", *more)
        *ours, weights, lines = self.ours(name, 2, gradients={"dtype": "bf16"})
        self.assertLess(min(line["clip_factor"] for line in lines), 1)
        for i, what in enumerate(("losses", "norms")):
            from_rounded, from_fp32 = self.distance(ours[i], same[i]), self.distance(ours[i], other[i])
            own = max(self.distance(a[i], b[i]) for a in (same, *cuts) for b in (same, *cuts))
            print(f"{name}, {what}: {from_rounded:.3g} from rounded (PyTorch's own cuts {own:.3g}), {from_fp32:.3g} from fp32 gradients")
            self.assertLess(from_rounded, max(from_fp32 / 4, 2 * own), what)
            self.assertLess(from_rounded, from_fp32, what)
        self.assertEqual(set(weights), set(same[2]))

    def first_weights(self):
        weights = {}
        for file in self.folder.glob("*.safetensors"):
            weights |= load_file(file)
        return weights

    @unittest.skipIf(REAL_MODEL, "the tiny model's test")
    def test_the_bf16_curve_lies_among_pytorchs_own_orders(self):
        """The spread: how far two curves of PyTorch in bf16, its batch cut and ordered in other ways, are apart. Ours is no further
        from the middle of those curves, or it is nearer to the exact curve than each of them: on processors without bf16
        arithmetic PyTorch rounds more often than once."""
        runs = [f"bf16:{size}:{order}" for size in (1, 2, 4, 8) for order in (0, 11)]
        exact, *curves = [losses for losses, _, _ in self.references("fp64:8:0", *runs)]
        middle = [sum(values) / len(values) for values in zip(*curves)]
        spread = max(self.distance(a, b) for a in curves for b in curves)
        self.assertGreater(spread, 0)
        errors = [self.distance(curve, exact) for curve in curves]
        # A rate that is wrong by a hundredth would show.
        wrong = self.ours("wrong", 4, lr=LR * 1.01, bf16={"enabled": True})[0]
        for size in (1, 4):
            losses = self.ours(f"bf16-{size}", size, bf16={"enabled": True})[0]
            apart, error = self.distance(losses, middle), self.distance(losses, exact)
            print(f"bf16, rows of {size}: {apart:.3g} from the middle of PyTorch's curves, whose spread is {spread:.3g}, and {error:.3g} from the "
                  f"exact one, PyTorch {min(errors):.3g} to {max(errors):.3g}; wrong rate: {self.distance(wrong, middle):.3g}")
            self.assertTrue(apart <= spread or error < min(errors))
        self.assertGreater(self.distance(wrong, exact), max(errors))
        self.assertGreater(self.distance(wrong, middle), 2 * spread)


if __name__ == "__main__":
    unittest.main(verbosity=2)
