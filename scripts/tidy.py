#!/usr/bin/env python3
"""tidy.py [--changed | FILE ...] - clang-tidy over src/ or those files of it, the checks of .clang-tidy.

--changed: files that differ from the branch main, or on main itself from the commit some commits ago, and those that
include changed headers: at most MOST_FILES, the changed ones first.

What a file looks like after the preprocessor is hashed; a file that was clean with the same hash
before is not looked at again (out/tidy/)."""
import concurrent.futures, hashlib, json, os, pathlib, re, shlex, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "out/clang"
CACHE = ROOT / "out/tidy"
COMMITS, MOST_FILES = 10, 40  # of --changed


def preprocessed(entry):
    command = shlex.split(entry["command"])
    at = command.index("-o")
    del command[at:at + 2]
    command[command.index("-c")] = "-E"
    out = subprocess.run([*command, "-P"], cwd=entry["directory"], capture_output=True, check=True)
    return out.stdout


def tidy(entry):
    folders = [f for f in pathlib.Path(entry["file"]).parents if f.is_relative_to(ROOT)]
    config = b"".join(c.read_bytes() for f in folders if (c := f / ".clang-tidy").exists())
    try:
        key = hashlib.sha256(config + preprocessed(entry)).hexdigest()
    except subprocess.CalledProcessError as e:
        return entry["file"] + ": " + e.stderr.decode(errors="replace")
    stamp = CACHE / key
    if stamp.exists():
        return ""
    out = subprocess.run(["clang-tidy-14", "--quiet", "-p", str(BUILD), entry["file"]], cwd=ROOT,
                         capture_output=True, text=True)
    if out.returncode == 0 and "warning:" not in out.stdout:
        stamp.touch()
        return ""
    return out.stdout or out.stderr


def git(*words):
    out = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return out.stdout.split("\n")[:-1] if out.returncode == 0 else []


def base():
    """Where the branch left main; on main, and in a clone of it, an older commit; None: nothing is known."""
    head = git("rev-parse", "HEAD")
    for main_branch in ("origin/main", "main"):
        found = git("merge-base", "HEAD", main_branch)
        if found and found != head:
            return found[0]
    older = git("rev-list", "--first-parent", f"--max-count={COMMITS + 1}", "HEAD")
    return older[-1] if len(older) > 1 else None


def includers(changed):
    """Files of src that include one of these, in any number of steps."""
    users = {}
    for f in [*ROOT.glob("src/**/*.[ch]"), *ROOT.glob("src/**/*.inc")]:
        for name in re.findall(r'^#\s*include "([^"]+)"', f.read_text(), re.M):
            users.setdefault(name, set()).add(str(f.relative_to(ROOT / "src")))
    seen, todo = set(), [c.removeprefix("src/").removeprefix("include/") for c in changed]
    while todo:
        more = users.get(todo.pop(), set()) - seen
        seen |= more
        todo += more
    return {"src/" + name for name in seen}


def changed_files(entries):
    """Their entries, the changed ones first, and how many were left out."""
    since = base()
    if not since:
        return entries, 0
    names = set(git("diff", "--name-only", since)) | set(git("ls-files", "--others", "--exclude-standard"))
    around = includers([n for n in names if n.endswith((".h", ".inc"))])
    def rank(e):
        name = str(pathlib.Path(e["file"]).relative_to(ROOT))
        return 0 if name in names else 1 if name in around else 2
    found = sorted((e for e in entries if rank(e) < 2), key=lambda e: (rank(e), e["file"]))
    return found[:MOST_FILES], max(0, len(found) - MOST_FILES)


def main(files):
    CACHE.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["cmake", "--preset", "clang"], cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        return 1
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    src = str(ROOT / "src") + "/"
    entries = [e for e in entries if e["file"].startswith(src) and e["file"].endswith(".c")]
    left = 0
    if files == ["--changed"]:
        entries, left = changed_files(entries)
    elif files:
        wanted = {str(pathlib.Path(f).resolve()) for f in files}
        unknown = wanted - {e["file"] for e in entries}
        if unknown:
            print("tidy: not compiled from src/:", *sorted(unknown))
            return 1
        entries = [e for e in entries if e["file"] in wanted]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [s.strip() for s in pool.map(tidy, entries) if s.strip()]
    print("\n".join(said) if said else f"tidy: ok, {len(entries)} files" + (f", {left} more include what changed" if left else ""))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
