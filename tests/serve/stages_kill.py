#!/usr/bin/env python3
"""stages_kill.py INGLE [--kills N] [--seed S] - stages, links and the first process are killed while 8 streams run: what is streamed
is always the text of one process, and each stream is whole or ends with one error."""
import argparse, http.client, json, random, shutil, socket, sys, tempfile, threading, time

from client import TIMEOUT, Server
from worker import MODEL, Proxy, Worker

INGLE = sys.argv[1]
PLAIN = ("-t", "1", "--ctx", "512", "--no-pack-cache", "--draft", "off")
STREAMS, TOKENS = 8, 48
ERRORS = {}  # what streams that ended with an error were told: how often


class Link(Proxy):
    """One that can be cut, and goes on with the next connection."""

    def __init__(self, port):
        self.open = []
        super().__init__(port)

    def accept(self):
        while True:
            try:
                a = self.listener.accept()[0]
            except OSError:
                return
            try:
                b = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # the stage is not there
                a.close()
                continue
            threading.Thread(target=self.copy, args=(a, b, False), daemon=True).start()
            threading.Thread(target=self.copy, args=(b, a, True), daemon=True).start()

    def copy(self, source, to, spoils):
        self.open.append(source)
        super().copy(source, to, spoils)

    def cut(self, first=0):
        for s in self.open[first:]:
            try:
                s.shutdown(2)
            except OSError:
                pass
        del self.open[first:]


def body(i, n=TOKENS):
    return {"prompt": f"Number {i}: one two three", "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}


def tell(why):
    ERRORS[why] = ERRORS.get(why, 0) + 1


def stream(port, i):
    """What came: its text, and "whole", "error" or "cut"."""
    text, end = "", "cut"
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        c.request("POST", "/v1/completions", json.dumps(body(i)), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            tell(f"{r.status} {r.read().decode(errors='replace')[:300]}")
            return text, "error" if r.status >= 500 else f"status {r.status}"
        for line in r:
            line = line.decode().strip()
            if line == "data: [DONE]":
                end = "whole" if end == "cut" else end
            elif line.startswith("data:"):
                data = json.loads(line[5:])
                if "error" in data:
                    end = "error"
                    tell(data["error"]["message"])
                for choice in data.get("choices", ()):
                    text += choice["text"]
        c.close()
    except (OSError, http.client.HTTPException):
        pass
    return text, end


class Run:
    def __init__(self, folder, seed):
        self.random, self.folder = random.Random(seed), folder
        self.counts = {"whole": 0, "error": 0, "cut": 0}
        self.wrong, self.done, self.starting = [], False, False
        plain = Server(INGLE, "-m", MODEL, *PLAIN)
        self.want = [stream(plain.port, i)[0] for i in range(STREAMS)]
        plain.close()
        self.stages = [Worker(f"unix:{folder}/a", "--stage", "2:3", "--ctx", "512", "--no-pack-cache"),
                       Worker("127.0.0.1:0", "--stage", "3:6", "--ctx", "512", "--no-pack-cache")]
        self.link = Link(int(self.stages[1].address.rsplit(":", 1)[1]))
        self.start()

    def start(self):
        self.server = Server(INGLE, "-m", MODEL, *PLAIN, "--stages", f"{self.stages[0].address},127.0.0.1:{self.link.port}",
                             "--parallel", "4")

    def client(self, i):
        while not self.done:
            server = self.server
            text, end = stream(server.port, i)
            if not self.want[i].startswith(text) or (end == "whole" and text != self.want[i]):
                self.wrong.append((i, end, text))
            elif end not in self.counts or (end == "cut" and server is self.server and not self.starting):
                self.wrong.append((i, end, "the first process was there"))
            else:
                self.counts[end] += 1
            if end != "whole":
                time.sleep(0.3)

    def kill(self):
        what = self.random.choice(("stage", "stage", "link", "link", "spoil", "first"))
        if what == "stage":
            k = self.random.randrange(2)
            old = self.stages[k]
            if self.random.random() < 0.5:
                old.process.kill()
            else:
                old.process.terminate()
            old.process.wait(TIMEOUT)
            old.process.stdout.close()
            time.sleep(self.random.random() * 0.3)
            self.stages[k] = Worker(old.address, "--stage", ("2:3", "3:6")[k], "--ctx", "512", "--no-pack-cache")
        elif what == "link":
            self.link.cut()
        elif what == "spoil":
            self.link.how = self.random.choice(("damage", "delay", "cut"))
            time.sleep(0.3)
            self.link.how = "pass"
        else:
            self.starting = True
            self.server.process.kill()
            self.server.process.wait(TIMEOUT)
            self.start()
            self.starting = False
        return what

    def wait_for_one(self):
        """Until a stream has ended well, so that a slow machine gets somewhere."""
        before, end = self.counts["whole"], time.monotonic() + TIMEOUT
        while self.counts["whole"] == before and time.monotonic() < end:
            time.sleep(0.02)

    def run(self, kills):
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(STREAMS)]
        for t in threads:
            t.start()
        kinds = {}
        for _ in range(kills):
            time.sleep(self.random.random() / 2)
            self.wait_for_one()
            what = self.kill()
            kinds[what] = kinds.get(what, 0) + 1
        self.done = True
        for t in threads:
            t.join(TIMEOUT)
        if any(t.is_alive() for t in threads):
            print("hangs:", kinds, self.counts, "".join(self.server.log[-20:]), self.server.get("/props")[2]["runtime"]["stages"])
        assert not any(t.is_alive() for t in threads), "a stream hangs"
        return kinds

    def close(self):
        self.server.close()
        for w in self.stages:
            w.end()
        self.link.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ingle")
    p.add_argument("--kills", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    folder = tempfile.mkdtemp()
    try:
        r = Run(folder, o.seed)
        kinds = r.run(o.kills)
        last = [stream(r.server.port, i) for i in range(STREAMS)]
        r.close()
    finally:
        shutil.rmtree(folder)
    print(f"killed: {kinds}; streams: {r.counts}; wrong: {len(r.wrong)}")
    for why, n in ERRORS.items():
        print(f"error, {n} times: {why}")
    for w in r.wrong[:5]:
        print("wrong:", w)
    assert not r.wrong
    assert last == [(t, "whole") for t in r.want], last
    assert r.counts["whole"] > 0


if __name__ == "__main__":
    main()
