#!/usr/bin/env python3
"""limits.py INGLE - what the options of a server forbid, and what it tells of them."""
import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from client import SANITIZED, TIMEOUT, Case, Server, main
from wait import LASTS, STAYS, attempts, busy, read_until, until

CHAT = "/v1/chat/completions"
ANN = {"Authorization": "Bearer ann-key"}


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def endless(server, key=None):
    """A socket with an answer that has begun and does not end, if the server has STAYS."""
    s = server.begin(CHAT, user("Count from 1 to 20.", **LASTS), key)
    read_until(s, b'content":"')
    return s


def talk(port, data, address="127.0.0.1", finish=True):
    """What comes back for these bytes until the server hangs up."""
    with socket.create_connection((address, port), TIMEOUT) as s:
        with contextlib.suppress(OSError):
            s.sendall(data)
            if finish:
                s.shutdown(socket.SHUT_WR)
        out = b""
        with contextlib.suppress(ConnectionError):
            while part := s.recv(65536):
                out += part
        return out


def asking(body, more=b""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + more +
            b"Content-Length: %d\r\n\r\n" % len(data) + data)


def status_of(answer):
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.") else 0


class Metered(Case):
    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", self.server.get("/metrics")[2], re.M)[1])


class Sizes(Metered):
    """What a request may be, by the bytes on the wire."""
    options = ["--limit", "header=4096", "--limit", "body=9000000", "--limit", "bodies=12000000", "--limit", "unread=8K",
               "--limit", "stall-timeout=5", "--limit", "half-close-ok=on"]

    def refused(self, body, word, status=400):
        answer = talk(self.server.port, asking(body))
        self.assertEqual(status_of(answer), status, answer[:300])
        self.assertIn(word.encode(), answer)

    def test_head(self):
        self.assertEqual(status_of(talk(self.server.port, asking(user("x", max_tokens=1), b"X: " + b"a" * 3000 + b"\r\n"))), 200)
        self.assertEqual(status_of(talk(self.server.port, asking({}, b"X: " + b"a" * 5000 + b"\r\n"))), 431)
        self.assertEqual(status_of(talk(self.server.port, b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n")), 414)

    def test_whole_addresses(self):
        """As proxies ask: http://host/path."""
        whole = asking(user("x", max_tokens=1)).replace(b"POST /", b"POST HTTP://localhost:1/")
        self.assertEqual(status_of(talk(self.server.port, whole)), 200)
        for address, status in ((b"http://localhost", 200), (b"https://localhost/health?x=/", 200), (b"http:///nope", 404)):
            asked = b"GET " + address + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
            self.assertEqual(status_of(talk(self.server.port, asked)), status, address)

    def test_compressed(self):
        for coding, status in ((b"gzip", 415), (b"zstd", 415), (b"identity", 200)):
            answer = talk(self.server.port, asking(user("x", max_tokens=1), b"Content-Encoding: " + coding + b"\r\n"))
            self.assertEqual(status_of(answer), status, answer)

    def test_body(self):
        self.refused(b"[" + b" " * 8999998 + b"]", "no object")
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000001\r\n\r\n"
        self.assertEqual(status_of(talk(self.server.port, head)), 413)  # before the body comes
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:  # 8 MB lie there, 8 more come
            s.sendall(head.replace(b"9000001", b"9000000") + b" " * 8000000)
            until(lambda: self.metric("ingle_http_bodies_bytes") >= 8000000)
            answer = talk(self.server.port, asking(b" " * 8000000))
            self.assertEqual(status_of(answer), 503)
            self.assertIn(b"Retry-After: 1\r\n", answer)

    def test_json(self):
        self.refused(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}", "messages")
        self.refused(b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "64")
        if not SANITIZED:
            self.refused(b'{"a":[' + b"1," * 1999990 + b"1]}", "messages")
        self.refused(b'{"a":[' + b"1," * 2000000 + b"1]}", "2000000")
        self.refused(json.dumps({str(i): 1 for i in range(100000)}).encode(), "messages")
        self.refused(json.dumps({str(i): 1 for i in range(100001)}).encode(), "100000 keys")
        self.refused(b'{"a":[' + b"{}," * 249998 + b"{}]}", "messages")
        self.refused(b'{"a":[' + b"{}," * 249999 + b"{}]}", "250000 objects")

    @unittest.skipIf(SANITIZED, "a sanitizer keeps what is freed")
    def test_memory_comes_back(self):
        """What a body becomes while it is read, which is many times as large."""
        def megabytes(which):
            with open(f"/proc/{self.server.process.pid}/status") as f:
                return int(re.search(which + r":\s+(\d+)", f.read())[1]) / 1024
        before = megabytes("VmRSS")
        self.refused(b'{"a":[' + b"{}," * 240000 + b"{}]}", "messages")  # 180 MB
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": [{}] * 1200000})}}
        self.refused({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]}, "context")
        until(lambda: megabytes("VmRSS") < before + 60)
        self.assertLess(megabytes("VmHWM"), before + 600)  # those of the call alone would take 900

    def test_counts(self):
        tool = {"type": "function", "function": {"name": "f"}}
        one = {"role": "user", "content": ""}
        for key, most, over in [("messages", None, [one] * 100001),
                                ("tools", [tool | {"function": {"name": f"f{i}"}} for i in range(256)], [tool] * 257),
                                ("stop", ["x"] * 64, ["x"] * 65),
                                ("logit_bias", {str(i): 0 for i in range(200, 1224)}, {str(i): 0 for i in range(200, 1225)}),
                                ("n", 4, 17), ("top_logprobs", 20, 21)]:
            body = user("Hello", max_tokens=1, logprobs=True)
            if most is not None:
                answer = talk(self.server.port, asking({**body, key: most}))
                self.assertIn(status_of(answer), (200, 400), answer[:300])
                self.assertTrue(status_of(answer) == 200 or b"the context holds" in answer, answer[:300])
            self.refused({**body, key: over}, key)
        limits = self.server.get("/props")[2]["limits"]
        self.assertEqual([limits[k] for k in ("json_depth", "json_values", "json_keys", "json_objects", "messages", "tools", "stop",
                                              "logit_bias", "n", "top_logprobs")], [64, 2000000, 100000, 250000, 100000, 256, 64, 1024, 16, 20])

    def test_bad_images_are_refused(self):
        for url in ("data:image/png;base64,AAAA", "http://127.0.0.1:9/x.png"):
            self.refused({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": url}}]}]}, "message 1, part 1")

    def test_long_prompts_are_refused_early(self):
        n_ctx = self.server.get("/props")[2]["default_generation_settings"]["n_ctx"]
        n = 290000 if SANITIZED else 2900000
        for text in ("ab " * n, "a" * 3 * n, ".\n" * n):
            answer = talk(self.server.port, asking(user(text)))
            self.assertEqual(status_of(answer), 400, answer[:200])
            r = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
            self.assertEqual((r["code"], r["n_ctx"]), ("context_length_exceeded", n_ctx), r)
            self.assertGreater(r["n_prompt_tokens"], n_ctx)
        status, _, r = self.server.post("/v1/messages", {**user("ab " * n), "max_tokens": 5})
        self.assertEqual(status, 400)
        self.assertRegex(r["error"]["message"], r"^prompt is too long: \d+ tokens > \d+ maximum$")

    def test_who_does_not_read_is_dropped(self):
        before = self.metric("ingle_client_overrun_total")
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", self.server.port))
            s.sendall(asking({"prompt": "1 2 3 " * 600, "max_tokens": 1, "echo": True, "logprobs": 5}).replace(
                b"chat/completions", b"completions"))
            until(lambda: self.metric("ingle_client_overrun_total") > before)

    def test_told(self):
        options = self.server.get("/props")[2]["options"]
        for name in ("max-header max-body max-bodies max-replies max-unread max-connections max-per-address max-waiting "
                     "max-waiting-tokens max-reading max-reading-bytes header-timeout body-timeout idle-timeout "
                     "stall-timeout queue-timeout max-request-seconds retry-grace drain keep-alive max-responses "
                     "max-responses-bytes half-close-ok").split():
            self.assertIn(name, options)


class SlowReaders(Metered):
    """Clients that read more slowly than the model writes."""
    options = ["--limit", "unread=8K", "--limit", "stall-timeout=8", "--limit", "body=1M", "--parallel", "2", "-c", "8192"]
    LONG = user("Count.", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "array", "items": {"const": 1}, "minItems": 6000}}})

    def reader(self, **more):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.server.port))
        s.settimeout(TIMEOUT)
        s.sendall(asking({**self.LONG, "stream": True, "logprobs": True, "top_logprobs": 5, **more},
                         b"Connection: close\r\n"))
        return s

    def held(self):
        return sum(slot["held"] for slot in self.server.get("/slots")[2])

    def test_replies_have_a_limit(self):
        """A body that stays below its limit may ask for a reply that does not."""
        for path, body in (("/tokenize", {"content": "\u00a7" * 90000, "with_pieces": True}),
                           ("/detokenize", {"tokens": [50] * 170000})):
            status, _, r = self.server.post(path, body)
            self.assertEqual(status, 400, r)
            self.assertIn("--limit body", r["error"]["message"])

    def test_every_byte_arrives(self):
        before, out, n_tokens = self.metric("ingle_client_held_total"), b"", 600
        with self.reader(max_tokens=n_tokens) as s:
            until(lambda: self.held() or self.metric("ingle_client_held_total") > before)
            while part := s.recv(8192):
                out += part
        self.assertGreater(self.metric("ingle_client_held_total"), before)
        self.assertGreater(self.metric("ingle_client_held_seconds_total"), 0)
        self.assertIn(b"data: [DONE]", out)
        quick = talk(self.server.port, asking({**self.LONG, "max_tokens": n_tokens}, b"Connection: close\r\n"), finish=False)
        text = "".join(re.findall(r'"content":"((?:[^"\\]|\\.)*)"', out.decode(errors="replace")))
        self.assertEqual(json.loads(f'"{text}"'), json.loads(quick.split(b"\r\n\r\n")[1])["choices"][0]["message"]["content"])

    def test_others_go_on_and_who_stops_is_dropped(self):
        for _ in attempts("two that are held at once"):
            before = self.metric("ingle_client_overrun_total")
            with self.reader(), self.reader():
                until(lambda: self.held() == 2 or self.metric("ingle_client_overrun_total") > before)
                both = self.metric("ingle_client_overrun_total") == before
                # In the place of one of them.
                quick = talk(self.server.port, asking(user("Hello", max_tokens=3), b"Connection: close\r\n"), finish=False)
                self.assertEqual(status_of(quick), 200)
                until(lambda: self.metric("ingle_client_overrun_total") == before + 2)
            until(lambda: not self.held())
            if both:
                break

    def test_time_and_leaving_end_what_is_held(self):
        before = self.metric("ingle_client_gone_total")
        for _ in attempts("one that leaves before it is dropped"):
            n_held = self.metric("ingle_client_held_total")
            with self.reader():
                until(lambda: self.metric("ingle_client_held_total") > n_held)
            until(lambda: not busy(self.server))
            if self.metric("ingle_client_gone_total") > before:
                break
        until(lambda: not self.held())
        with self.reader(deadline_seconds=4) as s:
            n_held = self.metric("ingle_client_held_total")
            until(lambda: self.held() or self.metric("ingle_client_held_total") > n_held)
            # Not until it is held no more: it goes on for a moment where the system takes more bytes.
            until(lambda: not busy(self.server))
            out = b""
            while part := s.recv(8192):
                out += part
            self.assertIn(b"time for this request is up", out)


