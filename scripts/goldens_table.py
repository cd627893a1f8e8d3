#!/usr/bin/env python3
"""goldens_table.py BUILD - the error of every golden case against its tolerance, as a table.

Runs the golden test programs of a build folder (out/release, say) from the source root."""
import pathlib, re, subprocess, sys

LINE = re.compile(r"^(\S+(?: kv \S+)?)\s+(logits|layers|streams|greedy)\s+rel rms (\S+)\s+max abs (\S+)\s+bound (\S+)")


def main(build):
    rows, failed = [], 0
    for name in ("golden_gemma4", "golden_deepseek4"):
        program = pathlib.Path(build) / name
        if not program.exists():
            sys.exit(f"{program}: build the tests first")
        run = subprocess.run([program.resolve()], capture_output=True, text=True)
        failed += run.returncode != 0
        rows += [m.groups() for m in map(LINE.match, run.stdout.splitlines()) if m]
    print("| case | what | relative RMS | largest difference | tolerance |\n|---|---|---:|---:|---:|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
