#!/usr/bin/env bash
# From a bare machine to a fine-tuned language model: installs, builds, brings a real small model and a real text, and
# fine-tunes all 134.5 M parameters with weights and optimizer states on disk. Run it again: it goes on where it stopped.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

usage() {
  cat <<'TEXT'
Usage: tools/quickstart.sh [--wheelhouse DIR] [--config FILE] [options of `zinf train`]
  --wheelhouse DIR  take Python packages and the model's package from DIR (see tools/setup.sh --help)
  --config FILE     another recipe than configs/quickstart.yaml
All else goes to `zinf train`, for example: --steps 100, --fresh, --run-dir DIR, --set placement=auto
TEXT
}

config=$repo/configs/quickstart.yaml
source_options=() train_options=() run_dir=$repo/runs/quickstart
while [ $# -gt 0 ]; do
  case $1 in
    --wheelhouse) [ $# -ge 2 ] || fail 2 "--wheelhouse needs a folder"; source_options=(--wheelhouse "$2"); shift ;;
    --config) [ $# -ge 2 ] || fail 2 "--config needs a file"; config=$2; shift ;;
    --run-dir) [ $# -ge 2 ] || fail 2 "--run-dir needs a folder"; run_dir=$2; train_options+=("$1" "$2"); shift ;;
    -h|--help) usage; exit 0 ;;
    *) train_options+=("$1") ;;
  esac
  shift
done

zinf=$repo/build/zinf
say "1. Install and build"
"$repo/tools/setup.sh" "${source_options[@]}"
say "2. A real model and a real text"
"$repo/tools/fetch_smollm2.sh" "${source_options[@]}" "$repo/.cache/models/SmolLM2-135M"
"$repo/tools/get_corpus.sh" "$repo/.cache/corpus"
mkdir -p "$repo/.cache/swap"
# Two slots of weights, remainders or masters, and moments; the export; the token cache.
if [ ! -e "$run_dir" ]; then need_free "$repo" 6500 "the run (state on disk in two slots, exported model)"; fi
say "3. Train"
say "\$ build/zinf train ${config#"$repo/"} ${train_options[*]:-}"
status=0
"$zinf" train "$config" "${train_options[@]}" || status=$?
if [ "$status" != 0 ]; then
  warn "zinf train ended with exit code $status; the run folder is $run_dir"
  exit "$status"
fi
say "4. What came out"
"$repo/.venv/bin/python" "$repo/tools/lib/quickstart_report.py" "$run_dir"
