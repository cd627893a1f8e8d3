#!/usr/bin/env python3
"""soak.py INGLE - a server of each family under mixed load for a long time.

Clients of all dialects ask, stream, read slowly, leave, send garbage; prompts share prefixes,
the cache in memory is too small for them, so that they come back from a store on disk, of which
files are damaged and removed meanwhile.  Every answer that ends is compared with the one that
was computed alone before.  Now and then all clients pause, and what
the server holds then is measured: after a first part, neither memory nor descriptors may grow.
What the server keeps on purpose is full before that: the caches soon are; the answers that
/v1/responses keeps (by default 1,000, which would take half an hour) are made before the clients
come, their bytes are told beside the memory; and each slot has had a longer prompt than any to come,
all at once, because the pool keeps the memory of the most pages that were ever in use.
Standard library only."""
import argparse, concurrent.futures, contextlib, json, os, random, re, shutil, socket, struct
import sys, tempfile, threading, time

sys.path.insert(0, os.path.dirname(__file__))
import client  # noqa: E402
from client import Server  # noqa: E402

MODELS = ("tests/data/nano-v4", "../shared/models/nano-v4", "../../shared/models/nano-v4")
V4 = next((f for f in (r + "/nano-v4-Q8_0.gguf" for r in MODELS) if os.path.exists(f)), None)
TOOL = {"name": "get_weather", "description": "Weather in a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
          "required": ["name", "n"], "additionalProperties": False}
SLOTS = 6
KINDS = ("ask", "ask", "ask", "stream", "stream", "stream", "stream", "leave", "leave", "reset",
         "vanish", "slow", "garbage", "refused", "late", "look", "spoil")


# ---- what is asked ----

def words(seed, n):
    r = random.Random(seed)
    return " ".join(r.choice("the a cat dog sun river is was in of and 7 12 Norway Paris count to say "
                             "weather tall hello who are you not 3 rain snow".split()) for _ in range(n))


