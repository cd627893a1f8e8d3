#!/usr/bin/env python3
"""router.py INGLE - several models behind one address (docs/use/router.md): starts, streams, ends, who leaves for whom, names,
presets, keys, and what is left when a process is killed."""
import fcntl
import http.server, json, os, pathlib, re, signal, socket, subprocess, sys, tempfile, threading, time, unittest

from client import HOT, Server
from wait import LASTS, attempts

ROOT = pathlib.Path(__file__).resolve().parents[2]
GEMMA = ROOT / "assets/nano-gemma4-Q8_0.gguf"
SMALL = ROOT / "tests/data/nano/nano-gemma4-Q4_K_M.gguf"
DEEP = ROOT / "tests/data/nano-v4/nano-v4-MXFP4.gguf"
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
# Stays at work until its client reads, or leaves; for /v1/messages, which has no logprobs, some tenths of a second.
LONG = {**CHAT, **HOT, **LASTS, "max_tokens": 3900}
PRESETS = f"""
version = 1
; for all
[*]
c = 4096
threads = 1
mmproj = off
limit = stall-timeout=3600
[gem]
model = {GEMMA}
alias = gemma
alias = the/first:one
temp = 0.25
[small]
model = "{SMALL}"
[deep]
model = {DEEP}
jinja = true
[absent]
model = {GEMMA.parent}/none.gguf
[undrafted]
model = {GEMMA}
draft = {SMALL.parent}/golden.json
"""


def children(pid):
    out = []
    for p in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = p.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            out.append(int(p.parent.name))
    return out


def until(ask, wanted=True):
    """Asks until the answer is the wanted one, which must be one that stays."""
    end = time.monotonic() + 600
    while (found := ask()) != wanted:
        assert time.monotonic() < end, f"after 600 s the answer is {found!r} and not {wanted!r}"
        time.sleep(0.01)
    return found


class SlowHub(http.server.ThreadingHTTPServer):
    """Each repository has one file, which comes for minutes."""
    daemon_threads = True
    SIZE = 40_000_000

    def handle_error(self, *args):
        pass

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_GET(self):
            size = SlowHub.SIZE
            if "/tree/" in self.path:
                text = json.dumps([{"type": "file", "path": "m-Q8_0.gguf", "size": size, "lfs": {"oid": "0" * 64, "size": size}}]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                return
            found = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or f"bytes=0-{size - 1}")
            first, last = int(found[1]), int(found[2])
            self.send_response(206)
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            try:
                for _ in range(first, last + 1, 100_000):
                    self.wfile.write(bytes(100_000))
                    time.sleep(0.05)
            except OSError:
                pass

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Background:
    """An answer that another thread waits for: calling it waits, too."""

    def __init__(self, ask):
        self.out = []
        self.thread = threading.Thread(target=lambda: self.out.append(ask()), daemon=True)
        self.thread.start()

    def over(self):
        return not self.thread.is_alive()

    def __call__(self):
        self.thread.join()
        return self.out[0]


class Router(Server):
    def __init__(self, presets, *options):
        self.directory = tempfile.TemporaryDirectory(prefix="ingle-test-")
        self.file = pathlib.Path(self.directory.name) / "models.ini"
        self.file.write_text(presets)
        os.environ["XDG_RUNTIME_DIR"] = self.directory.name
        super().__init__(INGLE, "--models", str(self.file), *options)

    def close(self):
        try:
            return super().close()
        finally:
            self.directory.cleanup()

    def entry(self, name, headers=None):
        return next(m for m in self.get("/v1/models", headers)[2]["data"] if m["id"] == name)

    def state(self, name):
        return self.entry(name)["status"]["value"]

    def load(self, name):
        assert self.post("/models/load", {"model": name})[0] == 200
        until(lambda: self.state(name), "loaded")

    def unload(self, name):
        assert self.post("/models/unload", {"model": name})[0] == 200
        until(lambda: self.state(name), "unloaded")

    def chat(self, name, **more):
        return self.post("/v1/chat/completions", dict(CHAT, model=name, **more))

    def pid_of(self, name):
        """Of the model's process: its number is in the path of its socket."""
        path = next(a for a in self.entry(name)["status"]["args"] if a.startswith("--host=unix:"))
        for pid in children(self.process.pid):
            if path.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def running(self, name):
        return next(m for m in self.get("/props")[2]["models"] if m["id"] == name)["running"]

    def background(self, name, **more):
        return Background(lambda: self.chat(name, **more))


