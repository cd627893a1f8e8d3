#!/usr/bin/env python3
"""The product kernels beside what they were when their ratios were recorded.

    bench_check.py [KERNCHECK] [--record] [--cpu LEVEL] [--type NAME ...] [--rounds N]

Runs `kerncheck --bench` on one thread: per round the memory is read once plainly and the
kernel once, and the median of the rounds' ratios is compared with the ratio of this
instruction set in tests/bench/ratios.json.  So are the times of 2, 3, 4 and 8 rows over
that of one.  A ratio below 85 % of the recorded one fails; --record writes them anew.
Ratios move with what neighbours do to the machine: run it when it is quiet.  It is no part
of ./test.
"""

import argparse
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RATIOS = os.path.join(ROOT, "tests", "bench", "ratios.json")
TYPES = ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "F16"]
LEAST = 0.85
LINE = re.compile(r"kern_matmul_(\S+)_(avx2|avx512|avx512vnni|avx512vbmi|avxvnni|amx)\s+M=1\s+\S+ GB/s (\S+) of read")
COST = re.compile(r"(\d+): (\S+)x")


def measure(kerncheck, types, rounds, cpu):
    """{instruction set: {"type rows": ratio}}: speed over reading; one row's time over n's."""
    found = {}
    for name in types:
        command = [kerncheck, "--bench", f"--type={name}", f"--rounds={rounds}", "--threads=1"]
        text = subprocess.run(command + ([f"--cpu={cpu}"] if cpu else []), check=True,
                              capture_output=True, text=True).stdout
        for line in text.splitlines():
            m = LINE.search(line)
            if not m:
                continue
            kind = found.setdefault(m[2], {})
            kind[f"{m[1]} read"] = float(m[3])
            for rows, cost in COST.findall(line):
                kind[f"{m[1]} {rows} rows"] = round(1 / float(cost), 3)
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kerncheck", nargs="?", default=os.path.join(ROOT, "out/release/kerncheck"))
    p.add_argument("--record", action="store_true")
    p.add_argument("--cpu")
    p.add_argument("--type", action="append")
    p.add_argument("--rounds", type=int, default=7)
    a = p.parse_args()
    known = json.load(open(RATIOS, encoding="utf-8")) if os.path.exists(RATIOS) else {}
    bad = 0
    for isa, ratios in measure(a.kerncheck, a.type or TYPES, a.rounds, a.cpu).items():
        for what, got in ratios.items():
            want = known.get(isa, {}).get(what)
            low = want is not None and got < LEAST * want
            bad += low and not a.record
            print(f"{isa:<11} {what:<16} {got:.2f}" + (f" of {want:.2f}" if want else ", not recorded")
                  + (" LOW" if low else ""))
        if a.record:
            known.setdefault(isa, {}).update(ratios)
    if a.record:
        with open(RATIOS, "w", encoding="utf-8") as f:
            json.dump(known, f, indent=1, sort_keys=True)
            f.write("\n")
    if not known:
        print("no ratios are recorded: bench_check.py --record")
    if bad:
        sys.exit(f"bench_check.py: {bad} ratios below {LEAST:.0%} of the recorded ones")


if __name__ == "__main__":
    main()
