#!/usr/bin/env python3
"""kill.py INGLE [ROUNDS] - a server with a store is killed at any moment while several clients ask; the next one answers
right, restores what is there as a whole, and finds nothing damaged.  Both families by turns.
Standard library only."""
import json, os, random, subprocess, sys, tempfile, threading, time

import client
from client import Server

INGLE = sys.argv[1]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 6
seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
chance = random.Random(seed)
WORDS = "the quick brown fox jumps over a lazy dog and then it sleeps under some old tree".split()
FAMILIES = {"gemma4": [], "deepseek4": ["-m", client.nano_v4()]}


def text(i, n):
    own = random.Random(i)
    return " ".join(own.choice(WORDS) for _ in range(n))


# Begin alike by threes.  Their lengths in tokens name them in the directory of the store, where what was asked and
# answered ends between one token before a prompt's end and six behind it.
PROMPTS = [text(i % 3, 700 + 8 * (i % 3)) + (". " + text(10 + i, 40 + 23 * i) if i > 2 else "") for i in range(9)]


def ask(server, i):
    status, _, r = server.post("/v1/completions", {"prompt": PROMPTS[i], "max_tokens": 6, "temperature": 0})
    assert status == 200, r
    return r["choices"][0]["text"], r["usage"]["prompt_tokens"], r["timings"]["ingle"]["reuse"]["from_disk"]


def client_until_killed(server, order, wrong, cold):
    try:
        for i in order:
            got = ask(server, i)[0]
            if got != cold[i][0]:
                wrong.append((i, got, cold[i][0]))
    except (OSError, client.http.client.HTTPException, ValueError):
        return  # the server is gone


def whole(model, folder):
    """Lengths whose ancestors are all there; nothing that a process left may be damaged."""
    r = subprocess.run([INGLE, "inspect", *model, "--store", folder, "--json"], capture_output=True, text=True, timeout=client.TIMEOUT)
    assert r.returncode == 0, r.stderr
    out = json.loads(r.stdout)
    assert out["damaged"] == 0, out
    good = {0}
    for f in sorted(out["files"], key=lambda f: f["tokens"]):
        if f["from"] in good:
            good.add(f["tokens"])
    return good


def options(model, folder, size):
    return [*model, "-q", "-c", "4096", "--parallel", "3", "--cache", "4M", "--store", folder, "--store-tokens", "64",
            "--store-size", size]


def main():
    print("seed", seed)
    cold, n = {}, {"right": 0, "reused": 0, "killed": 0}
    for name, model in FAMILIES.items():
        with Server(INGLE, *model, "-q", "-c", "4096", "--parallel", "1", "--cache", "0") as alone:
            cold[name] = [ask(alone, i) for i in range(len(PROMPTS))]
        lengths = sorted(c[1] for c in cold[name])
        assert all(b - a > 8 for a, b in zip(lengths, lengths[1:])), lengths
    with tempfile.TemporaryDirectory() as parent:
        for k in range(ROUNDS):
            name = list(FAMILIES)[k % 2]
            model, folder, wrong = FAMILIES[name], os.path.join(parent, f"{name}-{k // 20}"), []
            size = chance.choice(["1G", "1G", "6M"])
            server = Server(INGLE, *options(model, folder, size))
            asking = [threading.Thread(target=client_until_killed, args=(
                server, chance.choices(range(len(PROMPTS)), k=20), wrong, cold[name])) for _ in range(4)]
            for t in asking:
                t.start()
            time.sleep(chance.uniform(0, 1.5))
            server.process.kill()
            n["killed"] += server.process.wait() == -9
            for t in asking:
                t.join()
            server.reader.join()
            server.process.stdout.close()
            assert not wrong, wrong
            there = whole(model, folder)
            with Server(INGLE, *options(model, folder, size)) as next_one:
                i = chance.choice([i for i, c in enumerate(cold[name]) if c[1] in there] or [0])
                got, length, from_disk = ask(next_one, i)
                assert got == cold[name][i][0], (name, i, got, cold[name][i])
                n["right"] += 1
                if length in there:
                    assert from_disk >= length - 128, (name, from_disk, length, sorted(there))
                    n["reused"] += 1
    print(f"{ROUNDS} rounds: {n['killed']} killed, {n['right']} right answers, {n['reused']} from the store")
    assert n["killed"] == ROUNDS and (n["reused"] or ROUNDS < 10)


main()