class Shared(unittest.TestCase):
    """One router for what leaves it as it was."""

    @classmethod
    def setUpClass(cls):
        cls.s = Router(PRESETS)

    @classmethod
    def tearDownClass(cls):
        assert cls.s.close() == 0

    def test_cold_start_and_list(self):
        self.s.unload("gem")
        before = self.s.entry("gem")["last_used_ms"]
        status, _, body = self.s.chat("gem")
        self.assertEqual((status, body["model"]), (200, "gem"))
        m = self.s.entry("gem")
        self.assertEqual(m["status"]["value"], "loaded")
        self.assertGreater(m["last_used_ms"], before)
        self.assertEqual(m["aliases"], ["gemma", "the/first:one"])
        until(lambda: "context_length" in self.s.entry("gem"))
        self.assertEqual(self.s.entry("gem")["context_length"], 4096)
        self.assertIn("--temp=0.25", m["status"]["args"])
        props = self.s.get("/props?model=gem")[2]
        self.assertEqual(props["default_generation_settings"]["n_ctx"], 4096)
        self.assertEqual(props["default_generation_settings"]["params"]["temperature"], 0.25)

    def test_names(self):
        for name in "gem", "gemma", "the/first:one", "gem:latest":
            self.assertEqual(self.s.chat(name)[2]["model"], "gem")
        status, _, body = self.s.chat("nobody")
        self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))
        self.assertIn("gem, small, deep", body["error"]["message"])
        self.assertEqual(self.s.get("/v1/models/the%2Ffirst:one")[2]["id"], "gem")
        self.assertEqual(self.s.get("/v1/models/nobody")[0], 404)

    def test_dialects(self):
        stream = self.s.events("/v1/chat/completions", dict(CHAT, model="deep", stream=True))
        self.assertEqual(stream[-1][1], "[DONE]")
        self.assertEqual(stream[0][1]["model"], "deep")
        stream = self.s.events("/v1/messages", dict(CHAT, model="deep", stream=True), {"anthropic-version": "2023-06-01"})
        self.assertEqual(stream[-1][0], "message_stop")
        stream = self.s.events("/v1/responses", {"model": "deep", "input": "Hello", "max_output_tokens": 8, "stream": True})
        self.assertIn(stream[-1][0], ("response.completed", "response.incomplete"))
        c, r = self.s.open("POST", "/api/chat", dict(messages=CHAT["messages"], model="deep:latest"))
        self.assertTrue(json.loads(r.read().decode().splitlines()[-1])["done"])
        c.close()
        self.assertEqual(self.s.post("/v1/messages/count_tokens", dict(CHAT, model="deep"))[0], 200)
        status, _, body = self.s.post("/v1/messages", dict(CHAT, model="nobody"))
        self.assertEqual((status, body["type"], body["error"]["type"]), (404, "error", "not_found_error"))
        self.assertIn("error", self.s.post("/api/chat", dict(CHAT, model="nobody"))[2])
        names = [m["name"] for m in self.s.get("/api/tags")[2]["models"]]
        self.assertEqual(names, ["gem", "small", "deep", "absent", "undrafted"])
        self.assertIn("deep", [m["name"] for m in self.s.get("/api/ps")[2]["models"]])
        listed = self.s.get("/v1/models", {"anthropic-version": "2023-06-01"})[2]
        self.assertEqual((listed["first_id"], listed["data"][0]["type"]), ("gem", "model"))

    def test_same_answer_as_alone(self):
        with Server(INGLE, "-m", str(SMALL), "-c", "4096", "--threads", "1") as alone:
            body = dict(CHAT, max_tokens=40, temperature=0)
            a = alone.post("/v1/chat/completions", body)[2]["choices"]
            self.assertEqual(self.s.post("/v1/chat/completions", dict(body, model="small"))[2]["choices"], a)

    def test_any(self):
        self.s.chat("small")
        self.assertEqual(self.s.chat("gem")[2]["model"], "gem")
        self.assertEqual(self.s.chat("any")[2]["model"], "gem")
        self.s.chat("small")
        self.assertEqual(self.s.post("/v1/chat/completions", CHAT)[2]["model"], "small")
        self.assertEqual(self.s.get("/props")[2]["any"], "small")
        for m in self.s.get("/v1/models")[2]["data"]:
            self.s.unload(m["id"])
        status, _, body = self.s.chat("any")
        self.assertEqual(status, 400)
        self.assertIn("no model is currently resident in memory", body["error"]["message"])

    def test_start_that_fails(self):
        for _ in range(2):
            status, _, body = self.s.chat("absent")
            self.assertIn(status, (500, 503))
            self.assertIn(f"{GEMMA.parent}/none.gguf", body["error"]["message"])
            self.assertIn("No such file", body["error"]["message"])
        m = self.s.entry("absent")
        self.assertEqual((m["status"]["value"], m["status"]["failed"], m["status"]["exit_code"]), ("unloaded", True, 1))
        self.assertIn("No such file", m["status"]["message"])
        status, _, body = self.s.chat("undrafted")
        self.assertEqual(status, 500)
        self.assertIn("golden.json", body["error"]["message"])

    def test_cancel_by_client(self):
        self.s.load("gem")
        with self.s.begin("/v1/chat/completions", dict(LONG, model="gem")) as c:
            self.assertIn(b"data:", c.recv(4096) + c.recv(4096))
            self.assertEqual(self.s.running("gem"), 1)
        until(lambda: self.s.running("gem"), 0)
        until(lambda: any(x["is_processing"] for x in self.s.get("/slots?model=gem")[2]), False)

    def test_back_pressure(self):
        self.s.load("gem")
        body = json.dumps({"model": "gem", "prompt": "One", "logprobs": 20, "stream": True, "max_tokens": 3000,
                           "n": 4, "logit_bias": {"1": -100, "106": -100}, **HOT}).encode()
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", self.s.port))
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            until(lambda: any(x.get("held") for x in self.s.get("/slots?model=gem")[2]))
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            got = b""
            while any(x.get("held") for x in self.s.get("/slots?model=gem")[2]) or len(got) < 1 << 20:
                piece = c.recv(1 << 16)
                self.assertTrue(piece, got[-2000:])
                got += piece
            self.assertTrue(got.startswith(b"HTTP/1.1 200 OK"))
        until(lambda: self.s.running("gem"), 0)

    def test_killed_process(self):
        self.s.load("gem")
        for path, error in (("/v1/chat/completions", "data: "), ("/v1/messages", "event: error\ndata: ")):
            for _ in attempts("an answer that is not over when its process is killed"):
                pid = self.s.pid_of("gem")
                c, r = self.s.open("POST", path, dict(LONG, model="gem"))
                first = r.read(200)
                os.kill(pid, signal.SIGKILL)
                text = (first + r.read()).decode()
                c.close()
                if "[DONE]" not in text and "message_stop" not in text:
                    break
                self.s.load("gem")
            last = text.rstrip("\n").rsplit("\n\n", 1)[1]
            self.assertTrue(last.startswith(error), last)
            self.assertIn("the process of the model 'gem' ended", json.loads(last[len(error):])["error"]["message"])
            for block in text.rstrip("\n").split("\n\n"):  # no half events before it
                data = block.rpartition("data: ")[2]
                json.loads(data)
            until(lambda: "failed" in self.s.entry("gem")["status"])  # its status is known when it is gone
            m = self.s.entry("gem")["status"]
            self.assertEqual((m["value"], m["failed"], m["exit_code"]), ("unloaded", True, 137))
            self.assertEqual(self.s.chat("gem")[0], 200)
            self.assertNotIn("failed", self.s.entry("gem")["status"])

    def test_stored_answers_are_found(self):
        self.s.load("small")
        self.s.load("gem")
        made = self.s.post("/v1/responses", {"model": "small", "input": "Hello", "max_output_tokens": 4})[2]
        self.s.chat("gem")
        self.assertEqual(self.s.get(f"/v1/responses/{made['id']}")[2]["model"], "small")
        self.assertEqual(self.s.get("/v1/responses/resp_0")[0], 404)
        self.assertEqual(self.s.request("DELETE", f"/v1/responses/{made['id']}")[0], 200)

    def test_metrics(self):
        self.s.load("small")
        self.s.load("gem")
        text = self.s.get("/metrics")[2]
        for name in "gem", "small":
            self.assertIn(f'ingle_model_loaded{{model="{name}"}} 1\n', text)
            self.assertRegex(text, f'llamacpp:n_decode_total{{model="{name}"}} ')
            self.assertRegex(text, f'ingle_time_to_first_token_seconds_bucket{{model="{name}",le="')
        families = re.findall(r"^# TYPE (\S+)", text, re.M)
        self.assertEqual(len(families), len(set(families)))
        last = None  # the samples of a family stand together
        done = set()
        for line in text.splitlines():
            if line.startswith("# HELP "):
                self.assertNotIn(line.split()[2], done)
                last = line.split()[2]
                done.add(last)
            elif line and not line.startswith("#"):
                self.assertTrue(line.startswith(last), (last, line))
        self.assertNotIn("model=", self.s.get("/metrics?model=gem")[2])

    def test_bodies_that_are_none(self):
        self.assertEqual(self.s.post("/v1/chat/completions", b"{")[0], 400)
        self.assertEqual(self.s.post("/v1/chat/completions", b"")[0], 400)
        self.assertEqual(self.s.post("/v1/chat/completions", {"model": 7})[0], 400)
        self.assertEqual(self.s.post("/models/load", {})[0], 400)
        self.assertEqual(self.s.post("/models/load", {"model": "nobody"})[0], 404)
        self.assertEqual(self.s.get("/nowhere")[0], 404)
        self.assertEqual(self.s.request("DELETE", "/v1/chat/completions")[0], 405)
        self.assertEqual(self.s.get("/openapi.json")[0], 200)
        self.assertIn("<!doctype html>", self.s.get("/")[2])

    def test_odd_names(self):
        for name in "gem\0x", "\0", "gem\n", "gem\x1b[31m", "\x7f":
            for path in "/v1/chat/completions", "/api/chat", "/models/load", "/models/unload":
                self.assertEqual(self.s.post(path, dict(CHAT, model=name))[0], 400, (path, name))
        self.assertIn(self.s.post("/v1/chat/completions?model=gem%00x", dict(CHAT))[0], (400, 404))
        self.s.load("gem")
        status, _, body = self.s.post("/v1/responses/resp_nowhere/cancel", {})
        self.assertEqual(status, 404)
        self.assertIn("no response 'resp_nowhere' ", body["error"]["message"])

    def test_keep_alive(self):
        for path, more in (("/api/generate", {}), ("/api/chat", {"messages": []}), ("/api/generate", {"prompt": "", "keep_alive": "0s"})):
            self.s.load("small")
            status, _, body = self.s.post(path, {"model": "small", "keep_alive": 0, **more})
            self.assertEqual((status, body["done_reason"], body["done"], body["model"]), (200, "unload", True, "small"))
            until(lambda: self.s.state("small"), "unloaded")
        self.s.post("/api/generate", {"model": "small", "keep_alive": 0})  # it is not loaded for that
        self.assertEqual(self.s.state("small"), "unloaded")
        body = self.s.post("/api/chat", {"model": "small", "messages": CHAT["messages"], "keep_alive": 0, "stream": False})[2]
        self.assertIn(body["done_reason"], ("stop", "length"))
        until(lambda: self.s.state("small"), "unloaded")
        self.s.load("small")
        with self.s.begin("/v1/chat/completions", dict(LONG, model="small")) as c:  # who has an answer has it
            self.assertIn(b"data:", c.recv(4096) + c.recv(4096))
            self.s.post("/api/generate", {"model": "small", "keep_alive": 0})
            self.assertEqual(self.s.state("small"), "loaded")
        until(lambda: self.s.state("small"), "unloaded")
        self.assertEqual(self.s.post("/api/generate", {"model": "nobody", "keep_alive": 0})[0], 404)

    def test_log(self):
        self.s.unload("small")
        begin = len(self.s.log)
        self.s.load("small")
        self.s.unload("small")
        self.s.chat("undrafted")
        self.s.load("small")
        os.kill(self.s.pid_of("small"), signal.SIGKILL)
        lines = ("[small] loading", "[small] ready in ", "[small] unloaded (as asked)", "[undrafted] failed: ",
                 "[small] failed: its process was ended by signal 9")
        until(lambda: all(any(line.startswith(w) for line in self.s.log[begin:]) for w in lines))

    def test_killed_and_loaded(self):
        """A load that comes before the router knows of the end starts another process."""
        for _ in range(3):
            self.s.load("gem")
            pid = self.s.pid_of("gem")
            os.kill(pid, signal.SIGKILL)
            self.s.load("gem")
            self.assertNotIn(self.s.pid_of("gem"), (pid, None))

    def test_killed_when_idle(self):
        for _ in range(3):
            self.s.load("gem")
            pid = self.s.pid_of("gem")
            os.kill(pid, signal.SIGKILL)
            until(lambda: pid in children(self.s.process.pid), False)  # a signal has its effect when the process gets a turn
            self.assertNotEqual(self.s.state("gem"), "loaded")
            self.assertEqual(self.s.chat("gem")[0], 200)
        for _ in attempts("an answer that is not over when it is looked at"):
            answer = self.s.background("gem", max_tokens=3000, ignore_eos=True)
            until(lambda: self.s.running("gem") == 1 or answer.over())
            if not answer.over():
                break
            self.assertEqual(answer()[0], 200)
        os.kill(self.s.pid_of("gem"), signal.SIGKILL)
        self.assertEqual(answer()[0], 200)  # a whole answer begins anew

    def test_events(self):
        self.s.unload("small")
        c, r = self.s.open("GET", "/models/sse")
        self.s.load("small")
        seen = []
        while "loaded" not in seen:
            line = r.readline().decode()
            if line.startswith("data: "):
                e = json.loads(line[6:])
                if e["model"] == "small":
                    seen.append(e["data"]["status"])
        c.close()
        self.assertEqual(seen[0], "loading")