class Reading(Case):
    """Requests whose bodies wait to be read."""
    options = ["--limit", "reading=2", "--limit", "reading-bytes=4M"]

    def test_the_rest_is_refused(self):
        n = 150000 if SANITIZED else 400000
        body, answers = asking(user(" ".join(str(i) for i in range(n))), b"Connection: close\r\n"), []
        for _ in attempts("more than two at once"):
            threads = [threading.Thread(target=lambda: answers.append(talk(self.server.port, body, finish=False)))
                       for _ in range(12)]
            for t in threads:
                t.start()
            for _ in attempts("all answers"):
                self.assertEqual(self.server.post(CHAT, user("Hello", max_tokens=1))[0], 200)
                if not any(t.is_alive() for t in threads):
                    break
            self.assertLessEqual({status_of(a) for a in answers}, {400, 429})
            if any(status_of(a) == 429 for a in answers):
                break
        self.assertIn(400, [status_of(a) for a in answers])
        for a in answers:
            if status_of(a) == 429:
                self.assertRegex(a, rb"\r\nRetry-After: [1-9]")
                self.assertIn(b"--limit reading", a)

    def test_who_leaves_is_not_read(self):
        """While its text becomes tokens, which takes seconds."""
        for _ in range(3):
            s = self.server.begin(CHAT, user("a" * 3000000))
            s.close()
        for _ in attempts("a request that is cancelled"):
            if "outcome=\"cancelled\"" in self.server.get("/metrics")[2]:
                break
            s = self.server.begin(CHAT, user("a" * 3000000))
            time.sleep(0.1)
            s.close()


