"""tap.py - stands between a client and the server: keeps what both say, and changes requests; standard library alone."""
import http.client, http.server, json, threading, time

HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "host", "proxy-connection")


class Exchange:
    """One request and its answer as they were sent; body is what the client sent, as JSON where it is some."""

    def __init__(self, method, path, headers, raw):
        self.method, self.path, self.headers, self.raw = method, path, headers, raw
        self.status, self.answer, self.answer_headers = None, b"", {}
        self.began, self.ended, self.left = time.monotonic(), None, False
        try:
            self.body = json.loads(raw) if raw else None
        except ValueError:
            self.body = None

    @property
    def events(self):
        """The answer's events: (name or None, data), data as JSON where it is some."""
        out = []
        for block in self.answer.decode(errors="replace").split("\n\n"):
            name, data = None, None
            for line in block.split("\n"):
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data = line[6:]
            if data is not None:
                out.append((name, data if data == "[DONE]" else json.loads(data)))
        return out

    @property
    def json(self):
        return json.loads(self.answer)

    def __repr__(self):
        return f"{self.method} {self.path} {self.status} {self.answer[:300]!r}"


class Tap:
    """Forwards to 127.0.0.1:port; use it with `with`.  change(exchange) may return another JSON body."""

    def __init__(self, port, change=None):
        self.port, self.change, self.exchanges, self.lock = port, change, [], threading.Lock()
        tap = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def forward(self):
                tap.forward(self)

            do_GET = do_POST = do_HEAD = do_DELETE = do_OPTIONS = do_PUT = forward

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.http.shutdown()
        self.http.server_close()

    def forward(self, h):
        raw = h.rfile.read(int(h.headers.get("Content-Length") or 0))
        x = Exchange(h.command, h.path, dict(h.headers.items()), raw)
        with self.lock:
            self.exchanges.append(x)
            changed = self.change(x) if self.change and x.body is not None else None
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            c.request(h.command, h.path, raw if changed is None else json.dumps(changed),
                      {k: v for k, v in h.headers.items() if k.lower() not in HOP})
            r = c.getresponse()
            x.status, x.answer_headers = r.status, dict(r.getheaders())
            h.send_response(r.status)
            for k, v in r.getheaders():
                if k.lower() not in HOP:
                    h.send_header(k, v)
            h.send_header("Transfer-Encoding", "chunked")
            h.end_headers()
            while piece := r.read1(65536):
                x.answer += piece
                if h.command != "HEAD":
                    h.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    h.wfile.flush()
            if h.command != "HEAD":
                h.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            x.left, h.close_connection = True, True
        finally:
            x.ended = time.monotonic()
            c.close()

    def of(self, end):
        """The exchanges whose path, without its query, ends so."""
        return [x for x in self.exchanges if x.path.split("?")[0].endswith(end)]
