"""Adds up the results of tools/test.sh and prints what failed, what was skipped and why, and the closing line.

Usage: test_summary.py --allowed FILE [--check NAME=EXIT_STATUS]... [SUITE=FOLDER]...
FOLDER holds ctest.xml (ctest --output-junit) and gtest/*.xml (GTEST_OUTPUT). A GoogleTest, pytest or unittest program counts by
its tests, any other ctest entry as one test. FILE lists skips that are all right: a name pattern, then "#" and the
reason; a skip that it does not list is a failure. Exit 1 on failures, or when no test ran.
"""

import argparse
import fnmatch
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# What ctest calls a skip; any other test that did not run (no executable, bad fixture) has failed.
CTEST_SKIPS = ("SKIP_RETURN_CODE", "SKIP_REGULAR_EXPRESSION", "Disabled")
PYTEST_CLOSING = re.compile(r"^=+ (.*\b(?:passed|failed|skipped|error|errors)\b.*) in [\d.]+s.* =+$", re.M)
UNITTEST_COUNT = re.compile(r"^Ran (\d+) tests? in ", re.M)
UNITTEST_CLOSING = re.compile(r"^(?:OK|FAILED)(?: \((.*)\))?$", re.M)
UNITTEST_SKIP = re.compile(r"^(\w+) \([\w.]+\)(?:\n.*)? \.\.\. skipped ['\"](.*)['\"]$", re.M)  # a docstring's first line stands between
PYTEST_SKIP = re.compile(r"^SKIPPED \[(\d+)\] (.+?): (.+)$", re.M)


class Results:
    def __init__(self):
        self.passed = 0
        self.failed = []  # (name, detail)
        self.skipped = []  # (name, reason)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def first_lines(text, count=12):
    return "\n".join((text or "").strip().splitlines()[:count])


def last_lines(text, count=25):
    return "\n".join((text or "").strip().splitlines()[-count:])


def read_gtest(path, suite):
    """Results of one GoogleTest report."""
    results = Results()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{suite}: {case.get('classname')}.{case.get('name')}"
        failure, skip = case.find("failure"), case.find("skipped")
        if failure is not None:
            results.failed.append((name, first_lines(failure.get("message"))))
        elif case.get("status") == "notrun":
            results.skipped.append((name, "disabled in the source"))
        elif skip is not None or case.get("result") == "skipped":
            # The message's first line is the place, the rest is the reason.
            lines = ((skip.get("message") if skip is not None else "") or "").strip().splitlines()
            results.skipped.append((name, " ".join(lines[1:] or lines).strip() or "no reason given"))
        else:
            results.passed += 1
    return results


def read_pytest(output, name):
    """Results of a pytest run from what it printed, or None when it is not one."""
    closing = PYTEST_CLOSING.findall(output)
    if not closing:
        return None
    results = Results()
    counts = {word.rstrip("s"): int(number) for number, word in re.findall(r"(\d+) (\w+)", closing[-1])}
    results.passed = counts.get("passed", 0) + counts.get("xfailed", 0)
    broken = counts.get("failed", 0) + counts.get("error", 0)
    results.failed = [(f"{name} [{i + 1} of {broken}]", last_lines(output) if i == 0 else "") for i in range(broken)]
    reasons = [(place, reason) for number, place, reason in PYTEST_SKIP.findall(output) for _ in range(int(number))]
    reasons += [("", "no reason given")] * (counts.get("skipped", 0) - len(reasons))
    results.skipped = [(f"{name}: {place}" if place else name, reason) for place, reason in reasons]
    return results


def read_unittest(output, name):
    """Results of a unittest run from what it printed, or None when it is not one."""
    ran, closing = UNITTEST_COUNT.findall(output), UNITTEST_CLOSING.findall(output)
    if not ran or not closing:
        return None
    results = Results()
    counts = {key.strip(): int(number) for key, number in re.findall(r"([a-z ]+)=(\d+)", closing[-1])}
    broken = counts.get("failures", 0) + counts.get("errors", 0) + counts.get("unexpected successes", 0)
    results.failed = [(f"{name} [{i + 1} of {broken}]", last_lines(output) if i == 0 else "") for i in range(broken)]
    reasons = UNITTEST_SKIP.findall(output)
    reasons += [("", "no reason given")] * (counts.get("skipped", 0) - len(reasons))
    results.skipped = [(f"{name}: {test}" if test else name, reason) for test, reason in reasons]
    results.passed = int(ran[-1]) - broken - counts.get("skipped", 0)
    return results


