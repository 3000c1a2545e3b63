#!/usr/bin/env python3
"""Fails unless a program is for the given processor, needs no other file to run, and holds none of the given words, such
as folders of the machine that it was built on.

Usage: static.py PROGRAM x86_64|aarch64 [WORD...]
"""

import struct
import sys

MACHINES = {"x86_64": 62, "aarch64": 183}
INTERPRETER = 3  # PT_INTERP: the program that loads shared libraries


def main():
    path, arch, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(path, "rb") as file:
        data = file.read()
    if data[:5] != b"\x7fELF\x02":
        sys.exit(f"{path}: no program of 64 bits")
    machine = struct.unpack_from("<H", data, 18)[0]
    if machine != MACHINES[arch]:
        sys.exit(f"{path}: machine {machine}, expected {MACHINES[arch]} ({arch})")
    table, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    kinds = [struct.unpack_from("<I", data, table + i * size)[0] for i in range(count)]
    if INTERPRETER in kinds:
        sys.exit(f"{path}: needs shared libraries")
    for word in words:
        at = data.find(word.encode() + b"/")
        if at >= 0:
            found = data[at : at + 100].split(b"\0")[0].decode(errors="replace")
            sys.exit(f"{path}: holds a folder of this machine: {found}")


main()
