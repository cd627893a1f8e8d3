#!/usr/bin/env python3
"""hostile.py INGLE - honest clients beside such as want the server's time, memory or threads.

First the honest ones are alone, then hostile ones of every kind stand beside them: schemas and grammars that grow,
references and look-ups in a large conversation, replies that nobody reads, echo with many choices, slow readers, large
bodies, clients that leave.  Each honest answer must be the one that it is alone.  The hostile clients are a process of their own at the
lowest priority: on a machine of their own they would not take the server's processors either.  Printed are the gaps between the tokens
of the honest streams and the time to their first one, in steps: one is the median gap of the quiet part.  With --strict
the 99th percentile beside hostile clients may be at most three steps above that of the quiet part; without it nothing
that depends on the machine's load is judged.  At the end the server must be alive, hold no more than --most MiB, and end
at a SIGTERM although hostile requests are under way.
Standard library only."""
import argparse, http.client, json, os, random, re, socket, sys, threading, time

sys.path.insert(0, os.path.dirname(__file__))
from client import Server  # noqa: E402

HONEST = 3
ASKED = ["Count to seven.", "Who are you?", "What is the capital of Norway?"]
TOKENS = 40


# ---- what hostile clients send ----

def doubling(n):
    """Definitions that each name the next one twice."""
    defs = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(n)}
    return {"$defs": {**defs, f"a{n}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def many_properties(n):
    return {"allOf": [{"properties": {f"p{i}": True}} for i in range(n)]}


def many_required(n):
    return {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(n)},
            "required": [f"q{i}" for i in range(n)]}


def two_enums(n):
    return {"allOf": [{"enum": [f"a{i}" for i in range(n)]}, {"enum": [f"b{i}" for i in range(n)]}]}


def many_classes(r, n):
    """Nearly every node of the vocabulary's trie becomes a state of its own."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "
    rules = []
    for i in range(n):
        some = "".join(c for c in letters if r.random() < 0.96)
        rules.append(f'[{some}]* "<{i}>"')
    return "root ::= " + " | ".join(rules)


def chat(**more):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": ASKED[0]}], "max_tokens": 20, **more}


def schema(s):
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": s}})


class Hostile:
    """One client that sends one kind after the other, each many times."""

    def __init__(self, run, seed):
        self.run, self.r, self.seed = run, random.Random(seed), seed
        self.kinds = [getattr(self, n) for n in sorted(dir(self)) if n.startswith("do_") and n[3:] in (run.o.kind or n)]
        self.held = []
        self.thread = threading.Thread(target=self.main, daemon=True)

    def main(self):
        i = self.seed
        while not self.run.stop.is_set():
            kind = self.kinds[i % len(self.kinds)]
            i += 1
            try:
                kind()
            except (OSError, http.client.HTTPException, AssertionError, ValueError) as e:
                self.run.count(f"{kind.__name__[3:]}: {type(e).__name__}")
            self.run.count(kind.__name__[3:])
        for s in self.held:
            s.close()

    @staticmethod
    def process(run, n):
        """Starts n clients in a process of their own; returns a function that ends them and adds what they counted."""
        from_child, counted = os.pipe()
        ends, end = os.pipe()
        child = os.fork()
        if not child:
            os.close(end)
            os.nice(19)
            run.stop.clear()
            run.counts = {}
            clients = [Hostile(run, i) for i in range(n)]
            for h in clients:
                h.thread.start()
            os.read(ends, 1)
            run.stop.set()
            for h in clients:
                h.thread.join()
            with open(counted, "w") as f:
                json.dump(run.counts, f)
            os._exit(0)
        os.close(counted)
        os.close(ends)

        def stop():
            os.close(end)
            with open(from_child) as f:
                for what, times in json.load(f).items():
                    run.counts[what] = run.counts.get(what, 0) + times
            os.waitpid(child, 0)
        return stop

    def post(self, path, body, patience=20):
        """Waits for the answer at most so long, then leaves."""
        c = http.client.HTTPConnection("127.0.0.1", self.run.server.port, timeout=patience)
        try:
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            r.read()
            self.run.count(f"status {r.status}")
            return r.status
        finally:
            c.close()

    def get(self, path):
        self.run.count(f"status {self.run.server.get(path)[0]}")

    def do_schemas(self):
        n = self.run.o.size
        s = self.r.choice([doubling(20 + n // 200), many_properties(2 * n), many_required(10 * n), two_enums(5 * n)])
        self.post(*schema(s))
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": s}}}}
        self.post(*chat(tools=[tool]), patience=0.5)

    def do_classes(self):
        self.post(*chat(grammar=many_classes(self.r, self.run.o.size // 10)), patience=10)

    def do_references(self):
        """Many references to one item of a large conversation; every other time nobody waits for it."""
        ref = {"type": "item_reference", "id": self.run.item}
        self.post("/v1/responses", {"input": [ref] * self.r.choice([10, 800, 4000]), "max_output_tokens": 5},
                  patience=self.r.choice([0.3, 20]))

    def do_items(self):
        for _ in range(20):
            self.get(f"/v1/conversations/{self.run.conversation}/items/nosuch")
            self.get(f"/v1/conversations/{self.run.conversation}/items?limit=1")

    def do_answers(self):
        """Answers that push others out of the store."""
        for i in range(5):
            self.post("/v1/responses", {"input": "x" * 200000 + str(i), "max_output_tokens": 0})

    def do_unread(self):
        """Replies of megabytes that nobody reads."""
        while len(self.held) > 6:
            self.held.pop(0).close()
        body = {"content": "\u00a7" * (200 * self.run.o.size), "with_pieces": True}
        self.held.append(self.run.server.begin("/tokenize", body))

    def do_echo(self):
        self.post("/v1/completions", {"prompt": [[50] * 500] * 16, "n": 4, "max_tokens": 1, "echo": True, "logprobs": 5})
        self.post("/v1/completions", {"prompt": [[50 + i] * 300 for i in range(4)], "n": 2, "max_tokens": 4, "echo": True,
                                      "logprobs": 2, "stream": True}, patience=3)

    def do_slow(self):
        with self.run.server.begin(*chat(stream=True, max_tokens=100), alone=True) as s:
            s.settimeout(5)
            for _ in range(20):
                if not s.recv(1):
                    break
                time.sleep(0.05)

    def do_leave(self):
        path, body = chat(stream=True, max_tokens=500)
        body["messages"][0]["content"] = "word " * self.r.choice([10, 20 * self.run.o.size])
        s = self.run.server.begin(path, body)
        time.sleep(self.r.random() * 0.1)
        s.close()

    def do_large(self):
        """A text of which its bytes do not tell at once how many tokens it has."""
        path, body = chat()
        body["messages"] = [{"role": "user", "content": [{"type": "text", "text": "a b"}] * (20 * self.run.o.size)}]
        self.post(path, body, patience=self.r.choice([0.2, 20]))


# ---- honest clients ----

class Run:
    def __init__(self, o):
        self.o = o
        self.server = Server(o.ingle, "-q", "-c", "4096", "--parallel", "8", "--limit", "replies=64M", "--limit", "stall-timeout=3",
                             "--max-request-seconds", str(o.most_seconds), "--drain", "1", *o.option)
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.counts, self.bad = {}, []
        self.gaps, self.first = [], []
        self.answers = {}
        self.peak = 0

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def prepare(self):
        """The honest prompts, and a conversation of many parts."""
        self.prompts = {}
        for text in ASKED:
            status, _, r = self.server.post("/apply-template", {"messages": [{"role": "user", "content": text}]})
            assert status == 200, r
            self.prompts[text] = r["prompt"]
        parts = [{"type": "input_text", "text": "x"}] * (self.o.size * 2)
        status, _, c = self.server.post("/v1/conversations", {})
        assert status == 200, c
        self.conversation = c["id"]
        for _ in range(5):
            status, _, r = self.server.post(f"/v1/conversations/{self.conversation}/items",
                                            {"items": [{"role": "user", "content": parts}] * 10})
            assert status == 200, r
            self.item = r["first_id"]

    def ask(self, text):
        """One stream; its text, the time to its first token and the gaps between them."""
        body = {"prompt": self.prompts[text], "temperature": 1, "seed": 7, "n_predict": TOKENS, "ignore_eos": True, "stream": True, "draft": False,
                "return_tokens": True}
        begun, last, first, gaps, said = time.monotonic(), None, None, [], []
        c, r = self.server.open("POST", "/completion", body)
        while r.status == 429 and not self.stop.is_set():  # the queue of the key that all share is full: as clients do
            assert b"queue_full" in r.read()
            c.close()
            self.count("honest clients told to come again")
            time.sleep(int(r.getheader("Retry-After")))
            c, r = self.server.open("POST", "/completion", body)
        if r.status == 429:
            return None, None, []
        assert r.status == 200, (r.status, r.read())
        for line in r:
            if not line.startswith(b"data: "):
                continue
            d = json.loads(line[6:])
            assert "error" not in d, d
            now = time.monotonic()
            if d["stop"] or not d["tokens"]:
                continue
            said += d["tokens"]
            if last is None:
                first = now - begun
            else:
                gaps.append(now - last)
            last = now
        c.close()
        return said, first, gaps

    def honest(self, i):
        text = ASKED[i % len(ASKED)]
        while not self.stop.is_set():
            try:
                said, first, gaps = self.ask(text)
            except (OSError, AssertionError, ValueError, http.client.HTTPException) as e:
                with self.lock:
                    self.bad.append(f"honest client {i}: {type(e).__name__} {str(e)[:300]}")
                return
            with self.lock:
                self.gaps += gaps
                if first is not None:  # else its time was over before it had a token
                    self.first.append(first)
                if said is not None and self.answers.setdefault(text, said) != said:
                    self.bad.append(f"'{text}' got {said!r}, not {self.answers[text]!r}")

    def memory(self):
        with open(f"/proc/{self.server.process.pid}/status") as f:
            return int(re.search(r"RssAnon:\s+(\d+)", f.read())[1]) / 1024

    def part(self, seconds, n_hostile):
        """(gaps, times to the first token) of the honest clients during so many seconds."""
        self.stop.clear()
        self.gaps, self.first = [], []
        stop_hostile = Hostile.process(self, n_hostile) if n_hostile else None
        threads = [threading.Thread(target=self.honest, args=(i,)) for i in range(HONEST)]
        for t in threads:
            t.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.bad:
            time.sleep(0.2)
            self.peak = max(self.peak, self.memory())
        self.stop.set()
        for t in threads:
            t.join()
        gaps, first = sorted(self.gaps), sorted(self.first)
        if stop_hostile:
            stop_hostile()
        return gaps, first


def at(values, share):
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def show(name, gaps, first, step):
    print(f"{name:8} {len(gaps):7} gaps: p50 {at(gaps, 0.5) / step:6.2f}  p99 {at(gaps, 0.99) / step:7.2f}  max "
          f"{at(gaps, 1) / step:8.2f} steps; {len(first):5} first tokens: p50 {at(first, 0.5) / step:6.2f}  p99 "
          f"{at(first, 0.99) / step:7.2f}  max {at(first, 1) / step:8.2f} steps", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ingle", help="the program")
    p.add_argument("--minutes", type=float, default=30, help="beside hostile clients (default: %(default)s)")
    p.add_argument("--quiet", type=float, default=0.5, help="minutes alone before (default: %(default)s)")
    p.add_argument("--hostile", type=int, default=8, help="clients (default: %(default)s)")
    p.add_argument("--size", type=int, default=2000, help="how large what they send is (default: %(default)s)")
    p.add_argument("--most", type=int, default=1500, help="MiB that the server may hold (default: %(default)s)")
    p.add_argument("--most-seconds", type=float, default=60, help="max-request-seconds of the server (default: %(default)s)")
    p.add_argument("--option", action="append", default=[], help="one more word for the server's command line")
    p.add_argument("--kind", action="append", choices=[n[3:] for n in dir(Hostile) if n.startswith("do_")],
                   help="of hostile clients (default: all)")
    p.add_argument("--strict", action="store_true", help="judge the gaps, too")
    o = p.parse_args()
    run = Run(o)
    try:
        return judge(o, run)
    finally:
        if run.server.process.poll() is None:
            run.server.process.kill()


def judge(o, run):
    print(f"hostile clients: {o.hostile}, size {o.size}; honest ones: {HONEST}")
    run.prepare()
    quiet, first_quiet = run.part(o.quiet * 60, 0)
    step = at(quiet, 0.5) or 1
    print(f"a step takes {step * 1e3:.2f} ms")
    show("quiet", quiet, first_quiet, step)
    gaps, first = run.part(o.minutes * 60, o.hostile)
    show("hostile", gaps, first, step)
    ok = not run.bad
    for b in run.bad[:5]:
        print(b)
    if not gaps:
        print("no honest answer")
        ok = False
    status = run.server.get("/health")[0]
    metrics = dict(re.findall(r"^(ingle_io_longest_seconds|ingle_http_replies_refused_total|ingle_client_gone_total) (\S+)",
                              run.server.get("/metrics")[2], re.M))
    print(", ".join(f"{k} {v}" for k, v in sorted(run.counts.items())))
    print(f"memory at most {run.peak:.0f} MiB; {metrics}")
    # Some more of them are under way when the server is told to end.
    for h in [Hostile(run, 100 + i) for i in range(4)]:
        s = run.server.begin(*schema(many_required(20 * o.size)))
        h.held.append(s)
        s = run.server.begin("/v1/responses", {"input": [{"type": "item_reference", "id": run.item}] * 4000})
        h.held.append(s)
    ended = run.server.close()
    if status != 200 or ended != 0:
        print(f"health {status}, exit status {ended}")
        ok = False
    if run.peak > o.most:
        print(f"memory above {o.most} MiB")
        ok = False
    if o.strict and at(gaps, 0.99) > at(quiet, 0.99) + 3 * step:
        print("the 99th percentile of the gaps is more than three steps above that of the quiet part")
        ok = False
    print("ok" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