def read_entry(case, reports, suite):
    """Results of one ctest entry; its GoogleTest reports, if any, are taken out of `reports`."""
    name = case.get("name")
    output = case.findtext("system-out") or ""
    failure, skip = case.find("failure"), case.find("skipped")
    if skip is not None:
        results = Results()
        message = skip.get("message") or ""
        if message.startswith(CTEST_SKIPS):
            results.skipped.append((f"{suite}: {name}", last_lines(output, 1) or message))
        else:
            results.failed.append((f"{suite}: {name}", message or "not run"))
        return results
    mine = [path for path in reports if re.fullmatch(re.escape(name) + r"(_\d+)?", path.stem)]
    if mine:
        results = Results()
        for path in mine:
            reports.remove(path)
            results.add(read_gtest(path, f"{suite}: {name}"))
    else:
        results = read_pytest(output, f"{suite}: {name}") or read_unittest(output, f"{suite}: {name}") or Results()
        if failure is None and not (results.passed or results.failed or results.skipped):
            results.passed = 1
    if failure is not None and not results.failed:
        # A crash, a time-out, a sanitizer's report at exit.
        results.failed.append((f"{suite}: {name}", f"{failure.get('message')}\n{last_lines(output)}"))
    return results


def read_suite(suite, folder):
    results = Results()
    report = folder / "ctest.xml"
    if not report.exists():
        results.failed.append((suite, f"no results: {report} was not written"))
        return results
    reports = sorted((folder / "gtest").glob("*.xml"))
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        results.add(read_entry(case, reports, suite))
    for path in reports:  # programs whose ctest entry has another name
        results.add(read_gtest(path, f"{suite}: {path.stem}"))
    return results


def read_allowed(path):
    """[(name pattern, reason)]"""
    allowed = []
    for line in pathlib.Path(path).read_text().splitlines():
        pattern, _, reason = line.partition("#")
        if pattern.strip():
            allowed.append((pattern.strip(), reason.strip()))
    return allowed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--allowed", required=True)
    parser.add_argument("--check", action="append", default=[])
    parser.add_argument("suites", nargs="*")
    options = parser.parse_intermixed_args()

    results = Results()
    for check in options.check:
        name, _, status = check.rpartition("=")
        if status == "0":
            results.passed += 1
        else:
            results.failed.append((name, "see its output above"))
    for suite in options.suites:
        name, _, folder = suite.partition("=")
        mine = read_suite(name, pathlib.Path(folder))
        print(f"{name}: {mine.passed} passed, {len(mine.failed)} failed, {len(mine.skipped)} skipped.")
        if not (mine.passed or mine.failed):
            mine.failed.append((name, "no test ran"))
        results.add(mine)

    allowed = read_allowed(options.allowed)
    if results.skipped:
        print("Skipped:")
    for name, reason in results.skipped:
        permitted = any(fnmatch.fnmatch(name, pattern) for pattern, _ in allowed)
        print(f"  {name}: {reason}{'' if permitted else ' [NOT in ' + options.allowed + ']'}")
        if not permitted:
            results.failed.append((name, f"skipped ({reason}), which {options.allowed} does not list"))
    refused = sum(1 for _, detail in results.failed if detail.startswith("skipped ("))
    if results.failed:
        print("Failed:")
    for name, detail in results.failed:
        print(f"  {name}")
        for line in detail.splitlines():
            print(f"      {line}")
    print(f"{results.passed} passed, {len(results.failed)} failed, {len(results.skipped) - refused} skipped")
    return 1 if results.failed or not results.passed else 0


sys.exit(main())
