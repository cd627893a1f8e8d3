#!/usr/bin/env python3
"""`ingle serve` beside llama-server: clients who ask at the same time.

    peer_server.py MODEL --llama-server FILE [--clients 1,8] [--words 67] [--tokens 64]
                   [--rounds 3] [--threads 2] [--ingle FILE]

Starts both servers with the model.  In each round the same clients ask the one and then the other,
in turns as to who is first: POST /completion as a stream, a prompt of random words of their own,
temperature 0, as many tokens as told, nothing remembered.  The first round is for warming up.  Prints one
JSON line a round and server, and medians at the end:

    seconds  from the first request to the end of the last answer
    first    what a client waits for its first token (mean of the clients)
    ratio    llama-server's over ingle's, of the same round

The model needs a tokenizer that both know.  Standard library alone.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 900  # seconds: of a start, of an answer


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def server(command):
    """The port of a server that is ready."""
    port = free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*command, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until = time.time() + LIMIT
            while not healthy(port):
                if process.poll() is not None or time.time() > until:
                    log.seek(0)
                    sys.exit(f"peer_server.py: {command[0]} did not start:\n{log.read()[-2000:]}")
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.wait(LIMIT)


def healthy(port):
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        c.request("GET", "/health")
        return c.getresponse().status == 200
    except OSError:
        return False


def prompt(seed, n_words):
    r = random.Random(seed)
    words = ["alpha", "bravo", "delta", "echo", "golf", "hotel", "india", "kilo"]
    return " ".join(f"{r.choice(words)}{r.randrange(100)}" for _ in range(n_words))


def ask(port, text, n_tokens, go, out, i):
    """out[i]: when it was asked, when the first token came, when the last one, and how many there were."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    body = json.dumps({"prompt": text, "n_predict": n_tokens, "stream": True, "temperature": 0, "ignore_eos": True,
                       "cache_prompt": False})
    go.wait()
    asked = time.time()
    c.request("POST", "/completion", body, {"Content-Type": "application/json"})
    first, told = None, {}
    for line in c.getresponse():
        if not line.startswith(b"data: {"):
            continue
        data = json.loads(line[6:])
        if data.get("stop"):
            told = data
        elif first is None and "content" in data:
            first = time.time()
    if first is not None and told.get("tokens_predicted") == n_tokens:
        out[i] = asked, first, time.time(), told["tokens_evaluated"]


def one_round(port, n, a, seed):
    """The clients' times and what they had to read; None: an answer was not whole."""
    out, go = [None] * n, threading.Event()
    clients = [threading.Thread(target=ask, args=(port, prompt(seed * 1000 + i, a.words), a.tokens, go, out, i))
               for i in range(n)]
    for c in clients:
        c.start()
    go.set()
    for c in clients:
        c.join()
    if None in out:
        return None
    return {"seconds": max(o[2] for o in out) - min(o[0] for o in out),
            "first": statistics.mean(o[1] - o[0] for o in out), "prompt_tokens": sum(o[3] for o in out)}


def compare(ports, n, a):
    ratios = {"seconds": [], "first": []}
    own = {"seconds": [], "first": []}
    for r in range(a.rounds + 1):
        got = {}
        for name in list(ports)[::1 if r % 2 else -1]:
            got[name] = one_round(ports[name], n, a, r)
            if not got[name]:
                sys.exit(f"peer_server.py: {name} did not give {n} answers of {a.tokens} tokens")
            print(json.dumps({"server": name, "clients": n, "round": r, **got[name]}), flush=True)
        for what in ratios if r else ():
            ratios[what].append(got["llama-server"][what] / got["ingle"][what])
            own[what].append(got["ingle"][what])
    for what, all_ in ratios.items():
        print(f"{n} clients, {what}: {statistics.median(own[what]):.2f} s, ratio {statistics.median(all_):.2f} "
              f"({min(all_):.2f} to {max(all_):.2f})", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--llama-server", required=True)
    p.add_argument("--ingle", default=os.path.join(ROOT, "out/release/ingle"))
    p.add_argument("--clients", default="1,8")
    p.add_argument("--words", type=int, default=67, help="of a prompt")
    p.add_argument("--tokens", type=int, default=64, help="of an answer")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    counts = [int(n) for n in a.clients.split(",")]
    ctx = 8 * a.words + a.tokens + 256
    ingle = [a.ingle, "serve", "-m", a.model, "--parallel", str(max(counts)), "--ctx", str(ctx), "--threads", str(a.threads)]
    llama = [a.llama_server, "-m", a.model, "-np", str(max(counts)), "-c", str(ctx * max(counts)), "-t", str(a.threads),
             "-tb", str(a.threads)]
    with server(ingle) as ours, server(llama) as theirs:
        for n in counts:
            compare({"ingle": ours, "llama-server": theirs}, n, a)


if __name__ == "__main__":
    main()
