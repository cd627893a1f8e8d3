#!/usr/bin/env python3
"""faults.py INGLE - clients that are slow, broken, hostile or gone; after each of them a
normal request is answered."""
import contextlib, hashlib, http.client, json, os, random, resource, signal, socket, ssl, subprocess, sys
import tempfile, time, unittest

from client import TIMEOUT, Case, Server, main
from wait import LASTS, STAYS, attempts, busy, read_until, until

INGLE = sys.argv[1]
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
LONG = {"messages": [{"role": "user", "content": " ".join(str(i % 140) for i in range(1300))}],
        "max_tokens": 4, "temperature": 0}


def hear(s):
    """All that comes until the server hangs up."""
    s.settimeout(TIMEOUT)
    out = b""
    try:
        while part := s.recv(65536):
            out += part
    except ConnectionError:
        pass
    return out


def status_of(answer):
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.") else 0


class WithServer(Case):
    options = []

    def tearDown(self):
        self.well()

    def well(self):
        status, _, r = self.server.post("/v1/chat/completions", QUESTION)
        self.assertEqual(status, 200, r)
        self.assertTrue(r["choices"][0]["message"]["content"])

    def dial(self):
        return socket.create_connection(("127.0.0.1", self.server.port), TIMEOUT)

    def send(self, data):
        """What comes back for these bytes."""
        with self.dial() as s:
            with contextlib.suppress(OSError):
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
            return hear(s)

    def metric(self, name):
        text = self.server.get("/metrics")[2]
        return sum(float(line.split()[-1]) for line in text.splitlines()
                   if line.startswith(name) and not line.startswith("#"))


class Bytes(WithServer):
    options = ["--limit", "body=64M"]

    def test_garbage(self):
        r = random.Random(1)
        for i in range(100):
            data = r.randbytes(r.randrange(1, 3000))
            if i % 2:
                data = b"GET / HTTP/1.1\r\nHost: a\r\n" + data + b"\r\n\r\n"
            self.assertIn(status_of(self.send(data)), (0, 200, 400, 403, 404, 405, 413, 431, 501, 505))

    def test_bad_heads(self):
        body = b'{"messages":[]}'
        length = b"Content-Length: %d\r\n" % len(body)
        for more, status in [(length + length, 400),
                             (length + b"Transfer-Encoding: chunked\r\n", 400),
                             (b"Transfer-Encoding: gzip, chunked\r\n", 400),
                             (length + b"X: a\0b\r\n", 400),
                             (length + b"X: a\x01\r\n", 400),
                             (b"Content-Length: -1\r\n", 400),
                             (b"Content-Length: 1e3\r\n", 400),
                             (b"Content-Length: 68719476736\r\n", 413),
                             (b"X: " + b"a" * 70000 + b"\r\n", 431)]:
            answer = self.send(HEAD + more + b"\r\n" + body)
            self.assertEqual(status_of(answer), status, (more[:60], answer[:200]))
            if status == 400 and b"json" in answer:
                self.assertIn(b'"invalid_request_error"', answer)
        for target, host, status in [(b"http://evil.example/health", b"localhost", 400),
                                     (b"http://localhost/health", b"localhost", 200),
                                     (b"http://localhost", b"LOCALHOST", 200),
                                     (b"/health", b"localhost:evil.example", 403),
                                     (b"/health", b"localhost:8080", 200)]:
            answer = self.send(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
            self.assertEqual(status_of(answer), status, (target, host, answer[:200]))
        chunked = b"POST /tokenize HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        self.assertEqual(status_of(self.send(chunked)), 400)
        self.assertEqual(status_of(self.send(b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n")), 414)

    def test_json(self):
        for body in [b"", b"{", b"[]", b"1", b'{"messages":' + b"[" * 100000, b'{"messages":NaN}',
                     b"{'messages':[]}", b'{"messages":[]}x', b'{"a":1,"a":2,"messages":[]}',
                     b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
                     b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
                     b'{"messages":[{"role":"user","content":"a\nb"}]}']:
            for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"]:
                status, _, r = self.server.post(path, body)
                self.assertEqual(status, 400, (path, body[:50], r))
                self.assertTrue(r["error"]["message"])
        status, _, r = self.server.post("/tokenize", b'{"content": "a \\ud83d b"}')
        self.assertEqual(status, 200, r)

    def test_body_of_64_mib(self):
        with self.dial() as s:
            s.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (64 << 20))
            chunk = b" " * (1 << 20)
            for _ in range(64):
                s.sendall(chunk)
            s.settimeout(TIMEOUT)
            self.assertEqual(status_of(s.recv(65536)), 400)  # read whole, and no JSON
        with self.dial() as s:
            s.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % ((64 << 20) + 1))
            self.assertEqual(status_of(s.recv(65536)), 413)
        with self.dial() as s:  # as chunks: nobody says how large it becomes
            with contextlib.suppress(ConnectionError):
                s.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(65):
                    s.sendall(b"100000\r\n" + chunk + b"\r\n")
                s.sendall(b"0\r\n\r\n")
            self.assertEqual(status_of(s.recv(65536)), 413)

    def test_many_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        want = 1000 if hard == resource.RLIM_INFINITY or hard > 1200 else hard - 200
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, want + 200), hard))
        try:
            with contextlib.ExitStack() as all_of_them:
                sockets = [all_of_them.enter_context(self.dial()) for _ in range(want)]
                for s in sockets[::2]:
                    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                for s in sockets[::2]:
                    s.settimeout(TIMEOUT)
                    self.assertEqual(status_of(s.recv(4096)), 200)
                self.well()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        until(lambda: self.metric("ingle_http_connections_open") < 50)


