#!/usr/bin/env python3
"""ingle beside llama.cpp on the same GGUF files: do they agree, and which is faster.

    peer_llama.py parity [MODEL.gguf ...]      logits and greedy tokens of both
    peer_llama.py bench MODEL.gguf ...         tokens a second of both, interleaved

Needs the package llama-cpp-python (any build of it for this machine) beside Python itself;
numpy is used because that package brings it.  Everything runs on the CPU.

parity feeds the same tokens to `ingle eval` and to llama.cpp and compares the logits of every
position: the root of the mean squared difference over that of the peer's logits, how often
the most probable token is the same, and how many greedy tokens in a row are the same.  Both
quantise activations to 8 bits, each in its own way, so that quantised files agree to a few
percent and float files to rounding.  Without a model it takes those in tests/data.

bench measures in rounds.  In a round each side does the same work once, which of them begins
changes from round to round, and the read rate of the machine is measured in between.  What
is reported is the median of the ratios of the rounds, so that a machine that becomes slower
or faster over minutes does not matter; of single tokens a round's median step counts.  A round
in which other processes used more than --foreign of the machine is measured again, up to
--retries times, and is marked if it never was quiet.  bench_model of the build (`cmake --build out/dev --target bench_model`) runs the
ingle side in a process of its own.  One JSON line a round goes to --json, the table to
standard output.
"""

import argparse
import ctypes
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def peer():
    """The llama_cpp module, or an end that says how to get it."""
    try:
        import llama_cpp
    except ImportError as e:
        sys.exit(f"peer_llama.py: no llama.cpp here ({e}): "
                 "pip install llama-cpp-python, then run this with that Python")
    return llama_cpp


class Peer:
    """A model in llama.cpp, through its C interface."""

    def __init__(self, path, n_ctx, threads, logits_all=False, chunk=512):
        self.c = c = peer()
        self.quiet = c.llama_log_callback(lambda level, text, arg: None)
        c.llama_log_set(self.quiet, ctypes.c_void_p())
        c.llama_backend_init()
        m = c.llama_model_default_params()
        m.n_gpu_layers = 0
        start = time.monotonic()
        self.model = c.llama_model_load_from_file(path.encode(), m)
        if not self.model:
            sys.exit(f"peer_llama.py: llama.cpp does not load '{path}'")
        self.load_s = time.monotonic() - start
        p = c.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = n_ctx, chunk, chunk
        p.n_threads = p.n_threads_batch = threads
        self.ctx = c.llama_init_from_model(self.model, p)
        if not self.ctx:
            sys.exit(f"peer_llama.py: llama.cpp makes no context of {n_ctx} for '{path}'")
        self.vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        self.batch = c.llama_batch_init(chunk, 0, 1)
        self.chunk = chunk
        self.all = logits_all

    def close(self):
        self.c.llama_batch_free(self.batch)
        self.c.llama_free(self.ctx)
        self.c.llama_model_free(self.model)

    def clear(self, length=0):
        """Forgets all positions from `length` on; what a window dropped cannot come back."""
        memory = self.c.llama_get_memory(self.ctx)
        if not self.c.llama_memory_seq_rm(memory, 0, length, -1):
            self.c.llama_memory_clear(memory, True)
            return False
        return True

    def decode(self, tokens, at, logits):
        """Tokens from position `at` on in one batch; logits: "all", "last" or "none"."""
        b = self.batch
        b.n_tokens = len(tokens)
        for i, t in enumerate(tokens):
            b.token[i] = t
            b.pos[i] = at + i
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = 0
            b.logits[i] = logits == "all" or (logits == "last" and i + 1 == len(tokens))
        if self.c.llama_decode(self.ctx, b):
            sys.exit("peer_llama.py: llama_decode failed")
        self.c.llama_synchronize(self.ctx)

    def rows(self, n):
        """Logits of the last batch's first n rows that asked for them: f32 [n][vocab]."""
        import numpy as np
        out = np.empty((n, self.vocab), np.float32)
        for i in range(n):
            p = self.c.llama_get_logits_ith(self.ctx, i)
            out[i] = np.ctypeslib.as_array(p, (self.vocab,))
        return out

    def isa(self):
        text = self.c.llama_print_system_info().decode()
        on = {s.split("=")[0].strip() for s in text.replace("CPU :", "").split("|") if "= 1" in s}
        for name in ("AMX_INT8", "AVX512_VNNI", "AVX512", "AVX_VNNI", "AVX2", "NEON"):
            if name in on:
                return name.lower().replace("_", "")
        return "?"


# ---- parity ----

def read_logits(path):
    """The tensor "logits" of a safetensors file."""
    import numpy as np
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))["logits"]
        a, z = head["data_offsets"]
        f.seek(8 + n + a)
        return np.frombuffer(f.read(z - a), "<f4").reshape(head["shape"])


