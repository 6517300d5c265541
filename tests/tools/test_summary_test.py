"""tools/lib/test_summary.py counts by single tests and turns silence (crash, skip, nothing run) into failures."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "lib" / "test_summary.py"


def gtest(*cases):
    """A GoogleTest report; each case is (name, attributes, inner XML)."""
    rows = "".join(f'<testcase name="{n}" classname="Suite" {a}>{inner}</testcase>' for n, a, inner in cases)
    return f'<testsuites><testsuite name="Suite">{rows}</testsuite></testsuites>'


def ctest(*cases):
    rows = "".join(f'<testcase name="{n}" classname="{n}">{inner}</testcase>' for n, inner in cases)
    return f"<testsuite>{rows}</testsuite>"


def run(tmp_path, cases, reports, allowed="", checks=()):
    (tmp_path / "gtest").mkdir(exist_ok=True)
    (tmp_path / "ctest.xml").write_text(ctest(*cases))
    for name, text in reports.items():
        (tmp_path / "gtest" / f"{name}.xml").write_text(text)
    (tmp_path / "allowed.txt").write_text(allowed)
    command = [sys.executable, str(SCRIPT), "--allowed", str(tmp_path / "allowed.txt"), f"main={tmp_path}"]
    for check in checks:
        command += ["--check", check]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout.splitlines()


PASS = ("good", 'status="run" result="completed"', "")
SKIP = ("gpu", 'status="run" result="skipped"', '<skipped message="a.cc:3&#x0A;no GPU"/>')
FAIL = ("bad", 'status="run" result="completed"', '<failure message="a.cc:9&#x0A;1 vs 2"/>')


def test_counts_single_tests_and_checks(tmp_path):
    code, lines = run(tmp_path, [("a_test", "")], {"a_test": gtest(PASS, PASS)}, checks=["style=0"])
    assert (code, lines[-1]) == (0, "3 passed, 0 failed, 0 skipped")


def test_failure_is_shown(tmp_path):
    code, lines = run(tmp_path, [("a_test", '<failure message="Failed"/>')], {"a_test": gtest(PASS, FAIL)})
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")
    assert "      1 vs 2" in lines


def test_failed_check_fails(tmp_path):
    code, lines = run(tmp_path, [("a_test", "")], {"a_test": gtest(PASS)}, checks=["layers=1"])
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")


def test_skip_needs_permission(tmp_path):
    code, lines = run(tmp_path, [("a_test", "")], {"a_test": gtest(PASS, SKIP)})
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")
    code, lines = run(tmp_path, [("a_test", "")], {"a_test": gtest(PASS, SKIP)}, "main: a_test: Suite.gpu # no GPU\n")
    assert (code, lines[-1]) == (0, "1 passed, 0 failed, 1 skipped")
    assert "  main: a_test: Suite.gpu: no GPU" in lines


def test_disabled_test_is_a_skip(tmp_path):
    code, lines = run(tmp_path, [("a_test", "")], {"a_test": gtest(PASS, ("off", 'status="notrun" result="suppressed"', ""))})
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")


def test_crash_without_report_fails(tmp_path):
    failure = '<failure message="SEGFAULT"/><system-out>[ RUN ] Suite.good</system-out>'
    code, lines = run(tmp_path, [("a_test", failure)], {})
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")
    assert "      SEGFAULT" in lines


def test_sanitizer_report_after_passing_tests_fails(tmp_path):
    code, lines = run(tmp_path, [("a_test", '<failure message="Failed"/>')], {"a_test": gtest(PASS)})
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")


def test_missing_program_is_no_skip(tmp_path):
    code, lines = run(tmp_path, [("a_test", '<skipped message="Unable to find executable"/>')], {}, "* # all\n")
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")


def test_pytest_counts_by_its_tests(tmp_path):
    out = "SKIPPED [2] tests/x_test.py:5: no torch\n==== 3 passed, 2 skipped in 0.12s ====\n"
    case = ("py", f"<system-out>{out}</system-out>")
    code, lines = run(tmp_path, [case], {}, "main: py: tests/x_test.py:* # needs torch\n")
    assert (code, lines[-1]) == (0, "3 passed, 0 failed, 2 skipped")


def test_unittest_counts_by_its_tests(tmp_path):
    out = "test_a (x.T) ... skipped 'no gguf'\n-----\nRan 4 tests in 0.1s\n\nOK (skipped=1)\n"
    case = ("py", f"<system-out>{out}</system-out>")
    code, lines = run(tmp_path, [case], {}, "main: py: test_a # optional\n")
    assert (code, lines[-1]) == (0, "3 passed, 0 failed, 1 skipped")
    out = ("test_b (x.T.test_b)\nSays (at length) what. ... ok\ntest_c (x.T.test_c) ... ok\n"
           "test_a (x.T.test_a)\nSays (at length) what. ... skipped \"it's not here\"\n-----\nRan 3 tests in 0.1s\n\nOK (skipped=1)\n")
    code, lines = run(tmp_path, [("py", f"<system-out>{out}</system-out>")], {}, "main: py: test_a # optional\n")
    assert (code, lines[-1]) == (0, "2 passed, 0 failed, 1 skipped")
    assert "  main: py: test_a: it's not here" in lines
    case = ("py", '<failure message="Failed"/><system-out>Ran 4 tests in 0.1s\n\nFAILED (failures=1, errors=1)\n</system-out>')
    code, lines = run(tmp_path, [case], {})
    assert (code, lines[-1]) == (1, "2 passed, 2 failed, 0 skipped")


def test_nothing_run_is_a_failure(tmp_path):
    code, lines = run(tmp_path, [], {})
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")