class Leaving(WithServer):
    options = ["-c", "4096", "--chunk", "64", "--limit", "retry-grace=0.1"]

    def test_during_the_prompt(self):
        before = self.metric("ingle_client_gone_total")
        for _ in range(5):
            s = self.server.begin("/v1/chat/completions", LONG)
            time.sleep(0.01)
            s.close()
        until(lambda: self.metric("llamacpp:requests_processing") == 0)
        self.assertGreaterEqual(self.metric("ingle_client_gone_total"), before)

    def test_during_the_answer(self):
        body = {**QUESTION, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        for _ in range(10):
            s = self.server.begin("/v1/chat/completions", body)
            s.settimeout(TIMEOUT)
            self.assertEqual(status_of(s.recv(100)), 200)
            s.close()
        until(lambda: self.metric("llamacpp:requests_processing") == 0)

    def test_half_closed(self):
        s = self.server.begin("/v1/chat/completions", {**LONG, "max_tokens": 2000, "ignore_eos": True})
        s.shutdown(socket.SHUT_WR)
        hear(s)
        s.close()
        until(lambda: self.metric("llamacpp:requests_processing") == 0)

    def test_sigpipe(self):
        for _ in range(10):
            self.server.process.send_signal(signal.SIGPIPE)
        self.well()


class Slow(WithServer):
    options = ["--limit", "header-timeout=0.5", "--limit", "body-timeout=0.5", "--limit", "idle-timeout=0.5",
               "--limit", "stall-timeout=0.5"]

    def well(self):
        """A client that is stopped for half a second is slow, too."""
        for _ in attempts("an answer"):
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.server.post("/v1/chat/completions", QUESTION)[0] == 200:
                    break

    def metric(self, name):
        for _ in attempts("metrics"):
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                return super().metric(name)

    def test_slow_header_body_and_idle(self):
        for start in [b"", b"GET / HT", HEAD, HEAD + b"Content-Length: 9\r\n\r\n{",
                      b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"]:
            with self.dial() as s:
                s.sendall(start)
                hear(s)  # returns when the server hangs up
        with self.dial() as s:  # a byte now and then does not help
            with contextlib.suppress(ConnectionError):
                for i in range(40):
                    s.sendall(HEAD[i:i + 1])
                    time.sleep(0.1)
            self.assertEqual(hear(s), b"")

    def test_reader_that_does_not_read(self):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", self.server.port))
            body = json.dumps({"prompt": LONG["messages"][0]["content"], "max_tokens": 1, "echo": True,
                               "logprobs": 5}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
                      % len(body) + body)
            until(lambda: self.metric("ingle_client_overrun_total") > 0)
            until(lambda: self.metric("llamacpp:requests_processing") == 0)


class Access(WithServer):
    KEY = "sk-0123456789"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.keys = os.path.join(cls.folder.name, "keys")
        with open(os.open(cls.keys, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write(f"# keys\nalice:{cls.KEY}\n\n  another-key  \n")
        cls.server = Server(INGLE, "--api-key-file", cls.keys, "--allowed-host", "models.example",
                            "--cors-origins", "https://app.example")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def well(self):
        status, _, r = self.server.post("/v1/chat/completions", QUESTION,
                                        {"Authorization": "Bearer " + self.KEY})
        self.assertEqual(status, 200, r)

    def test_keys(self):
        for headers, status in [({}, 401), ({"Authorization": "Bearer " + self.KEY}, 200),
                                ({"authorization": "bearer  another-key"}, 200),
                                ({"X-Api-Key": self.KEY}, 200), ({"X-Api-Key": "sk-"}, 401),
                                ({"Authorization": self.KEY}, 401),
                                ({"Authorization": "Bearer " + self.KEY + "x"}, 401),
                                ({"Authorization": "Bearer alice:" + self.KEY}, 401),
                                ({"Authorization": "Bearer " + "x" * 9000}, 401)]:
            got, h, r = self.server.post("/v1/chat/completions", QUESTION, headers)
            self.assertEqual(got, status, (headers, r))
            self.assertTrue(h["x-request-id"].startswith("req_"))
            if status == 401:
                self.assertEqual(r["error"]["type"], "authentication_error")
        status, _, r = self.server.post("/v1/messages", {})
        self.assertEqual((status, r["type"], r["error"]["type"]), (401, "error", "authentication_error"))
        for path, status in [("/health", 200), ("/v1/health", 200), ("/models", 200),
                             ("/v1/models/", 200), ("/", 200), ("/props", 401), ("/metrics", 401),
                             ("/slots", 401), ("/nothing", 401)]:
            self.assertEqual(self.server.get(path)[0], status, path)

    def test_affinity(self):
        for headers, more, want in [({}, {}, "alice"), ({"X-Conversation-Id": "c1"}, {"prompt_cache_key": "p"}, "c1"),
                                    ({"X-Claude-Code-Session-Id": "c2"}, {}, "c2"), ({}, {"prompt_cache_key": "p"}, "p"),
                                    ({"Session-Id": "s"}, {"prompt_cache_key": 7}, "s"),
                                    ({}, {"prompt_cache_key": "p" * 257}, "alice"),
                                    ({}, {"prompt_cache_key": "a\r\nb: c"}, None)]:
            for path, body in (("/v1/chat/completions", QUESTION), ("/v1/messages", QUESTION),
                               ("/v1/responses", {"input": "Hello", "max_output_tokens": 4})):
                if "messages" in path and more:
                    continue
                for stream in (False, True):
                    c, r = self.server.open("POST", path, {**body, **more, "stream": stream},
                                            {"Authorization": "Bearer " + self.KEY, **headers})
                    r.read()
                    c.close()
                    self.assertEqual((r.status, r.getheader("x-affinity-key")), (200, want), (path, headers, more))

    def test_hosts_and_origins(self):
        for headers, status in [({"Host": "evil.example"}, 403), ({"Host": "evil.example:80"}, 403),
                                ({"Host": "models.example"}, 200), ({"Host": "Localhost:1"}, 200),
                                ({"Host": "[::1]:8080"}, 200), ({"Host": "192.168.1.7"}, 200),
                                ({"Host": "127.0.0.1.evil.example"}, 403),
                                ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403),
                                ({"Origin": "https://app.example"}, 200),
                                ({"Origin": "http://localhost:9", "Host": "localhost:9"}, 200),
                                ({"Sec-Fetch-Site": "cross-site"}, 403),
                                ({"Sec-Fetch-Site": "same-origin"}, 200)]:
            got, h, r = self.server.get("/health", headers)
            self.assertEqual(got, status, (headers, r))
            allowed = "https://app.example" if headers.get("Origin") == "https://app.example" else None
            self.assertEqual(h["Access-Control-Allow-Origin"], allowed)
        got, h, _ = self.server.request("OPTIONS", "/v1/chat/completions", None, {
            "Origin": "https://app.example", "Access-Control-Request-Headers": "x-one"})
        self.assertEqual((got, h["Access-Control-Allow-Headers"]), (200, "x-one"))

    def test_methods_and_paths(self):
        auth = {"Authorization": "Bearer " + self.KEY}
        for method, path, status in [("GET", "/v1/chat/completions", 405), ("POST", "/health", 405),
                                     ("GET", "/v1/nothing", 404), ("POST", "/v1/embeddings", 501),
                                     ("GET", "/v1/models/none", 404)]:
            self.assertEqual(self.server.request(method, path, None, auth)[0], status, path)
        with self.dial() as s:
            s.sendall(b"HEAD /health HTTP/1.0\r\n\r\n")
            answer = hear(s)
            self.assertEqual(status_of(answer), 200)
            self.assertTrue(answer.endswith(b"\r\n\r\n"))


class Starting(unittest.TestCase):
    def refused(self, word, *options, status=1):
        r = subprocess.run([INGLE, "serve", "--port", "0", *options], capture_output=True, text=True,
                           timeout=TIMEOUT)
        self.assertEqual(r.returncode, status, r)
        self.assertIn(word, r.stderr)
        self.assertNotIn("listens", r.stdout)

    def test_what_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w") as f:
                f.write("key\n")
            os.chmod(keys, 0o644)
            self.refused("chmod 600", "--api-key-file", keys)
            if os.getuid() == os.getgid() == 0:
                os.chmod(keys, 0o440)  # as systemd's credentials are
                self.refused("nowhere.gguf", "--api-key-file", keys, "-m", "nowhere.gguf")
                os.chown(keys, 0, 1)
                self.refused("mode 440", "--api-key-file", keys)
                os.chown(keys, 0, 0)
            os.chmod(keys, 0o600)
            with open(keys, "w") as f:
                f.write("# none\n")
            self.refused("has no key", "--api-key-file", keys)
            with open(keys, "w") as f:
                f.write("ann:one-key\nbob:one-key\n")
            self.refused("line 2: the same key as 'ann'", "--api-key-file", keys)
            named = "key-" + hashlib.sha256(b"one-key").hexdigest()[:16]
            for text in (f"one-key\n{named}:another\n", f"{named}:another\none-key\n"):  # two clients would be one
                with open(keys, "w") as f:
                    f.write(text)
                self.refused("reserved for keys without a name", "--api-key-file", keys)
            with open(keys, "w") as f:
                f.write("ann:one-key\n")
            self.refused("no key is called 'bob'", "--api-key-file", keys, "--max-priority", "bob=3")
            self.refused("N or NAME=N", "--api-key-file", keys, "--max-priority", "ann=11")
        self.refused("--insecure-no-auth", "--host", "0.0.0.0")
        self.refused("--insecure-no-auth", "--host", "::ffff:192.0.2.1")
        self.refused("--tls-key", "--tls-cert", "tests/data/tls/cert.pem")
        self.refused("certificate", "--tls-cert", "README.md", "--tls-key", "README.md")
        self.refused("private key", "--tls-cert", "tests/data/tls/cert.pem", "--tls-key", "README.md")
        for origin in ("app.example", "https://app.example/", "https://app.example/page", "https://"):
            self.refused("is not an origin", "--cors-origins", origin)
        for name in ("https://models.example", "models.example:8080", "models.example/v1", "two names"):
            self.refused("only a name", "--allowed-host", name)
        self.refused("a second model", "-m", "README.md", "-m", "LICENSE", status=2)
        self.refused("256.1.1.1", "--host", "256.1.1.1")
        self.refused("needs a path", "--host", "unix:")
        self.refused("needs a value", "--alias", "", status=2)
        self.refused("outside 1 to 65536", "--limit", "waiting=0", status=2)  # it would have been 64
        self.refused("vocabulary of 2048", "--logit-bias", "99999999=1", "--memory", "8M")  # before the plan
        self.refused("nowhere.gguf", "-m", "nowhere.gguf")
        self.refused("prompt drafter: nowhere.gguf", "--prompt-drafter", "nowhere.gguf")

    def test_tls(self):
        p = subprocess.Popen([INGLE, "serve", "--port", "0", "--tls-cert", "tests/data/tls/cert.pem",
                              "--tls-key", "tests/data/tls/key.pem"], stdout=subprocess.PIPE, text=True)
        try:
            port = int(p.stdout.readline().rsplit(":", 1)[1])
            context = ssl.create_default_context(cafile="tests/data/tls/cert.pem")
            for line in p.stdout:
                if line.startswith("try"):
                    break
            for _ in range(3):
                c = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=TIMEOUT)
                c.request("POST", "/v1/chat/completions", json.dumps({**QUESTION, "stream": True}))
                self.assertTrue(c.getresponse().read().endswith(b"data: [DONE]\n\n"))
                c.close()
            with socket.create_connection(("127.0.0.1", port)) as s:
                s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")  # no TLS
                hear(s)
        finally:
            p.terminate()
            self.assertEqual(p.wait(TIMEOUT), 0)
            p.stdout.close()

    def test_unix_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s")
            p = subprocess.Popen([INGLE, "serve", "--host", "unix:" + path], stdout=subprocess.PIPE,
                                 text=True)
            for line in p.stdout:
                if line.startswith("try"):
                    break
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                self.assertEqual(status_of(hear(s)), 200)
            p.terminate()
            self.assertEqual(p.wait(TIMEOUT), 0)
            p.stdout.close()
            self.assertFalse(os.path.exists(path))

    def test_the_unix_socket_of_another(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s")
            def start():
                p = subprocess.Popen([INGLE, "serve", "--host", "unix:" + path], stdout=subprocess.PIPE, text=True)
                for line in p.stdout:
                    if line.startswith("try"):
                        break
                return p
            first = start()
            os.rename(path, path + ".old")
            second = start()
            first.terminate()
            self.assertEqual(first.wait(TIMEOUT), 0)
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
            # A server that does not accept: the backlog is full, and who starts is told so at once.
            second.send_signal(signal.SIGSTOP)
            held = []
            with contextlib.suppress(BlockingIOError):
                for _ in range(5000):
                    s = socket.socket(socket.AF_UNIX)
                    held.append(s)
                    s.setblocking(False)
                    s.connect(path)
            r = subprocess.run([INGLE, "serve", "--host", "unix:" + path], capture_output=True, text=True, timeout=TIMEOUT)
            self.assertEqual(r.returncode, 1, r)
            self.assertIn("in use", r.stderr)
            for s in held:
                s.close()
            second.send_signal(signal.SIGCONT)
            second.terminate()
            self.assertEqual(second.wait(TIMEOUT), 0)
            self.assertFalse(os.path.exists(path))
            for p in (first, second):
                p.stdout.close()

    def test_a_state_that_cannot_be_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            self.refused("chmod 700", "--state-dir", folder)
        def limit():  # stands for a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with tempfile.TemporaryDirectory() as folder:
            r = subprocess.Popen([INGLE, "serve", "--port", "0", "--state-dir", folder], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, preexec_fn=limit)
            lines = []
            for line in r.stdout:
                lines.append(line)
                if line.startswith("try"):
                    break
            self.assertTrue(any("are not counted" in line for line in lines), lines)
            r.terminate()
            self.assertEqual(r.wait(TIMEOUT), 0)
            r.stdout.close()

    def test_a_background_answer_that_kills(self):
        with tempfile.TemporaryDirectory() as folder:
            body = {"input": "Count.", "background": True, "store": True, "text": {"format": {
                "type": "json_schema", "name": "x", "schema": {"type": "array", "items": {"const": 1}, "minItems": 15000}}}}
            kills = 0  # at most: an answer may be over when its server is killed
            for _ in attempts("a refusal"):
                server = Server(INGLE, "--state-dir", folder, "-c", "32768")
                status, _, r = server.post("/v1/responses", body)
                if status == 200:
                    until(lambda: busy(server) or server.get("/v1/responses/" + r["id"])[2]["status"] not in ("queued", "in_progress"))
                server.process.kill()
                server.process.wait()
                server.reader.join()
                server.process.stdout.close()
                if status != 200:
                    break
                kills += 1
            self.assertEqual(status, 500, r)
            self.assertGreaterEqual(kills, 2)

    def test_a_request_that_kills(self):
        with tempfile.TemporaryDirectory() as folder:
            body = {**QUESTION, **LASTS}
            for _ in range(2):
                server = Server(INGLE, "--state-dir", folder, *STAYS)
                s = server.begin("/v1/chat/completions", body)
                until(lambda: busy(server))
                server.process.kill()
                server.process.wait()
                s.close()
                server.reader.join()
                server.process.stdout.close()
            server = Server(INGLE, "--state-dir", folder, *STAYS)
            status, h, r = server.post("/v1/chat/completions", body)
            self.assertEqual((status, h["x-should-retry"]), (500, "false"), r)
            self.assertEqual(server.post("/v1/chat/completions", QUESTION)[0], 200)
            self.assertEqual(server.close(), 0)

    def test_systemd(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            path = os.path.join(folder, "notify")
            s.bind(path)
            s.settimeout(TIMEOUT)
            p = subprocess.Popen([INGLE, "serve", "--port", "0"], stdout=subprocess.DEVNULL,
                                 env={**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"})
            try:
                while (word := s.recv(99)).startswith(b"STATUS="):  # how far it has loaded
                    pass
                self.assertEqual([word, s.recv(99), s.recv(99)], [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"])
                p.terminate()
                while (word := s.recv(99)) != b"STOPPING=1":
                    self.assertEqual(word, b"WATCHDOG=1")
                self.assertEqual(p.wait(TIMEOUT), 0)
            finally:
                p.kill()
                p.wait()

    def test_sockets_of_systemd(self):
        with socket.create_server(("127.0.0.1", 0)) as one, tempfile.TemporaryDirectory() as folder, \
                socket.socket(socket.AF_UNIX) as two:
            two.bind(os.path.join(folder, "s"))
            two.listen()
            port = one.getsockname()[1]

            def start(n, *options):
                script = f'exec 3<&{one.fileno()} 4<&{two.fileno()}; LISTEN_FDS={n} LISTEN_PID=$$ exec "$0" serve "$@"'
                return subprocess.Popen(["sh", "-c", script, INGLE, *options], text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, pass_fds=(one.fileno(), two.fileno()))

            for _ in range(2):  # what comes between the two waits for the second
                with start(2) as p:
                    self.assertEqual(p.stdout.readline(), f"ingle serve is loading the model; /health says so at http://127.0.0.1:{port}\n")
                    for s in (socket.create_connection(("127.0.0.1", port), TIMEOUT), socket.socket(socket.AF_UNIX)):
                        with s:
                            if s.family == socket.AF_UNIX:
                                s.connect(os.path.join(folder, "s"))
                            s.sendall(b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n")
                            self.assertEqual(status_of(hear(s)), 200)
                    p.terminate()
                    self.assertEqual(p.wait(TIMEOUT), 0, p.stdout.read())
                self.assertTrue(os.path.exists(os.path.join(folder, "s")))
            with socket.create_server(("0.0.0.0", 0)) as one, start(1) as p:  # a public one needs a key
                self.assertIn("is reachable from other machines", p.communicate()[0])
                self.assertEqual(p.returncode, 1)
            with open("/dev/null") as one, start(1) as p:
                self.assertIn("does not listen", p.communicate()[0])

    def test_both_local_addresses(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("no IPv6 here")
        with Server(INGLE) as server, socket.create_connection(("::1", server.port), TIMEOUT) as s:
            s.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            self.assertEqual(status_of(hear(s)), 200)

    def test_this_machine_as_a_mapped_address(self):
        with subprocess.Popen([INGLE, "serve", "--port", "0", "--host", "::ffff:127.0.0.1"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as p:
            line = p.stdout.readline()
            try:
                if "protocol" in line:
                    self.skipTest("no IPv6 here")
                self.assertIn("at http://[::ffff:127.0.0.1]:", line)
                with socket.create_connection(("127.0.0.1", int(line.rsplit(":", 1)[1]))) as s:
                    s.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                    self.assertIn(status_of(hear(s)), (200, 503))
            finally:
                p.terminate()
                p.communicate()

    def test_several_addresses(self):
        with tempfile.TemporaryDirectory() as folder, \
                Server(INGLE, "--host", "127.0.0.1", "--host", "localhost", "--host", "127.0.0.2", "--host",
                       f"unix:{folder}/s", "--host", "127.0.0.1") as server:
            with socket.create_connection(("127.0.0.2", server.port)) as s:
                s.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                self.assertEqual(status_of(hear(s)), 200)
            until(lambda: server.log[-1].startswith("try"))
            self.assertEqual([l.rstrip() for l in server.log if l.startswith("also")],
                             ["also     localhost, the same port", "also     127.0.0.2, the same port",
                              "also     127.0.0.1, the same port", f"also     unix:{folder}/s"])

    def test_a_terminal_that_closes(self):
        """SIGHUP lets answers end, however often it comes; nohup keeps the server."""
        server = Server(INGLE, *STAYS)
        s = server.begin("/v1/chat/completions", {**QUESTION, **LASTS, "max_tokens": 3000})
        s.settimeout(TIMEOUT)
        answer = s.recv(100)
        for _ in range(3):
            server.process.send_signal(signal.SIGHUP)
        self.assertTrue((answer + hear(s)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), answer)
        s.close()
        self.assertEqual(server.process.wait(TIMEOUT), 0)
        server.reader.join()
        server.process.stdout.close()
        self.assertIn("stops    when what runs is answered (1 requests)", server.log[-1])
        with subprocess.Popen(["nohup", INGLE, "serve", "--port", "0"], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as p:
            p.stdout.readline()
            p.send_signal(signal.SIGHUP)
            self.assertIn("listens", p.stdout.readline())
            self.assertIn("model", p.stdout.readline())
            p.terminate()
            p.communicate()
        self.assertEqual(p.returncode, 0)

    def test_stopped_while_the_model_loads(self):
        for sent, status in ((signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)):
            with subprocess.Popen([INGLE, "serve", "--port", "0"], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT) as p:
                p.stdout.readline()  # it loads, or has just loaded
                p.send_signal(sent)
                rest = p.communicate()[0]
            self.assertIn(p.returncode, (0, status), rest)
            self.assertNotIn("Traceback", rest)

    def test_a_mapped_file_that_is_cut(self):
        with tempfile.TemporaryDirectory() as folder:
            options = ("-m", "tests/data/nano-v4/nano-v4-MXFP4.gguf", "--pack-cache", folder)
            Server(INGLE, *options, "--pack").close()
            server = Server(INGLE, *options)
            packed = sorted((f for f in os.listdir(folder) if f.endswith(".packed")),
                            key=lambda f: -os.path.getsize(os.path.join(folder, f)))
            self.assertEqual(len(packed), 2)  # the model's, and the draft block's
            os.truncate(os.path.join(folder, packed[0]), 8192)
            with contextlib.suppress(OSError, http.client.HTTPException):
                server.post("/v1/chat/completions", QUESTION)
            self.assertEqual(server.process.wait(TIMEOUT), 74)
            server.reader.join()
            server.process.stdout.close()
            self.assertIn(packed[0], server.log[-1])

    def test_the_address_is_free_at_once(self):
        """While running answers end, who comes is refused, and another server may have the address."""
        server = Server(INGLE, *STAYS)
        s = server.begin("/v1/chat/completions", {**QUESTION, **LASTS})
        s.settimeout(TIMEOUT)
        s.recv(100)  # and no more of it: it waits for us
        server.process.send_signal(signal.SIGTERM)
        with self.assertRaises(ConnectionRefusedError):
            for _ in attempts("a refusal"):
                with contextlib.suppress(ConnectionResetError):  # it had been let in when the door closed
                    socket.create_connection(("127.0.0.1", server.port), TIMEOUT).close()
        self.assertIsNone(server.process.poll())
        with subprocess.Popen([INGLE, "serve", "--port", str(server.port)], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as p:
            self.assertIn("is loading", p.stdout.readline())
            p.terminate()
        s.close()
        self.assertEqual(server.process.wait(TIMEOUT), 0)  # another signal would be the second one
        server.reader.join()
        server.process.stdout.close()

    def test_leaving(self):
        body = {**QUESTION, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        server = Server(INGLE)  # what runs is finished
        s = server.begin("/v1/chat/completions", body)
        s.settimeout(TIMEOUT)
        answer = read_until(s, b"content")
        server.process.terminate()
        self.assertTrue((answer + hear(s)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"))
        s.close()
        self.assertEqual(server.process.wait(TIMEOUT), 0)
        server.close()
        server = Server(INGLE, "--drain", "0.05")  # or told that it will not be
        s = server.begin("/v1/chat/completions", body)
        s.settimeout(TIMEOUT)
        self.assertEqual(status_of(s.recv(100)), 200)
        self.assertEqual(server.close(), 0)
        rest = hear(s)
        self.assertTrue(rest.endswith(b"0\r\n\r\n"), rest[-300:])
        s.close()
        server = Server(INGLE)  # a second signal does not wait
        s = server.begin("/v1/chat/completions", body)
        s.settimeout(TIMEOUT)
        s.recv(100)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        self.assertIn(server.close(), (130, 0))
        s.close()


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which began the tests, is not for the servers
    main()
