#!/usr/bin/env python3
"""check_names.py BUILD - every global symbol of src/ROOM/FILE.c starts with ROOM_ (in base/ and
server/ with its file's or its folder's name), only ingle_ is visible outside the library, and circles of files that
call each other stay small."""
import json, pathlib, re, subprocess, sys

MOST = 4  # files of a circle


def circles(calls):
    """The sets of files each of which reaches all others (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        for other in calls[file]:
            if other not in index:
                visit(other)
            if other in stack:
                low[file] = min(low[file], low[other])
        if low[file] == index[file]:
            at = stack.index(file)
            found.append(stack[at:])
            del stack[at:]

    for file in calls:
        if file not in index:
            visit(file)
    return [c for c in found if len(c) > 1]


bad = []
build = pathlib.Path(sys.argv[1])
commands = json.loads((build / "compile_commands.json").read_text())
objects = sorted(build / re.search(r" -o (\S+)", c["command"])[1] for c in commands
                 if re.search(r"\.dir/src/\S+\.o", c["command"]))
# The same sources, built again for a test; kernels of a card, built for the tests' emulator.
objects = [obj for obj in objects if "_counted.dir" not in obj.as_posix() and "gpu_emu.dir" not in obj.as_posix()]
listed = subprocess.run(["nm", "-A", "-g", *map(str, objects)], capture_output=True, text=True, check=False)
if listed.returncode:
    bad += listed.stderr.splitlines()[:3]
globals_of, wants, home = {}, {}, {}
for line in listed.stdout.splitlines():
    file, (kind, name) = line[:line.rindex(":")], line.split()[-2:]
    (wants if kind in "Uw" else globals_of).setdefault(file, []).append(name)
    if kind not in "Uw" and "kern_tests.dir" not in file:
        home[name] = file
for obj in objects:
    parts = re.sub(r".*\.dir/src/", "", obj.as_posix()).split("/")
    room, file = parts[0], parts[-1].split(".")[0]
    if room in ("base", "server"):
        # cpu_machine.c keeps to its own name or to that of its door, cpu.h.
        prefixes = (file + "_", file.split("_")[0] + "_")
        prefixes += ("server_",) + tuple(p + "_" for p in parts[1:-1]) if room == "server" else ()
        exact = {file}
    else:
        # The rooms of the public interface have one prefix.
        prefixes = ("engine_", "ingle_") if room in ("api", "engine", "run") else (room + "_",)
        exact = {"main"} if room in ("cli", "media") else set()
    for name in globals_of.get(str(obj), []):
        if name.startswith("__odr_asan") or name in exact or name.startswith(prefixes):
            continue
        bad.append(f"src/{'/'.join(parts)[:-2]}: {name} does not start with {' or '.join(prefixes)}")
sys.setrecursionlimit(5000)
largest = {}
for circle in circles({str(obj): {home[n] for n in wants.get(str(obj), []) if n in home} - {str(obj)} for obj in objects
                       if "kern_tests.dir" not in obj.as_posix()}):
    names = sorted(re.sub(r".*\.dir/src/(.*)\.o", r"\1", f) for f in circle)
    room = names[0].split("/")[0]
    if len(names) > largest.get(room, (0,))[0]:
        largest[room] = len(names), names
for room, (n, names) in sorted(largest.items()):
    if n > MOST:
        bad.append(f"src/{room}: {n} files call each other in a circle, {MOST} may: {' '.join(names)}")
archive = build / "libingle.a"  # what is installed
if archive.exists():
    out = subprocess.run(["nm", "-g", "--defined-only", str(archive)], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in out.stdout.splitlines() if len(line.split()) == 3]
    bad += [f"libingle.a: {name} is no name of the public header" for name in names if not name.startswith("ingle_")]
    if not names:
        bad.append("libingle.a has no names")
else:
    bad.append(f"{archive} is not there: build the target archive")
if not objects:
    bad.append(f"{build}: no objects: build first")
print("\n".join(bad) if bad else f"names: ok, {len(objects)} objects")
sys.exit(1 if bad else 0)
