"""serving - starts `ingle serve` for a test, sends requests, reads streams.  Standard library only."""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
MODELS = ["../shared/models", "../../shared/models"]  # where models lie that a clone has not


class Server:
    """A server on a free port; `with Server([...]) as s:`."""

    def __init__(self, options=(), program=None):
        self.program = program or sys.argv[1]
        self.options = list(options)

    def __enter__(self):
        self.process = subprocess.Popen([self.program, "serve", "--port", "0", *self.options],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.log = []
        self.port = None
        threading.Thread(target=self._read, daemon=True).start()
        self.wait(lambda: self.port and self.get("/health")[0] == 200)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n" +
                                 "".join(self.log))

    def _read(self):
        for line in self.process.stdout:
            text = line.decode(errors="replace")
            found = re.search(r"listens on https?://[^ ]*:(\d+)", text)
            self.log.append(text)
            if found:
                self.port = int(found.group(1))

    def wait(self, done, seconds=120):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError("the server does not answer:\n" + "".join(self.log))
            time.sleep(0.02)

    def open(self, method, path, body=None, headers=None):
        """The connection and the answer, of which nothing was read yet."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        c.request(method, path, data, headers or {})
        return c, c.getresponse()

    def ask(self, method, path, body=None, headers=None):
        c, r = self.open(method, path, body, headers)
        text = r.read()
        c.close()
        return r.status, json.loads(text) if text else None, r.headers

    def get(self, path):
        return self.ask("GET", path)

    def post(self, path, body):
        return self.ask("POST", path, body)

    def stream(self, path, body):
        """The events of a stream: [(name, data)]; comments are ("", text)."""
        c, r = self.open("POST", path, dict(body, stream=True))
        if r.status != 200:
            raise AssertionError(f"{r.status}: {r.read()!r}")
        if r.headers["Content-Type"] != "text/event-stream":
            raise AssertionError(r.headers["Content-Type"])
        text = r.read().decode()
        c.close()
        events = []
        for frame in text.split("\n\n"):
            if not frame:
                continue
            name, data = "", None
            for line in frame.split("\n"):
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data = json.loads(line[6:])
                else:
                    data = line
            events.append((name, data))
        return events


class Case(unittest.TestCase):
    """Tests of one server, started once for a class: `options`."""
    options = ["--temp", "0"]
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.options)
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()


def nano_v4():
    for folder in MODELS:
        path = os.path.join(folder, "nano-v4", "nano-v4-Q8_0.gguf")
        if os.path.exists(path):
            return path
    raise unittest.SkipTest("no nano DeepSeek V4 model here")


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
