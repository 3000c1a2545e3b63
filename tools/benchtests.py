#!/usr/bin/env python3
"""Turns reports of `martlet benchtest` into one table.

    tools/benchtests.py FILE.. > table.md

A file may hold any text around its reports, and several of them: an exported discussion, say. Rows are sorted by model and
processor; what a report does not say stays empty. Needs Python 3 and nothing else.
"""
import sys

HEADING = "### martlet benchtest"
COLUMNS = [
    "processor", "cores", "instruction sets", "memory", "memory read", "disk read", "model", "device", "weights",
    "prefill", "decode", "time to first token", "distinct 8-grams", "peak memory", "martlet",
]


def reports(text):
    """The reports of a text, each a dictionary of its rows."""
    found = []
    for part in text.split(HEADING)[1:]:
        report = {}
        for line in part.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if line.lstrip().startswith("|") and len(cells) == 2 and cells[0] in COLUMNS:
                report.setdefault(*cells)
        if report:
            found.append(report)
    return found


def main():
    if len(sys.argv) < 2:
        sys.exit("files with reports of `martlet benchtest` are expected")
    found = []
    for name in sys.argv[1:]:
        try:
            with open(name, encoding="utf-8") as file:
                here = reports(file.read())
        except (OSError, UnicodeDecodeError) as error:
            sys.exit(f"{name}: {error}")
        if not here:
            print(f"{name}: there is no report in it (\"{HEADING}\")", file=sys.stderr)
        found += here
    found.sort(key=lambda report: (report.get("model", ""), report.get("processor", "")))
    for row in [COLUMNS, ["---"] * len(COLUMNS)] + [[r.get(c, "") for c in COLUMNS] for r in found]:
        print("| " + " | ".join(row) + " |")
    if not found:
        sys.exit(1)


if __name__ == "__main__":
    main()