class Smoke(unittest.TestCase):
    def test_smoke(self):
        """scripts/smoke.py against a router: an address without a server, 'any', and a router without a model in memory."""
        with Router(PRESETS) as s:
            def smoke(*more):
                r = subprocess.run([sys.executable, "scripts/smoke.py", "http://127.0.0.1:1", s.url, *more, "--draft", "off", "--runs", "1"],
                                   capture_output=True, text=True, cwd=ROOT, check=False)
                return r.returncode, r.stdout
            rc, out = smoke("any")
            self.assertEqual(rc, 1, out)  # nothing is loaded
            self.assertIn("skip http://127.0.0.1:1", out)
            s.load("gem")
            rc, out = smoke("any", "--test-empty")
            self.assertIn("ok   'any' answers with a real name: gem", out)
            self.assertIn("ok   without a loaded model 'any' is a 400", out)
            rc, out = smoke("nobody")
            self.assertEqual(rc, 1, out)
            r = subprocess.run([sys.executable, "scripts/smoke.py", "http://127.0.0.1:1", "any"], capture_output=True, text=True,
                               cwd=ROOT, check=False)
            self.assertEqual(r.returncode, 1)
            self.assertIn("FAIL an address answers: 0 of 1", r.stdout)


class Room(unittest.TestCase):
    """Who leaves for whom."""

    def test_least_recently_used(self):
        with Router(PRESETS, "--models-max", "2") as s:
            s.load("gem")
            s.load("small")
            s.chat("gem")
            s.load("deep")
            self.assertEqual([s.state(n) for n in ("gem", "small", "deep")], ["loaded", "unloaded", "loaded"])
            self.assertEqual(s.get("/props")[2]["max_instances"], 2)

    def test_one_at_a_time(self):
        with Router(PRESETS, "--models-max", "1") as s:
            s.load("gem")
            with s.begin("/v1/chat/completions", dict(LONG, model="gem")) as c:
                c.recv(4096)  # gem has a request: nobody takes its place
                first = s.background("small")
                until(lambda: s.state("small"), "loading")
                second = s.background("deep")
                until(lambda: s.state("deep"), "loading")
                self.assertEqual(s.state("gem"), "loaded")
                gone = s.begin("/v1/chat/completions", dict(CHAT, model="absent"))
                until(lambda: s.state("absent"), "loading")
                gone.close()  # who leaves the queue costs nobody a place
                until(lambda: s.get("/metrics")[2].count("ingle_router_waiting 2\n"), 1)
            self.assertEqual(first()[2]["model"], "small")
            self.assertEqual(second()[2]["model"], "deep")
            self.assertEqual(s.state("gem"), "unloaded")
            self.assertNotIn("failed", s.entry("absent")["status"])
            waiting = [s.background("gem") for _ in range(3)]
            self.assertEqual([w()[0] for w in waiting], [200] * 3)
            self.assertEqual(s.get("/metrics")[2].count('ingle_model_starts_total{model="gem"} 2\n'), 1)
            s.post("/models/unload", {"model": "gem"})  # a request to one that ends waits for its next process
            self.assertEqual(s.chat("gem")[0], 200)

    def test_who_waits_leaves(self):
        """A client that goes while its request waits costs nobody the room."""
        with Router(PRESETS, "--models-max", "1") as s:
            s.load("small")
            with s.begin("/v1/chat/completions", dict(LONG, model="small")) as busy:
                self.assertIn(b"data:", busy.recv(4096) + busy.recv(4096))
                with s.begin("/v1/chat/completions", dict(CHAT, model="gem")):
                    until(lambda: s.state("gem"), "loading")
                until(lambda: s.state("gem"), "unloaded")
            until(lambda: s.running("small"), 0)
            self.assertEqual(s.chat("small")[0], 200)
            self.assertEqual(s.state("small"), "loaded")
            self.assertIn('ingle_model_starts_total{model="small"} 1\n', s.get("/metrics")[2])

    def test_memory(self):
        with Router(PRESETS, "--memory", "70M", "--models-max", "0") as s:
            self.assertEqual(s.chat("gem")[0], 200)
            self.assertEqual(s.chat("small")[0], 200)
            self.assertEqual([s.state("gem"), s.state("small")], ["unloaded", "loaded"])
            self.assertLess(s.get("/props")[2]["memory"]["planned_bytes"], 70 << 20)
        with Router(PRESETS, "--memory", "5M") as s:
            status, _, body = s.chat("gem")
            self.assertEqual(status, 500)
            self.assertIn("it needs", body["error"]["message"])

    def test_nobody_ends_for_what_cannot_run(self):
        bad = f"[big]\nmodel = {GEMMA}\nc = 4096\nparallel = 64\nkv = f32\n[text]\nmodel = {__file__}\n[cut]\nmodel = CUT\n"
        with tempfile.TemporaryDirectory() as d:
            cut = pathlib.Path(d) / "cut.gguf"
            cut.write_bytes(GEMMA.read_bytes()[:1 << 20])
            with Router(PRESETS + bad.replace("CUT", str(cut)), "--models-max", "1", "--memory", "100M") as s:
                s.load("gem")
                pid = s.pid_of("gem")
                for name, word in (("big", "it needs"), ("absent", "No such file"), ("undrafted", "golden.json"), ("text", "is a text"),
                                   ("cut", "cut.gguf")) * 2:
                    status, _, body = s.chat(name)
                    self.assertIn(status, (500, 503), name)  # 503: a pause after the second failure
                    self.assertIn(word, body["error"]["message"])
                    self.assertEqual((s.state("gem"), s.pid_of("gem"), s.chat("gem")[0]), ("loaded", pid, 200), name)
                self.assertEqual(s.get("/metrics")[2].count('ingle_model_starts_total{model="gem"} 1\n'), 1)
                self.assertEqual(s.chat("small")[0], 200)  # what can run still takes the place
                self.assertEqual(s.state("gem"), "unloaded")

    def test_fetching_is_not_loading(self):
        hub = SlowHub()
        with tempfile.TemporaryDirectory() as d, Router(
                PRESETS + "[slow]\nmodel = hf:o/slow\n[drafted]\n" + f"model = {GEMMA}\ndraft = hf:o/other\n[same]\nmodel = hf:o/slow:Q8_0\n",
                "--models-max", "1", "--hub", hub.url, "--hub-dir", d) as s:
            with s.begin("/v1/chat/completions", dict(CHAT, model="slow")), s.begin("/v1/chat/completions", dict(CHAT, model="drafted")):
                for name in "slow", "drafted":
                    until(lambda n=name: s.entry(n)["status"].get("fetching", False))
                self.assertEqual(s.post("/models/load", {"model": "same"})[0], 200)  # it waits for the file, and nobody for it
                self.assertEqual(s.chat("gem")[0], 200)
                self.assertEqual(s.chat("small")[0], 200)  # and they make room for each other
                self.assertEqual((s.state("gem"), s.state("slow")), ("unloaded", "loading"))
                until(lambda: s.entry("slow")["status"]["progress"] > 0)
            self.assertEqual(s.chat("gem")[0], 200)
            self.assertIs(s.entry("slow")["status"]["fetching"], True)  # it goes on when the client has left
            for name in "same", "slow", "drafted":
                self.assertEqual(s.state(name), "loading")
                s.unload(name)
        hub.shutdown()
        hub.server_close()

    def test_sleep_and_preload(self):
        with Router(PRESETS + "preload = false\n[awake]\n" f"model = {GEMMA}\nload-on-startup = true\nsleep-idle-seconds = 0.3\n") as s:
            until(lambda: s.state("awake"), "sleeping")
            self.assertEqual([m["id"] for m in s.get("/v1/models")[2]["data"] if m["status"]["value"] != "unloaded"], ["awake"])
            self.assertEqual(s.chat("any")[2]["model"], "awake")

    def test_no_autoload(self):
        with Router(PRESETS, "--no-models-autoload") as s:
            self.assertEqual(s.chat("gem")[0], 400)
            self.assertIs(s.get("/props")[2]["models_autoload"], False)
            self.assertEqual(s.post("/v1/chat/completions?autoload=true", dict(CHAT, model="gem"))[0], 200)
            s.load("small")
            self.assertEqual(s.chat("small")[0], 200)


