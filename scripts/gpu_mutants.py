#!/usr/bin/env python3
"""gpu_mutants.py BUILD [FILE...] - each barrier and each wait of a card's kernels is left out in turn;
a test of the kernels must fail each time.

BUILD has the test programs gpu_kernels_*.  FILE: of src/device/gpu/kernels; all by default.
Prints the survivors that EXPLAINED does not have; exit 1 if there are any."""
import json, pathlib, re, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ROOT / "src/device/gpu/kernels"
WORD = re.compile(r"\bgpu_(sync|warp_sync|copy_wait)\([0-9]*\);")
# file, function, which one of its words (from 0): why no test can fail
EXPLAINED = {
    # On the emulator a matrix load is an exchange of the warp; on a card that orders no memory.
    ("words_matrix.cu", "words_matrix_check", 1): "ldmatrix",
    ("words_matrix.cu", "words_matrix_check", 3): "ldmatrix",
}


def words(path):
    """Every word of a file: (function, number in it, begin, end)."""
    text, function, n, out, at = path.read_text(), "", 0, [], 0
    for line in text.splitlines(keepends=True):
        if line.startswith("GPU_DEV") or re.match(r"[A-Z_]+_ENTRY\(", line):
            name = re.search(r"_ENTRY\((?:[A-Z_]+\()?(\w+)", line) or re.search(r"(\w+)\)?\(", line)
            function, n = name[1], 0
        for m in WORD.finditer(line):
            out.append((function, n, at + m.start(), at + m.end()))
            n += 1
        at += len(line)
    return text, out


def users(name, modules):
    """Modules whose text comes to include a file."""
    if name.endswith(".cu"):
        return [name[:-3]]
    found = []
    for m in modules:
        seen, todo = set(), [f"{m}.cu"]
        while todo:
            f = todo.pop()
            if f in seen or not (KERNELS / f).exists():
                continue
            seen.add(f)
            todo += re.findall(r'#include "device/gpu/kernels/([\w.]+)"', (KERNELS / f).read_text())
        if name in seen:
            found.append(m)
    return found


def test_of(module, build):
    """The test program of a module: gpu_kernels_THEME, of which the module's name has the beginning."""
    parts = module.split("_")
    while parts:
        program = build / f"gpu_kernels_{'_'.join(parts)}"
        if program.exists():
            return program
        parts.pop()
    return None


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    commands = {c["file"]: c for c in json.loads((build / "compile_commands.json").read_text())}
    links = subprocess.run(["ninja", "-C", build, "-t", "commands"], capture_output=True, text=True, check=True).stdout
    modules = re.findall(r"^GPU_MODULE\((\w+),", (KERNELS / "modules.inc").read_text(), re.M)
    files = sys.argv[2:] or sorted(p.name for p in KERNELS.iterdir() if p.suffix in (".cu", ".inc", ".h"))
    survivors, n, n_explained = [], 0, 0
    for name in files:
        text, found = words(KERNELS / name)
        if name in ("gpu.h", "modules.inc", "kernels.inc") or not found:
            continue
        for function, i, begin, end in found:
            killed, tried = False, False
            with tempfile.TemporaryDirectory() as tmp:
                over = pathlib.Path(tmp) / "device/gpu/kernels"
                over.mkdir(parents=True)
                (over / name).write_text(text[:begin] + ";" + text[end:])
                for m in users(name, modules):
                    program = test_of(m, build)
                    if not program or killed:
                        continue
                    tried = True
                    c = commands[str(KERNELS / f"{m}.cu")]
                    source = over / name if name == f"{m}.cu" else KERNELS / f"{m}.cu"
                    compiled = c["command"].replace(str(KERNELS / f"{m}.cu"), str(source))
                    compiled = re.sub(r" -o \S+", f" -o {tmp}/m.o", compiled)
                    compiled = re.sub(r" -M[FTD] ?\S*(?= )", "", compiled).replace(" -I", f" -I{tmp} -I", 1)
                    r = subprocess.run(compiled, shell=True, cwd=c["directory"], capture_output=True, text=True)
                    if r.returncode:
                        sys.exit(f"gpu_mutants: {m} without word {i} of {function} does not compile:\n{r.stderr}")
                    link = next(line for line in links.splitlines() if re.search(rf" -o {program.name} ", line))
                    link = link.replace(f" -o {program.name} ", f" -o {tmp}/t {tmp}/m.o ")
                    r = subprocess.run(link, shell=True, cwd=build, capture_output=True, text=True)
                    if r.returncode:
                        sys.exit(f"gpu_mutants: {program.name} does not link:\n{r.stderr}")
                    try:
                        r = subprocess.run([f"{tmp}/t"], capture_output=True, timeout=120)
                        killed = r.returncode != 0
                    except subprocess.TimeoutExpired:
                        killed = True
            n += 1
            n_explained += (name, function, i) in EXPLAINED
            why = EXPLAINED.get((name, function, i))
            if not tried:
                survivors.append(f"{name}: {function}: word {i}: no test program has it")
            elif not killed and not why:
                survivors.append(f"{name}: {function}: word {i} ({text[begin:end]}) can be left out")
            elif killed and why:
                survivors.append(f"{name}: {function}: word {i} is explained, but a test fails without it")
    print("\n".join(survivors) if survivors else f"gpu_mutants: ok, {n} words, {n_explained} explained")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
