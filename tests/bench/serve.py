#!/usr/bin/env python3
"""serve.py - what a server does under load: throughput, time to the first token, gaps.

    serve.py load  out/release/ingle [-m FILE] [--peer URL] [--streams 1,4,16,64]
    serve.py slow  out/release/ingle [--slow 500] [--idle 496]

load: N clients ask at the same moment and stream N answers of the same length; printed are
tokens a second of all together and of one stream, the time to the first token, the gaps
between two pieces of a stream, and how busy the server's I/O thread was.  With --peer the same
load goes to another OpenAI server in turn with ours (both run on the same cores; the one that
is not asked does nothing).

slow: a few clients that read, hundreds that read a byte now and then, hundreds that say
nothing.  Printed are the gaps of those that read, the server's memory before, meanwhile and
afterwards, and how many slow ones were dropped.

Nothing is asserted but that answers arrive.  Standard library only; one thread reads all
sockets, so above some 30,000 pieces a second the client is what is measured."""
import argparse, contextlib, json, os, re, selectors, socket, sys, time, urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))
from client import Server  # noqa: E402


class Stream:
    """A streamed completion: when its pieces came."""

    def __init__(self, host, port, body):
        self.s = socket.create_connection((host, port), 60)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = json.dumps(dict(body, stream=True)).encode()
        self.at, self.n, self.tail, self.over, self.head = [], 0, b"", False, b""

    def ask(self):
        self.began = time.perf_counter()
        self.s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(self.data)
                       + self.data)
        self.s.setblocking(False)

    def read(self):
        """False at its end."""
        piece = self.s.recv(1 << 16)
        now = time.perf_counter()
        if not self.head:
            self.head = piece[:15]
        n = piece.count(b'data: {')
        if n:
            self.at.append(now)
            self.n += n
        self.tail = (self.tail + piece)[-300:]
        self.over = not piece or b"data: [DONE]" in self.tail
        return not self.over


def percentile(values, p):
    v = sorted(values)
    return v[min(len(v) - 1, int(len(v) * p))] if v else 0


def drive(streams, until=None):
    """Reads all streams to their ends, or until that moment."""
    sel = selectors.DefaultSelector()
    for s in streams:
        s.ask()
        sel.register(s.s, selectors.EVENT_READ, s)
    left = len(streams)
    while left and (until is None or time.perf_counter() < until):
        for key, _ in sel.select(1):
            if not key.data.read():
                sel.unregister(key.fileobj)
                key.fileobj.close()
                left -= 1


def gaps(streams):
    return [b - a for s in streams for a, b in zip(s.at, s.at[1:])]


def words(i, n):
    tale = "a cat sat in the sun and saw the river then it said hello to a dog and went home again".split()
    return "Once upon a time " + str(i) + " " + " ".join(tale[(i + k) % len(tale)] for k in range(n))


def round_of(host, port, n, o, salt):
    streams = [Stream(host, port, {"model": "x", "prompt": words(salt * 1000 + i, o.prompt), "temperature": 0,
                                   "max_tokens": o.tokens, "ignore_eos": True, "logit_bias": o.bias})
               for i in range(n)]
    drive(streams)
    bad = [s for s in streams if not s.at or b" 200" not in s.head]
    if bad:
        raise SystemExit(f"{len(bad)} of {n} answers did not come: {bad[0].head} {bad[0].tail}")
    return streams


def summary(streams):
    first = [s.at[0] - s.began for s in streams]
    took = max(s.at[-1] for s in streams) - min(s.began for s in streams)
    each = [(s.n - 1) / (s.at[-1] - s.at[0]) for s in streams if s.at[-1] > s.at[0]]
    return {"all": sum(s.n for s in streams) / took, "each": percentile(each, 0.5), "first": percentile(first, 0.5),
            "first99": percentile(first, 0.99), "gaps": gaps(streams)}


