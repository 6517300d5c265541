#!/usr/bin/env python3
"""Checks the house rules that a compiler does not: which folder may include which, where LibTorch may be seen, that
every header compiles alone, file sizes, and words that do not belong in a source tree.

Usage: tools/check_layers.py [--no-headers] [--build DIR] [--root DIR]
Prints one line per violation (file:line: what, what is expected) and exits 1 if there is any. --no-headers leaves out
compiling headers; --build names a configured build folder whose LibTorch include paths are used (default: build);
--root checks another tree.
"""

import argparse
import concurrent.futures
import functools
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent  # --root changes it

# Lower may not include higher (design.md, Folders). Equal ranks are rooms beside each other.
RANKS = {
    "engine/base": 0,
    "nvme": 10, "cpu_optim": 10, "gpu": 10,
    "swap": 20,
    "engine/config": 30, "engine/data": 31, "engine/model": 32, "engine/observe": 33,
    "engine/plan": 40,
    "engine/step": 50, "engine/dist": 50, "engine/checkpoint": 50,
    "engine/train": 60,
    "engine/cli": 70,
    "tests": 80, "tools": 80, "examples": 80,
}
STRANGERS = {"nvme", "cpu_optim", "gpu"}
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cpp"}
TORCH_ROOMS = {"engine/model", "engine/dist"}
TORCH_INCLUDE = re.compile(r"^(torch|ATen|c10|caffe2)/")
# The torch wheel carries other versions of these headers and its folder is searched first.
CLASHING_INCLUDE = re.compile(r"^(fmt|spdlog|oneapi|pybind11)/|^dnnl")
CUDA_INCLUDE = pathlib.Path("/usr/local/cuda/include")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LINE_CEILING = 500
HEADER_CEILING = 250
SKIPPED_FOLDERS = {".git", ".venv", ".venv-test", ".cache", "runs", "__pycache__", ".pytest_cache"}

# What a public source tree must not tell: somebody's machine, or how the text came to be.
FORBIDDEN = [
    (re.compile(r"(?<![\w.$}/-])/(?:root|work|home|Users|opt/wheels)/"), "a path of one machine"),
    (re.compile(r"\b(?:Claude|Anthropic|ChatGPT|Copilot|LLM-generated|AI-generated|AI assistant)\b", re.I),
     "a word about the authors' tools"),
    (re.compile(r"\bbased on (?:the )?(?:brief|issue|chat)\b", re.I), "a word about the work's own history"),
]
# In programs and scripts only: a number of cores or jobs belongs to the machine.
FORBIDDEN_IN_CODE = [
    (re.compile(r"(?:ninja|make|ctest|--build|--parallel)\b[^#\n]*\s-?-j ?\d+"), "a fixed number of jobs"),
    (re.compile(r"\bhostname\s*==|\bgethostname\("), "a host name"),
]


def room_of(path):
    """The room of a path relative to the root, or None."""
    parts = path.split("/")
    for depth in (2, 1):
        name = "/".join(parts[:depth])
        if name in RANKS and len(parts) > depth:
            return name
    return None


def tree_files():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith("build")]
        for name in names:
            path = pathlib.Path(folder, name)
            if not path.is_symlink() and name != ".git":  # a worktree's pointer to its repository
                yield path.relative_to(ROOT).as_posix()


class Source:
    def __init__(self, path):
        self.path = path
        self.room = room_of(path)
        text = (ROOT / path).read_text(errors="replace")
        self.lines = text.splitlines()
        self.includes = []  # (line number, quoted, name)
        for number, line in enumerate(self.lines, 1):
            match = INCLUDE.match(line)
            if match:
                self.includes.append((number, match.group(1) == '"', match.group(2)))


