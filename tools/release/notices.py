#!/usr/bin/env python3
"""Prints the licences of everything that martlet's program for Linux contains: the crates that it is built from, each text
once, then Rust's standard library and the C library, whose texts lie in the folder of tools (see tools/release.sh).

Usage: notices.py TOOLS > THIRD-PARTY.txt
"""

import json
import pathlib
import re
import subprocess
import sys

TARGETS = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"]
NAMES = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)
RULE = "=" * 80


def linked(target):
    """Packages of other people that end up in the program for `target`."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    graph = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {p["id"]: p for p in graph["packages"]}
    nodes = {n["id"]: n for n in graph["resolve"]["nodes"]}
    todo = [i for i, p in packages.items() if p["name"] == "martlet"]
    seen = set(todo)
    while todo:
        for dep in nodes[todo.pop()]["deps"]:
            # `null` is a normal dependency; others serve the build or tests.
            if dep["pkg"] not in seen and any(kind["kind"] is None for kind in dep["dep_kinds"]):
                seen.add(dep["pkg"])
                todo.append(dep["pkg"])
    return [packages[i] for i in seen if packages[i]["source"]]


def texts(package):
    """Licence files of a package."""
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(p for p in folder.iterdir() if p.is_file() and NAMES.match(p.name))
    return [p.read_text(encoding="utf-8", errors="replace").strip() for p in files]


def musl(tools):
    found = sorted(pathlib.Path(tools).glob("lib/python*/site-packages/ziglang/lib/libc/musl/COPYRIGHT"))
    if not found:
        sys.exit(f"notices: the licence of musl is not under {tools}")
    return found[0].read_text(encoding="utf-8").strip()


def main():
    packages = {}
    for target in TARGETS:
        packages.update({(p["name"], p["version"]): p for p in linked(target)})
    print("What others have written and martlet's program contains, with licences.\n")
    holders = {}
    for (name, version), package in sorted(packages.items()):
        print(f"{name} {version}: {package['license'] or 'see below'}, {package['repository'] or 'crates.io'}")
        for text in texts(package):
            # Copies differ in how their lines are broken.
            holders.setdefault(" ".join(text.split()), (text, []))[1].append(f"{name} {version}")
    print("The standard library of Rust: MIT OR Apache-2.0, https://www.rust-lang.org")
    print("musl, the C library: MIT, https://musl.libc.org")
    holders["musl"] = (musl(sys.argv[1]), ["musl"])
    for text, names in sorted(holders.values(), key=lambda held: held[1]):
        print(f"\n{RULE}\n{', '.join(names)}\n{RULE}\n\n{text}")


if __name__ == "__main__":
    main()