def privilege(server):
    """On a machine with little to spare: the client before the I/O thread before the computing
    ones, and all of them before everybody else."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(3))
    tasks = f"/proc/{server.process.pid}/task"
    for tid in os.listdir(tasks):
        with open(f"{tasks}/{tid}/comm") as f:
            level = 1 if f.read().strip() in ("ingle-engine", "ingle-worker") else 2
        os.sched_setscheduler(int(tid), os.SCHED_FIFO, os.sched_param(level))


def metric(server, name):
    return float(re.search(rf"^{name} (\S+)$", server.get("/metrics")[2], re.M)[1])


def print_row(name, n, rows, io):
    g = [x for r in rows for x in r["gaps"]]
    mean = {k: sum(r[k] for r in rows) / len(rows) for k in ("all", "each", "first", "first99")}
    print(f"{name:8} {n:7} {mean['all']:9.1f} {mean['each']:9.1f} {mean['first'] * 1e3:9.1f} {mean['first99'] * 1e3:9.1f} "
          f"{percentile(g, .5) * 1e3:9.2f} {percentile(g, .99) * 1e3:9.2f} {max(g, default=0) * 1e3:9.1f} {io:>7}", flush=True)


def load(o):
    peer = urllib.parse.urlparse(o.peer) if o.peer else None
    options = ["-c", str(o.ctx), "--parallel", str(max(o.streams)), "--limit", "waiting=256", "-q"] + (["-m", o.m] if o.m else [])
    o.bias = json.loads(o.bias)
    with Server(o.ingle, *options, *o.option) as server:
        if o.realtime:
            privilege(server)
        print(f"{'server':8} {'streams':>7} {'tok/s':>9} {'each':>9} {'first ms':>9} {'p99':>9} {'gap ms':>9} {'p99':>9} "
              f"{'max':>9} {'I/O':>7}")
        round_of("127.0.0.1", server.port, 1, o, 999)
        for n in o.streams:
            ours, theirs, busy, wall = [], [], 0, 0
            for k in range(o.rounds):
                before, began = metric(server, "ingle_io_busy_seconds_total"), time.perf_counter()
                ours.append(summary(round_of("127.0.0.1", server.port, n, o, n * 10 + k)))
                wall += time.perf_counter() - began
                busy += metric(server, "ingle_io_busy_seconds_total") - before
                if peer:
                    theirs.append(summary(round_of(peer.hostname, peer.port, n, o, n * 10 + k)))
            print_row("ingle", n, ours, f"{100 * busy / wall:.1f} %")
            if theirs:
                print_row("peer", n, theirs, "")
        print(f"the I/O thread's longest turn: {metric(server, 'ingle_io_longest_seconds') * 1e3:.1f} ms")


# ---- clients that hardly read ----

def memory(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) / 1024


class Crowd:
    """Slow streams: each reads a byte when it is its turn."""

    def __init__(self, port, n, body):
        self.all = []
        for i in range(n):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            s.connect(("127.0.0.1", port))
            data = json.dumps(dict(body, prompt=words(i, 20), stream=True)).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            s.setblocking(False)
            self.all.append(s)

    def sip(self, part, parts):
        """A byte of each of some."""
        for s in self.all[part::parts]:
            with contextlib.suppress(OSError):
                s.recv(1)

    def close(self):
        for s in self.all:
            s.close()


def slow(o):
    body = {"temperature": 0, "max_tokens": 3000, "ignore_eos": True, "logit_bias": json.loads(o.bias)}
    options = ["-c", "4096", "--parallel", "64", "--limit", "waiting=1024", "-q", "--memory", "2G"]
    with Server(o.ingle, *options, *o.option) as server:
        if o.realtime:
            privilege(server)
        readers = [Stream("127.0.0.1", server.port, dict(body, prompt=words(i, 20), max_tokens=4000, priority=10))
                   for i in range(o.readers)]
        drive([Stream("127.0.0.1", server.port, dict(body, prompt="a", max_tokens=200))])
        print(f"before: {memory(server):.0f} MiB")
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(o.idle)]
        for s in readers:
            s.ask()
        crowd = Crowd(server.port, o.slow, body)
        sel, most, next_sip, turn = selectors.DefaultSelector(), 0, 0, 0
        for s in readers:
            sel.register(s.s, selectors.EVENT_READ, s)
        began = time.perf_counter()
        done = []
        while time.perf_counter() - began < o.seconds:
            for key, _ in sel.select(0.05):
                if not key.data.read():
                    sel.unregister(key.fileobj)
                    done.append(key.data)
                    again = Stream("127.0.0.1", server.port, dict(body, prompt=words(len(done), 20), max_tokens=4000, priority=10))
                    again.ask()
                    sel.register(again.s, selectors.EVENT_READ, again)
            if time.perf_counter() > next_sip:
                next_sip, turn = time.perf_counter() + 0.05, turn + 1
                crowd.sip(turn % 20, 20)
                most = max(most, memory(server))
        live = [k.data for k in sel.get_map().values()]
        g = gaps(done + live)
        print(f"{len(live)} readers beside {o.slow} slow and {o.idle} idle clients, {o.seconds:.0f} s: {len(g)} gaps, "
              f"p50 {percentile(g, .5) * 1e3:.2f} ms, p99 {percentile(g, .99) * 1e3:.2f} ms, max {max(g, default=0) * 1e3:.1f} ms")
        print(f"meanwhile: at most {most:.0f} MiB, {metric(server, 'ingle_http_connections_open'):.0f} connections; "
              f"{metric(server, 'ingle_client_overrun_total'):.0f} slow clients were dropped so far, "
              f"the I/O thread's longest turn {metric(server, 'ingle_io_longest_seconds') * 1e3:.1f} ms")
        crowd.close()
        for s in idle + [x.s for x in live]:
            s.close()
        time.sleep(3)
        print(f"afterwards: {memory(server):.0f} MiB, {metric(server, 'ingle_kv_used_bytes') / 2 ** 20:.0f} of them pages of "
              f"conversations, {metric(server, 'ingle_http_connections_open'):.0f} connections, the I/O thread's longest turn "
              f"{metric(server, 'ingle_io_longest_seconds') * 1e3:.1f} ms")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="what", required=True)
    a = sub.add_parser("load", help="streams at once")
    a.add_argument("-m", help="the model; default: the built-in one")
    a.add_argument("--peer", help="URL of another OpenAI server with the same model")
    a.add_argument("--streams", type=lambda t: [int(x) for x in t.split(",")], default=[1, 4, 16, 64])
    a.add_argument("--tokens", type=int, default=128, help="of an answer (default: %(default)s)")
    a.add_argument("--prompt", type=int, default=24, help="words of a prompt (default: %(default)s)")
    a.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    a.add_argument("--ctx", type=int, default=2048, help="default: %(default)s")
    b = sub.add_parser("slow", help="clients that hardly read")
    b.add_argument("--readers", type=int, default=4, help="default: %(default)s")
    b.add_argument("--slow", type=int, default=500, help="default: %(default)s")
    b.add_argument("--idle", type=int, default=496, help="default: %(default)s")
    b.add_argument("--seconds", type=float, default=30, help="default: %(default)s")
    for x in (a, b):
        x.add_argument("ingle", help="the program")
        x.add_argument("--bias", default='{"1": -100, "50": -100, "106": -100}',
                       help="logit_bias as JSON; default: against the ends of Gemma's turns")
        x.add_argument("--realtime", action="store_true", help="on a busy machine, as root: run before all others")
        x.add_argument("--option", action="append", default=[], help="one more option of ingle serve")
    o = p.parse_args()
    return load(o) if o.what == "load" else slow(o)


if __name__ == "__main__":
    sys.exit(main())
