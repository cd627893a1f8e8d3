"""devtools.py - the trace of a Chromium through its DevTools protocol: a WebSocket of its own, because the log of
chromedriver takes a minute for what is here a second."""
import base64, gzip, json, os, socket, struct, urllib.parse, urllib.request

CATEGORIES = ["-*", "toplevel", "devtools.timeline"]


class Socket:
    """A WebSocket to an address ws://HOST:PORT/PATH: texts out and in."""

    def __init__(self, url):
        to = urllib.parse.urlparse(url)
        self.s = socket.create_connection((to.hostname, to.port), timeout=120)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall((f"GET {to.path} HTTP/1.1\r\nHost: {to.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.f = self.s.makefile("rb")
        if b" 101 " not in self.f.readline():
            raise RuntimeError("no WebSocket")
        while self.f.readline().strip():
            pass

    def send(self, text):
        data = text.encode()
        assert len(data) < 65536
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        self.s.sendall(b"\x81" + size + b"\0\0\0\0" + data)  # a mask of zeros changes nothing

    def receive(self):
        out = b""
        while True:
            first, n = self.f.read(2)
            if n == 126:
                n, = struct.unpack(">H", self.f.read(2))
            elif n == 127:
                n, = struct.unpack(">Q", self.f.read(8))
            data = self.f.read(n)
            if first & 15 <= 2:
                out += data
                if first & 0x80:
                    return out.decode()

    def close(self):
        self.f.close()
        self.s.close()


class Trace:
    """begin(), then end(): the events between."""

    def __init__(self, address):
        with urllib.request.urlopen(f"http://{address}/json/version", timeout=120) as r:
            self.socket = Socket(json.load(r)["webSocketDebuggerUrl"])
        self.number = 0

    def call(self, method, **params):
        """The result; and events that come before it are dropped, except the one of the end of a trace."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        return self.until(lambda m: m.get("id") == self.number)

    def until(self, wanted):
        while True:
            m = json.loads(self.socket.receive())
            if "error" in m:
                raise RuntimeError(m["error"])
            if wanted(m):
                return m.get("result", m.get("params"))

    def begin(self):
        self.call("Tracing.start", transferMode="ReturnAsStream", streamCompression="gzip",
                  traceConfig={"recordMode": "recordAsMuchAsPossible", "includedCategories": CATEGORIES[1:], "excludedCategories": ["*"]})

    def end(self):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": "Tracing.end", "params": {}}))
        done = self.until(lambda m: m.get("method") == "Tracing.tracingComplete")
        data = b""
        while True:
            part = self.call("IO.read", handle=done["stream"], size=1 << 20)
            data += base64.b64decode(part["data"]) if part.get("base64Encoded") else part["data"].encode()
            if part["eof"]:
                break
        self.call("IO.close", handle=done["stream"])
        return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
