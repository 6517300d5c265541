#!/usr/bin/env bash
# Installs what zinf needs and builds it: Debian packages, a Python environment in .venv (LibTorch), build/zinf.
# Run it again at any time: it does only what is missing.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

usage() {
  cat <<'TEXT'
Usage: tools/setup.sh [options]
  --wheelhouse DIR  take Python packages from DIR only (see below), no index
  --with-tests      also what tools/test.sh needs (.venv-test, clang-format, codespell, mkfs.xfs)
  --no-build        install only
  --later-tests     with --with-tests: report .venv-test, and leave it to a later call (tools/test.sh fills it while it builds)
  --check           report what is missing and stop: exit 0 when nothing is, else 1
  --verbose         show the output of every phase
Packages are installed by apt: as root, else by `sudo -n`, else the one line to run is printed (exit 2).
pip's settings (index, proxy, certificate: environment or pip.conf) and http_proxy/https_proxy are honoured.
A wheelhouse is filled on a connected machine with the same Python version by
  python3 -m pip download --no-deps -d DIR -r tools/requirements.txt
ZINF_PYTHON=/path/to/python3 chooses the Python (3.11 to 3.14) for the environments.
Exit codes: 0 done, 1 a phase failed, 2 packages missing or wrong usage, 3 not enough disk.
TEXT
}

wheelhouse="" with_tests=0 later_tests=0 build=1 check=0
while [ $# -gt 0 ]; do
  case $1 in
    --wheelhouse) [ $# -ge 2 ] || fail 2 "--wheelhouse needs a folder"; wheelhouse=$2; shift ;;
    --wheelhouse=*) wheelhouse=${1#*=} ;;
    --with-tests) with_tests=1 ;;
    --no-build) build=0 ;;
    --later-tests) later_tests=1 ;;
    --check) check=1 ;;
    --verbose) verbose=1 ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; fail 2 "unknown option $1" ;;
  esac
  shift
done
if [ -n "$wheelhouse" ]; then
  [ -d "$wheelhouse" ] || fail 2 "--wheelhouse $wheelhouse: no such folder"
  wheelhouse=$(cd "$wheelhouse" && pwd -P)
fi
# Settings that would send pip's packages elsewhere than into the environment.
unset PIP_TARGET PIP_PREFIX PIP_USER PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

venv=$repo/.venv
test_venv=$repo/.venv-test
packages=(ca-certificates g++ cmake ninja-build ccache lld liburing-dev libaio-dev libtbb-dev libyaml-cpp-dev
  libgtest-dev libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev)
[ "$with_tests" = 0 ] || packages+=(clang-format-14 codespell libsimde-dev xfsprogs)

# The versions for which torch 2.11 has a wheel and the pinned packages too.
usable_python() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}
find_python() {
  local name
  for name in ${ZINF_PYTHON:-python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3}; do
    if command -v "$name" >/dev/null && usable_python "$name"; then command -v "$name"; return; fi
  done
}

missing_packages() {
  local name
  for name in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || echo "$name"
  done
  if [ -z "$python" ]; then echo python3-venv; fi
}

# environment_missing VENV REQUIREMENTS: what pip would have to install.
environment_missing() {
  local site any_python extra=()
  site=$(site_packages "$1")
  any_python=${python:-$(command -v python3 || true)}
  if [ -z "$site" ] || [ -z "$any_python" ] || ! "$1/bin/python" -c '' 2>/dev/null; then
    sed 's/#.*//; /^[[:space:]]*$/d' "$2"
    return
  fi
  if [ "$2" = "$requirements_test" ] || [ "$gpu" = 1 ]; then extra=(--deps-of torch); fi
  "$any_python" "$repo/tools/lib/pip_missing.py" "$site" "$2" "${extra[@]}"
}

install_packages() {
  local as_root=() variable
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo -n env)
    for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
      [ -z "${!variable:-}" ] || as_root+=("$variable=${!variable}")
    done
  fi
  "${as_root[@]}" apt-get update || return 1
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${apt_missing[@]}"
}

pip_install() {
  local environment=$1
  shift
  local source=()
  [ -z "$wheelhouse" ] || source=(--no-index --find-links "$wheelhouse")
  # pip unpacks beside the checkout: /tmp may be a small memory file system.
  TMPDIR=$repo/.cache/tmp "$environment/bin/python" -m pip install --no-cache-dir "${source[@]}" "$@"
}

make_environment() {
  local environment=$1
  if ! "$environment/bin/python" -c 'import pip' 2>/dev/null; then
    rm -rf "$environment"
    "$python" -m venv "$environment"
  fi
}

