# Sourced by the scripts of tools/: talk, phases with their times, and failures that say what to do.
# Sets repo (the repository root) and expects `set -euo pipefail` in the caller.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
log_dir=$repo/.cache/logs
verbose=${verbose:-0}

say() { printf '%s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
# fail CODE TEXT...
fail() {
  local code=$1
  shift
  printf 'error: %s\n' "$*" >&2
  exit "$code"
}

# phase NAME COMMAND...: runs the command, its output in a log file, and tells how long it took.
phase() {
  local name=$1 start=$SECONDS status=0
  shift
  mkdir -p "$log_dir"
  local log=$log_dir/${name//[^A-Za-z0-9_-]/-}.log
  printf '== %s ...\n' "$name"
  if [ "$verbose" = 1 ]; then
    "$@" 2>&1 </dev/null | tee "$log" || status=$?
  else
    "$@" >"$log" 2>&1 </dev/null || status=$?
  fi
  if [ "$status" != 0 ]; then
    [ "$verbose" = 1 ] || tail -n 40 "$log" >&2
    printf 'error: %s failed after %d s (exit %d); the whole output is in %s\n' \
      "$name" "$((SECONDS - start))" "$status" "$log" >&2
    return "$status"
  fi
  printf '== %s: done in %d s\n' "$name" "$((SECONDS - start))"
}

# Cores that this process may use, and compile jobs that its memory allows (LibTorch sources need about 1.5 GiB).
usable_cores() { nproc; }
compile_jobs() {
  local cores kib jobs
  cores=$(usable_cores)
  kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  jobs=$((kib / 1572864))
  [ "$jobs" -ge 1 ] || jobs=1
  [ "$jobs" -le "$cores" ] || jobs=$cores
  echo "$jobs"
}

# free_mib PATH: free space where PATH is or would be.
free_mib() {
  local path=$1
  while [ ! -e "$path" ]; do path=$(dirname "$path"); done
  df -Pm "$path" | awk 'NR == 2 {print $4}'
}

# need_free PATH MIB WHAT
need_free() {
  local free
  free=$(free_mib "$1")
  if [ "$free" -lt "$2" ]; then
    fail 3 "$3 needs $2 MiB free in $1, found $free MiB. Free some space there, or move the checkout."
  fi
}

have_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }

# site_packages VENV: its site-packages folder, or nothing.
site_packages() {
  local folder
  for folder in "$1"/lib/python3*/site-packages; do
    if [ -d "$folder" ]; then echo "$folder"; fi
  done
}
