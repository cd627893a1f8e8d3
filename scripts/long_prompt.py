#!/usr/bin/env python3
"""long_prompt.py INGLE MODEL [--tokens N] [--beside DEPTH] [--marks N] [-- OPTION ...]

One prompt of N tokens (131072) through `ingle serve`, as a client sees it; the tokens are the same in each run.  Prints
  rate     tokens/s by depth, from the progress that the server sends
  beside   the gaps between the tokens of another answer, which begins when the prompt is DEPTH tokens deep (a quarter of N), and the prompt's
           rate meanwhile
  memory   the largest memory of the process, beside what `ingle inspect --plan` said; files that are mapped are counted apart
  cancel   seconds from a closed connection to a free slot, behind the N tokens, and processor seconds in the two seconds after it
Behind "--" options for the server (`--sparse on`, `--kv q8r`, ...)."""
import argparse, http.client, json, os, socket, statistics, subprocess, sys, threading, time

ANSWER, MORE = 64, 8192


class Server:
    def __init__(self, a):
        self.p = subprocess.Popen([a.ingle, "serve", "-m", a.model, "--port", "0", "--parallel", "2", "--draft", "off", *a.common],
                                  stdout=subprocess.PIPE, text=True)
        self.port = 0
        said = []
        for line in self.p.stdout:
            said.append(line)
            if "listens on http://" in line:
                self.port = int(line.split("http://")[1].split(":")[1].split("/")[0].split()[0])
                break
        if not self.port:
            sys.exit("the server does not start:\n" + "".join(said))
        threading.Thread(target=lambda: [line for line in self.p.stdout], daemon=True).start()

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.read()

    def stream(self, body):
        """(connection, events as they come, each with its time)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        c.request("POST", "/completion", json.dumps(dict(body, stream=True, temperature=0, ignore_eos=True)), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            sys.exit(r.read().decode())
        def events():
            for line in r:
                if line.startswith(b"data: {"):
                    yield time.monotonic(), json.loads(line[6:])
        return c, events()

    def status(self):
        with open(f"/proc/{self.p.pid}/status") as f:
            return {w[0][:-1]: int(w[1]) << 10 for w in map(str.split, f) if len(w) == 3 and w[2] == "kB"}

    def processor_seconds(self):
        with open(f"/proc/{self.p.pid}/stat") as f:
            return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def tokens(n, salt=0):
    return [300 + (i * 7919 + salt) % 1700 for i in range(n)]


def beside(server, out):
    times = [t for t, e in server.stream({"prompt": tokens(32, 5), "n_predict": ANSWER})[1] if e.get("tokens")]
    out += [b - c for b, c in zip(times[1:], times)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ingle")
    p.add_argument("model")
    p.add_argument("--tokens", type=int, default=131072)
    p.add_argument("--beside", type=int, default=0)
    p.add_argument("--marks", type=int, default=8, help="lines of the table of rates")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    a = p.parse_args(sys.argv[1:at])
    a.common = ["--ctx", str(a.tokens + MORE + 256), *sys.argv[at + 1:]]
    said = subprocess.run([a.ingle, "inspect", "--plan", "--json", "-m", a.model, "--draft", "off", *a.common], capture_output=True, text=True)
    if said.returncode:
        sys.exit(said.stderr.strip())
    plan = json.loads(said.stdout)
    server = Server(a)
    gaps, most, marks, other = [], {}, [(0, time.monotonic())], None
    start = marks[0][1]
    for t, e in server.stream({"prompt": tokens(a.tokens), "n_predict": 1, "return_progress": True})[1]:
        progress = e.get("prompt_progress")
        for k, v in server.status().items():
            most[k] = max(v, most.get(k, 0))
        if not progress:
            continue
        marks.append((progress["processed"], t))
        if not other and marks[-1][0] >= (a.beside or a.tokens // 4):
            other = threading.Thread(target=beside, args=(server, gaps))
            other.start()
    end = time.monotonic()
    if other:
        other.join()
    print(f"prompt  {a.tokens} tokens, {end - start:.1f} s, {a.tokens / (end - start):.0f} t/s")
    part = a.tokens / a.marks
    first = marks[0]
    for m in marks[1:]:
        if m[0] - first[0] >= part or m is marks[-1] and m[0] > first[0]:
            print(f"rate    {first[0]:7} to {m[0]:7}  {(m[0] - first[0]) / (m[1] - first[1]):8.1f} t/s")
            first = m
    if gaps:
        print(f"beside  gaps of {len(gaps) + 1} tokens: median {statistics.median(gaps) * 1e3:.0f} ms, largest {max(gaps) * 1e3:.0f} ms")
    print(f"memory  {most['RssAnon'] / 2**20:.0f} MiB, and {most['RssFile'] / 2**20:.0f} MiB of files that are mapped; planned {plan['total_bytes'] / 2**20:.0f} MiB")
    c, events = server.stream({"prompt": tokens(a.tokens) + tokens(MORE, 9), "n_predict": 1, "return_progress": True})
    for _, e in events:
        if e.get("prompt_progress", {}).get("processed", 0) > a.tokens:
            break
    c.sock.shutdown(socket.SHUT_RDWR)
    left = time.monotonic()
    while any(s["is_processing"] for s in json.loads(server.get("/slots")[1])):
        time.sleep(0.01)
    free, used = time.monotonic() - left, server.processor_seconds()
    time.sleep(2)
    print(f"cancel  behind {a.tokens} tokens: {free:.2f} s; {server.processor_seconds() - used:.2f} processor seconds in the 2 s after it")
    server.p.terminate()
    return server.p.wait()


if __name__ == "__main__":
    sys.exit(main())
