#!/usr/bin/env python3
"""The product kernels and whole models beside what they were when their ratios were recorded.

    bench_check.py [KERNCHECK] [--record] [--only kernels|models] [--cpu LEVEL ...] [--type NAME ...] [--threads N ...]

Runs `kerncheck --bench`.  In each of its rounds the machine is measured too: the rate at which
memory is read, and the rate of multiplications on registers (256-bit FMA).  The medians of the
rounds' ratios are held against those of tests/bench/ratios.json for the same instruction set,
maker of processors (their memory and their 512-bit units are too different to compare) and number of
threads.  Of several kernels of an instruction set the better one counts, as calibration has it:

    Q4_K read       packed weights of one row a second, over reading the same memory
    Q4_K 4 rows     the time of one row over that of four (2, 3 and 4 rows)
    Q4_K 64 rows    multiplications a second over those on registers (8 rows and more)

Models of both families: the nano ones, and slices of real shapes (scripts/make_slice.py, made once
in out/slices, 4 GB).  `bench_model` runs them with all processors; each of five rounds has measures
of its own of reading and of FMA:

    decode          the weights of a token a second, over reading the same memory
    4 rows          the time of four tokens one by one over that of a step of four
    prompt          weights times tokens a second, over multiplications on registers (no unit)
    decode @8192    as decode, behind 8,192 tokens: attention

One thread for kernels unless told: what two threads read depends on what strangers on the host do to the link.
What is below 85 % is measured again, up to twice, and fails if it never was above.  Levels
that the machine lacks, and ratios that are not recorded, fail nothing.  --record writes the
medians of three runs.  It wants a quiet machine and is no part of ./test.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RATIOS = os.path.join(ROOT, "tests", "bench", "ratios.json")
PACKED = ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "F16"]
LOOKED_UP = ["IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S"]
INTEGER = [t for t in PACKED if t != "F16"]
TYPES = {"amx": INTEGER, "avx512vbmi": LOOKED_UP, "avx512vnni": PACKED + ["IQ1_S", "IQ1_M"], "avxvnni": INTEGER + LOOKED_UP,
         "avx2": PACKED + LOOKED_UP + ["IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS"]}
LEVELS = list(TYPES)
LEAST = 0.85
LINE = re.compile(r"kern_matmul_(\S+)_(avx2|avx512|avx512vnni|avx512vbmi|avxvnni|amx)\s+M=1\s+\S+ GB/s (\S+) of read(.*)")
ROWS = re.compile(r"(\d+): (?:(\S+)x )?\d+ \((\S+)\)")


def measure(kerncheck, cpu, name, threads, rounds):
    """{what: ratio} of the kernels that this level adds for a type; higher is better."""
    command = [kerncheck, "--bench", f"--type={name}", f"--rounds={rounds}", f"--threads={threads}",
               f"--cpu={cpu}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {}
    for line in text.splitlines():
        m = LINE.search(line)
        if not m or m[2] != cpu:
            continue
        here = {f"{name} read": float(m[3])}
        for rows, cost, of_peak in ROWS.findall(m[4]):
            if int(rows) < 8:
                here[f"{name} {rows} rows"] = round(1 / float(cost), 3)
            elif float(of_peak) > 0:
                here[f"{name} {rows} rows"] = float(of_peak)
        for what, ratio in here.items():
            found[what] = max(ratio, found.get(what, 0))
    return found


SLICES = {"gemma-26b-a4b Q4_0": [], "gemma-31b Q4_K": [], "gemma-e4b Q8_0": [], "deepseek-v4 MXFP4": ["--experts", "64"]}
MODELS = {"nano-gemma4": ("assets/nano-gemma4-Q8_0.gguf", 2048), "nano-v4": ("tests/data/nano-v4/nano-v4-MXFP4.gguf", 2048)}


def slices():
    """{name: (path, depth)} of the models to run; makes the slices that are not there."""
    folder = os.path.join(ROOT, "out", "slices")
    os.makedirs(folder, exist_ok=True)
    found = {name: (os.path.join(ROOT, path), depth) for name, (path, depth) in MODELS.items()}
    for name, more in SLICES.items():
        shape, code = name.split()
        path = os.path.join(folder, f"{shape}-{code}.gguf")
        if not os.path.exists(path):
            subprocess.run([sys.executable, os.path.join(ROOT, "scripts/make_slice.py"), shape, code, path + ".part", *more],
                           check=True)
            os.rename(path + ".part", path)
        found[name] = (path, 8192)
    return found


def measure_model(bench, path, depth, rounds):
    """{what: ratio} of a model, medians of the rounds; higher is better."""
    order = ["read", "peak", "decode:16@64", "rows:4@64", "prefill:512", f"decode:8@{depth}"]
    command = [bench, path, "-s", "-c", str(depth + 1024), *order * rounds]
    events = [json.loads(line) for line in subprocess.run(command, check=True, capture_output=True,
                                                          text=True).stdout.splitlines()]
    token_bytes, here, all_rounds = events[0]["token_bytes"], {}, []
    for e in events[1:]:
        if e["event"] == "read":
            here = {}
            all_rounds.append(here)
        elif e["event"] == "peak":
            peak = e["GFLOPs"] * 1e9
        elif e["event"] == "decode":
            here["decode" if e["depth"] < 100 else f"decode @{depth}"] = e["share"]
            one = e["seconds"] / e["n"] if e["depth"] < 100 else one
        elif e["event"] == "rows":
            here["4 rows"] = one * 4 / (e["n"] / e["tps"])
        elif e["event"] == "prefill":
            here["prompt"] = e["tps"] * token_bytes / peak
    return {k: round(statistics.median(r[k] for r in all_rounds), 3) for k in all_rounds[0]}


def jobs(a):
    """(group, run) of everything that is to be measured; run() gives {what: ratio}."""
    for cpu in (a.cpu or LEVELS) if a.only != "models" else []:
        for threads in a.threads or [1]:
            for name in a.type or TYPES[cpu]:
                yield (f"{cpu}, {maker()}, {threads} thread{'s' * (threads > 1)}",
                       lambda cpu=cpu, name=name, threads=threads: measure(a.kerncheck, cpu, name, threads, a.rounds))
    if a.only == "kernels" or a.cpu or a.type:
        return
    bench = os.path.join(os.path.dirname(a.kerncheck), "bench_model")
    level = subprocess.run([bench, MODELS["nano-gemma4"][0]], capture_output=True, text=True, cwd=ROOT).stdout
    group = f"models, {json.loads(level.splitlines()[0])['cpu']}, {maker()}, {os.cpu_count()} processors"
    for name, (path, depth) in slices().items():
        yield group, lambda name=name, path=path, depth=depth: {
            f"{name} {what}": ratio for what, ratio in measure_model(bench, path, depth, a.rounds).items()}


def maker():
    """Of the processor, as /proc/cpuinfo has it."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        m = re.search(r"vendor_id\s*: (\S+)", f.read())
    return m[1] if m else "unknown"


