#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_sass.py [--ptxas FILE] [--nvdisasm FILE] [--record] [--all] [BUILD] - what an assembler makes of the kernels' PTX.

No card is needed.  For sm_75, sm_80 and sm_90a, of every kernel: registers, bytes of stack, and, where nvdisasm is found
(the PyPI package nvidia-cuda-nvdisasm has it), loads from the card's memory, matrix instructions (IMMA, HMMA), and the
instructions of the longest loop without a loop in it.  No kernel has more than 64 bytes of stack or more registers than
kernels.inc allows; none has 8 registers more, or a loop 5 % and 8 instructions longer, than scripts/gpu_sass.txt has
recorded; kernels of many rows of codes have matrix instructions on sm_80 and later.  --record writes that file, which
also has what the PTX was: the same is not assembled again, but in ./test soak or with --all.
Exit status 77: there is no assembler."""
import argparse, concurrent.futures, glob, hashlib, os, pathlib, re, shutil, subprocess, sys, tempfile

from gpu_ptx import KERNELS, ROOT, kernels

RECORD = ROOT / "scripts/gpu_sass.txt"
STACK, GROWTH, LONGER = 64, 8, 1.05
UNKNOWN = (-1, -1, -1)  # loads, matrix instructions, loop: nvdisasm was not there
FLOATS = ("f32", "f16", "bf16", "f8", "f8s", "w8")
ROWS = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame.*?Used (\d+) registers", re.S)


def code_of(nvdisasm, cubin):
    """{kernel: [loads, matrix instructions, instructions of the longest inner loop]}"""
    text = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    found, parts = {}, re.split(r"^\.text\.(\w+):", text, flags=re.M)
    for name, body in zip(parts[1::2], parts[2::2]):
        at, loops, label, n = {}, [], None, [0, 0, 0]
        for line in re.split(r"^\s*\.section", body, flags=re.M)[0].splitlines():
            if m := re.match(r"(\.L_x_\d+):", line):
                at[m[1]] = n[2]
                continue
            m = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line)
            if not m:
                continue
            n[2] += 1
            n[0] += m[1].startswith(("LDG.", "LDGSTS."))
            n[1] += m[1].startswith(("IMMA", "HMMA"))
            label = re.search(r"`\((\.L_x_\d+)\)", line) if m[1].startswith("BRA") else None
            if label and label[1] in at:
                loops.append((at[label[1]], n[2]))
        inner = [e - b for b, e in loops if not any(b <= x and y <= e and (x, y) != (b, e) for x, y in loops)]
        found[name] = [n[0], n[1], max((i for i in inner if i > 2), default=0)]
    return found


def assemble(job):
    """{kernel: (registers, stack, loads, matrix instructions, loop)} of a file for a card, or an error's text."""
    ptxas, nvdisasm, path, sm = job
    with tempfile.TemporaryDirectory() as d:
        cubin = os.path.join(d, "cubin")
        out = subprocess.run([ptxas, f"-arch={sm}", "-v", str(path), "-o", cubin], capture_output=True, text=True)
        if out.returncode:
            return f"{path.name}: {sm}: {(out.stderr or out.stdout).strip().splitlines()[0]}"
        code = code_of(nvdisasm, cubin) if nvdisasm else {}
    return {name: (int(registers), int(stack), *code.get(name, UNKNOWN))
            for name, stack, registers in ROWS.findall(out.stdout + out.stderr)}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def recorded():
    """{(kernel, card): what assemble() says}, and {file: digest} of the PTX that it is of."""
    lines = [w for w in map(str.split, RECORD.read_text().splitlines()) if w[0] != "#"] if RECORD.exists() else []
    rows = {(w[0], w[1]): (*map(int, w[2:]), *UNKNOWN)[:5] for w in lines if len(w) in (4, 7)}
    return rows, {w[0]: w[1] for w in lines if len(w) == 2}


