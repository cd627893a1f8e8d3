#!/usr/bin/env python3
"""store_kill.py INGLE [ROUNDS] - a process that uses a store is killed at any moment; the next one
answers right, reuses what was complete, and finds nothing damaged."""
import json, os, random, signal, subprocess, sys, tempfile, time

INGLE = sys.argv[1]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
chance = random.Random(seed)

WORDS = "the quick brown fox jumps over a lazy dog and then it sleeps under some old tree".split()
SYSTEM = " ".join(WORDS[i * 7 % len(WORDS)] for i in range(90))


def tail(i):
    own = random.Random(i)
    return " ".join(own.choice(WORDS) for _ in range(60 + 13 * i))


PROMPTS = [SYSTEM + "."] + [f"{SYSTEM}. {tail(i)}" for i in range(5)]


def command(folder, size):
    return [INGLE, "run", "--raw", "--lines", "--json", "--temp", "0", "-n", "4", "-t", "1", "--ctx", "2048",
            *(["--store", folder, "--store-tokens", "16", "--store-size", size] if folder else [])]


def answers(folder, prompts, size="1G"):
    r = subprocess.run(command(folder, size), input="\n".join(prompts) + "\n", capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    assert "deleted" not in r.stderr and "saved" not in r.stderr, r.stderr
    return [json.loads(line) for line in r.stdout.split("\n") if line]


def listed(folder):
    r = subprocess.run([INGLE, "inspect", "--store", folder, "--json"], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    out = json.loads(r.stdout)
    assert out["damaged"] == 0, out
    return out["files"]


def whole(files):
    """Lengths whose ancestors are all there: the texts differ in length, so that names a prompt."""
    good = {0}
    for f in sorted(files, key=lambda f: f["tokens"]):
        if f["from"] in good:
            good.add(f["tokens"])
    return good


def main():
    print("seed", seed)
    began = time.monotonic()
    cold = answers(None, PROMPTS)
    lasts = time.monotonic() - began
    lengths = [c["prompt_tokens"] for c in cold]
    assert len(set(lengths)) == len(lengths)
    n_killed = n_reused = n_right = 0
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "store")
        for round in range(ROUNDS):
            if round % 10 == 0 and os.path.exists(folder):
                for name in os.listdir(folder):
                    os.unlink(os.path.join(folder, name))
            size = chance.choice(["1G", "1500K"])
            p = subprocess.Popen(command(folder, size), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
            order = chance.sample(PROMPTS, len(PROMPTS))
            p.stdin.write(("\n".join(order) + "\n").encode())
            p.stdin.close()
            time.sleep(chance.uniform(0, lasts))
            p.send_signal(signal.SIGKILL)
            n_killed += p.wait() == -signal.SIGKILL
            there = whole(listed(folder)) if os.path.exists(folder) else {0}
            i = chance.choice([i for i, n in enumerate(lengths) if n in there] or [0])
            got = answers(folder, [PROMPTS[i]], size)[0]
            assert got["content"] == cold[i]["content"], (PROMPTS[i], got, cold[i])
            n_right += 1
            if lengths[i] in there:
                # Whole pages do not reach one token back: then a shorter prefix serves.
                assert got["disk_tokens"] == lengths[i] - 1 or lengths[i] % 128 == 0, (got, sorted(there))
                n_reused += 1
    print(f"{ROUNDS} rounds: {n_killed} killed, {n_right} right answers, {n_reused} from the store")
    assert n_killed and (n_reused or ROUNDS < 10)


main()
