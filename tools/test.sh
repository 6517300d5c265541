#!/usr/bin/env bash
# Installs what is missing, checks style and layers, builds with warnings as errors and runs every test; then the tests
# of the rooms without LibTorch under the address and undefined-behaviour sanitizers, and those with threads under the
# thread sanitizer. The last line is "N passed, N failed, N skipped"; exit 1 on failures.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

usage() {
  cat <<'TEXT'
Usage: tools/test.sh [options]
  --long            also the tests labelled "long" (hours, not minutes)
  --no-sanitizers   leave the sanitizer builds out
  --wheelhouse DIR  as for tools/setup.sh
  --verbose         show the output of every phase
A skipped test is listed with its reason, and fails the run unless tests/allowed_skips.txt names it.
TEXT
}

labels=(-LE long)
tsan_seeds=300  # of a thousand random programs and faults: they take ten times as long there
sanitizers=1
setup_options=()
while [ $# -gt 0 ]; do
  case $1 in
    --long) labels=() tsan_seeds=1000 ;;
    --no-sanitizers) sanitizers=0 ;;
    --wheelhouse) [ $# -ge 2 ] || fail 2 "--wheelhouse needs a folder"; setup_options+=("$1" "$2"); shift ;;
    --verbose) verbose=1; setup_options+=(--verbose) ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; fail 2 "unknown option $1" ;;
  esac
  shift
done

# Everything is reported and all but the tests' Python packages installed; those come while the compiler works.
"$repo/tools/setup.sh" --with-tests --later-tests --no-build "${setup_options[@]}"
cd "$repo"
mkdir -p "$log_dir"
test_setup_log=$log_dir/setup-for-tests.log
"$repo/tools/setup.sh" --with-tests --no-build "${setup_options[@]}" >"$test_setup_log" 2>&1 </dev/null &
test_setup=$!
results_dir=$repo/.cache/test-results
rm -rf "$results_dir"
mkdir -p "$results_dir"
summary=()  # arguments of lib/test_summary.py

# Compiler results are shared between checkouts, whatever folder they are in.
export CCACHE_BASEDIR=$repo CCACHE_NOHASHDIR=1

# check NAME COMMAND...: shows its output and notes its exit status.
check() {
  local name=$1 status=0 start=$SECONDS
  shift
  printf '== %s ...\n' "$name"
  "$@" </dev/null || status=$?
  printf '== %s: exit %d after %d s\n' "$name" "$status" "$((SECONDS - start))"
  summary+=(--check "$name=$status")
}

# build_folder NAME FOLDER TARGETS... -- CMAKE_OPTIONS...: a build that fails is a failed check; what did build is tested all the same.
build_folder() {
  local name=$1 folder=$2 wanted=()
  shift 2
  while [ "$1" != -- ]; do wanted+=("$1"); shift; done
  shift
  build_commands() {
    cmake -S "$repo" -B "$folder" -G Ninja "$@" && cmake --build "$folder" -j "$(compile_jobs)" --target "${wanted[@]}" -- -k 0
  }
  local status=0
  phase "$name" build_commands "$@" || status=$?
  summary+=(--check "$name=$status")
}

# run_tests NAME FOLDER [CTEST_OPTIONS...]
run_tests() {
  local name=$1 folder=$2 results=$results_dir/$1 start=$SECONDS
  shift 2
  mkdir -p "$results/gtest"
  printf '== %s tests ...\n' "$name"
  GTEST_OUTPUT="xml:$results/gtest/" GTEST_COLOR=no PYTEST_ADDOPTS="-rs --color=no" \
    "${launcher[@]}" ctest --test-dir "$folder" -j "$(usable_cores)" --output-junit "$results/ctest.xml" \
    --output-on-failure --test-output-size-passed 1000000 --test-output-size-failed 1000000 \
    --timeout 1200 "${labels[@]}" "$@" </dev/null || true
  printf '== %s tests: %d s\n' "$name" "$((SECONDS - start))"
  summary+=("$name=$results")
}
launcher=()

check style tools/check_style.sh
check layers tools/check_layers.py
build_folder build "$repo/build" all -- -DCMAKE_BUILD_TYPE=Release -DZINF_WITH_TORCH=ON -DZINF_WERROR=ON
wait "$test_setup" || { cat "$test_setup_log" >&2; fail 1 "the tests' Python packages could not be installed"; }
run_tests main "$repo/build"

if [ "$sanitizers" = 1 ]; then
  # A build type of its own: at -O1 the sanitized sources compile in about half the time.
  without_torch=(-DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_CXX_FLAGS_SANITIZE=-O1 -DZINF_WITH_TORCH=OFF -DZINF_WERROR=ON)
  build_folder build-asan "$repo/build-asan" all -- "${without_torch[@]}" -DZINF_SANITIZE=address,undefined
  ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 run_tests asan "$repo/build-asan"

  # Rooms with threads; the thread sanitizer wants a plain address layout, which setarch gives where it may.
  threaded=() targets=()
  for room in nvme gpu swap cpu_optim step; do
    if [ -f "tests/$room/CMakeLists.txt" ]; then threaded+=("$room") targets+=("tests/$room/all"); fi
  done
  build_folder build-tsan "$repo/build-tsan" "${targets[@]}" -- "${without_torch[@]}" -DZINF_SANITIZE=thread
  if setarch -R true 2>/dev/null; then launcher=(setarch -R); fi
  for room in "${threaded[@]}"; do
    ZINF_TEST_SEEDS=$tsan_seeds TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 suppressions=$repo/tests/tsan_suppressions.txt" \
      run_tests "tsan-$room" "$repo/build-tsan/tests/$room"
  done
fi

say "== all phases: $SECONDS s"
python3 "$repo/tools/lib/test_summary.py" --allowed tests/allowed_skips.txt "${summary[@]}"
