#!/usr/bin/env python3
"""check_names.py BUILD - every global symbol of src/ROOM/FILE.c starts with ROOM_ (in base/ and
server/ with its file's or its folder's name), and only ingle_ is visible outside the library."""
import json, pathlib, re, subprocess, sys

bad = []
build = pathlib.Path(sys.argv[1])
commands = json.loads((build / "compile_commands.json").read_text())
objects = sorted(build / re.search(r" -o (\S+)", c["command"])[1] for c in commands
                 if re.search(r"\.dir/src/\S+\.o", c["command"]))
# The same sources, built again for a test; kernels of a card, built for the tests' emulator.
objects = [obj for obj in objects if "_counted.dir" not in obj.as_posix() and "gpu_emu.dir" not in obj.as_posix()]
listed = subprocess.run(["nm", "-A", "-g", "--defined-only", *map(str, objects)], capture_output=True, text=True, check=False)
if listed.returncode:
    bad += listed.stderr.splitlines()[:3]
globals_of = {}
for line in listed.stdout.splitlines():
    globals_of.setdefault(line[:line.rindex(":")], []).append(line.split()[-1])
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
