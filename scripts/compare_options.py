#!/usr/bin/env python3
"""compare_options.py OLD NEW - two programs answer the same options alike: each option of options.inc with its bounds, values
beyond them, its words, a wrong word and none, of the first of its commands that the list below has."""
import fields, pathlib, re, subprocess, sys, tempfile

COMMANDS = {"run": ["-p", "Hi", "-n", "1", "--temp", "0"], "daemon": [], "serve": ["--check-config"], "inspect": [], "tokenize": ["Hi"], "eval": ["--help"],
            "bench": ["--help"]}
ROOT, FOLDER = pathlib.Path(__file__).resolve().parent.parent, tempfile.TemporaryDirectory()  # a value may be a folder that is made


def rows():
    out = []
    row = lambda name, letter, kind, low, high, default, value, choices, group, where, *more: out.append((name, kind, low, high, choices, where))
    extra = lambda name, kind, high, default, value, choices, where, more: row("draft-" + name, 0, kind, 0, high, default, value, choices, "", where)
    limit = lambda name, kind, low, high, default, value, help: row(name, 0, kind, low, high, default, value, None, "", "serve")
    fields.read_table(ROOT / "src/engine/options.inc", OPTION=row, EXPERIMENT=extra, LIMIT=limit, ENGINE=str, NEEDS=str)
    return out


def values(kind, low, high, choices):
    if kind == "FLAG":
        return [None, "on", "off", "maybe"]
    words = (choices or "").split() + ["x", "", None]
    return words + [f"{v:.16g}" for v in (low, high, low - 1, high + 1)] if kind in ("INT", "NUMBER", "SIZE") else words


def answer(program, command, options):
    try:
        r = subprocess.run([program, command, *options], cwd=FOLDER.name, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "it runs"
    return r.returncode, *(re.sub(r"\d+\.\d+(?! t/s)|\d+(\.\d+)?(?= t/s)", "0", x.replace(program, "")) for x in (r.stdout, r.stderr))


def main():
    n = n_bad = 0
    for name, kind, low, high, choices, where in rows():
        command = next((c for c in COMMANDS if c in where.split() or where == "*"), None)
        if not command or name in ("help", "version"):
            continue
        for v in values(kind, low, high, choices):
            options = [f"--{name}" + ("" if v is None else f"={v}"), *COMMANDS[command]]
            a, b = (answer(str(pathlib.Path(p).resolve()), command, options) for p in sys.argv[1:3])
            n += 1
            if a != b:
                n_bad += 1
                print(f"{command} {' '.join(options)}\n  old {a}\n  new {b}")
    print(f"{n} command lines, {n_bad} of them differ")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
