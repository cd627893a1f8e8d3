#!/usr/bin/env python3
"""check_clang.py - the C files outside src/ through the second compiler, for its warnings alone.

No code is made of them: the fuzzers are what this compiler builds and links.  tidy.py shows its warnings for src/."""
import concurrent.futures, json, os, pathlib, shlex, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "out/clang"


def check(entry):
    command = shlex.split(entry["command"])
    at = command.index("-o")
    del command[at:at + 2]
    out = subprocess.run([*command, "-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True)
    return out.stderr or (f"{entry['file']}: status {out.returncode}" if out.returncode else "")


def main():
    if subprocess.run(["cmake", "--preset", "clang"], cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        return 1
    # What the build itself writes.
    if subprocess.run(["cmake", "--build", "--preset", "clang", "--target", "quant_books.c"], cwd=ROOT).returncode:
        return 1
    src = str(ROOT / "src") + "/"
    entries = [e for e in json.loads((BUILD / "compile_commands.json").read_text())
               if e["file"].endswith(".c") and not e["file"].startswith(src)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [s.strip() for s in pool.map(check, entries) if s.strip()]
    print("\n".join(said) if said else f"clang: ok, {len(entries)} files")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