class Life(unittest.TestCase):
    def test_no_orphan(self):
        s = Router(PRESETS)
        s.load("gem")
        s.load("small")
        pids = [s.pid_of("gem"), s.pid_of("small")]
        s.process.kill()
        s.process.wait()
        until(lambda: any(pathlib.Path(f"/proc/{p}/exe").exists() for p in pids), False)
        left = list(pathlib.Path(s.directory.name).glob("ingle-router-*"))
        self.assertEqual(len(left), 1)
        # The next one removes what it has left, also what one that was killed earlier has.
        (pathlib.Path(s.directory.name) / "ingle-router-abcdef").mkdir()
        with subprocess.Popen([INGLE, "serve", "--port", "0", "--models", str(s.file)], stdout=subprocess.PIPE, text=True) as p:
            p.stdout.readline()
            now = list(pathlib.Path(s.directory.name).glob("ingle-router-*"))
            p.terminate()
            self.assertEqual(p.wait(), 0)
        self.assertEqual((len(now), left[0] in now), (1, False))
        self.assertFalse(list(pathlib.Path(s.directory.name).glob("ingle-router-*")))
        s.close()

    def test_drain(self):
        s = Router(PRESETS)
        s.load("gem")
        c, r = s.open("POST", "/v1/chat/completions", dict(LONG, model="gem", max_tokens=400))
        r.read(10)
        pid = s.pid_of("gem")
        s.process.send_signal(signal.SIGTERM)
        text = r.read().decode()
        c.close()
        self.assertTrue(text.endswith("data: [DONE]\n\n"), text[-200:])
        self.assertEqual(s.process.wait(), 0)
        self.assertFalse(pathlib.Path(f"/proc/{pid}/exe").exists())
        s.close()

    def test_keys(self):
        key = {"Authorization": "Bearer sk-one"}
        with Router(PRESETS, "--api-key", "one:sk-one", "--api-key", "two:sk-two") as s:
            self.assertEqual(s.chat("gem")[0], 401)
            self.assertEqual(s.post("/models/load", {"model": "gem"})[0], 401)
            self.assertEqual(s.post("/v1/chat/completions", dict(CHAT, model="gem"), key)[0], 200)
            self.assertNotIn("args", s.entry("gem")["status"])
            args = s.entry("gem", key)["status"]["args"]
            self.assertFalse([a for a in args if "sk-" in a])
            # The name of the key is what its requests are known by in the process; a client cannot say it.
            made = s.post("/v1/responses", {"model": "gem", "input": "Hello", "max_output_tokens": 2}, key)[2]
            path = f"/v1/responses/{made['id']}?model=gem"
            self.assertEqual(s.get(path, key)[0], 200)
            self.assertEqual(s.get(path, {"Authorization": "Bearer sk-two", "X-Ingle-User": "one"})[0], 404)
            status, _, body = s.post("/v1/chat/completions", dict(CHAT, model="gem", priority=5), key)
            self.assertEqual(status, 400)
            self.assertIn("priority", body["error"]["message"])

    def test_who_unloads(self):
        one, two = ({"Authorization": f"Bearer sk-{k}"} for k in ("one", "two"))
        with Router(PRESETS, "--api-key", "one:sk-one", "--api-key", "two:sk-two") as s:
            self.assertEqual(s.post("/models/load", {"model": "gem"}, two)[0], 200)
            until(lambda: s.state("gem"), "loaded")
            with s.begin("/v1/chat/completions", dict(LONG, model="gem"), "sk-one") as c:
                self.assertIn(b"data:", c.recv(4096) + c.recv(4096))
                status, _, body = s.post("/models/unload", {"model": "gem"}, two)
                self.assertEqual((status, body["error"]["code"]), (409, "model_in_use"))
                s.post("/api/generate", {"model": "gem", "keep_alive": 0}, two)
                self.assertEqual(s.state("gem"), "loaded")
                self.assertEqual(s.post("/models/unload", {"model": "gem"}, one)[0], 200)  # its own
            until(lambda: s.state("gem"), "unloaded")
            self.assertEqual(s.post("/models/unload", {"model": "gem"}, two)[0], 200)

    def test_state_dir(self):
        names = "x.y", "x_y", "o/n", "%2F", ".hidden", "a" * 250, "a" * 249 + "b", "m-1.5"
        with tempfile.TemporaryDirectory() as d:
            state = pathlib.Path(d)
            (state / "m-1_5").mkdir(mode=0o700)  # of an earlier version, whose names were not reversible
            (state / "m-1_5/kept").write_text("x")
            with Router("[*]\nc = 512\nthreads = 1\n" + "".join(f"[{n}]\nmodel = {SMALL}\n" for n in names), "--state-dir", d) as s:
                for n in names:
                    self.assertEqual(s.chat(n)[0], 200, n)
            found = {p.name for p in state.iterdir()}
            self.assertEqual(len(found), len(names))
            self.assertLess({"x.y", "x_y", "o%2Fn", "%252F", "%2Ehidden", "m-1.5"}, found)
            self.assertTrue((state / "m-1.5/kept").exists())

    def test_reload(self):
        with Router(PRESETS) as s:
            s.load("gem")
            s.load("small")
            pid = s.pid_of("gem")
            s.file.write_text(PRESETS.replace("[small]", "[other]"))
            ids = [m["id"] for m in s.get("/v1/models?reload=1")[2]["data"]]
            self.assertEqual(sorted(ids), ["absent", "deep", "gem", "other", "undrafted"])
            self.assertEqual((s.state("gem"), s.pid_of("gem")), ("loaded", pid))
            self.assertEqual(s.chat("small")[0], 404)
            self.assertEqual(s.chat("other")[2]["model"], "other")
            s.file.write_text("[gem]\nsize = 3\n")
            self.assertEqual(s.get("/v1/models?reload=1")[0], 500)
            self.assertEqual(s.chat("gem")[0], 200)

    def test_reload_of_a_disk_that_does_not_answer(self):
        """Whoever opens a file that has a lease waits until the lease ends."""
        with tempfile.TemporaryDirectory() as d:
            repository = pathlib.Path(d) / "models--o--n"
            (repository / "snapshots/abc").mkdir(parents=True)
            (repository / "refs").mkdir()
            (repository / "refs/main").write_text("abc")
            (repository / "snapshots/abc/n.gguf").symlink_to(GEMMA)
            old = signal.signal(signal.SIGIO, lambda *_: None)
            lease = os.open(repository / "refs/main", os.O_RDONLY)
            self.addCleanup(signal.signal, signal.SIGIO, old)
            self.addCleanup(os.close, lease)
            with Router(PRESETS, "--models", d) as s:
                s.load("gem")
                try:
                    fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                except OSError as e:
                    self.skipTest(f"no leases here: {e}")
                out = []
                both = [threading.Thread(target=lambda: out.append(s.get("/v1/models?reload=1"))) for _ in range(2)]
                for t in both:
                    t.start()
                until(lambda: [r[0] for r in out], [503])  # one waits for the disk, the other is told so
                self.assertEqual(s.chat("gem")[0], 200)
                self.assertEqual((s.state("gem"), s.get("/health")[0]), ("loaded", 200))
                self.assertEqual(len(out), 1)
                s.file.write_text(PRESETS.replace("[small]", "[other]"))
                fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                for t in both:
                    t.join()
                self.assertIn("o/n", [m["id"] for m in out[1][2]["data"]])