# The program's environment. The list is complete, so nothing is resolved; torch brings its CUDA libraries on GPU machines.
install_environment() {
  make_environment "$venv" || return 1
  if [ "$gpu" = 1 ]; then pip_install "$venv" "$(grep '^torch==' "$requirements")" || return 1; fi
  pip_install "$venv" --no-deps -r "$requirements"
}

install_test_environment() {
  make_environment "$test_venv" && pip_install "$test_venv" -r "$requirements_test"
}

configure_and_build() {
  cmake -S "$repo" -B "$repo/build" -G Ninja -DCMAKE_BUILD_TYPE=Release &&
    cmake --build "$repo/build" --target zinf -j "$(compile_jobs)"
}

requirements=$repo/tools/requirements.txt
requirements_test=$repo/tools/requirements-test.txt
gpu=0
if have_gpu; then gpu=1; fi

[ "$(uname -sm)" = "Linux x86_64" ] || fail 2 "zinf needs Linux on x86_64, found $(uname -sm)"
command -v dpkg-query >/dev/null || fail 2 "this script installs by apt (Debian 12 or later); here install the equivalents of:" \
  "${packages[@]}" python3-venv

# Report first: nothing is downloaded before the user has seen all of it.
python=$(find_python)
mapfile -t apt_missing < <(missing_packages)
mapfile -t pip_missing < <(environment_missing "$venv" "$requirements")
test_missing=()
[ "$with_tests" = 0 ] || mapfile -t test_missing < <(environment_missing "$test_venv" "$requirements_test")
nothing_missing=$((${#apt_missing[@]} + ${#pip_missing[@]} + ${#test_missing[@]} == 0))

report() { if [ "$2" -gt 0 ]; then say "missing $1: ${*:3}"; else say "present $1"; fi; }
report "Debian packages" "${#apt_missing[@]}" "${apt_missing[@]}"
report "Python packages in .venv" "${#pip_missing[@]}" "${pip_missing[@]}"
[ "$with_tests" = 0 ] || report "Python packages in .venv-test" "${#test_missing[@]}" "${test_missing[@]}"
if [ "$gpu" = 1 ]; then
  say "GPU found: torch with its CUDA libraries"
  command -v nvcc >/dev/null || warn "no CUDA toolkit (nvcc) on PATH: the CUDA part is not built"
else
  say "no GPU found (nvidia-smi): torch with the two CUDA libraries that it needs on a CPU"
fi

# Disk, measured: site-packages plus the wheels while pip unpacks them; a Release build with LibTorch.
need=0
wants_torch() { case " $* " in *" torch=="*|*" nvidia-"*) true ;; *) false ;; esac; }
if wants_torch "${pip_missing[@]}"; then need=$((gpu == 1 ? 8500 : 2500)); fi
if wants_torch "${test_missing[@]}"; then need=$((need + 8500)); fi
if [ "$((${#pip_missing[@]} + ${#test_missing[@]}))" -gt 0 ]; then need=$((need + 500)); fi
if [ "$build" = 1 ] && [ ! -x "$repo/build/zinf" ]; then need=$((need + 1000)); fi
apt_need=0
if [ "${#apt_missing[@]}" -gt 0 ]; then apt_need=1200; fi
say "disk: up to $need MiB in $repo (free $(free_mib "$repo") MiB), up to $apt_need MiB in /usr (free $(free_mib /usr) MiB)"

# Without root or sudo the packages are the user's to install; say so before anything else is done.
if [ "${#apt_missing[@]}" -gt 0 ] && [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
  say "Debian packages are missing, and neither root nor password-less sudo is at hand. Run this as root, then this script again:"
  say "  apt-get update && apt-get install -y --no-install-recommends ${apt_missing[*]}"
  exit 2
fi
if [ "$check" = 1 ]; then exit $((1 - nothing_missing)); fi
need_free "$repo" "$need" "this installation"
need_free /usr "$apt_need" "the Debian packages"

mkdir -p "$repo/.cache/tmp"
exec 9>"$repo/.cache/setup.lock"
flock -n 9 || { say "another setup is at work here; waiting for it"; flock 9; }

if [ "${#apt_missing[@]}" -gt 0 ]; then
  phase "Debian packages" install_packages
  python=$(find_python)
fi
[ -n "$python" ] || fail 2 "no usable Python: torch 2.11 has wheels for 3.11 to 3.14, found $(python3 -V 2>/dev/null || echo none)." \
  "Install one with its venv module (Debian: python3-venv) or set ZINF_PYTHON"
if [ "${#pip_missing[@]}" -gt 0 ]; then phase "Python packages" install_environment; fi
if [ "${#test_missing[@]}" -gt 0 ] && [ "$later_tests" = 0 ]; then phase "Python packages for tests" install_test_environment; fi
if [ "$build" = 1 ]; then
  phase "build" configure_and_build
  say "built $repo/build/zinf"
fi
say "setup: all there after $SECONDS s"
