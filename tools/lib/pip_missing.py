"""Prints the lines of a requirements file that a site-packages folder does not satisfy exactly.

Usage: pip_missing.py SITE_PACKAGES REQUIREMENTS [--deps-of NAME]
With --deps-of, also prints NAME's own unconditional requirements that are absent. Uses the standard library only,
and any Python may run it for any folder.
"""

import importlib.metadata
import pathlib
import re
import sys


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(site):
    found = {}
    for distribution in importlib.metadata.distributions(path=[site]):
        name = distribution.metadata["Name"]
        if name:
            found[canonical(name)] = distribution
    return found


def main():
    site, requirements = sys.argv[1:3]
    have = installed(site)
    for line in pathlib.Path(requirements).read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        name, _, version = line.partition("==")
        distribution = have.get(canonical(name))
        # A build suffix such as 2.11.0+cpu is the same release.
        if distribution is None or distribution.version.split("+")[0] != version:
            print(line)
    if "--deps-of" in sys.argv:
        distribution = have.get(canonical(sys.argv[sys.argv.index("--deps-of") + 1]))
        for requirement in (distribution.requires or []) if distribution else []:
            spec, _, marker = requirement.partition(";")
            if "extra" in marker or "Windows" in marker or "python_version <" in marker:
                continue
            name = re.match(r"[A-Za-z0-9._-]+", spec.strip()).group()
            if canonical(name) not in have:
                print(spec.strip())


main()