class Presets(unittest.TestCase):
    def start(self, text, *options):
        """What a router with these presets says at its start, and its exit status (0: it ran)."""
        with tempfile.TemporaryDirectory() as d:
            self.home = d
            file = pathlib.Path(d) / "presets.ini"
            file.write_text(text)
            p = subprocess.Popen([INGLE, "serve", "--port", "0", "--models", "presets.ini", *options], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, cwd=d, env=dict(os.environ, HOME=d))
            if p.stdout.readline():
                p.terminate()
            out, said = p.communicate()
        return p.returncode, said

    def test_a_model_is_no_list(self):
        p = subprocess.run([INGLE, "serve", "--port", "0", "--models", str(SMALL)], capture_output=True, text=True)
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn(f"is a model and no file of presets: -m {SMALL}", p.stderr)

    def refused(self, text, *words, options=(), lines=1):
        status, said = self.start(text, *options)
        self.assertEqual(status, 1, said)
        wrong = [line for line in said.splitlines() if line.startswith("ingle: error: ")]
        self.assertEqual(len(wrong), lines, said)
        for w in words:
            self.assertIn(w, said)
        return said

    def test_bad_presets(self):
        self.refused("[a]\nmodel = x.gguf\nctx-sizes = 3\n", "presets.ini:3:", "[a]", "ctx-sizes")
        self.refused("[a]\nmodel = x.gguf\nctx = many\n", ".ini:3:", "whole number")
        self.refused("[a]\nmodel = x.gguf\nthink = perhaps\n", ".ini:3:", "perhaps")
        self.refused("[a]\nmodel = x.gguf\nport = 80\n", ".ini:3:", "whole server")
        self.refused("[a]\nmodel = x.gguf\nlora = y\n", ".ini:3:", "no adapters")
        self.refused("[a]\nthink = true\n", ".ini:1:", "[a]", "model = FILE")
        self.refused("[a]\nmodel = x.gguf\n[a]\nmodel = y.gguf\n", ".ini:3:", "two sections")
        self.refused("[a]\nmodel = x.gguf\nalias = any\n", ".ini:1:", "'any'")
        self.refused("ctx = 5\n[a]\nmodel = x\n", ".ini:1:", "before the first section")
        self.refused("[a\nmodel = x\n", ".ini:1:", "]", lines=3)
        self.refused("[a]\nmodel x\n", ".ini:2:", "key = value")
        for key in "model", "m", "hf-repo":
            self.refused(f"[*]\n{key} = x\n", ".ini:2:", "same file")
        self.refused("[*]\nalias = x\n[a]\nmodel = x\n", ".ini:2:", "same name")
        self.refused("[a]\nmodel = x\nalias = b\n[b]\nmodel = y\n", ".ini:1:", "alias")
        self.refused("[a]\nmodel = x\nalias = c\n[b]\nmodel = y\nalias = c\n", ".ini:4:", "'c' is an alias of 'a' and of 'b'")
        self.refused("[a]\nmodel = \"x\n", ".ini:2:", "quote that is not closed")
        self.refused("", "no model")
        self.refused("[a]\nmodel = x\n", "unix:PATH", options=("--trust-user",))

    def test_all_wrong_lines_at_once(self):
        said = self.refused("[*]\nsize = 1\n[a]\nmodel = x.gguf\nhf = o/n:Q4\nport = 1\n[b\n[c]\nmodel = y\nctx = 1.5\n",
                            "5 lines of the presets are wrong; the first is presets.ini:2:", lines=6)
        for line in 2, 5, 6, 7, 10:
            self.assertIn(f"error: presets.ini:{line}: ", said)
        self.assertIn("the section names a model in line 4, 'x.gguf'", said)

    def test_values(self):
        """Quotes, comments, ~, and what is told at the start."""
        model = f"model = {SMALL}\n"
        status, said = self.start(f"[a] ; the first\nmodel = '{SMALL}' # quoted\nctx = 512 ; small\n"
                                  f'[b]\nmodel = "{SMALL}" ; quoted\nctx-size = 512\nc = 256\n'
                                  f"[none]\nmodel = nope.gguf\n[empty]\nmodel = /dev/null\n[drafted]\n{model}draft = no/draft.gguf\n"
                                  f"[text]\nmodel = presets.ini\n[keys]\nLLAMA_ARG_MODEL = {SMALL}\n--ctx-size = 512\n[home]\nmodel = ~/x.gguf\n")
        self.assertEqual(status, 0, said)
        self.assertEqual([line for line in said.splitlines() if "warning" in line], [
            "ingle: warning: presets.ini:7: [b] c: counts in place of line 6, which gives --ctx, too",
            "ingle: warning: presets.ini:9: [none] model: 'nope.gguf': No such file or directory",
            "ingle: warning: presets.ini:11: [empty] model: '/dev/null': neither a file nor a folder",
            "ingle: warning: presets.ini:14: [drafted] draft: 'no/draft.gguf': No such file or directory",
            f"ingle: warning: presets.ini:21: [home] model: '{self.home}/x.gguf': No such file or directory"])

    def test_presets_of_llama_server(self):
        """What changes no answer is a note with its value; thinking is translated; what would change answers is an error."""
        head = "version = 1\n[*]\nfa = 0\nthink = true\n"
        idle = f"m = {SMALL}\nn-gpu-layers = 99\nflash-attn = on\nfit = off\nmlock = 0\nubatch-size = 256\njinja = on\nno-warmup = on\n" \
               "samplers = top_k;top_p;temperature\nreasoning-format = deepseek\nLLAMA_ARG_N_GPU_LAYERS = 5\n"
        lines = (("chat-template-kwargs = {\"enable_thinking\": false}", 0), ("reasoning-budget = 0", 0), ("reasoning = off", 0),
                 ("chat-template-kwargs = '{\"enable_thinking\": true}' ; yes", 1), ("think = off", 0), ("", 1))
        with Router(head + "".join(f"[{i}]\n{idle}{line}\n" for i, (line, _) in enumerate(lines))) as s:
            said = "".join(s.log)
            for note in "LLAMA_ARG_N_GPU_LAYERS: counts in place of line 7", "fa 0", "flash-attn on", "fit off", "ubatch-size 256", "samplers top_k;top_p;temperature":
                self.assertIn(note, said)
            for i, (line, thinks) in enumerate(lines):
                s.load(str(i))
                args = s.entry(str(i))["status"]["args"]
                self.assertEqual([a for a in args if a.startswith("--think")], [f"--think={thinks}"], line)
        said = self.refused(f"{head}[a]\n{idle}samplers = temperature;top_k\nlora = x.gguf\n", lines=3)
        self.assertIn(".ini:17: [a] samplers", said)

    def test_any_by_alias(self):
        presets = f"[any]\nmodel = {GEMMA}\nthreads = 1\nalias = other\n[small]\nmodel = {SMALL}\nthreads = 1\n"
        with Router(presets) as s:
            self.assertEqual(s.chat("any")[0], 400)
            self.assertEqual(s.chat("other")[0], 200)
            s.chat("small")
            self.assertEqual(s.chat("any")[2]["model"], "small")

    def test_folder(self):
        with tempfile.TemporaryDirectory() as d:
            d = pathlib.Path(d)
            nano = SMALL.parent
            (d / "one.GGUF").symlink_to(GEMMA)
            (d / "notes.txt").write_text("x")
            (d / "mmproj-x.gguf").write_text("x")
            (d / "two").mkdir()
            (d / "two/any-name.gguf").symlink_to(DEEP)
            (d / "two/mmproj-F16.gguf").write_text("x")
            (d / "two/aaa-DFlash.gguf").symlink_to(nano / "nano-gemma4-dflash-Q8_0.gguf")
            (d / "empty").mkdir()
            (d / "split-00001-of-00002.gguf").symlink_to(GEMMA)
            (d / "split-00002-of-00002.gguf").write_text("x")
            presets = d / "presets.ini"
            presets.write_text("[two]\nthreads = 1\nalias = second\n")
            (d / "mtp-root.gguf").symlink_to(nano / "nano-gemma4-mtp-Q8_0.gguf")  # what is no model by itself
            (d / "v4-mtp.gguf").symlink_to(DEEP.parent / "nano-v4-mtp0-Q8_0.gguf")
            (d / "sums.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(8) + b"\1" + bytes(7) + b"\14" + bytes(7) + b"general.type\10\0\0\0"
                                          + b"\7" + bytes(7) + b"imatrix")
            (d / "with-mtp-Q8_0.gguf").symlink_to(GEMMA)  # a model, whatever it is called
            (d / "broken.gguf").symlink_to("/nowhere/x.gguf")
            (d / "text.gguf").write_text("hello")
            (d / "nothing.gguf").write_text("")
            os.mkfifo(d / "fifo.gguf")
            (d / "models--o--n/refs").mkdir(parents=True)
            os.mkfifo(d / "models--o--n/refs/main")
            (d / "loop").symlink_to(".")
            for cache, names in ("models--o--n", ["n-Q8_0.gguf"]), ("models--o--m", ["m-Q8_0.gguf", "m-Q4_0.gguf"]):
                for name in names:
                    (d / cache / "snapshots/abc").mkdir(parents=True, exist_ok=True)
                    (d / cache / "snapshots/abc" / name).symlink_to(GEMMA)
            (d / "owner/name").mkdir(parents=True)
            (d / "owner/name/name-Q8_0.gguf").symlink_to(GEMMA)
            with Server(INGLE, "--models-dir", str(d), "--models-preset", str(presets)) as s:
                data = s.get("/v1/models")[2]["data"]
                self.assertEqual([m["id"] for m in data],
                                 ["one", "split", "with-mtp-Q8_0", "o/m:Q4_0", "o/m:Q8_0", "o/n", "owner/name", "two"])
                self.assertEqual(data[-1]["aliases"], ["second"])
                self.assertEqual(s.post("/v1/chat/completions", dict(CHAT, model="second"))[2]["model"], "two")
                said = "".join(s.log)
                for name in "broken", "text", "nothing", "fifo":
                    self.assertIn(f"warning: {d}/{name}.gguf is left out: ", said)
                self.assertEqual(said.count(" is left out: "), 4)
            for folder, ids in (d / "models--o--n", ["o/n"]), (d / "owner", ["name"]):
                with Server(INGLE, "--models", f"{folder}/") as s:
                    self.assertEqual([m["id"] for m in s.get("/v1/models")[2]["data"]], ids)
            p = subprocess.run([INGLE, "serve", "--port", "0", "--models", str(d / "empty")], capture_output=True, text=True)
            self.assertEqual(p.returncode, 1)
            self.assertIn("holds no model", p.stderr)


if __name__ == "__main__":
    INGLE = os.path.abspath(sys.argv.pop(1))
    unittest.main()