class Checker:
    def __init__(self, files):
        self.files = files
        self.sources = {p: Source(p) for p in files if pathlib.PurePath(p).suffix in SOURCE_SUFFIXES}
        self.violations = []
        self.room_edges = {}

    def complain(self, path, line, text):
        self.violations.append(f"{path}:{line}: {text}")

    def check_include(self, source, line, name):
        """One include of a file of this repository."""
        target = room_of(name)
        if target is None or source.room is None or target == source.room:
            return
        self.room_edges.setdefault((source.room, target), f"{source.path}:{line}")
        if source.room in STRANGERS and target in STRANGERS:
            self.complain(source.path, line, f"{source.room} includes {name}: nvme, cpu_optim and gpu never include each other")
        elif RANKS[target] > RANKS[source.room]:
            self.complain(source.path, line, f"{source.room} includes {name}: arrows go from {target} to {source.room}, not back")

    def check_includes(self):
        for source in self.sources.values():
            for line, quoted, name in source.includes:
                if quoted:
                    if name.startswith(".") or (name not in self.sources and not self.generated(name)):
                        self.complain(source.path, line, f'"{name}" is not a file: includes are from the repository root')
                    self.check_include(source, line, name)
                if TORCH_INCLUDE.match(name) and not self.may_see_torch(source.path):
                    self.complain(source.path, line, f"<{name}>: LibTorch is included in engine/model and engine/dist only")
        for first, second in self.room_edges:
            if first < second and (second, first) in self.room_edges and RANKS[first] == RANKS[second]:
                self.complain(*self.room_edges[(first, second)].split(":"), f"{first} and {second} include each other")

    def generated(self, name):
        return name.endswith(".inc") and (ROOT / name).exists()

    @staticmethod
    def may_see_torch(path):
        room = "/".join(path.split("/")[:2])
        return room in TORCH_ROOMS or room in {"tests/model", "tests/dist", "tools/examples"}

    @functools.cache
    def closure(self, path):
        """Names of all headers that a file sees through files of this repository, its own includes with them."""
        seen, open_paths = set(), [path]
        done = set()
        while open_paths:
            current = open_paths.pop()
            if current in done or current not in self.sources:
                continue
            done.add(current)
            for _, quoted, name in self.sources[current].includes:
                seen.add(name)
                if quoted:
                    open_paths.append(name)
        return seen

    def sees_torch(self, path):
        return any(TORCH_INCLUDE.match(name) for name in self.closure(path))

    def sees_cuda(self, path):
        return any(name.startswith("cuda") or name == "nvrtc.h" for name in self.closure(path))

    def check_torch(self):
        for path in self.sources:
            if not self.sees_torch(path):
                continue
            clashes = sorted(name for name in self.closure(path) if CLASHING_INCLUDE.match(name))
            if clashes:
                self.complain(path, 1, f"sees LibTorch and <{clashes[0]}>: the torch wheel carries another version of that header")
            via = next((n for _, q, n in self.sources[path].includes if q and n in self.sources and self.sees_torch(n)), None)
            if via and not self.may_see_torch(path):
                self.complain(path, 1, f'sees LibTorch through "{via}": LibTorch is private to engine/model and engine/dist')

    def check_size(self):
        for path in self.files:
            if pathlib.PurePath(path).suffix not in SOURCE_SUFFIXES | {".py", ".sh"}:
                continue
            count = len((ROOT / path).read_text(errors="replace").splitlines())
            ceiling = HEADER_CEILING if path.endswith(".h") else LINE_CEILING
            if count > ceiling:
                self.complain(path, count, f"{count} lines, the ceiling is {ceiling}")

    def check_headers_begin(self):
        for path, source in self.sources.items():
            if path.endswith(".h") and "#pragma once" not in source.lines:
                self.complain(path, 1, "no #pragma once")

    def check_words(self):
        code = SOURCE_SUFFIXES | {".py", ".sh", ".cmake", ".txt"}
        for path in self.files:
            if path == "tools/check_layers.py":
                continue
            suffix = pathlib.PurePath(path).suffix
            rules = list(FORBIDDEN)
            if suffix in code or path == ".ci/run":
                rules += FORBIDDEN_IN_CODE
            elif suffix not in {".md", ".yaml", ".json", ".toml", ""}:
                continue
            try:
                lines = (ROOT / path).read_text().splitlines()
            except UnicodeDecodeError:
                continue
            for number, line in enumerate(lines, 1):
                for pattern, what in rules:
                    if pattern.search(line):
                        self.complain(path, number, f"{what}: {line.strip()[:80]}")

    def check_headers_compile(self, build):
        # A header that some source includes before anything else is compiled alone by the build.
        proven = {s.includes[0][2] for s in self.sources.values() if s.includes and s.path.endswith((".cc", ".cu"))}
        headers = [p for p in self.sources if p.endswith(".h") and p not in proven]
        torch = torch_flags(build)
        work = ROOT / ".cache" / "headers"
        work.mkdir(parents=True, exist_ok=True)
        jobs = len(os.sched_getaffinity(0))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            results = pool.map(lambda p: (p, compile_header(p, work, torch, self.sees_torch(p), self.sees_cuda(p))), headers)
            for path, message in results:
                if message:
                    self.complain(path, 1, f"does not compile alone: {message}")


def torch_flags(build):
    """-isystem flags of the LibTorch that the build folder was configured with; None when it has none."""
    cache = pathlib.Path(build, "CMakeCache.txt")
    candidates = []
    if cache.exists():
        match = re.search(r"^ZINF_TORCH_DIR:PATH=(.+)$", cache.read_text(), re.M)
        candidates += [pathlib.Path(match.group(1))] if match else []
    candidates += sorted(ROOT.glob(".venv/lib/python3*/site-packages/torch"))
    for folder in candidates:
        if (folder / "include").is_dir():
            return ["-isystem", f"{folder}/include", "-isystem", f"{folder}/include/torch/csrc/api/include",
                    "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"]
    return None


def compile_header(path, work, torch, sees_torch, needs_cuda):
    """Compiles a file that includes only this header; returns the first error line or None."""
    if sees_torch and torch is None:
        return None  # LibTorch is not installed; the build says so
    if needs_cuda and not CUDA_INCLUDE.is_dir():
        return None  # no CUDA toolkit on this machine
    source = work / (path.replace("/", "+") + ".cc")
    text = f'#include "{path}"\n'
    if not source.exists() or source.read_text() != text:
        source.write_text(text)
    launcher = ["ccache"] if subprocess.run(["which", "ccache"], capture_output=True).returncode == 0 else []
    flags = ["-std=c++20", "-O0", "-w", f"-I{ROOT}", "-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq",
             "-mavx512bf16"]
    if needs_cuda:
        flags += ["-isystem", str(CUDA_INCLUDE)]
    command = launcher + ["g++", *flags, *(torch if sees_torch else []), "-c", str(source), "-o", str(source.with_suffix(".o"))]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        return None
    errors = [line for line in result.stderr.splitlines() if "error:" in line]
    return (errors or result.stderr.splitlines() or ["compiler failed"])[0]


def main():
    global ROOT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-headers", action="store_true")
    parser.add_argument("--build")
    parser.add_argument("--root", default=str(ROOT))
    options = parser.parse_args()
    ROOT = pathlib.Path(options.root).resolve()
    checker = Checker(sorted(tree_files()))
    checker.check_includes()
    checker.check_torch()
    checker.check_size()
    checker.check_headers_begin()
    checker.check_words()
    if not options.no_headers:
        checker.check_headers_compile(options.build or ROOT / "build")
    for violation in checker.violations:
        print(violation)
    print(f"layers: {len(checker.sources)} sources, {len(checker.violations)} violations")
    return 1 if checker.violations else 0


sys.exit(main())