def limits():
    """Most registers of each kernel that has a limit."""
    text = (KERNELS / "kernels.inc").read_text()
    rows = re.findall(r"GPU_KERNEL\(([^()]*)\)", text.replace("\\\n", ""))
    return {w[0]: int(w[5]) for w in ([x.strip() for x in r.split(",")] for r in rows) if w[5].isdigit() and int(w[5])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ptxas", default=shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas")
    pip = glob.glob(os.path.join(sys.prefix, "lib/python*/site-packages/nvidia/*/bin/nvdisasm"))
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm") or next(iter(pip), None))
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--all", action="store_true", default=bool(os.environ.get("INGLE_TEST_SOAK")))
    parser.add_argument("build", nargs="?", default=str(ROOT / "out/release"))
    args = parser.parse_args()
    if not os.access(args.ptxas, os.X_OK):
        print("sass: there is no ptxas")
        return 77
    modules = dict(re.findall(r"^GPU_MODULE\((\w+), (\d+)\)", (KERNELS / "modules.inc").read_text(), re.M))
    folder = pathlib.Path(args.build) / "gpu"
    jobs = [(args.ptxas, args.nvdisasm, folder / f"{m}.{ptx}.ptx", sm) for m, least in modules.items()
            for ptx, sm in ((75, "sm_75"), (80, "sm_80"), (80, "sm_90a")) if ptx >= int(least)]
    jobs = [j for j in jobs if j[2].exists()]
    if not jobs:
        print("sass: this build has no PTX")
        return 77
    before, same = recorded()
    named = kernels()
    known = [j for j in jobs if same.get(j[2].name) == digest(j[2]) and not args.all and not args.record]
    rows = {(n, sm): before[n, sm] for _, _, path, sm in known for n in named[path.name.split(".")[0]] if (n, sm) in before}
    jobs, most = [j for j in jobs if j not in known], limits()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(assemble, jobs))
    bad = [r for r in done if isinstance(r, str)]
    for (*_, sm), found in zip(jobs, done):
        if not isinstance(found, str):
            rows.update({(name, sm): tuple(v) for name, v in found.items()})
    for (name, sm), (registers, stack, _, matrix, loop) in rows.items():
        was = before.get((name, sm), UNKNOWN)[-1]
        if stack > STACK:
            bad.append(f"{name}, {sm}: {stack} bytes of stack, the limit is {STACK}")
        if registers > most.get(name, 255):
            bad.append(f"{name}, {sm}: {registers} registers, kernels.inc allows {most[name]}")
        if (name, sm) in before and registers > before[name, sm][0] + GROWTH and not args.record:
            bad.append(f"{name}, {sm}: {registers} registers, {before[name, sm][0]} are recorded")
        if 0 < was and loop > max(was * LONGER, was + GROWTH) and not args.record:
            bad.append(f"{name}, {sm}: a loop of {loop} instructions, {was} are recorded")
        if name.startswith("many_") and sm != "sm_75" and not matrix and name[5:] not in FLOATS:
            bad.append(f"{name}, {sm}: no matrix instruction")
    missing = {n for names in named.values() for n in names} - {name for name, _ in rows}
    bad += [f"{n}: not assembled" for n in sorted(missing)]
    if args.record and not bad:
        RECORD.write_text("# kernel, card, registers, bytes of stack, loads, matrix instructions, instructions of the "
                          "longest inner loop (-1: no nvdisasm):\n# written by scripts/gpu_sass.py --record\n" +
                          "".join(f"{n} {sm} {' '.join(map(str, v))}\n" for (n, sm), v in sorted(rows.items())) +
                          "".join(f"{p.name} {digest(p)}\n" for p in sorted({j[2] for j in jobs})))
    print("\n".join(bad) if bad else f"sass: ok, {len(rows)} kernels for cards, {len(known)} files as recorded, most stack "
          f"{max(v[1] for v in rows.values())} bytes, most registers {max(v[0] for v in rows.values())}"
          + ("" if args.nvdisasm else "; no nvdisasm: loads and loops are not looked at"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
