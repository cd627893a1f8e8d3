#!/usr/bin/env python3
"""gpu_card.py BUILD [options] - everything that wants a real card, in one command.

BUILD is a release build of this tree (targets ingle and gpu_card_check) on a machine with an NVIDIA card, or a folder that
--bring has made of one.  It runs every kernel beside the processor, and nano models of both families with none, a part
and all of their layers on the card; compares hashes of what the kernels leave and of all logits with scripts/gpu_card.txt,
which the emulated card of ./test has written; runs compute-sanitizer on small cases where that is installed; and prints a
first table of speeds.  Exit 1 if anything differs, 2 without a card.

  gpu_card.py BUILD --bring FOLDER    programs and their libraries into a folder, to be carried to such a machine"""
import argparse, hashlib, json, os, pathlib, re, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = pathlib.Path(__file__).with_suffix(".txt")
HEAD = "# What an emulated card leaves: kernels in the self-test's memory, models in their logits. gpu_card.py --write\n"
MODELS = {"gemma4": "tests/data/nano/nano-gemma4-Q4_K_M.gguf", "deepseek4": "tests/data/nano-v4/nano-v4-MXFP4.gguf"}
TOKENS = [2, 105, 17, 900, 43, 6, 1201, 77, 310, 8, 58, 12, 99, 1500, 3, 64, 200, 31, 700, 5, 41, 11, 350, 29, 1000, 1, 9,
          150, 33, 610, 72, 18, 240, 90, 4, 1333]
TOOLS = ["memcheck", "racecheck", "synccheck"]
PLACES = {"0": "the processor", "1-2": "one layer", "all": "all layers"}
SYSTEM = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/local/cuda/compat"]  # of libcuda.so.1
LOADER = "ld-linux-x86-64.so.2"


