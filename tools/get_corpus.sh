#!/usr/bin/env bash
# Leaves a real English text of some megabytes in DIR/train and DIR/eval: Jane Austen's six novels (public domain), which
# Debian's package r-cran-janeaustenr carries (1.6 MB; taken apart, not installed). Where apt cannot bring it: the
# language reference that every Python carries (PSF licence). Does nothing when DIR is already complete.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

[ $# = 1 ] && [ "${1#-}" = "$1" ] || fail 2 "Usage: tools/get_corpus.sh DIR"
target=$(realpath -m "$1")
if [ -f "$target/.complete" ]; then
  say "the text is already in $target"
  exit 0
fi
if [ -e "$target" ] && [ -n "$(ls -A "$target" 2>/dev/null)" ]; then
  fail 2 "$target exists and was not written by this script; name another folder or remove it"
fi
python=$repo/.venv/bin/python
[ -x "$python" ] || fail 2 "no Python environment in .venv: run tools/setup.sh first"
mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.get-corpus.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/texts/train" "$work/texts/eval"

download() {
  command -v apt-get >/dev/null || return 1
  cd "$work"
  apt-get download r-cran-janeaustenr && return 0
  # Images often come without package lists.
  if [ "$(id -u)" = 0 ]; then apt-get update; else sudo -n apt-get update; fi && apt-get download r-cran-janeaustenr
}
novels() {
  download && dpkg-deb -x "$work"/r-cran-janeaustenr_*.deb "$work/package" &&
    "$python" "$repo/tools/lib/austen_text.py" "$work/package/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb" "$work/texts/train" &&
    mv "$work/texts/train/persuasion.txt" "$work/texts/eval/"
}
language_reference() {
  "$python" - "$work/texts" <<'WRITE'
import pathlib, pydoc_data.topics, sys
folder = pathlib.Path(sys.argv[1])
for number, (name, text) in enumerate(sorted(pydoc_data.topics.topics.items())):
    part = "eval" if number % 8 == 7 else "train"
    (folder / part / f"{name}.txt").write_text(text, encoding="utf-8")
WRITE
}

if ! phase "text (six novels)" novels 2>"$work/errors"; then
  warn "apt could not bring r-cran-janeaustenr (see $log_dir); taking Python's language reference instead"
  rm -f "$work"/texts/*/*
  language_reference
fi
: >"$work/texts/.complete"
if [ -d "$target" ]; then rmdir "$target"; fi
mv "$work/texts" "$target"
say "text for training: $(cat "$target"/train/*.txt | wc -c) bytes, for evaluation: $(cat "$target"/eval/*.txt | wc -c) bytes, in $target"