def chat(i, text, system):
    body = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
            "max_tokens": 24 + i % 40}
    body |= [{"temperature": 0}, {"temperature": 1, "seed": i}, {"temperature": 0.8, "seed": i, "n": 2},
             {"temperature": 0, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
             {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {
                 "name": "x", "schema": SCHEMA}}, "max_tokens": 80},
             {"temperature": 0, "logprobs": True, "top_logprobs": 3},
             {"temperature": 0, "reasoning_effort": "low"}][i // 5 % 7]
    return "/v1/chat/completions", body


def question(i, long):
    """The i-th request: (path, body), of which several begin alike; the longest have a text of `long` words."""
    system = words(i % 4, (20, 150, 600, 60)[i % 4])
    text = words(100 + i % 7, (5, 40, 900, 12, 200)[i % 5]) + f" {i}"
    if i % 9 == 4:  # long, and all of them but the number shared by every 36th
        text = words(200 + i % 4, long) + f" {i}"
    if i % 5 in (0, 1):
        return chat(i, text, system)
    if i % 5 == 2:
        return "/v1/completions", {"prompt": [system + " " + text, text[:80]], "max_tokens": 20, "seed": i,
                                   "temperature": i // 5 % 2, "logprobs": 2 if i // 5 % 3 else None}
    if i % 5 == 3:
        body = {"system": system, "messages": [{"role": "user", "content": text}], "max_tokens": 40}
        body |= [{"temperature": 0}, {"temperature": 0, "thinking": {"type": "adaptive"}, "max_tokens": 90,
                                      "stop_sequences": ["\n\n"]},
                 {"temperature": 0, "tools": [{"name": TOOL["name"], "description": "w",
                                               "input_schema": TOOL["parameters"]}],
                  "tool_choice": {"type": "any"}}][i // 5 % 3]
        return "/v1/messages", body
    return "/v1/responses", {"instructions": system, "input": text, "temperature": 0,
                             "max_output_tokens": 40, "store": i % 2 == 0}


# ---- what an answer says, whole and as a stream ----

def essence(path, r):
    if path.endswith("/chat/completions"):
        return [(c["index"], c["message"]["content"] or "", c["message"].get("reasoning_content") or "",
                 [(t["function"]["name"], t["function"]["arguments"])
                  for t in c["message"].get("tool_calls") or []],
                 [t["logprob"] for t in (c.get("logprobs") or {}).get("content") or []],
                 c["finish_reason"]) for c in r["choices"]]
    if path.endswith("/completions"):
        return [(c["index"], c["text"], (c["logprobs"] or {}).get("token_logprobs") or [], c["finish_reason"])
                for c in r["choices"]]
    if path.endswith("/messages"):
        return [(b["type"], b.get("text"), b.get("thinking"), b.get("name"), json.dumps(b.get("input")))
                for b in r["content"]] + [(r["stop_reason"], r["usage"]["output_tokens"])]
    return [(o["type"], [c.get("text") for c in o.get("content") or []]) for o in r["output"]] + [r["status"]]


def gathered(path, events):
    """The whole reply that a stream amounts to."""
    if path.endswith("/responses"):
        return next(d["response"] for name, d in events if name in ("response.completed", "response.incomplete"))
    if path.endswith("/messages"):
        return gathered_message(events)
    if path.endswith("/chat/completions"):
        return gathered_chat(events)
    choices = {}
    for _, d in events:
        for c in d["choices"] if isinstance(d, dict) else ():
            m = choices.setdefault(c["index"], {"index": c["index"], "text": "", "logprobs": None})
            m["text"] += c["text"]
            m["finish_reason"] = c["finish_reason"]
            if c.get("logprobs"):
                m["logprobs"] = m["logprobs"] or {"token_logprobs": []}
                m["logprobs"]["token_logprobs"] += c["logprobs"]["token_logprobs"]
    return {"choices": [choices[k] for k in sorted(choices)]}


def gathered_chat(events):
    choices = {}
    for _, d in events:
        for c in d["choices"] if isinstance(d, dict) else ():
            m = choices.setdefault(c["index"], {"content": "", "reasoning_content": "", "tool_calls": [],
                                                "logprobs": [], "finish_reason": None})
            m["content"] += c["delta"].get("content") or ""
            m["reasoning_content"] += c["delta"].get("reasoning_content") or ""
            m["logprobs"] += (c.get("logprobs") or {}).get("content") or []
            m["finish_reason"] = c["finish_reason"] or m["finish_reason"]
            for t in c["delta"].get("tool_calls") or []:
                if t["index"] == len(m["tool_calls"]):
                    m["tool_calls"].append({"function": {"name": t["function"]["name"], "arguments": ""}})
                m["tool_calls"][t["index"]]["function"]["arguments"] += t["function"]["arguments"]
    return {"choices": [{"index": k, "message": m, "logprobs": {"content": m["logprobs"]},
                         "finish_reason": m["finish_reason"]} for k, m in sorted(choices.items())]}


def whole_members(text):
    """Of a call that max_tokens cut: its one argument is there as a whole or not at all."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def gathered_message(events):
    blocks, end = [], {}
    for name, d in events:
        if name == "content_block_start":
            blocks.append(dict(d["content_block"], json=""))
        elif name == "content_block_delta":
            b, x = blocks[-1], d["delta"]
            for key, to in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                if key in x:
                    b[to] = b.get(to, "") + x[key]
        elif name == "message_delta":
            end = d
    for b in blocks:
        if b["type"] == "tool_use":
            b["input"] = whole_members(b["json"] or "{}")
    return {"content": blocks, "stop_reason": end["delta"]["stop_reason"], "usage": end["usage"]}


# ---- a server and its clients ----

class Soak:
    def __init__(self, ingle, name, options, folder, o):
        self.name, self.folder = name, folder
        base = [*options, "-c", "8192", "-q"]
        with Server(ingle, *base, "--parallel", "1") as alone:
            asked = [question(i, o.long) for i in range(o.questions)]
            self.questions = [(p, b, self.alone(alone, p, b)) for p, b in asked]
        self.server = Server(ingle, *base, "--parallel", str(SLOTS), "--cache", "6M", "--store", folder,
                             "--store-size", "24M", "--limit", "waiting=16", "--limit", "retry-grace=0.5",
                             "--stall-timeout", str(o.stall), "--limit", "unread=8K",
                             *(["--max-responses", str(o.max_responses)] if o.max_responses else []))
        self.fill(o.max_responses or 1000)
        self.crowd(SLOTS, 2 * o.long + 700)
        self.go, self.stop = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.counts, self.bad, self.samples = {}, [], []
        self.busy = o.clients
        self.clients = [threading.Thread(target=self.client, args=(i,)) for i in range(o.clients)]
        self.go.set()
        for c in self.clients:
            c.start()

    def alone(self, server, path, body):
        status, _, r = server.post(path, body)
        assert status == 200, (path, body, r)
        return essence(path, r)

    def fill(self, n):
        """Answers like those to come, until no more are kept."""
        asked = [q for p, q, _ in self.questions if p == "/v1/responses" and q["store"]]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for status, _, r in pool.map(lambda i: self.server.post("/v1/responses", asked[i % len(asked)]),
                                         range(n + 8)):
                assert status == 200, r

    def crowd(self, n, long):
        """A prompt of so many words in each slot at once, with nothing in common."""
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            for status, _, r in pool.map(lambda i: self.server.post("/v1/completions", {
                    "prompt": words(1000 + i, long), "max_tokens": 200, "ignore_eos": True}), range(n)):
                assert status == 200, r
                assert r["usage"]["prompt_tokens"] > long, r["usage"]

    def count(self, what, bad=None):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1
            if bad:
                self.bad.append(bad)
                print(f"{self.name}: {bad}", flush=True)

    def client(self, seed):
        r = random.Random(seed)
        while not self.stop.is_set():
            if not self.go.is_set():
                with self.lock:
                    self.busy -= 1
                self.go.wait()
                with self.lock:
                    self.busy += 1
                continue
            kind, q = r.choice(KINDS), r.choice(self.questions)
            try:
                getattr(self, "do_" + kind)(r, *q)
            except BaseException as e:  # told at the end
                self.count("failed", f"{kind} {q[0]} {str(q[1])[-400:]}: {type(e).__name__} {e}")
            self.count(kind)

    def compare(self, kind, path, body, expected, got):
        if json.loads(json.dumps(got)) != json.loads(json.dumps(expected)):
            self.count("wrong", f"{kind} {path} {json.dumps(body)[-400:]}:\n  got  {got}\n  want {expected}")

    def do_ask(self, r, path, body, expected):
        status, _, got = self.server.post(path, body)
        if status == 429:
            self.count("full")
        else:
            assert status == 200, (status, got)
            self.compare("ask", path, body, expected, essence(path, got))

    def do_stream(self, r, path, body, expected):
        try:
            events = self.server.events(path, dict(body, stream=True))
        except AssertionError as e:
            if "429" not in str(e) and "queue is full" not in str(e):
                raise
            self.count("full")
            return
        self.compare("stream", path, body, expected, essence(path, gathered(path, events)))

    def do_leave(self, r, path, body, expected):
        """Reads a little of a stream."""
        with self.server.begin(path, dict(body, stream=True), alone=True) as s:
            for _ in range(r.randrange(4)):
                if not s.recv(500):
                    break

    def do_reset(self, r, path, body, expected):
        s = self.server.begin(path, dict(body, stream=r.random() < 0.5))
        time.sleep(r.random() * 0.05)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    def do_vanish(self, r, path, body, expected):
        """Leaves before the whole request is there."""
        data = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), 60) as s:
            s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                      + data[:r.randrange(len(data))])

    def do_slow(self, r, path, body, expected):
        with self.server.begin(path, dict(body, stream=True), alone=True) as s:
            for _ in range(20):
                if not s.recv(1):
                    break
                time.sleep(0.02)

    def do_garbage(self, r, path, body, expected):
        with socket.create_connection(("127.0.0.1", self.server.port), 60) as s:
            with contextlib.suppress(OSError):
                s.sendall(r.choice([b"", b"POST "]) + r.randbytes(r.randrange(400)))
                s.settimeout(0.2)
                s.recv(1000)

    def do_refused(self, r, path, body, expected):
        bad = r.choice([b"{", b'{"a": 1', b"\xff\xfe", json.dumps(dict(body, temperature="x")),
                        json.dumps({**body, "messages": 5, "prompt": {"a": 1}, "input": 7})])
        status, _, got = self.server.post(path, bad)
        assert status in (400, 429), (status, got)

    def do_late(self, r, path, body, expected):
        status, _, got = self.server.post(path, dict(body, deadline_seconds=0.001 + r.random() * 0.1))
        assert status in (200, 400, 429, 504), (status, got)

    def do_spoil(self, r, path, body, expected):
        """Now and then a file of the store loses a byte or goes."""
        files = []
        with contextlib.suppress(FileNotFoundError):  # nothing was saved yet
            files = [f for f in os.listdir(self.folder) if f.endswith(".kv")]
        if not files or r.random() > 0.1:
            return
        name = os.path.join(self.folder, r.choice(files))
        with contextlib.suppress(OSError):
            if r.random() < 0.5:
                os.unlink(name)
                self.count("removed")
                return
            with open(name, "r+b") as f:
                f.seek(r.randrange(os.path.getsize(name)))
                byte = f.read(1)[0]
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte ^ 1 << r.randrange(8)]))
            self.count("damaged")

    def do_look(self, r, path, body, expected):
        for p in ("/health", "/metrics", "/slots", "/props", "/v1/models"):
            assert self.server.get(p)[0] == 200, p

    # ---- rest ----

    def resting(self):
        text = self.server.get("/metrics")[2]
        self.seen = n = {k: float(v) for k, v in re.findall(r"^(\S+) ([0-9.e+-]+)$", text, re.M)}
        return (n["llamacpp:requests_processing"] + n["llamacpp:requests_deferred"] == 0 and
                n["ingle_http_connections_open"] <= 1)

    def rest(self):
        """All clients pause; (RSS in KiB, descriptors, threads)."""
        self.go.clear()
        end = time.monotonic() + client.TIMEOUT
        while self.busy or not self.resting():
            assert time.monotonic() < end, f"{self.name}: does not come to rest"
            time.sleep(0.05)
        pid = self.server.process.pid
        with open(f"/proc/{pid}/status") as f:
            status = f.read()
        rss = int(re.search(r"RssAnon:\s+(\d+)", status)[1])
        threads = int(re.search(r"Threads:\s+(\d+)", status)[1])
        self.samples.append((rss, len(os.listdir(f"/proc/{pid}/fd")), threads))
        self.go.set()
        return self.samples[-1]

    def close(self):
        self.stop.set()
        self.go.set()
        for c in self.clients:
            c.join()
        assert self.server.close() == 0, "".join(self.server.log[-20:])


# ---- the run ----

def growth(samples, first):
    """What the last quarter of the samples from `first` on has more than their first quarter."""
    late = samples[first:]
    n = max(1, len(late) // 4)
    mean = [[sum(s[k] for s in part) / n for k in range(3)] for part in (late[:n], late[-n:])]
    return mean[0], mean[1]


def report(soak, n_warm):
    """Prints what was seen; False when something is wrong."""
    c = soak.counts
    print(f"{soak.name}: {sum(c.get(k, 0) for k in set(KINDS))} requests: "
          + ", ".join(f"{k} {v}" for k, v in sorted(c.items())))
    ok = not soak.bad
    before, after = growth(soak.samples, n_warm)
    print(f"{soak.name}: after the warm-up {before[0]:.0f} KiB, {before[1]:.1f} descriptors, {before[2]:.1f} "
          f"threads; at the end {after[0]:.0f} KiB, {after[1]:.1f}, {after[2]:.1f}")
    restored = soak.seen['ingle_cache_hits_total{tier="disk"}']
    print(f"{soak.name}: {restored:.0f} prompts restored from the store, {soak.seen['ingle_store_written_total']:.0f} "
          f"files written, {soak.seen['ingle_cache_corrupt_total']:.0f} found damaged")
    if len(soak.samples) > n_warm + 8 and not restored:
        print(f"{soak.name}: the store was not used")
        ok = False
    if len(soak.samples) > n_warm + 8 and after[0] > before[0] * 1.03 + 1024:
        print(f"{soak.name}: memory grows")
        ok = False
    if after[1] > before[1] + 2 or after[2] > before[2] + 0.5: # a file or the connection that asks
        print(f"{soak.name}: descriptors or threads grow")
        ok = False
    return ok


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ingle", help="the program")
    p.add_argument("--minutes", type=float, default=0.4, help="how long (default: %(default)s)")
    p.add_argument("--clients", type=int, default=8, help="of each server (default: %(default)s)")
    p.add_argument("--questions", type=int, default=140, help="different ones (default: %(default)s)")
    p.add_argument("--long", type=int, default=2400, help="words of the longest questions (default: %(default)s)")
    p.add_argument("--max-responses", type=int, default=40,
                   help="answers that the servers keep; 0: as many as by default (default: %(default)s)")
    p.add_argument("--warm", type=float, help="minutes before memory is compared (default: 5, or a third)")
    p.add_argument("--stall", type=int, default=3, help="stall-timeout of the servers, seconds (default: %(default)s)")
    p.add_argument("--patience", type=int, default=client.TIMEOUT,
                   help="seconds until something is taken to hang (default: %(default)s); both more on a busy machine")
    o = p.parse_args()
    client.TIMEOUT = o.patience
    models = {"gemma4": []} | ({"deepseek4": ["-m", V4]} if V4 else {})
    pause = max(5.0, o.minutes * 60 / 120)
    warm = o.warm if o.warm is not None else min(5.0, o.minutes / 3)
    root = tempfile.mkdtemp(prefix="ingle-soak-")
    soaks, n_warm, ok = [], 0, True
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            soaks = list(pool.map(lambda m: Soak(o.ingle, m[0], m[1], os.path.join(root, m[0]), o),
                                  models.items()))
        begun = time.monotonic()
        while (t := time.monotonic() - begun) < o.minutes * 60:
            time.sleep(min(pause, max(0.1, o.minutes * 60 - t)))
            for s in soaks:
                rss, fds, threads = s.rest()
                print(f"{(time.monotonic() - begun) / 60:6.2f} min {s.name:10} {sum(s.counts.values()):8} requests, "
                      f"{len(s.bad)} wrong, {rss} KiB ({s.seen['ingle_responses_kept_bytes'] / 1024:.0f} in "
                      f"{s.seen['ingle_responses_kept']:.0f} answers), {fds} descriptors, {threads} threads", flush=True)
            n_warm += (time.monotonic() - begun) < warm * 60
    finally:
        for s in soaks:
            s.close()
        shutil.rmtree(root, ignore_errors=True)
    ok = all([report(s, n_warm) for s in soaks])
    print("ok" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
