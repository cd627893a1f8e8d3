#!/usr/bin/env python3
"""tidy.py [FILE ...] - clang-tidy over src/ or those files of it, the checks of .clang-tidy.

What a file looks like after the preprocessor is hashed; a file that was clean with the same hash
before is not looked at again (out/tidy/)."""
import concurrent.futures, hashlib, json, os, pathlib, shlex, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "out/clang"
CACHE = ROOT / "out/tidy"


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


def main(files):
    CACHE.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["cmake", "--preset", "clang"], cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        return 1
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    src = str(ROOT / "src") + "/"
    entries = [e for e in entries if e["file"].startswith(src) and e["file"].endswith(".c")]
    if files:
        wanted = {str(pathlib.Path(f).resolve()) for f in files}
        unknown = wanted - {e["file"] for e in entries}
        if unknown:
            print("tidy: not compiled from src/:", *sorted(unknown))
            return 1
        entries = [e for e in entries if e["file"] in wanted]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [s.strip() for s in pool.map(tidy, entries) if s.strip()]
    print("\n".join(said) if said else f"tidy: ok, {len(entries)} files")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