def again(run, known, first):
    """The best of up to three runs of what was low."""
    for _ in range(2):
        low = [k for k, v in first.items() if v < LEAST * known.get(k, 0)]
        if not low:
            break
        more = run()
        for k in low:
            first[k] = max(first[k], more.get(k, 0))
    return first


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kerncheck", nargs="?", default=os.path.join(ROOT, "out/release/kerncheck"))
    p.add_argument("--record", action="store_true")
    p.add_argument("--only", choices=["kernels", "models"])
    p.add_argument("--cpu", action="append", choices=LEVELS)
    p.add_argument("--type", action="append")
    p.add_argument("--threads", action="append", type=int)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--ratios", default=RATIOS, help="the file of ratios")
    a = p.parse_args()
    known = json.load(open(a.ratios, encoding="utf-8")) if os.path.exists(a.ratios) else {}
    bad = n = 0
    for group, run in jobs(a):
        want = known.get(group, {})
        if a.record:
            runs = [run() for _ in range(3)]
            got = {k: round(statistics.median(r[k] for r in runs), 3) for k in runs[0]}
            known.setdefault(group, {}).update(got)
        else:
            got = again(run, want, run())
        n += len(got)
        for what, ratio in got.items():
            low = not a.record and ratio < LEAST * want.get(what, 0)
            bad += low
            print(f"{group:<32} {what:<14} {ratio:5.2f}"
                  + (f" of {want[what]:.2f}" if what in want else ", not recorded")
                  + (" LOW" if low else ""), flush=True)
    if a.record:
        with open(a.ratios, "w", encoding="utf-8") as f:
            json.dump(known, f, indent=1, sort_keys=True)
            f.write("\n")
    if bad:
        sys.exit(f"bench_check.py: {bad} of {n} ratios below {LEAST:.0%} of the recorded ones")
    print(f"{n} ratios, " + ("recorded" if a.record else f"none below {LEAST:.0%} of what was recorded"))


if __name__ == "__main__":
    main()
