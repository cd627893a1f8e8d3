#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_sass.py [--ptxas FILE] [--record] [BUILD] - what an assembler makes of the kernels' PTX, without any card.

Registers, stack and spills of every kernel for sm_75, sm_80 and sm_90a.  No kernel has more than 64 bytes of stack or
more registers than kernels.inc allows, and none has 8 registers more than scripts/gpu_sass.txt has recorded; --record
writes that file, which also has what the PTX was: the same is not assembled again, but in ./test soak or with --all.
Exit status 77: there is no assembler."""
import argparse, concurrent.futures, hashlib, os, pathlib, re, shutil, subprocess, sys

from gpu_ptx import KERNELS, ROOT, kernels

RECORD = ROOT / "scripts/gpu_sass.txt"
STACK, GROWTH = 64, 8
ROWS = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame.*?Used (\d+) registers", re.S)


def assemble(job):
    """{kernel: (registers, stack)} of a file for a card, or an error's text."""
    ptxas, path, sm = job
    out = subprocess.run([ptxas, f"-arch={sm}", "-v", str(path), "-o", os.devnull], capture_output=True, text=True)
    if out.returncode:
        return f"{path.name}: {sm}: {(out.stderr or out.stdout).strip().splitlines()[0]}"
    return {name: (int(registers), int(stack)) for name, stack, registers in ROWS.findall(out.stdout + out.stderr)}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def recorded():
    """{(kernel, card): (registers, stack)}, and {file: digest} of the PTX that it is of."""
    lines = [w for w in map(str.split, RECORD.read_text().splitlines()) if w[0] != "#"] if RECORD.exists() else []
    return {(w[0], w[1]): (int(w[2]), int(w[3])) for w in lines if len(w) == 4}, {w[0]: w[1] for w in lines if len(w) == 2}


def limits():
    """Most registers of each kernel that has a limit."""
    text = (KERNELS / "kernels.inc").read_text()
    rows = re.findall(r"GPU_KERNEL\(([^()]*)\)", text.replace("\\\n", ""))
    return {w[0]: int(w[5]) for w in ([x.strip() for x in r.split(",")] for r in rows) if w[5].isdigit() and int(w[5])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ptxas", default=shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--all", action="store_true", default=bool(os.environ.get("INGLE_TEST_SOAK")))
    parser.add_argument("build", nargs="?", default=str(ROOT / "out/release"))
    args = parser.parse_args()
    if not os.access(args.ptxas, os.X_OK):
        print("sass: there is no ptxas")
        return 77
    modules = dict(re.findall(r"^GPU_MODULE\((\w+), (\d+)\)", (KERNELS / "modules.inc").read_text(), re.M))
    folder = pathlib.Path(args.build) / "gpu"
    jobs = [(args.ptxas, folder / f"{m}.{ptx}.ptx", sm) for m, least in modules.items()
            for ptx, sm in ((75, "sm_75"), (80, "sm_80"), (80, "sm_90a")) if ptx >= int(least)]
    jobs = [j for j in jobs if j[1].exists()]
    if not jobs:
        print("sass: this build has no PTX")
        return 77
    before, same = recorded()
    named = kernels()
    known = [j for j in jobs if same.get(j[1].name) == digest(j[1]) and not args.all and not args.record]
    rows = {(n, sm): before[n, sm] for _, path, sm in known for n in named[path.name.split(".")[0]] if (n, sm) in before}
    jobs, most = [j for j in jobs if j not in known], limits()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(assemble, jobs))
    bad = [r for r in done if isinstance(r, str)]
    for (_, _, sm), found in zip(jobs, done):
        if not isinstance(found, str):
            rows.update({(name, sm): tuple(v) for name, v in found.items()})
    for (name, sm), (registers, stack) in rows.items():
        if stack > STACK:
            bad.append(f"{name}, {sm}: {stack} bytes of stack, the limit is {STACK}")
        if registers > most.get(name, 255):
            bad.append(f"{name}, {sm}: {registers} registers, kernels.inc allows {most[name]}")
        if (name, sm) in before and registers > before[name, sm][0] + GROWTH and not args.record:
            bad.append(f"{name}, {sm}: {registers} registers, {before[name, sm][0]} are recorded")
    missing = {n for names in named.values() for n in names} - {name for name, _ in rows}
    bad += [f"{n}: not assembled" for n in sorted(missing)]
    if args.record and not bad:
        RECORD.write_text("# kernel, card, registers, bytes of stack: written by scripts/gpu_sass.py --record\n" +
                          "".join(f"{n} {sm} {r} {s}\n" for (n, sm), (r, s) in sorted(rows.items())) +
                          "".join(f"{p.name} {digest(p)}\n" for p in sorted({j[1] for j in jobs})))
    print("\n".join(bad) if bad else f"sass: ok, {len(rows)} kernels for cards, {len(known)} files as recorded, most stack "
          f"{max(s for _, s in rows.values())} bytes, most registers {max(r for r, _ in rows.values())}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
