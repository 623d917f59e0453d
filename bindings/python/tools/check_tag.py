#!/usr/bin/env python3
"""Checks that a wheel for Linux has its licenses, and a tag, and keeps what it promises: `check_tag.py WHEEL TAG`, such as
`manylinux_2_28`.

A wheel with this tag runs with glibc 2.28 and all later versions. auditwheel, which must be installed, reads the libraries and the
versions of their symbols that the files of the wheel need, and ignores the wheel's name.
"""

import json
import os
import re
import subprocess
import sys
import zipfile


LICENSES = ["LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.txt"]

def main(wheel: str, tag: str) -> None:
    name = os.path.basename(wheel)
    named = re.fullmatch(rf".*-{tag}_(\w+)\.whl", name)
    if named is None:
        sys.exit(f"{name} does not have the tag {tag}")
    files = [os.path.basename(path) for path in zipfile.ZipFile(wheel).namelist() if "/licenses/" in path]
    if sorted(files) != LICENSES:
        sys.exit(f"{name} has the licenses {files}, and not {LICENSES}")
    command = [sys.executable, "-m", "auditwheel", "show", "--json", wheel]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    overall = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{named[1]}", found["overall_tag"])
    if overall is None or version(overall[1], overall[2]) > version(*tag.split("_")[1:]):
        needed = json.dumps({"symbols": found["versioned_symbols"], "libraries": found["external_libs"]})
        sys.exit(f"{name} can only have the tag {found['overall_tag']}: it needs {needed}")


def version(major: str, minor: str) -> tuple[int, int]:
    return int(major), int(minor)


if __name__ == "__main__":
    main(*sys.argv[1:])