def own_address():
    """One of this machine's that is not 127.0.0.1, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return s.getsockname()[0]


class Connections(Case):
    own = own_address()
    options = ["--limit", "connections=6", "--limit", "per-address=2", "--host", "127.0.0.1",
               *(["--host", own, "--insecure-no-auth"] if own else [])]
    get = b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n"

    def full(self, address, n):
        """The n-th connection is answered, the next one is turned away."""
        with contextlib.ExitStack() as all_of_them:
            for _ in range(n - 1):
                all_of_them.enter_context(socket.create_connection((address, self.server.port), TIMEOUT))
            until(lambda: status_of(talk(self.server.port, self.get, address)) == 200)
            all_of_them.enter_context(socket.create_connection((address, self.server.port), TIMEOUT))
            answer = talk(self.server.port, self.get, address)
            self.assertEqual(status_of(answer), 503, answer)
            self.assertIn(b"Retry-After: 1\r\n", answer)
            self.assertIn("too many connections", json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"])
        until(lambda: status_of(talk(self.server.port, self.get, address)) == 200)

    def test_in_all(self):
        self.full("127.0.0.1", 6)

    @unittest.skipUnless(own, "no address but this machine's own")
    def test_of_one_address(self):
        self.full(self.own, 2)


class Waiting(Case):
    options = [*STAYS, "--parallel", "1", "--limit", "waiting=2", "--limit", "waiting-tokens=100"]

    def waits(self, n):
        until(lambda: f"requests_deferred {n}\n" in self.server.get("/metrics")[2])

    def test_queue_is_full(self):
        answer = endless(self.server)
        first = [self.server.begin(CHAT, user("Who?"))]
        self.waits(1)
        self.refused(user("word " * 120), "tokens")
        first.append(self.server.begin(CHAT, user("Who?")))
        self.waits(2)
        self.refused(user("Who?"), "full")
        first.pop().close()  # one who waits leaves: its place is free, and the one that runs goes on
        self.waits(1)
        self.assertTrue(answer.recv(65536))
        answer.close()
        self.assertEqual(status_of(first[0].recv(65536)), 200)
        first[0].close()

    def refused(self, body, word):
        status, headers, r = self.server.post(CHAT, body)
        self.assertEqual(status, 429, r)
        self.assertIn(word, r["error"]["message"])
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)


class Shares(unittest.TestCase):
    """A full queue has room for a key that has fewer places in it."""

    def test_one_key_cannot_fill_it(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
            f.write("mal-key\nvic-key\n")
            f.flush()
            server = Server(sys.argv[1], *STAYS, "--parallel", "1", "--limit", "waiting=4", "--api-key-file", f.name)
        self.addCleanup(server.close)
        mal, vic = {"X-Api-Key": "mal-key"}, {"X-Api-Key": "vic-key"}
        first = endless(server, "mal-key")
        waiting = []
        for n in range(1, 5):
            waiting.append(server.begin(CHAT, user("Who?"), "mal-key"))
            until(lambda: f"requests_deferred {n}\n" in server.get("/metrics", mal)[2])
        self.assertEqual(server.post(CHAT, user("Who?"), mal)[0], 429)
        mine = server.begin(CHAT, user("Who?", max_tokens=2), "vic-key")
        answer = waiting[-1].recv(65536)  # the youngest of them gives way
        self.assertEqual(status_of(answer), 429, answer)
        self.assertIn(b"Retry-After", answer)
        first.close()
        self.assertEqual(status_of(mine.recv(65536)), 200)
        for s in [mine, *waiting]:
            s.close()
        self.assertEqual(server.post(CHAT, user("Who?", priority=1), vic)[0], 400)
        self.assertEqual(server.post(CHAT, user("Who?", priority=-1, max_tokens=1), vic)[0], 200)


class Uploads(unittest.TestCase):
    """Slow uploads of one key do not keep others out."""
    MIB = 1 << 20

    def begin(self, server, key, declared, sent):
        s = socket.create_connection(("127.0.0.1", server.port), TIMEOUT)
        s.sendall(f"POST /completion HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\nContent-Length: {declared}\r\n\r\n".encode() + b" " * sent)
        self.addCleanup(s.close)
        return s

    def reply(self, s):
        """All of a reply after which the server hangs up."""
        answer = b""
        while data := s.recv(65536):
            answer += data
        return answer

    def held(self, server, n):
        until(lambda: float(re.search(r"^ingle_http_bodies_bytes (\S+)$", server.get("/metrics", {"X-Api-Key": "vic-key"})[2],
                                      re.M)[1]) >= n)

    def test_who_has_most_gives_way(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
            f.write("mal:mal-key\nvic:vic-key\n")
            f.flush()
            server = Server(sys.argv[1], "--limit", "body=2M", "--limit", "bodies=8M", "--api-key-file", f.name)
        self.addCleanup(server.close)
        slow = [self.begin(server, "mal-key", 2 * self.MIB, 2 * self.MIB - 100) for _ in range(4)]
        self.held(server, 8 * self.MIB - 400)
        mine = {"X-Api-Key": "vic-key"}
        small, large = {"prompt": "y", "n_predict": 1}, {"prompt": "y", "n_predict": 1, "ignored": " " * 300000}
        self.assertEqual(server.post("/completion", small, mine)[0], 200)  # small ones need no room
        self.assertEqual(server.post("/completion", small, {"X-Api-Key": "mal-key"})[0], 200)
        self.assertEqual(server.post("/completion", large, {"X-Api-Key": "mal-key"})[0], 503)  # its own others are younger
        for _ in range(5):
            self.assertEqual(server.post("/completion", large, mine)[0], 200)
        slow[0].sendall(b" " * 100)
        answer = self.reply(slow[0])
        self.assertEqual(status_of(answer), 503, answer)
        self.assertIn(b"--limit bodies", answer)
        for s in slow[1:]:  # the others arrive
            s.sendall(b" " * 100)
            self.assertEqual(status_of(s.recv(65536)), 400)

    def test_late_ones_are_told(self):
        server = Server(sys.argv[1], "--limit", "body-timeout=0.5")
        self.addCleanup(server.close)
        s = self.begin(server, "-", 1000, 1)
        answer = self.reply(s)
        self.assertEqual(status_of(answer), 408, answer)
        self.assertEqual(json.loads(answer.split(b"\r\n\r\n")[1])["error"]["type"], "timeout_error")


class Handshake(unittest.TestCase):
    def test_of_one_who_says_nothing(self):
        p = subprocess.Popen([sys.argv[1], "serve", "--port", "0", "--limit", "header-timeout=0.5", "--tls-cert",
                              "tests/data/tls/cert.pem", "--tls-key", "tests/data/tls/key.pem"],
                             stdout=subprocess.PIPE, text=True)
        try:
            port = int(p.stdout.readline().rsplit(":", 1)[1])
            self.assertEqual(talk(port, b"", finish=False), b"")  # returns when the server hangs up
            context = ssl.create_default_context(cafile="tests/data/tls/cert.pem")
            for _ in attempts("an answer"):  # who is stopped for half a second says nothing, too
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), TIMEOUT) as s, \
                        context.wrap_socket(s, server_hostname="localhost") as t:
                    t.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                    if status_of(t.recv(4096)) in (200, 503):
                        break
        finally:
            p.terminate()
            self.assertEqual(p.wait(TIMEOUT), 0)
            p.stdout.close()


class Queue(Case):
    options = [*STAYS, "--parallel", "1", "--limit", "waiting=3", "--limit", "queue-timeout=0.5"]

    def test_waiting_ends(self):
        first = endless(self.server)
        for stream in (False, True):
            status, headers, r = self.server.post(CHAT, user("Who?", stream=stream))
            self.assertEqual(status, 429, r)
            self.assertIn("queue-timeout", r["error"]["message"])
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        status, _, r = self.server.post("/v1/messages", {**user("Who?"), "stream": True})
        self.assertEqual((status, r["error"]["type"]), (429, "rate_limit_error"), r)
        first.close()

    def test_more_prompts_than_places(self):
        prompts = [f"{i} and" for i in range(40)]
        status, _, r = self.server.post("/v1/completions", {"prompt": prompts, "max_tokens": 2,
                                                            "temperature": 0, "logprobs": 0})
        self.assertEqual(status, 200, r)
        self.assertEqual([c["index"] for c in r["choices"]], list(range(40)))
        for i in (0, 3, 7, 39):
            status, _, one = self.server.post("/v1/completions", {
                "prompt": prompts[i], "max_tokens": 2, "temperature": 0})
            self.assertEqual(r["choices"][i]["text"], one["choices"][0]["text"])

    def test_prompts_of_one_who_leaves(self):
        s = self.server.begin("/v1/completions", {"prompt": ["a b"] * 60, "max_tokens": 200,
                                                  "ignore_eos": True, "stream": True})
        s.recv(4096)
        s.close()
        until(lambda: self.server.post(CHAT, user("Who?", max_tokens=1))[0] == 200)


class Turns(unittest.TestCase):
    """Whose turn it is when there is one place."""

    def setUp(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys", delete=False) as f:
            f.write("ann-key\nbob-key\n")
        self.addCleanup(os.unlink, f.name)
        self.server = Server(sys.argv[1], *STAYS, "--parallel", "1", "--api-key-file", f.name,
                             "--max-priority", "5", "-v", "-v")
        self.addCleanup(self.server.close)

    def begin(self, name, key, **more):
        """A request with its name as its id."""
        s = socket.create_connection(("127.0.0.1", self.server.port), TIMEOUT)
        s.sendall(asking(user(name, ignore_eos=True, max_tokens=20, **more), f"X-Request-Id: {name}\r\nX-Api-Key: {key}\r\n".encode()))
        return s

    def ended(self):
        """Names in the order in which the server is done with them: who reads the replies later sees all at once."""
        return [m[1] for line in self.server.log if (m := re.search("request '(low|none|high|ann-1|ann-2|bob)'", line))]

    def waits(self, n):
        until(lambda: f"requests_deferred {n}\n" in self.server.get("/metrics", ANN)[2])

    def generated(self):
        return int(re.search(r"tokens_predicted_total (\d+)", self.server.get("/metrics", ANN)[2])[1])

    def order(self, requests):
        """Who is answered first, second, ... of (name, key, more), who come in this order."""
        first = endless(self.server, "ann-key")
        waiting = []
        for n, (name, key, more) in enumerate(requests, 1):
            waiting.append(self.begin(name, key, **more))
            self.waits(n)
        before = self.generated()  # the one that answers is served for more than those who come
        until(lambda: first.recv(65536) and self.generated() > before)
        first.close()
        for s in waiting:
            self.assertEqual(status_of(s.recv(65536)), 200)
            s.close()
        until(lambda: len(self.ended()) == len(requests))
        return self.ended()

    def test_the_more_urgent_goes_first(self):
        self.assertEqual(self.order([("low", "ann-key", {"priority": -1}), ("none", "ann-key", {}),
                                     ("high", "ann-key", {"priority": 5})]), ["high", "none", "low"])

    def test_priorities_have_a_limit(self):
        status, _, r = self.server.post(CHAT, user("Who?", priority=6), {"X-Api-Key": "ann-key"})
        self.assertEqual((status, r["error"]["param"]), (400, "priority"), r)
        self.assertIn("--max-priority", r["error"]["message"])

    def test_a_key_that_was_served_less_goes_first(self):
        self.assertEqual(self.order([("ann-1", "ann-key", {}), ("ann-2", "ann-key", {}),
                                     ("bob", "bob-key", {})])[0], "bob")


class Time(Case):
    options = ["-c", "32768", "--limit", "request-seconds=0.5"]

    def test_answers_end(self):
        status, headers, r = self.server.post(CHAT, user("Count.", ignore_eos=True))
        self.assertEqual((status, r["error"]["code"]), (504, "deadline_exceeded"), r)
        self.assertEqual(headers["x-should-retry"], "false")
        events = self.server.stream("/v1/responses", {"input": "Count from 1 to 60.", "text": {"format": {
            "type": "json_schema", "name": "long", "schema": {
                "type": "array", "items": {"const": 1}, "minItems": 9000}}}})
        self.assertEqual(events[-1][0], "response.failed")
        status, _, r = self.server.post(CHAT, user("Count.", ignore_eos=True, deadline_seconds=60))
        self.assertEqual(status, 504, r)
        options = self.server.get("/props")[2]["options"]
        self.assertEqual(options["max-request-seconds"], 0.5)
        self.assertEqual(options["queue-timeout"], 0)


class Names(Case):
    options = ["-c", "32768", "--strict-model", "--alias", "one", "--alias", "two", "--codex-model", "share/codex-model.json"]

    def test_model_names(self):
        for name, want in (("one", 200), ("two", 200), (None, 200), ("three", 404)):
            status, _, r = self.server.post(CHAT, user("Who?", max_tokens=1, model=name))
            self.assertEqual(status, want, r)
            if want == 404:
                self.assertEqual(r["error"]["code"], "model_not_found")
                self.assertEqual(r["error"]["param"], "model")
        status, _, r = self.server.post("/v1/messages", {**user("Who?"), "model": "three"})
        self.assertEqual((status, r["error"]["type"]), (404, "not_found_error"))
        status, _, r = self.server.post("/v1/responses", {"input": "Who?", "model": "three"})
        self.assertEqual(status, 404)
        body = {**user("Who?"), "prompt": "x", "n_predict": 1, "input": "Who?"}
        for path in ("/completion", "/v1/completions", "/v1/messages/count_tokens", "/apply-template",
                     "/v1/chat/completions/input_tokens"):
            self.assertEqual(self.server.post(path, {**body, "model": "three"})[0], 404, path)
            self.assertEqual(self.server.post(path, {**body, "model": "two"})[0], 200, path)
        self.assertEqual(self.server.post("/v1/responses/input_tokens", {"input": "x", "model": "three"})[0], 404)

    def test_codex(self):
        status, _, r = self.server.get("/v1/models?client_version=0.145.0")
        self.assertEqual(status, 200)
        entry, = r["models"]
        with open("share/codex-model.json") as f:
            known = json.load(f)
        self.assertEqual(entry, {"slug": "one", "display_name": "one", "context_window": 32768, **known})
        # What Codex's decoder cannot do without.
        for key in ("slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility",
                    "supported_in_api", "priority", "base_instructions", "supports_reasoning_summaries",
                    "support_verbosity", "truncation_policy", "supports_parallel_tool_calls",
                    "experimental_supported_tools"):
            self.assertIn(key, entry)

    def test_told(self):
        self.assertIs(self.server.get("/props")[2]["options"]["strict-model"], True)


class Idle(Case):
    def switches(self):
        """How often each thread of the server went to sleep.  A sanitizer's own thread, which has no name of
        ours, does not count."""
        out = {}
        pid = self.server.process.pid
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/status") as f:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
            if int(tid) == pid or status["Name"].startswith("ingle-"):
                out[status["Name"], tid] = int(status["voluntary_ctxt_switches"])
        return out

    def rests(self):
        """Within a minute there is half a second in which no thread wakes."""
        for _ in range(120):
            before = self.switches()
            time.sleep(0.5)
            after = self.switches()
            if before == after:
                return
        self.fail(f"{before}, half a second later {after}")

    def test_no_thread_wakes(self):
        self.rests()
        self.assertEqual(self.server.post(CHAT, user("Who?", max_tokens=1), {"Connection": "close"})[0], 200)
        self.rests()
        with endless(self.server):
            time.sleep(0.3)
        self.rests()
        self.assertEqual(self.server.post(CHAT, user("Who?", max_tokens=1), {"Connection": "close"})[0], 200)


class Without(Case):
    options = ["-v"]

    def test_nobody_writes_the_log(self):
        """What a client sends stands in reports as a part of their line."""
        bad = "x\nFAKE: ingle: error \x1b[31m\x9b\u202e\r"
        one = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
        for body in ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
                          "type": "object", "properties": {bad: one}}}}},
                     {"tools": [{"type": bad}, {"type": "function", "function": {"name": bad}}]}, {"tool_choice": bad}, {"model": bad}):
            self.server.post(CHAT, user("Who?", max_tokens=1, **body))
            self.server.post("/v1/responses", {"input": "Who?", "max_output_tokens": 1, **body})
            self.server.post("/v1/messages", user("Who?", max_tokens=1, **body))
        self.server.post("/v1/responses", {"input": [{"type": bad}, {"role": "user", "content": "x"}], "max_output_tokens": 1})
        until(lambda: any("FAKE" in line for line in self.server.log))
        said = [line for line in self.server.log if "FAKE" in line]
        self.assertTrue(said)
        for line in self.server.log:
            self.assertTrue(line.startswith(("ingle ", "ingle: ", "model ", "memory ", "keys ", "try ", " ", "load: ")), line)
            self.assertNotRegex(line, "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
        self.assertIn("\\n", said[0])

    def test_no_codex(self):
        self.assertEqual(self.server.get("/v1/models")[2]["models"], [])

    def test_any_model(self):
        self.assertEqual(self.server.post(CHAT, user("Who?", max_tokens=1, model="any"))[0], 200)

    def test_bad_codex(self):
        with self.assertRaisesRegex(RuntimeError, "README.md"):
            Server(sys.argv[1], "--codex-model", "README.md")


if __name__ == "__main__":
    main()
