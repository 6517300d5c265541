"""tools/check_layers.py finds each kind of violation in a small tree, and none in a good one."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"

GOOD = {
    "engine/base/bytes.h": "#pragma once\n#include <cstdint>\nusing Bytes = std::uint64_t;\n",
    "nvme/engine.h": '#pragma once\n#include "engine/base/bytes.h"\nstruct Engine { Bytes bytes; };\n',
    "swap/tier.h": '#pragma once\n#include "nvme/engine.h"\nstruct Tier { Engine engine; };\n',
    "engine/model/net.cc": '#include <ATen/ATen.h>\n#include "swap/tier.h"\n',
    "tests/swap/tier_test.cc": '#include "swap/tier.h"\n',
}


def run(tmp_path, files, *options):
    for name, text in {**GOOD, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, str(SCRIPT), "--root", str(tmp_path), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout


def test_good_tree_passes(tmp_path):
    code, out = run(tmp_path, {})
    assert (code, out) == (0, "layers: 5 sources, 0 violations\n")


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("engine/base/up.cc", '#include "swap/tier.h"\n', "engine/base includes swap/tier.h: arrows go from swap to engine/base"),
        ("gpu/a.cc", '#include "nvme/engine.h"\n', "nvme, cpu_optim and gpu never include each other"),
        ("engine/config/a.cc", '#include "engine/config/b.h"\n', "is not a file: includes are from the repository root"),
        ("swap/t.cc", "#include <torch/torch.h>\n", "<torch/torch.h>: LibTorch is included in engine/model and engine/dist only"),
        ("engine/model/a.cc", "#include <c10/core/Device.h>\n#include <fmt/format.h>\n", "sees LibTorch and <fmt/format.h>"),
        ("nvme/long.cc", "\n" * 501, "nvme/long.cc:501: 501 lines, the ceiling is 500"),
        ("nvme/once.h", "struct Once {};\n", "nvme/once.h:1: no #pragma once"),
        ("nvme/path.cc", '// see /root' + '/notes.txt\n', "a path of one machine"),
        ("tools/go.sh", "ninja -C build -j" + "8\n", "a fixed number of jobs"),
        ("nvme/alone.h", "#pragma once\nstd::string name();\n", "nvme/alone.h:1: does not compile alone"),
    ],
)
def test_violation_is_named(tmp_path, name, text, expected):
    code, out = run(tmp_path, {name: text})
    assert code == 1
    assert expected in out
    assert out.endswith("1 violations\n")


def test_torch_is_seen_through_headers(tmp_path):
    code, out = run(
        tmp_path,
        {
            "engine/model/net.h": "#pragma once\n#include <ATen/ATen.h>\n",
            "engine/train/train.cc": '#include "engine/model/net.h"\n#include <fmt/format.h>\n',
        },
        "--no-headers",
    )
    assert code == 1
    assert 'engine/train/train.cc:1: sees LibTorch through "engine/model/net.h"' in out
    assert "engine/train/train.cc:1: sees LibTorch and <fmt/format.h>" in out


def test_rooms_beside_each_other_may_not_form_a_circle(tmp_path):
    files = {
        "engine/step/a.h": '#pragma once\n#include "engine/dist/b.h"\n',
        "engine/dist/b.h": "#pragma once\n",
        "engine/dist/c.h": '#pragma once\n#include "engine/step/a.h"\n',
    }
    code, out = run(tmp_path, files, "--no-headers")
    assert code == 1
    assert "engine/dist and engine/step include each other" in out
