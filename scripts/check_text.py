#!/usr/bin/env python3
"""check_text.py - the form of every text file in the tree.

No tabs (but in Makefiles), no trailing blanks, a newline at the end, no marks of a merge, no invisible characters
beyond ASCII, no path of somebody's machine, no words that announce unfinished work, an SPDX line
on each source file, every package of scripts/packages in docs/how/packages.md, no empty files and no leftovers of
editors and merges; then codespell."""
import pathlib, re, shutil, subprocess, sys, unicodedata

SKIP = ("tests/data/", "tests/fuzz/seeds/", "models/")
TEXT = {".c", ".cu", ".h", ".inc", ".md", ".py", ".sh", ".txt", ".json", ".1", ".cmake", ".in", ""}
MACHINE = re.compile(r"(?<![\w./-])/(work|home|root|Users)/\w")
CONFLICT = re.compile(r"^(<{7}|>{7}) ")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented")
LEFTOVER = re.compile(r"(^|/)(\.#.*|#.*#|\.tmp|\.DS_Store|\.vscode|\.idea|\.envrc|\.claude|.*(~|\.(orig|rej|swp|swo|bak|tmp|user|patch)))(/|$)")
EMPTY = ("tests/data/", "tests/fuzz/seeds/")  # an empty input is one
SPELLING = "nothink,fo,te,ths,nd,hist,ser,als,inout,outin,ue,mis,thi,wit,ba,ot,iif,crate,files',sav"


def listed():
    out = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [n for n in out.stdout.split("\0") if n and not n.startswith(SKIP)]


def look(name, text):
    code = name.endswith((".c", ".cu", ".h", ".inc"))
    for i, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{i}: "
        if "\t" in line and pathlib.Path(name).name != "Makefile":
            yield where + "a tab"
        if line != line.rstrip():
            yield where + "trailing blanks"
        if CONFLICT.match(line):
            yield where + "a mark of an unfinished merge"
        if MACHINE.search(line) and name != "scripts/check_text.py":
            yield where + "a path of one machine"
        if UNFINISHED.search(line) and code:
            yield where + "announces unfinished work"
        for c in line:
            if ord(c) > 126 and unicodedata.category(c) in ("Cf", "Cc", "Co", "Zl", "Zp", "Zs"):
                yield where + f"an invisible character U+{ord(c):04X}"
    if text and not text.endswith("\n"):
        yield f"{name}: no newline at the end"
    if name.endswith((".c", ".cu", ".h", ".inc")) and name.endswith(".c") and "SPDX-License-Identifier:" not in text:
        yield f"{name}: no SPDX line"


def leftovers():
    """What editors, merges and people leave behind."""
    out = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in filter(None, out.stdout.split("\0")):
        path = pathlib.Path(name)
        if LEFTOVER.search(name):
            yield f"{name}: a leftover of an editor, a merge or a person's settings"
        elif path.is_file() and not path.stat().st_size and not name.startswith(EMPTY):
            yield f"{name}: an empty file"


def packages():
    table = pathlib.Path("docs/how/packages.md").read_text()
    for line in pathlib.Path("scripts/packages").read_text().splitlines():
        if line and not line.startswith("#") and f"`{line.split()[0]}`" not in table:
            yield f"docs/how/packages.md: package {line.split()[0]} is not in the table"


def main():
    bad, names = [], []
    for name in listed():
        path = pathlib.Path(name)
        if path.suffix not in TEXT or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            bad.append(f"{name}: not UTF-8")
            continue
        names.append(name)
        bad += look(name, text)
    bad += packages()
    bad += leftovers()
    if shutil.which("codespell"):  # else test_all.py says that it was not there
        spell = subprocess.run(["codespell", "-L", SPELLING, *names], capture_output=True, text=True)
        bad += [line for line in spell.stdout.splitlines() if line]
    print("\n".join(bad) if bad else f"text: ok, {len(names)} files")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
