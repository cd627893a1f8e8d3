#!/usr/bin/env python3
"""bench_stages.py INGLE MODEL CUT LAYERS [--rates 1gbit,10gbit,none] [--delays 0,1] [--rounds N] [--prompt N] [--answer N]

One process on one core, and the engine on that core with a stage (layers CUT to LAYERS - 1) on another one, in turns.  The stage is
in a network namespace of its own; `tc tbf` limits the rate of both directions; `tc netem` delays, or where the kernel has none a
proxy of this script.
Prints medians in tokens a second, ratios to one process, and the bytes that cross the border for a token.  Needs root; with
`chrt -f 50`, programs of others wait."""
import argparse, json, os, queue, signal, socket, statistics, subprocess, sys, threading, time

NAME = f"ingle{os.getpid()}"


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


class Late:
    """Passes bytes on from an address here to 10.99.0.2:7070, each way so many milliseconds later."""

    def __init__(self, ms):
        self.s = ms / 1e3
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            a = self.listener.accept()[0]
            b = socket.create_connection(("10.99.0.2", 7070))
            for s in a, b:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for x, y in ((a, b), (b, a)):
                on_way = queue.Queue()
                threading.Thread(target=self.take, args=(x, on_way), daemon=True).start()
                threading.Thread(target=self.give, args=(y, on_way), daemon=True).start()

    def take(self, s, on_way):
        while True:
            try:
                data = s.recv(1 << 20)
            except OSError:
                data = b""
            on_way.put((time.monotonic() + self.s, data))
            if not data:
                return

    def give(self, s, on_way):
        while True:
            at, data = on_way.get()
            time.sleep(max(0, at - time.monotonic()))
            try:
                if not data:
                    return s.shutdown(socket.SHUT_WR)
                s.sendall(data)
            except OSError:
                return


def has_netem():
    r = subprocess.run(["ip", "netns", "exec", NAME, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"], capture_output=True)
    return r.returncode == 0


def net(rate, delay):
    """A pair of ends: 10.99.0.1 here, 10.99.0.2 there."""
    subprocess.run(["ip", "link", "del", f"{NAME}a"], capture_output=True)
    run("ip", "link", "add", f"{NAME}a", "type", "veth", "peer", "name", f"{NAME}b", "netns", NAME)
    run("ip", "addr", "add", "10.99.0.1/24", "dev", f"{NAME}a")
    run("ip", "link", "set", f"{NAME}a", "up")
    inside = ["ip", "netns", "exec", NAME]
    run(*inside, "ip", "addr", "add", "10.99.0.2/24", "dev", f"{NAME}b")
    run(*inside, "ip", "link", "set", f"{NAME}b", "up")
    for at, dev in (([], f"{NAME}a"), (inside, f"{NAME}b")):
        if rate != "none":
            run(*at, "tc", "qdisc", "add", "dev", dev, "root", "tbf", "rate", rate, "burst", "256k", "latency", "100ms")
        elif delay:
            run(*at, "tc", "qdisc", "add", "dev", dev, "root", "netem", "delay", f"{delay / 2}ms")


def on(core, realtime):
    return ([*"chrt -f 50".split()] if realtime else []) + ["taskset", "-c", str(core)]


def bench(o, *more):
    """Tokens a second of the prompt and of the answer, as far as they are measured."""
    r = subprocess.run([*on(o.cores[0], o.realtime), o.ingle, "bench", "-m", o.model, "-t", "1", "-r", "1", "-p", str(o.prompt), "-g",
                        str(o.answer), "--json", "-q", *more], capture_output=True, text=True)
    if r.returncode:
        sys.exit(r.stderr)
    lines = [json.loads(line) for line in r.stdout.splitlines()]
    o.cpu = lines[0]["cpu"]
    return {line["test"]: line["per_s"] for line in lines}


def moved():
    return sum(int(open(f"/sys/class/net/{NAME}a/statistics/{way}_bytes").read()) for way in ("rx", "tx"))


def with_stage(o, rate, delay):
    late = Late(delay / 2) if delay and not o.netem else None
    net(rate, delay if o.netem else 0)
    worker = subprocess.Popen(["ip", "netns", "exec", NAME, *on(o.cores[1], o.realtime), o.ingle, "worker", "-m", o.model, "-t", "1", "--stage",
                               f"{o.cut}:{o.layers}", "--listen", "10.99.0.2:7070", "--worker-plain"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        if "listening" not in worker.stdout.readline():
            sys.exit("the stage did not start")
        before = moved()
        return bench(o, "--stages", late.address if late else "10.99.0.2:7070", "--worker-plain"), moved() - before
    finally:
        worker.terminate()
        worker.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ingle")
    p.add_argument("model")
    p.add_argument("cut", type=int)
    p.add_argument("layers", type=int)
    p.add_argument("--rates", default="1gbit,10gbit,none")
    p.add_argument("--delays", default="0", help="milliseconds there and back, without a limit of the rate")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--answer", type=int, default=32)
    p.add_argument("--cores", default="0,1")
    p.add_argument("--realtime", action="store_true", help="chrt -f 50")
    o = p.parse_args()
    o.cores = o.cores.split(",")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the namespace goes in any case
    run("ip", "netns", "add", NAME)
    o.netem = has_netem()
    try:
        ways = [(r, 0) for r in o.rates.split(",")] + [("none", float(d)) for d in o.delays.split(",") if float(d)]
        for rate, delay in ways:
            got, n_bytes = [], []
            for _ in range(o.rounds):
                one = bench(o)
                two, moved_bytes = with_stage(o, rate, delay)
                got.append((one, two))
                n_bytes.append(moved_bytes)
            for test in got[0][0]:
                alone = statistics.median(one[test] for one, _ in got)
                ratio = [two[test] / one[test] for one, two in got]
                print(f"{rate}, {delay:g} ms, {test}: one process {alone:.2f} t/s, ratio {statistics.median(ratio):.3f} "
                      f"({min(ratio):.3f} to {max(ratio):.3f})", flush=True)
            print(f"  {statistics.median(n_bytes) / 1e3:.0f} kB crossed in all; {o.cpu}", flush=True)
    finally:
        subprocess.run(["ip", "link", "del", f"{NAME}a"], capture_output=True)
        run("ip", "netns", "del", NAME)


if __name__ == "__main__":
    main()
