#!/usr/bin/env python3
"""peer_draft.py MODEL.gguf [--draft MODEL.gguf] [--right P,...] - what drafting brings here and in llama.cpp, on the same files.

Needs the package llama-cpp-python, as peer_llama.py.  Tokens that are drafted are right with a given probability at each place
(--right), in both engines: the greedy answer is computed first, and each drafted token is replaced by the right or a wrong one,
while the drafter runs and takes its time.  So the drafter's weights do not matter, and slices of real shapes
(scripts/make_slice.py) will do.

    verify    a step of 1, 2, 4, 8 and 16 rows with all their logits, over that of one row
    text      drafts that cost nothing, as prompt lookup: what comes of the steps alone
    model     with --draft: a smaller model drafts token by token

ingle is run by `ingle bench --draft-accept` and chooses its widths; llama.cpp is given those of --width, and its best one
counts.  Both sides run in turn; a number is the median of --rounds.
"""
import argparse, ctypes, json, os, random, statistics, subprocess, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peer_llama

ROWS = (1, 2, 4, 8, 16)


class Theirs:
    def __init__(self, o):
        self.o = o
        self.main = peer_llama.Peer(o.model, 1024, o.threads)
        self.draft = peer_llama.Peer(o.draft, 1024, o.threads) if o.draft else None
        self.prompt = [(i * 7919 + 300) % 40000 + 300 for i in range(64)]
        self.answer = self.plain()[0]

    def top(self, peer, i):
        import numpy as np
        p = peer.c.llama_get_logits_ith(peer.ctx, i)
        return int(np.ctypeslib.as_array(p, (peer.vocab,)).argmax())

    def plain(self):
        """The greedy answer, and the seconds of its tokens behind the first."""
        self.main.clear()
        self.main.decode(self.prompt, 0, "last")
        out = [self.top(self.main, -1)]
        began = time.monotonic()
        while len(out) < self.o.tokens:
            self.main.decode(out[-1:], len(self.prompt) + len(out) - 1, "last")
            out.append(self.top(self.main, -1))
        return out, time.monotonic() - began

    def drafted(self, right, width, model):
        dice = random.Random(7)
        known = [dice.random() < right for _ in self.answer]
        for p in (self.main, self.draft) if model else (self.main,):
            p.clear()
            p.decode(self.prompt, 0, "last")
        n, base, began = 1, len(self.prompt), time.monotonic()
        while n < self.o.tokens:
            w = min(width, self.o.tokens - n - 1)
            for j in range(w if model else 0):
                self.draft.decode([self.answer[n - 1 + j]], base + n - 1 + j, "last")
                self.top(self.draft, -1)
            drafts = [t if k else t + 1 for t, k in zip(self.answer[n:n + w], known[n:n + w])]
            self.main.decode([self.answer[n - 1], *drafts], base + n - 1, "all")
            got = 0
            while True:
                self.top(self.main, got)
                if got == len(drafts) or not known[n + got]:
                    break
                got += 1
            n += got + 1
            for p in (self.main, self.draft) if model else (self.main,):
                p.clear(base + n - 1)
            if model and got == len(drafts) and drafts:  # its own step for the last one
                self.draft.decode([self.answer[n - 2]], base + n - 2, "none")
        return time.monotonic() - began

    def rows(self, n):
        self.main.clear(64)
        began = time.monotonic()
        self.main.decode(self.prompt[:n], 64, "all")
        return time.monotonic() - began


def ours_rows(o):
    out = subprocess.run([o.bench_model, o.model, "-c", "1024", "-t", str(o.threads), *[f"rows:{n}@64" for n in ROWS]],
                         capture_output=True, text=True, check=True).stdout
    found = {e["n"]: e["seconds"] for e in map(json.loads, out.splitlines()) if e.get("event") == "rows"}
    return [found[n] / found[1] for n in ROWS]


def ours(o, right, model):
    draft = ["--draft", o.draft, "--draft-method", "model"] if model else ["--draft", "ngram"]
    out = subprocess.run([o.ingle, "bench", "-m", o.model, *draft, "--json", "-t", str(o.threads), "-g", str(o.tokens), "-r", "1", "-c", "1024",
                          "--draft-accept", str(right)], capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])["speed_up"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--draft")
    p.add_argument("--right", default="0,0.5,0.75,0.9")
    p.add_argument("--width", default="2,4,8")
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--ingle", default="out/release/ingle")
    p.add_argument("--bench-model", default="out/release/bench_model")
    o = p.parse_args()
    their = Theirs(o)
    print(f"| {os.path.basename(o.model)} | ingle | llama.cpp | ratio |\n|---|---|---|---|")
    a, b = [], []
    for _ in range(o.rounds):
        a.append(ours_rows(o))
        b.append([statistics.median(their.rows(n) for _ in range(5)) for n in ROWS])
    for i, n in enumerate(ROWS[1:], 1):
        x, y = statistics.median(r[i] for r in a), statistics.median(r[i] / r[0] for r in b)
        print(f"| verify {n} rows, steps of one | {x:.2f} | {y:.2f} | {y / x:.2f} |", flush=True)
    for model in (False, True)[:2 if o.draft else 1]:
        for right in map(float, o.right.split(",")):
            x, y = [], {w: [] for w in map(int, o.width.split(","))}
            for _ in range(o.rounds):
                x.append(ours(o, right, model))
                plain = their.plain()[1]
                for w, times in y.items():
                    times.append(plain / their.drafted(right, w, model))
            w = max(y, key=lambda k: statistics.median(y[k]))
            us, them = statistics.median(x), statistics.median(y[w])
            print(f"| {'model' if model else 'text'}, {right:.2f} right, times as fast | {us:.2f} | {them:.2f} ({w} tokens) | {us / them:.2f} |",
                  flush=True)


if __name__ == "__main__":
    main()