def ours(args, path, tokens):
    with tempfile.TemporaryDirectory() as d:
        ids, out = os.path.join(d, "ids"), os.path.join(d, "logits.safetensors")
        with open(ids, "w") as f:
            f.write(json.dumps(tokens))
        cmd = [args.ingle, "eval", "-m", path, "--tokens", ids, "--logits", out,
               "--greedy", str(args.greedy), "-t", str(args.threads), "--numerics", args.numerics]
        r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if r.returncode:
            sys.exit(f"peer_llama.py: {' '.join(cmd)}: {r.stderr.strip()}")
        return read_logits(out), json.loads(r.stdout)["greedy"]


def theirs(args, path, tokens):
    import numpy as np
    p = Peer(path, len(tokens) + args.greedy + 8, args.threads, chunk=256)
    parts = []
    for at in range(0, len(tokens), p.chunk):
        piece = tokens[at:at + p.chunk]
        p.decode(piece, at, "all")
        parts.append(p.rows(len(piece)))
    logits = np.concatenate(parts)
    greedy, at = [int(logits[-1].argmax())], len(tokens)
    while len(greedy) < args.greedy:
        p.decode([greedy[-1]], at, "last")
        greedy.append(int(p.rows(1)[0].argmax()))
        at += 1
    p.close()
    return logits, greedy


def vocabulary(path):
    p = Peer(path, 64, 1)
    n = p.vocab
    p.close()
    return n


def some_tokens(n, vocab):
    """A fixed walk over the vocabulary; token 2 begins every text of these models."""
    x, out = 88172645463325252, [2 % vocab]
    while len(out) < n:
        x ^= x << 13 & (1 << 64) - 1
        x ^= x >> 7
        x ^= x << 17 & (1 << 64) - 1
        out.append(x % vocab)
    return out


def parity(args):
    import numpy as np
    models = args.model or sorted(
        os.path.join(d, f) for d, _, files in os.walk(os.path.join(ROOT, "tests/data"))
        for f in files if f.endswith(".gguf") and os.path.getsize(os.path.join(d, f)) > 100000)
    print(f"{'model':44} {'positions':>9} {'rel. rms':>9} {'same top':>9} {'greedy':>9}")
    for path in models:
        tokens = some_tokens(args.tokens, vocabulary(path))
        a, ga = ours(args, path, tokens)
        b, gb = theirs(args, path, tokens)
        rms = float(np.sqrt(((a - b).astype(np.float64) ** 2).sum() / (b.astype(np.float64) ** 2).sum()))
        top = float((a.argmax(1) == b.argmax(1)).mean())
        same = next((i for i, (x, y) in enumerate(zip(ga, gb)) if x != y), len(ga))
        name = os.path.relpath(path, ROOT) if path.startswith(ROOT) else path
        print(f"{name[-44:]:44} {len(tokens):9} {rms:9.2e} {100 * top:8.1f}% {same:4}/{len(ga)}",
              flush=True)


# ---- bench ----

ROW_STEPS = 5  # as bench_model takes


def busy_s():
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def child_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        v = f.read().rsplit(")", 1)[1].split()
    return (int(v[11]) + int(v[12])) / os.sysconf("SC_CLK_TCK")


