#!/usr/bin/env python3
"""peer_ik.py --llama-bench PROGRAM [--rounds N] [--threads N] FILE... - ingle beside ik_llama.cpp on the same file.

PROGRAM is the llama-bench that a build of ik_llama.cpp makes.  Each round runs, in turn, ingle's bench_model, llama-bench
as it starts, and llama-bench with its matrices repacked at the start (-rtr 1).  The table has the medians of the rounds,
and ingle's speed divided by the faster of the peer's two forms of the same round, with the spread.
"""
import argparse, json, statistics, subprocess, sys

TESTS = (("decode 24 at 64", "decode:24@64", "tg24@pp64"), ("prefill 512", "prefill:512", "pp512"),
         ("prefill 2,048", "prefill:2048", "pp2048"))


def ours(args, path):
    out = subprocess.run([args.bench_model, path, "-c", "2200", "-t", str(args.threads), "read", *(t[1] for t in TESTS)],
                         capture_output=True, text=True, check=True).stdout
    events = [json.loads(line) for line in out.splitlines()]
    found = {f"{e['event']}:{e['n']}": e["tps"] for e in events if "tps" in e}
    return next(e["cpu"] for e in events if "cpu" in e), [found[t[1].split("@")[0]] for t in TESTS]


def theirs(args, path, repack):
    r = subprocess.run([args.llama_bench, "-m", path, "-t", str(args.threads), "-r", "1", "-rtr", str(int(repack)), "-o", "json",
                        "-n", "0", "-p", "512,2048", "-gp", "64,24"], capture_output=True, text=True)
    if r.returncode:
        return None
    found = {(e["n_prompt"], e["n_gen"]): e["avg_ts"] for e in json.loads(r.stdout[r.stdout.index("["):])}
    return [found[64, 24], found[512, 0], found[2048, 0]]


def measure(args, path):
    rounds = []
    for _ in range(args.rounds):
        cpu, a = ours(args, path)
        forms = [f for f in (theirs(args, path, False), theirs(args, path, True)) if f]
        if not forms:
            print(f"{path}: llama-bench cannot run it", file=sys.stderr)
            return
        rounds.append((a, forms))
    for i, (name, _, _) in enumerate(TESTS):
        ratios = sorted(a[i] / max(f[i] for f in forms) for a, forms in rounds)
        best = [statistics.median(f[k][i] for _, f in rounds) for k in range(len(rounds[0][1]))]
        print(f"| {path.rsplit('/', 1)[-1]} | {cpu} | {name} | {statistics.median(a[i] for a, _ in rounds):.1f} | "
              + " | ".join(f"{b:.1f}" for b in best) + f" | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
              flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+")
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--bench-model", default="out/release/bench_model")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    print("| file | instructions | test | ingle, t/s | ik_llama.cpp, t/s | with -rtr 1, t/s | ratio |\n|---|---|---|---|---|---|---|")
    for path in args.files:
        measure(args, path)


if __name__ == "__main__":
    main()
