#!/usr/bin/env python3
"""check_headers.py - every header compiles alone as C11; include/ingle/ also as C++17."""
import concurrent.futures, os, pathlib, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WARN = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-Iinclude", "-Isrc"]
X86 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq",
       "-mavx512cd", "-mavx512vnni", "-mavx512vbmi"]

PACKAGES = subprocess.run(["pkg-config", "--cflags", "json-c", "libxxhash", "libutf8proc"],
                          capture_output=True, text=True, check=True).stdout.split()


def alone(header, compiler, std, language):
    flags = X86 if header.startswith("kern/x86/") else []
    out = subprocess.run([compiler, f"-std={std}", *WARN, *PACKAGES, *flags, "-x", language, "-"], cwd=ROOT,
                         input=f'#include "{header}"\ntypedef int unit_not_empty;\n', capture_output=True, text=True)
    return [f"{header} as {std}: {out.stderr.strip()}"] if out.returncode else []


jobs = []
for top in ("src", "include"):
    for p in sorted((ROOT / top).rglob("*.h")):
        name = p.relative_to(ROOT / top).as_posix()
        if name.startswith("kern/x86/") and "#ifndef INGLE_" not in p.read_text():
            continue  # a body that kernels include with their macros set
        if name.startswith("device/gpu/kernels/") and "GPU_DEV" in p.read_text():
            continue  # for the compiler of a card's programs
        jobs.append((name, "gcc", "c11", "c"))
        if top == "include":
            jobs.append((name, "clang++-14", "c++17", "c++"))
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    bad = [line for lines in pool.map(lambda j: alone(*j), jobs) for line in lines]
print("\n".join(bad) if bad else f"headers: ok, {len(jobs)} compiled")
sys.exit(1 if bad else 0)