class Ours:
    """bench_model in a process of its own: a measure in, a line of JSON out."""

    def __init__(self, args, path):
        cmd = [args.bench_model, path, "-t", str(args.threads), "-c", str(args.ctx)]
        if args.cpu:
            cmd += ["-l", args.cpu]
        self.p = subprocess.Popen(cmd + ["-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True)
        self.load = self.line()

    def line(self):
        text = self.p.stdout.readline()
        if not text:
            sys.exit("peer_llama.py: bench_model ended")
        return json.loads(text)

    def ask(self, measure):
        self.p.stdin.write(measure + "\n")
        self.p.stdin.flush()
        return self.line()

    def close(self):
        self.p.stdin.close()
        self.p.wait()


def fill(p, tokens, depth):
    p.clear()
    for at in range(0, depth, p.chunk):
        p.decode(tokens[at:min(at + p.chunk, depth)], at, "none")


def peer_measure(p, measure, tokens):
    """Seconds of the peer for the same work as bench_model does."""
    kind, rest = measure.split(":")
    n, depth = (int(x) for x in (rest + "@0").split("@")[:2])
    fill(p, tokens, depth)
    start = time.monotonic()
    if kind == "decode":
        steps = []
        for i in range(depth, depth + n):
            start = time.monotonic()
            p.decode(tokens[i:i + 1], i, "last")
            steps.append(time.monotonic() - start)
        return n * sorted(steps)[n // 2]
    if kind == "rows":
        steps = []
        while len(steps) < ROW_STEPS:
            if steps and not p.clear(depth):
                fill(p, tokens, depth)
            start = time.monotonic()
            p.decode(tokens[depth:depth + n], depth, "all")
            steps.append(time.monotonic() - start)
        return statistics.median(steps)
    for at in range(depth, depth + n, p.chunk):
        end = min(at + p.chunk, depth + n)
        p.decode(tokens[at:end], at, "last" if end == depth + n else "none")
    return time.monotonic() - start


def one_round(args, a, b, measure, tokens, swap):
    busy, own, wall = busy_s(), time.process_time() + child_s(a.p.pid), time.monotonic()
    r = {"event": "round", "measure": measure, "read_GBps": a.ask("read")["GBps"]}
    for side in (1, 0) if swap else (0, 1):
        if side:
            r["peer_s"] = peer_measure(b, measure, tokens)
        else:
            r["ingle_s"] = a.ask(measure)["seconds"]
    own = time.process_time() + child_s(a.p.pid) - own
    r["foreign"] = max(0.0, busy_s() - busy - own) / ((time.monotonic() - wall) * os.cpu_count())
    return r


def quiet_round(args, a, b, measure, tokens, swap):
    best = None
    for _ in range(args.retries + 1):
        r = one_round(args, a, b, measure, tokens, swap)
        if best is None or r["foreign"] < best["foreign"]:
            best = r
        if best["foreign"] <= args.foreign:
            break
    return best


def bench(args):
    out = open(args.json, "a") if args.json else None
    print(f"{'model':22} {'measure':14} {'ingle t/s':>10} {'llama.cpp':>10} {'ratio':>6} "
          f"{'(spread)':>13} {'GB/s':>6} {'of read':>8} {'foreign':>8}")
    for path in args.model:
        a = Ours(args, path)
        b = Peer(path, args.ctx, args.threads)
        tokens = some_tokens(args.ctx, b.vocab)
        name = os.path.basename(path).removesuffix(".gguf")
        print(f"# {name}: ingle {a.load['cpu']}, {a.load['threads']} threads, loaded in "
              f"{a.load['seconds']:.1f} s, peak {a.load['peak_bytes'] / a.load['packed_bytes']:.3f} "
              f"of packed; llama.cpp {b.isa()}, {b.load_s:.1f} s", flush=True)
        for measure in args.measures.split(","):
            rounds = []
            for i in range(args.rounds):
                r = quiet_round(args, a, b, measure, tokens, i % 2 == 1)
                rounds.append(r)
                if out:
                    out.write(json.dumps({"model": name, "load": a.load, "peer_isa": b.isa(), **r})
                              + "\n")
                    out.flush()
            show(name, measure, rounds, a.load["token_bytes"], args.foreign)
        a.close()
        b.close()


def show(name, measure, rounds, token_bytes, limit):
    n = int(measure.split(":")[1].split("@")[0])
    mid = lambda f: statistics.median(f(r) for r in rounds)
    ratio = sorted(r["peer_s"] / r["ingle_s"] for r in rounds)
    rate = share = ""
    if measure.startswith("decode"):
        rate = f"{mid(lambda r: n * token_bytes / r['ingle_s']) * 1e-9:.1f}"
        share = f"{100 * mid(lambda r: n * token_bytes / r['ingle_s'] * 1e-9 / r['read_GBps']):.0f} %"
    foreign = mid(lambda r: r["foreign"])
    print(f"{name:22} {measure:14} {mid(lambda r: n / r['ingle_s']):10.2f} "
          f"{mid(lambda r: n / r['peer_s']):10.2f} {statistics.median(ratio):6.2f} "
          f"{ratio[0]:6.2f}-{ratio[-1]:<6.2f} {rate:>6} {share:>8} {100 * foreign:6.0f} %"
          f"{' !' if foreign > limit else ''}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="what", required=True)
    for what, fn in (("parity", parity), ("bench", bench)):
        s = sub.add_parser(what)
        s.set_defaults(run=fn)
        s.add_argument("model", nargs="*" if what == "parity" else "+", metavar="MODEL.gguf")
        s.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
        if what == "parity":
            s.add_argument("--ingle", default=os.path.join(ROOT, "out/dev/ingle"))
            s.add_argument("--numerics", default="exact", choices=["exact", "reference"])
            s.add_argument("--tokens", type=int, default=48, help="positions compared (48)")
            s.add_argument("--greedy", type=int, default=32, help="tokens continued with (32)")
        else:
            s.add_argument("--bench-model", default=os.path.join(ROOT, "out/dev/bench_model"))
            s.add_argument("--cpu", default="", help="highest instruction set of the ingle side")
            s.add_argument("--measures", default="decode:8@64,rows:2@64,rows:4@64,rows:8@64,prefill:128",
                           help="comma-separated, as bench_model takes them")
            s.add_argument("--ctx", type=int, default=4096)
            s.add_argument("--rounds", type=int, default=5)
            s.add_argument("--foreign", type=float, default=0.06,
                           help="share of the machine that others may use in a round (0.06)")
            s.add_argument("--retries", type=int, default=3)
            s.add_argument("--json", default="", help="append one JSON line a round to this file")
    args = p.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
