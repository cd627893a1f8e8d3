#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_mutants.py [WORD ...] - each barrier and each wait of the kernels for cards removed in turn: a test must fail.

Builds from out/release, of the files whose names have one of the words. A file that several modules include is tried with
the first and the last of them. Prints the survivors; exit status 1 if one is not in KNOWN."""
import pathlib, re, shlex, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ROOT / "src/device/gpu/kernels"
BUILD = ROOT / "out/release"
SITE = re.compile(r"\bgpu_(?:sync|warp_sync)\(\);|\bgpu_copy_wait\(\d\);")
TESTS = {"many": "product", "words_matrix": "words"}
# (file, number of the barrier or wait in it): why no test can see it.
KNOWN = {
    ("words_matrix.cu", 2): "the emulated ldmatrix waits for the warp before it reads; a card orders memory here",
    ("words_matrix.cu", 4): "the same",
}


def includes(path):
    """Files of kernels that it includes, in any number of steps."""
    found, todo = set(), [path]
    while todo:
        for name in re.findall(r'#include "device/gpu/kernels/([\w.]+)"', todo.pop().read_text()):
            if name not in found and (KERNELS / name).exists():
                found.add(name)
                todo.append(KERNELS / name)
    return found


def program(module):
    theme = TESTS.get(module) or TESTS.get(module.split("_")[0]) or module.split("_")[0]
    return f"gpu_kernels_{theme}"


def commands(target):
    out = subprocess.run(["ninja", "-C", str(BUILD), "-t", "commands", target], capture_output=True, text=True, check=True)
    return out.stdout.splitlines()


def compile_of(module, lines, folder):
    """The module's compiler with the changed file before the others."""
    source = str(KERNELS / f"{module}.cu")
    words = shlex.split(next(line for line in lines if f" -c {source}" in line))
    at = words.index("-o")
    words[at + 1] = str(folder / f"{module}.o")
    for option in ("-MF", "-MT"):
        words[words.index(option) + 1] = str(folder / "depend")
    changed = folder / "device/gpu/kernels" / f"{module}.cu"
    if changed.exists():
        words[words.index(source)] = str(changed)
    words.insert(2 if words[0].endswith("ccache") else 1, f"-I{folder}")
    return words + ["-Wno-unused-variable"]


def survives(module, folder):
    lines = commands(program(module))
    command = compile_of(module, lines, folder)
    done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"gpu_mutants: {module} does not compile: {done.stderr[:400]}")
    link = shlex.split(lines[-1].replace(": && ", "").replace(" && :", ""))
    link[link.index("-o") + 1] = str(folder / "test")
    link.insert(link.index("libgpu_emu.a"), str(folder / f"{module}.o"))
    subprocess.run(link, cwd=BUILD, check=True)
    try:
        ran = subprocess.run([str(folder / "test")], cwd=ROOT, capture_output=True, timeout=300)
    except subprocess.TimeoutExpired:
        return False
    return ran.returncode == 0


def main(words):
    modules = re.findall(r"^GPU_MODULE\((\w+), \d+\)", (KERNELS / "modules.inc").read_text(), re.M)
    users = {}
    for m in modules:
        for name in {f"{m}.cu"} | includes(KERNELS / f"{m}.cu"):
            users.setdefault(name, []).append(m)
    n, bad = 0, []
    for name in sorted(users):
        text = (KERNELS / name).read_text()
        if name == "gpu.h" or (words and not any(w in name for w in words)):
            continue
        for number, site in enumerate(SITE.finditer(text), 1):
            n += 1
            line = text[:site.start()].count("\n") + 1
            chosen = {users[name][0], users[name][-1]}
            with tempfile.TemporaryDirectory() as tmp:
                folder = pathlib.Path(tmp)
                (folder / "device/gpu/kernels").mkdir(parents=True)
                (folder / "device/gpu/kernels" / name).write_text(text[:site.start()] + ";" + text[site.end():])
                alive = all(survives(m, folder) for m in sorted(chosen))
            print(f"{'SURVIVES' if alive else 'found   '} {name}:{line}: {site[0]}", flush=True)
            if alive and (name, number) not in KNOWN:
                bad.append(f"{name}:{line}")
    print(f"mutants: {n} sites, {len(bad)} survive" + (": " + ", ".join(bad) if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
