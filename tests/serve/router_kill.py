#!/usr/bin/env python3
"""router_kill.py INGLE [EVENTS [SEED]] - models' processes are killed at random moments, among loads, unloads and requests.

A request meets one kill at most; then none may end with a 5xx, because a second process can answer it, and a stream may end
with an error only if its process was killed in the middle of it.  From the moment that a process is
killed, no list says that it is loaded."""
import json, os, pathlib, random, signal, sys, threading, time

INGLE = os.path.abspath(sys.argv[1])
EVENTS = int(sys.argv[2]) if len(sys.argv) > 2 else 16
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else int(time.time())
sys.argv = sys.argv[:1] + [INGLE]

from client import HOT  # noqa: E402: it reads sys.argv
import router  # noqa: E402

router.INGLE = INGLE
NAMES = "gem", "small", "deep"
PRESETS = "[*]\nc = 1024\nthreads = 1\n" + "".join(f"[{n}]\nmodel = {m}\n" for n, m in zip(NAMES, (router.GEMMA, router.SMALL, router.DEEP)))


class Request:
    def __init__(self, name, stream, tokens):
        self.name, self.stream, self.tokens = name, stream, tokens
        self.hits = 0      # kills of its model while it was under way
        self.status = self.end = None

    def run(self, s):
        body = {"model": self.name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": self.tokens,
                "stream": self.stream, "logit_bias": {"1": -100, "106": -100}, **HOT}
        c, r = s.open("POST", "/v1/chat/completions", body)
        text = r.read().decode()
        c.close()
        self.status = r.status
        if self.stream and r.status == 200:
            last = text.rstrip("\n").rsplit("\n\n", 1)[-1]
            self.end = "whole" if last == "data: [DONE]" else json.loads(last.removeprefix("data: "))["error"]["message"]
        else:
            self.end = "whole" if r.status == 200 else text


class Trial:
    def __init__(self, s):
        self.s, self.random = s, random.Random(SEED)
        self.lock = threading.Lock()
        self.requests, self.open, self.threads = [], [], []
        self.starting = set()  # killed, and not seen to be loaded since
        self.n = dict.fromkeys(("kill", "load", "unload", "request", "idle", "busy", "starting", "listed"), 0)

    def processes(self):
        """(pid, model) of all processes."""
        out = []
        for pid in router.children(self.s.process.pid):
            try:
                args = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            out += [(pid, a[len(b"--alias="):].decode()) for a in args if a.startswith(b"--alias=")][:1]
        return out

    def request(self):
        q = Request(self.random.choice(NAMES), self.random.random() < 0.6, self.random.choice((2, 8, 60)))

        def go():
            try:
                q.run(self.s)
            except Exception as e:
                q.status, q.end = 0, repr(e)
            with self.lock:
                self.open.remove(q)
        with self.lock:
            self.requests.append(q)
            self.open.append(q)
        self.threads.append(threading.Thread(target=go))
        self.threads[-1].start()

    def kill(self):
        states = {m["id"]: m["status"]["value"] for m in self.s.get("/v1/models")[2]["data"]}
        self.starting -= {n for n, v in states.items() if v == "loaded"}
        found = self.processes()
        with self.lock:
            met = {q.name for q in self.open if q.hits}
            may = [(pid, name) for pid, name in found if name not in met and name not in self.starting]
            if not may:
                return False
            pid, name = self.random.choice(may)
            hit = [q for q in self.open if q.name == name]
            for q in hit:
                q.hits += 1
            os.kill(pid, signal.SIGKILL)
        self.starting.add(name)
        self.n["busy" if hit else "idle"] += 1
        self.n["starting"] += states[name] == "loading"
        state = self.s.entry(name)["status"]["value"]
        others = [p for p, n in self.processes() if n == name and p != pid]
        self.n["listed"] += state == "loaded" and not others
        return True

    def command(self, what):
        status, _, body = self.s.post(f"/models/{what}", {"model": self.random.choice(NAMES)})
        assert status == 200, body

    def run(self):
        while sum(self.n[k] for k in ("kill", "load", "unload", "request")) < EVENTS:
            while len(self.open) > 5:
                time.sleep(0.01)
            what = self.random.choices(("kill", "load", "unload", "request"), (4, 1, 1, 4))[0]
            if what == "request":
                self.request()
            elif what != "kill":
                self.command(what)
            elif not self.kill():
                continue
            self.n[what] += 1
            time.sleep(self.random.choice((0, 0, 0.02, 0.1, 0.4)))
        for t in self.threads:
            t.join()


def main():
    print(f"seed {SEED}, {EVENTS} events", flush=True)
    with router.Router(PRESETS, "--models-max", "2") as s:
        trial = Trial(s)
        trial.run()
        for name in NAMES:
            assert s.chat(name)[0] == 200
        log = "".join(s.log)
    bad = [q for q in trial.requests if q.status != 200 or (q.end != "whole" and not q.hits)]
    cut = sum(q.end != "whole" for q in trial.requests if q.status == 200)
    print(trial.n, f"requests: {len(trial.requests)}, of them met by a kill {sum(q.hits > 0 for q in trial.requests)}, "
          f"streams cut in the middle {cut}, wrong {len(bad)}")
    for q in bad:
        print("wrong:", vars(q))
    if bad or trial.n["listed"]:
        print(log)
    return 1 if bad or trial.n["listed"] else 0


if __name__ == "__main__":
    sys.exit(main())
