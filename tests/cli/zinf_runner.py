"""Runs the zinf program in tests: small models, real files, real processes."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

ZINF = os.environ.get("ZINF_PROGRAM", "build/zinf")
# Threads that wait spin by default, which starves the ones they wait for on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


class Workspace:
    """A folder of its own on a real file system (not tmpfs), with configs and swap folders in it."""

    def __init__(self):
        base = os.environ.get("ZINF_TEST_FOLDER", "/var/tmp")
        self.temporary = tempfile.TemporaryDirectory(prefix="zinf-cli-", dir=base)
        self.path = pathlib.Path(self.temporary.name)
        (self.path / "swap").mkdir()

    def close(self):
        self.temporary.cleanup()

    def config(self, name, **sections):
        """Writes sections as JSON, which is YAML."""
        file = self.path / f"{name}.yaml"
        file.write_text(json.dumps(sections, indent=1))
        return file


def mlp_sections(workspace, width=64, layers=3, steps=6, **changes):
    sections = {
        "model": {"type": "mlp", "width": width, "layers": layers},
        "data": {"format": "random", "samples": 512},
        "train": {"steps": steps},
        "memory": {"device": "64MiB", "host": "1GiB", "nvme": [{"path": str(workspace.path / "swap"), "capacity": "1GiB"}]},
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
    }
    sections.update(changes)
    return sections


def llama_folder(workspace, name="llama", **changes):
    """config.json of a tiny Llama, for random init."""
    folder = workspace.path / name
    folder.mkdir(exist_ok=True)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 64,
        "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "initializer_range": 0.02, "attention_bias": False, "mlp_bias": False,
    }
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def gpt2_folder(workspace, name="gpt2", **changes):
    """config.json of a tiny GPT-2, for random init."""
    folder = workspace.path / name
    folder.mkdir(exist_ok=True)
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 1000, "n_embd": 64, "n_layer": 3,
              "n_head": 4, "n_positions": 128, "tie_word_embeddings": True, "initializer_range": 0.02}
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def llama_sections(workspace, steps=6, folder=None, **changes):
    sections = mlp_sections(workspace, steps=steps)
    sections["model"] = {"path": str(folder or llama_folder(workspace)), "init": "random"}
    sections["data"] = {"format": "random", "samples": 512, "seq_len": 32}
    sections["train_micro_batch_size_per_gpu"] = 2
    sections.update(changes)
    return sections


def run(*arguments, timeout=300, **options):
    """(exit code, stdout, stderr)."""
    done = subprocess.run([ZINF, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, **options)
    return done.returncode, done.stdout, done.stderr


def train(config, run_dir, *arguments, **options):
    return run("train", config, "--run-dir", run_dir, *arguments, **options)


def summary(run_dir):
    return json.loads((pathlib.Path(run_dir) / "summary.json").read_text())


def metrics(run_dir):
    return [json.loads(line) for line in (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def start(config, run_dir, *arguments, **options):
    return subprocess.Popen([ZINF, "train", str(config), "--run-dir", str(run_dir), *map(str, arguments)],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def wait_for_step(run_dir, step, process, timeout=120):
    """Returns once metrics.jsonl has the step's line, or the process has ended."""
    end = time.monotonic() + timeout
    file = pathlib.Path(run_dir) / "metrics.jsonl"
    while time.monotonic() < end and process.poll() is None:
        if file.exists() and len(file.read_text().splitlines()) >= step:
            return True
        time.sleep(0.01)
    return False


def stop(process, number=signal.SIGTERM, timeout=120):
    process.send_signal(number)
    _, text = process.communicate(timeout=timeout)
    return process.returncode, text
