#!/usr/bin/env python3
"""numerics_table.py INGLE MODEL [MODEL ...] - what int8 activations and narrow KV cost.

Each model, exact and fast, is held against itself with --numerics reference and float32 KV, on the
golden conversations of the nano model: KL divergence, equal best tokens, relative RMS of logits."""
import json, pathlib, subprocess, sys, tempfile

KINDS = "f32", "f16", "bf16", "q8_0", "f16v", "q8r", "q8r:n4r", "n4r:q8r", "n4r", "q8r+rot", "q8r:n4r+rot", "n4r+rot"
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/data/nano/golden.json"


def main(ingle, models):
    cases = json.loads(GOLDEN.read_text())["weights"]["bf16"]
    ids = [i for c in cases for i in c["prompt_ids"] + c["completion_ids"]]
    print("| model | KV | mean KL | largest KL | equal best token | relative RMS | perplexity |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as tmp:
        tokens, saved = f"{tmp}/tokens.json", f"{tmp}/reference.safetensors"
        pathlib.Path(tokens).write_text(json.dumps(ids))
        for model in models:
            base = [ingle, "eval", "-q", "-m", model, "--tokens", tokens]
            subprocess.run(base + ["--numerics", "reference", "--kv", "f32", "--logits", saved],
                           check=True, stdout=subprocess.DEVNULL)
            for numerics, kv in [("exact", k) for k in KINDS] + [("fast", "f32")]:
                out = subprocess.run(base + ["--numerics", numerics, "--kv", kv, "--against", saved, "--json"],
                                     check=True, capture_output=True, text=True).stdout
                r = json.loads(out)
                name = pathlib.Path(model).name + (", fast" if numerics == "fast" else "")
                print(f"| {name} | {kv} | {r['kl']:.1e} | {r['kl_max']:.1e} | "
                      f"{100 * r['same_top']:.1f} % | {r['relative_rms']:.1e} | {r['perplexity']:.1f} |")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
