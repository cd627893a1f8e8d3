"""client.py - starts `ingle serve` and speaks HTTP with it; standard library alone."""
import faulthandler, http.client, json, os, re, socket, subprocess, sys, threading, unittest

from wait import until

faulthandler.dump_traceback_later(1100)  # where a test that hangs is, before its limit (scripts/test_all.py)
TIMEOUT = 300  # of one thing that a test waits for, on a machine many times slower than ours
SANITIZED = "INGLE_TEST_SANITIZED" in os.environ  # the server is many times slower: less of the same
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HOT = {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0}  # anything may be drawn


class Server:
    """A server process on a free port; use it with `with`."""

    def __init__(self, ingle, *options):
        self.process = subprocess.Popen([ingle, "serve", "--port", "0", *options], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        self.log = []
        self.port = None
        for line in self.process.stdout:
            self.log.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        if not self.port:
            self.process.stdout.close()
            self.process.wait(TIMEOUT)
            raise RuntimeError("the server did not start: " + "".join(self.log))
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        until(lambda: self.get("/health")[0] == 200)

    def read(self):
        for line in self.process.stdout:
            self.log.append(line)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            status = self.process.wait(TIMEOUT)
            self.reader.join()
            return status
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def get(self, path, headers=None):
        return self.request("GET", path, None, headers)

    def open(self, method, path, body=None, headers=None):
        """The connection and the answer, of which nothing was read yet."""
        c = self.connect()
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        return c, c.getresponse()

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body); the body as JSON where it is some."""
        c, r = self.open(method, path, body, headers)
        raw = r.read()
        c.close()
        if "json" in (r.getheader("Content-Type") or ""):
            return r.status, r.headers, json.loads(raw)
        return r.status, r.headers, raw.decode()

    def post(self, path, body, headers=None):
        return self.request("POST", path, body, headers)

    def events(self, path, body, headers=None):
        """The events of a stream: a list of (event name or None, data); comments are
        ("comment", text).  Fails when the answer is no stream."""
        c, r = self.open("POST", path, body, headers)
        raw = r.read().decode()
        c.close()
        assert r.status == 200, (r.status, raw)
        assert r.getheader("Content-Type") == "text/event-stream", r.getheader("Content-Type")
        assert raw.endswith("\n\n"), raw[-200:]
        out = []
        for block in raw[:-2].split("\n\n"):
            name, data = None, None
            for line in block.split("\n"):
                if line.startswith(":"):
                    out.append(("comment", line[1:].strip()))
                elif line.startswith("event: "):
                    name = line[7:]
                else:
                    assert line.startswith("data: "), block
                    data = line[6:]
            if data is not None:
                out.append((name, data if data == "[DONE]" else json.loads(data)))
        return out

    def stream(self, path, body):
        """events() of a body that asks for a stream."""
        return self.events(path, dict(body, stream=True))

    def begin(self, path, body, key=None, alone=False):
        """Sends a request and does not wait: a socket that has not been read; alone: the server closes it
        behind the answer, so that one that is short has an end."""
        s = socket.create_connection(("127.0.0.1", self.port), TIMEOUT)
        data = json.dumps(body).encode()
        who = f"Authorization: Bearer {key}\r\n" if key else ""
        who += "Connection: close\r\n" if alone else ""
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{who}Content-Length: {len(data)}\r\n\r\n"
                  .encode() + data)
        return s


def together(functions):
    """Runs all of them at once; their results in order.  What one raises is raised here."""
    results, errors = [None] * len(functions), []

    def run(i, f):
        try:
            results[i] = f()
        except BaseException as e:  # told to the caller
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i, f)) for i, f in enumerate(functions)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


class Case(unittest.TestCase):
    """Tests of one server, started once for a class: `options`."""
    options = ["--temp", "0"]
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(sys.argv[1], *cls.options)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.close() == 0, "".join(cls.server.log)


def nano_v4():
    """The small DeepSeek V4 model."""
    return "tests/data/nano-v4/nano-v4-MXFP4.gguf"


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
