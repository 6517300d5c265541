#!/usr/bin/env bash
# Style of what git tracks or would track: clang-format 14 (C++), codespell, shell and Python syntax, end of lines.
#   tools/check_style.sh          report, exit 1 if anything differs
#   tools/check_style.sh --fix    let clang-format rewrite the C++ files
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
cd "$repo"

fix=0
case ${1:-} in
  --fix) fix=1 ;;
  "") ;;
  *) fail 2 "usage: tools/check_style.sh [--fix]" ;;
esac

# files PATTERN...: tracked and new files, without those deleted in the work tree. A tree without git: all files.
list_files() {
  if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -c safe.directory='*' ls-files -z --cached --others --exclude-standard -- "$@"
    return
  fi
  local pattern
  for pattern in "$@"; do
    find . \( -name '.venv*' -o -name 'build*' -o -name .cache -o -name runs \) -prune -o \
      -type f -path "./$pattern" -printf '%P\0'
  done
}
files() {
  local name
  list_files "$@" | sort -zu | while IFS= read -r -d '' name; do
    if [ -f "$name" ]; then printf '%s\n' "$name"; fi
  done
}

status=0
mapfile -t cpp < <(files '*.h' '*.cc' '*.cu')
mapfile -t shell < <(files '*.sh' '.ci/run')
mapfile -t python < <(files '*.py')
mapfile -t text < <(files '*.md' '*.h' '*.cc' '*.cu' '*.py' '*.sh' '*.yaml' '*.cmake' '*CMakeLists.txt')

mkdir -p .cache
formatter=$(command -v clang-format-14 || true)
[ -n "$formatter" ] || fail 2 "clang-format-14 not found (Debian: clang-format-14); other versions format differently"
if [ "$fix" = 1 ]; then
  "$formatter" -i "${cpp[@]}"
elif ! printf '%s\0' "${cpp[@]}" | xargs -0 "$formatter" --dry-run --Werror 2>"$repo/.cache/clang-format.txt"; then
  grep -o '^[^ ]*: error' "$repo/.cache/clang-format.txt" | cut -d: -f1 | sort | uniq -c | sort -rn |
    awk '{printf "%s: %d places differ from clang-format 14\n", $2, $1}'
  say "(tools/check_style.sh --fix rewrites them)"
  status=1
fi

if command -v codespell >/dev/null; then
  codespell --ignore-words-list=inout,nd,te,ot,ba,fo,mis,hist,ue,ane,fpr,crate,kno,kinf,statics "${text[@]}" || status=1
fi
for name in "${shell[@]}"; do bash -n "$name" || status=1; done
if [ "${#python[@]}" -gt 0 ]; then
  python3 - "${python[@]}" <<'CHECK' || status=1
import ast, sys
bad = 0
for name in sys.argv[1:]:
    try:
        ast.parse(open(name, encoding="utf-8").read(), name)
    except SyntaxError as error:
        print(f"{name}:{error.lineno}: {error.msg}")
        bad = 1
sys.exit(bad)
CHECK
fi
if grep -nE $'[ \t]+$|\r$' -- "${text[@]}" | head -20 | grep .; then
  say "blanks at the end of the lines above"
  status=1
fi
say "style: ${#cpp[@]} C++, ${#shell[@]} shell, ${#python[@]} Python files, $([ $status = 0 ] && echo clean || echo differences above)"
exit $status