def bring(build, programs, folder):
    """The programs, and what they load but the driver, so that the other machine needs nothing."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    for name in programs:
        if not shutil.which("strip") or subprocess.run(["strip", "-o", folder / name, build / name]).returncode:
            shutil.copy2(build / name, folder / name)
        listed = subprocess.run(["ldd", build / name], capture_output=True, text=True, check=True).stdout
        for path in re.findall(r"(/\S+) \(0x", listed):
            shutil.copy2(path, folder / "lib" / pathlib.Path(path).name)
    n_bytes = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"gpu_card: {folder} has {n_bytes / (1 << 20):.0f} MiB; there: scripts/gpu_card.py {folder}")


class Programs:
    """Programs of a build, or of a folder that was brought: with the loader and libraries of that."""

    def __init__(self, build):
        self.build = build.resolve()
        loader = self.build / "lib" / LOADER
        paths = [f"{self.build}/lib", *os.environ.get("LD_LIBRARY_PATH", "").split(":"), *SYSTEM]
        self.before = [loader, "--library-path", ":".join(p for p in paths if p)] if loader.exists() else []

    def command(self, name, *options):
        return [str(x) for x in [*self.before, self.build / name, *options]]

    def run(self, name, *options):
        return subprocess.run(self.command(name, *options), capture_output=True, text=True, timeout=900, cwd=ROOT)


def logits(programs, ingle, model, layers, folder):
    """A hash of every logit of the tokens, and what was said; a NaN has no place in them."""
    out = folder / "logits.safetensors"
    (folder / "ids.json").write_text(json.dumps(TOKENS))
    options = ["eval", "-m", ROOT / model, "--tokens", folder / "ids.json", "--logits", out, "--chunk", "23", "--no-pack-cache"]
    r = programs.run(ingle, *options, "--gpu-layers", layers)
    if r.returncode:
        sys.exit(f"gpu_card: {ingle} {' '.join(map(str, options))} ends with {r.returncode}:\n{r.stderr}")
    data = out.read_bytes()
    at = 8 + int.from_bytes(data[:8], "little")
    notes = [line for line in r.stderr.splitlines() if "fallback" in line or "differs" in line]
    return hashlib.sha256(data[at:]).hexdigest()[:16], notes


def speeds(programs, ingle, models, small):
    """Tokens a second of prompts and answers, on the processor and on the card."""
    rows = []
    sizes = ["-p", "16", "-g", "2", "-r", "1"] if small else ["-p", "512", "-g", "64", "-r", "3"]
    for model in models:
        for layers in ("0", "all"):
            r = programs.run(ingle, "bench", "-q", "-m", model, *sizes, "--json", "--gpu-layers", layers)
            found = [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]
            rate = {f["test"]: f["per_s"] for f in found}
            if r.returncode or len(rate) < 2:
                print(f"{model}, {PLACES[layers]}: bench ends with {r.returncode} {r.stderr[-300:]}")
                continue
            rows.append([str(model), PLACES[layers], rate["prefill"], rate["decode"]])
            print(f"{pathlib.Path(model).name:<32} {PLACES[layers]:<14} prompt {rate['prefill']:10.1f} t/s, "
                  f"answer {rate['decode']:8.1f} t/s")
    return rows


def sanitize(programs, program, bad, record):
    tool_of = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not tool_of:
        print("compute-sanitizer: not installed, left out")
        return
    for tool in TOOLS:
        command = [tool_of, "--tool", tool, "--error-exitcode", "9", *programs.command(program, "--small")]
        r = subprocess.run(command, capture_output=True, text=True)
        print(f"compute-sanitizer {tool}: {'ok' if r.returncode != 9 else 'ERRORS'}")
        record[f"sanitizer {tool}"] = r.returncode != 9
        if r.returncode == 9:
            print(r.stdout[-3000:])
            bad.append(f"compute-sanitizer {tool}")


def compare(got, bad):
    """Hashes with the record: kernels that this card has not are no difference."""
    want = dict(line.rsplit(" ", 1) for line in RECORD.read_text().splitlines() if line and line[0] != "#")
    wrong = [name for name in got if want.get(name) != got[name]]
    print(f"hashes: {len(got) - len(wrong)} of {len(want)} are those of the emulated card, {len(wrong)} differ"
          + "".join(f"\n  {name}: {got[name]}, not {want.get(name, 'known')}" for name in wrong))
    if wrong:
        bad.append(f"hashes of {', '.join(wrong[:5])} differ ({RECORD.name})")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=pathlib.Path)
    p.add_argument("--bring", type=pathlib.Path, metavar="FOLDER")
    p.add_argument("--out", type=pathlib.Path, help="what is found, as JSON, for the record")
    p.add_argument("--program", default="gpu_card_check", help="another build of it, as that with emulated cards")
    p.add_argument("--ingle", default="ingle", help="another command line, as ingle-emu")
    p.add_argument("--model", action="append", default=[], help="a model for the table of speeds, may be repeated")
    p.add_argument("--no-sanitizer", action="store_true")
    p.add_argument("--small", action="store_true", help="small sizes, once: for emulated cards")
    p.add_argument("--write", action="store_true", help=f"write scripts/{RECORD.name} instead of comparing with it")
    a = p.parse_args()
    if a.bring:
        return bring(a.build, [a.program, a.ingle], a.bring)
    programs, bad, record, got = Programs(a.build), [], {}, {}
    r = programs.run(a.program, "--hashes", "--small" if a.small else "--speed")
    for line in r.stdout.splitlines():
        if line.startswith("hash "):
            name, value = line[5:].rsplit(" ", 1)
            got[name] = value
        else:
            print(line)
            record.setdefault("kernels", []).append(line)
    if r.returncode not in (0, 1):
        print(f"gpu_card: no card: {a.program} ends with {r.returncode} {r.stderr.strip()}")
        return 2
    if r.returncode:
        bad.append("kernels differ")
    with tempfile.TemporaryDirectory() as tmp:
        for name, model in MODELS.items():
            for layers, words in PLACES.items():
                value, notes = logits(programs, a.ingle, model, layers, pathlib.Path(tmp))
                if layers == "0":
                    got[f"model {name}"] = value
                same = got[f"model {name}"] == value
                print(f"{name}, {words}: logits {value}" + ("" if same else " DIFFER"))
                for note in notes:
                    print(f"  {note}")
                record[f"{name} {layers}"] = same
                if not same:
                    bad.append(f"logits of {name} with {words} on the card differ")
    if a.write:
        RECORD.write_text(HEAD + "".join(f"{name} {value}\n" for name, value in got.items()))
    else:
        compare(got, bad)
    if a.no_sanitizer:
        print("compute-sanitizer: left out")
    else:
        sanitize(programs, a.program, bad, record)
    record["speeds"] = speeds(programs, a.ingle, [ROOT / m for m in MODELS.values()] + a.model, a.small)
    if a.out:
        a.out.write_text(json.dumps(record | {"hashes": got}, indent=1) + "\n")
    print("gpu_card: " + ("; ".join(bad) if bad else "ok"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
