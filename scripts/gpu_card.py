#!/usr/bin/env python3
"""gpu_card.py BUILD [--out FILE] [--no-sanitizer] - everything that wants a real card, in one command.

BUILD is a release build of this tree (targets ingle and gpu_card_check) on a machine with an NVIDIA
card.  It runs every kernel beside the processor, nano models with none, one and all of their layers
on the card (the text must be the processor's, also where tokens are drawn), compute-sanitizer on the kernels where
that is installed, and prints a first table of speeds.  Exit 1 if anything differs, 2 without a card."""
import argparse, json, pathlib, shutil, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ["tests/data/nano/nano-gemma4-Q4_K_M.gguf"]
TOOLS = ["memcheck", "racecheck", "synccheck"]


def answer(ingle, model, layers):
    """The most probable tokens, and tokens drawn with a seed, which depend on every probability."""
    texts, notes = [], []
    for draw in (["--temp", "0"], ["--temp", "1.5", "--seed", "7"]):
        command = [ingle, "run", "-m", model, "-p", "The card says", "-n", "24", *draw, "--gpu-layers", layers]
        r = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if r.returncode:
            sys.exit(f"gpu_card: {' '.join(map(str, command))} ends with {r.returncode}:\n{r.stderr}")
        texts.append(r.stdout)
        notes += [line for line in r.stderr.splitlines() if "fallback" in line or "differs" in line]
    return texts, notes


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=pathlib.Path)
    p.add_argument("--out", type=pathlib.Path, help="what is printed, as JSON, for the record")
    p.add_argument("--program", default="gpu_card_check", help="another build of it, as that with emulated cards")
    p.add_argument("--ingle", default="ingle", help="another command line, as ingle-emu")
    p.add_argument("--no-sanitizer", action="store_true")
    p.add_argument("--small", action="store_true", help="small sizes, once: for emulated cards")
    a = p.parse_args()
    program, ingle, bad, record = a.build / a.program, a.build / a.ingle, [], {}
    r = subprocess.run([program, "--small" if a.small else "--speed"], capture_output=True, text=True)
    print(r.stdout, end="")
    record["kernels"] = r.stdout.splitlines()
    if r.returncode not in (0, 1):
        print(f"gpu_card: no card: {program} ends with {r.returncode} {r.stderr.strip()}")
        return 2
    if r.returncode:
        bad.append("kernels differ")
    for name in MODELS:
        model = ROOT / name
        want, _ = answer(ingle, model, "0")
        for layers in ("1", "all"):  # of layers in order
            got, notes = answer(ingle, model, layers)
            same = got == want
            print(f"{name}, --gpu-layers {layers}: {'same text' if same else 'DIFFERS'}")
            for note in notes:
                print(f"  {note}")
            record[f"{name} {layers}"] = same
            if not same:
                bad.append(f"{name} with {layers} layers differs")
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if a.no_sanitizer or not sanitizer:
        print("compute-sanitizer: left out" if a.no_sanitizer else "compute-sanitizer: not installed, left out")
    else:
        for tool in TOOLS:
            r = subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "9", program], capture_output=True, text=True)
            print(f"compute-sanitizer {tool}: {'ok' if r.returncode != 9 else 'ERRORS'}")
            record[f"sanitizer {tool}"] = r.returncode != 9
            if r.returncode == 9:
                print(r.stdout[-3000:])
                bad.append(f"compute-sanitizer {tool}")
    if a.out:
        a.out.write_text(json.dumps(record, indent=1) + "\n")
    print("gpu_card: " + ("; ".join(bad) if bad else "ok"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
