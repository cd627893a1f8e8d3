#!/usr/bin/env python3
"""check_length.py - a function ends after 120 lines at most, a file after 1,200 (unless the file
says "long file:" and why), a line of C after 100 columns."""
import pathlib, re, subprocess, sys

FUNCTION, FILE, COLUMNS = 120, 1200, 100
bad, worst, n = [], (0, ""), 0
listed = subprocess.run(["git", "ls-files", "*.c", "*.cu", "*.h", "*.inc", "*.py"], capture_output=True, text=True, check=True)
for name in listed.stdout.split():
    lines = pathlib.Path(name).read_text().splitlines()
    if len(lines) > FILE and not any("long file:" in line.lower() for line in lines[:30]):
        bad.append(f"{name}: {len(lines)} lines, the limit is {FILE}")
    if not name.endswith(".py"):
        bad += [f"{name}:{i}: {len(line)} columns, the limit is {COLUMNS}" for i, line in enumerate(lines, 1) if len(line) > COLUMNS]
    if not name.endswith((".c", ".cu")):
        continue
    start = None
    for i, line in enumerate(lines, 1):
        if line == "{":
            start = i
        elif line == "}" and start:
            n += 1
            worst = max(worst, (i - start, f"{name}:{start}"))
            if i - start > FUNCTION:
                bad.append(f"{name}:{start}: a function of {i - start} lines, the limit is {FUNCTION}")
            start = None
print("\n".join(bad) if bad else f"length: ok, {n} functions, the longest {worst[0]} lines at {worst[1]}")
sys.exit(1 if bad else 0)
