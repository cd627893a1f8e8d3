#!/usr/bin/env python3
"""fleet.py INGLE - what routers, probes and scrapers of a fleet ask a server."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from client import TIMEOUT, Case, Server, main
from wait import LASTS, STAYS, attempts, until

INGLE = sys.argv[1]
USER = {"messages": [{"role": "user", "content": "Say hello."}]}


class Forms(Case):
    """vLLM's forms of prompts and of the server."""
    options = ["-c", "256", "--temp", "0", "--alias", "one"]

    def tokens(self, **body):
        status, _, r = self.server.post("/tokenize", body)
        self.assertEqual(status, 200, r)
        return r

    def test_tokenize(self):
        r = self.tokens(prompt="Hello world")
        self.assertEqual((r["count"], r["max_model_len"], r["token_strs"]), (len(r["tokens"]), 256, None))
        bare = self.tokens(prompt="Hello world", add_special_tokens=False, return_token_strs=True)
        self.assertEqual(bare["tokens"], r["tokens"][1:])
        self.assertEqual("".join(bare["token_strs"]), "Hello world")
        self.assertEqual(bare["tokens"], self.tokens(content="Hello world")["tokens"])
        for key in ("prompt", "content"):
            self.assertEqual(self.server.post("/detokenize", {"tokens": bare["tokens"]})[2][key], "Hello world")
        self.assertEqual(self.server.post("/tokenize", {"model": "one"})[0], 400)

    def test_rendered_prompts(self):
        whole = self.tokens(**USER)
        status, _, r = self.server.post("/v1/chat/completions/render", {**USER, "temperature": 0.5})
        self.assertEqual((status, r["token_ids"], r["model"]), (200, whole["tokens"], "one"))
        self.assertTrue(r["request_id"].startswith("chatcmpl-"), r)
        self.assertEqual(r["sampling_params"]["temperature"], 0.5)
        used = self.server.post("/v1/chat/completions", {**USER, "max_tokens": 1})[2]["usage"]
        self.assertEqual(used["prompt_tokens"], whole["count"])
        status, _, r = self.server.post("/v1/completions/render", {"prompt": ["Hello", "Once upon", [7, 8, 9]]})
        self.assertEqual([p["token_ids"] for p in r], [self.tokens(prompt="Hello")["tokens"],
                                                       self.tokens(prompt="Once upon")["tokens"], [7, 8, 9]])
        self.assertEqual(len({p["request_id"] for p in r}), 3)
        for path, body, field in (("chat/completions", {"messages": []}, "messages"),
                                  ("chat/completions", {**USER, "temperature": 9}, "temperature"),
                                  ("completions", {"prompt": [999999]}, "prompt")):
            status, _, r = self.server.post(f"/v1/{path}/render", body)
            self.assertEqual((status, r["error"]["param"]), (400, field), r)
        # above the context: an error as of the request itself; a count all the same
        for path, body in (("chat/completions", {"messages": [{"role": "user", "content": "word " * 300}]}), ("completions", {"prompt": "word " * 300})):
            whole = self.tokens(**body)
            self.assertGreater(whole["count"], whole["max_model_len"])
            self.assertEqual(len(whole["tokens"]), whole["count"])
            errors = [self.server.post(f"/v1/{path}{more}", body) for more in ("", "/render")]
            self.assertEqual([e[0] for e in errors], [400, 400])
            for field in "message", "code", "param", "n_prompt_tokens", "n_ctx":
                self.assertEqual(errors[0][2]["error"][field], errors[1][2]["error"][field])

    def test_the_server(self):
        info = self.server.get("/get_server_info")[2]
        self.assertEqual((info["model_id"], info["kv_block_size"], info["max_model_len"]), ("one", 16, 256))
        self.assertTrue(info["instance_id"])
        self.assertEqual(self.server.get("/get_model_info")[2]["is_generation"], True)
        self.assertEqual(self.server.get("/kv_event_sources")[2], {})
        model = self.server.get("/v1/models")[2]["data"][0]
        self.assertEqual((model["root"], model["parent"], model["max_model_len"]), ("one", None, 256))

    def test_probes(self):
        for path in ("/livez", "/readyz"):
            self.assertEqual(self.server.get(path)[::2], (200, {"status": "ok"}))
        for method in ("GET", "POST"):
            self.assertEqual(self.server.request(method, "/ping")[::2], (200, ""))
        self.assertEqual(self.server.get("/version")[2], {"version": self.server.get("/props")[2]["server"]["version"]})
        self.assertEqual(self.server.get("/load")[2], {"server_load": 0})
        self.assertEqual(self.server.get("/is_sleeping")[2], {"is_sleeping": False})


def samples(text):
    """{name{labels}: value} of what Prometheus reads; each name has its head once, before its samples."""
    found, kinds = {}, {}
    for line in text.splitlines():
        m = re.fullmatch(r"# (HELP|TYPE) ([a-z:_A-Z0-9]+) (.+)", line)
        if m:
            assert (m[1], m[2]) not in kinds, line
            kinds[m[1], m[2]] = m[3]
            continue
        m = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-z_]+="[^"\n]*",?)*\})? (\S+)', line)
        assert m and m[1] + (m[2] or "") not in found, line
        base = re.sub("_(bucket|sum|count)$", "", m[1])
        assert kinds.get(("TYPE", m[1])) in ("counter", "gauge") or kinds[("TYPE", base)] == "histogram", line
        found[m[1] + (m[2] or "")] = float(m[3])
    return found


class Metrics(Case):
    """The counters by vLLM's names, and the address for those who have no key."""
    options = ["-c", "512", "--temp", "0", "--alias", "one", "--api-key", "ann:secret", "--metrics-address", "127.0.0.1:0"]

    def ask(self, path, method="GET", headers=None):
        port = next(int(m[1]) for m in map(re.compile("metrics  port (\\d+)").match, self.server.log) if m)
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        c.request(method, path, headers=headers or {})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def test_names(self):
        long = {"messages": [{"role": "user", "content": "Say hello. " * 30}], "max_tokens": 3}
        key = {"X-Api-Key": "secret"}
        for _ in range(2):
            self.assertEqual(self.server.post("/v1/chat/completions", long, key)[0], 200)
        status, text = self.ask("/metrics")
        self.assertEqual(status, 200)
        self.assertEqual(self.server.get("/metrics")[0], 401)
        got = samples(text)
        v = {re.match("[^{]+", k)[0]: x for k, x in got.items() if k.startswith("vllm:")}
        self.assertEqual((v["vllm:num_requests_running"], v["vllm:num_requests_waiting"]), (0, 0))
        self.assertEqual(v["vllm:generation_tokens_total"], 6)
        self.assertGreater(v["vllm:prefix_cache_hits_total"], 0)
        self.assertGreater(v["vllm:prefix_cache_queries_total"], v["vllm:prefix_cache_hits_total"])
        for name in ("queries", "hits"):  # as production-stack's router reads them
            self.assertEqual(v[f"vllm:gpu_prefix_cache_{name}_total"], v[f"vllm:prefix_cache_{name}_total"])
        self.assertTrue(0 <= v["vllm:kv_cache_usage_perc"] < 0.5, v)
        self.assertEqual(v["vllm:e2e_request_latency_seconds_count"], 2)
        ended = {re.search('finished_reason="(.+?)"', k)[1]: x for k, x in got.items() if "request_success" in k}
        self.assertEqual(ended, {"stop": 0, "length": 2, "abort": 0, "error": 0})
        blocks = next(k for k in got if k.startswith("vllm:cache_config_info"))
        self.assertIn('block_size="16"', blocks)
        self.assertGreater(int(re.search('num_gpu_blocks="(\\d+)"', blocks)[1]), 32)
        self.assertEqual(got["ingle_ready"], 1)
        self.assertGreater(got["ingle_load_seconds"], 0)

    def test_only_these(self):
        for path in ("/livez", "/readyz"):
            self.assertEqual(self.ask(path)[0], 200)
        for path, method, status in (("/v1/models", "GET", 404), ("/props", "GET", 404), ("/metrics", "POST", 405)):
            self.assertEqual(self.ask(path, method)[0], status, path)
        self.assertEqual(self.ask("/metrics", headers={"Host": "evil.example"})[0], 403)
        self.assertEqual(self.ask("/metrics", headers={"Origin": "http://evil.example"})[0], 403)

    def test_wrong_addresses(self):
        for address, words in (("9090", "is not HOST:PORT"), ("127.0.0.1:x", "is not HOST:PORT"), (":1", "is not HOST:PORT"),
                               ("127.0.0.1:70000", "70000 is above 65535"), (f"127.0.0.1:{self.server.port}", "in use")):
            r = subprocess.run([INGLE, "serve", "--port", "0", "--metrics-address", address], capture_output=True, text=True)
            self.assertNotEqual(r.returncode, 0, address)
            self.assertRegex(r.stderr, f"--metrics-address {address}.*{words}")


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Requests(Case):
    """Names that clients give to requests and sessions, and the name of this server."""
    options = [*STAYS, "--temp", "0", "--replica", "pod-a", "--allowed-host", ".svc.cluster.local", "-v", "-v"]

    def ids(self, headers):
        r = self.server.post("/v1/chat/completions", {**USER, "max_tokens": 1}, headers)
        self.assertEqual(r[0], 200)
        return r[1]["X-Request-Id"], r[1]["Request-Id"]

    def test_request_ids(self):
        for own in ("a", "x" * 128, "0af76519-16cd-43dd"):
            self.assertEqual(self.ids({"X-Request-Id": own}), (own, own))
        for other in ("x" * 129, "two words", 'a"b', "\xe4"):
            self.assertRegex(self.ids({"X-Request-Id": other})[0], "^req_[0-9a-f]{16}$")
        self.assertEqual(self.server.post("/v1/chat/completions", {}, {"X-Request-Id": "bad-1"})[1]["X-Request-Id"], "bad-1")

    def test_traces(self):
        slow = {**USER, **LASTS}
        c, r = self.server.open("POST", "/v1/chat/completions", slow, {"X-Request-Id": "slow-1", "traceparent": TRACE})
        r.readline()
        until(lambda: ("slow-1", TRACE) in [(s["request_id"], s["traceparent"]) for s in self.server.get("/slots")[2]])
        c.close()
        r.close()
        for i, odd in enumerate((TRACE.upper(), TRACE.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
                                 TRACE.replace("b7ad6b7169203331", "0" * 16))):
            self.ids({"X-Request-Id": f"odd-{i}", "traceparent": odd})
        until(lambda: all(name in "".join(self.server.log) for name in ("slow-1", "odd-2")))
        log = "".join(self.server.log)
        self.assertRegex(log, f"slow-1.*traceparent {TRACE}")
        self.assertNotRegex(log, "odd-.*traceparent")

    def test_affinity(self):
        def key(headers, **body):
            return self.server.post("/v1/chat/completions", {**USER, "max_tokens": 1, **body}, headers)[1]["x-affinity-key"]
        for name in ("x-session-id", "x-session-token", "x-user-id", "x-correlation-id", "x-conversation-id"):
            self.assertEqual(key({name: "k1"}), "k1", name)
        self.assertEqual(key({}, user="ann"), "ann")
        self.assertEqual(key({"x-session-id": "s", "x-user-id": "u"}, user="ann", prompt_cache_key="p"), "s")
        self.assertEqual(key({"x-user-id": "u"}, user="ann", prompt_cache_key="p"), "p")
        self.assertIsNone(key({}))

    def test_hosts(self):
        for host, status in (("ingle.default.svc.cluster.local", 200), ("INGLE.x.SVC.cluster.local:8080", 200),
                             (".svc.cluster.local", 403), ("svc.cluster.local", 403), ("evilsvc.cluster.local", 403),
                             ("a.svc.cluster.local.evil.example", 403)):
            self.assertEqual(self.server.get("/health", {"Host": host})[0], status, host)
        for wrong in (".", "..", ".a..b"):
            r = subprocess.run([INGLE, "serve", "--port", "0", "--allowed-host", wrong], capture_output=True, text=True)
            self.assertRegex(r.stderr, f"--allowed-host {re.escape(wrong)}'")
        for wrong in ("a.b", "x" * 33, "a b"):
            r = subprocess.run([INGLE, "serve", "--port", "0", "--replica", wrong], capture_output=True, text=True)
            self.assertRegex(r.stderr, f"--replica {wrong}' is no name: 1 to 32 letters")

    def test_ids(self):
        """An id ends in the name of the server; one of another server is a 404 that names that."""
        _, headers, r = self.server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 4})
        self.assertEqual(headers["X-Ingle-Replica"], "pod-a")
        self.assertRegex(r["id"], r"^resp_[0-9a-f]{32}\.pod-a$")
        for item in r["output"]:
            self.assertTrue(item["id"].endswith(".pod-a"), item)
        self.assertEqual(self.server.get("/v1/responses/" + r["id"])[0], 200)
        status, _, again = self.server.post("/v1/responses", {"input": "Go on", "max_output_tokens": 4,
                                                              "previous_response_id": r["id"]})
        self.assertEqual(status, 200, again)
        c = self.server.post("/v1/conversations", {})[2]
        self.assertRegex(c["id"], r"^conv_[0-9a-f]{32}\.pod-a$")
        self.assertEqual(self.server.get("/v1/conversations/" + c["id"])[0], 200)
        self.assertEqual(self.server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 4, "conversation": c["id"]})[0], 200)
        self.assertRegex(self.server.post("/v1/chat/completions", {**USER, "max_tokens": 1})[2]["id"], r"\.pod-a$")
        away, words = r["id"].replace("pod-a", "pod-b"), "it is of replica 'pod-b', and this is 'pod-a'"
        for method, path in (("GET", "responses/"), ("DELETE", "responses/"), ("GET", "conversations/")):
            status, _, e = self.server.request(method, "/v1/" + path + away.replace("resp", "conv" if path[0] == "c" else "resp"))
            self.assertEqual((status, words in e["error"]["message"]), (404, True), e)
        status, _, e = self.server.get("/stream?conv_id=talk.pod-b")
        self.assertEqual((status, words in e["error"]["message"]), (404, True), e)
        for field, name in (("previous_response_id", "resp"), ("conversation", "conv")):
            status, _, e = self.server.post("/v1/responses", {"input": "x", field: away.replace("resp", name)})
            self.assertEqual((status, words in e["error"]["message"], e["error"]["param"]), (404, True, field), e)


class Events(Case):
    """Cached prefixes that are told to routers (unit_link_events is a subscriber)."""
    options = ["-c", "1024", "--kv-events", "127.0.0.1:*", "--kv-events-replay", "127.0.0.1:*", "--kv-events-topic", "kv@a@b"]

    @classmethod
    def setUpClass(cls):
        try:
            super().setUpClass()
        except RuntimeError as e:
            if "no libzmq" in str(e):
                raise unittest.SkipTest(str(e))
            raise

    def count(self, name):
        return int(re.search(rf"^ingle_kv_events_{name} (\d+)$", self.server.get("/metrics")[2], re.M)[1])

    def test_sources(self):
        source = self.server.get("/kv_event_sources")[2]["0"]
        self.assertEqual((source["topic"], source["publisher"]), ("kv@a@b", "zmq"))
        for name in ("endpoint", "replay_endpoint"):
            self.assertRegex(source[name], r"^tcp://127\.0\.0\.1:\d+$")
        self.assertEqual(self.server.get("/kv_event_sources?form=list")[2], [source])

    def test_blocks(self):
        for i in range(12):
            body = {"messages": [{"role": "user", "content": f"{i} birds. " * 60}], "max_tokens": 1}
            self.assertEqual(self.server.post("/v1/chat/completions", body)[0], 200)
            n = len(self.server.post("/v1/chat/completions/render", body)[2]["token_ids"])
            self.assertGreaterEqual(self.count("memory_blocks"), (n - 8) // 16)
        self.assertEqual(self.count("stored_total") - self.count("removed_total"), self.count("memory_blocks"))

    def test_wrong_options(self):
        for options, words in ((["--kv-events", "127.0.0.1:99999"], "99999 is above 65535"), (["--kv-events", "foo"], "'--kv-events foo'"),
                               (["--kv-events", f"127.0.0.1:{self.server.port}"], "in use"),
                               (["--kv-events-replay", "127.0.0.1:1"], "needs '--kv-events"),
                               (["--kv-events-config", "[1]"], "no JSON object"), (["--kv-events-config", '{"endpoint": 5}'], "'endpoint'"),
                               (["--kv-events-config", '{"publisher": "x"}'], "not 'zmq'"), (["--kv-events-config", "{"], "--kv-events-config"),
                               (["--kv-events-config", "{}", "--kv-events", "127.0.0.1:*"], "exclude each other")):
            r = subprocess.run([INGLE, "serve", "--port", "0", *options], capture_output=True, text=True, timeout=TIMEOUT)
            self.assertEqual((r.returncode, words in r.stderr), (1, True), r.stderr)


class Keys(Case):
    """A file of keys that changes while the server runs."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "keys")
        cls.write("a:one\nb:two\n", 0o600)
        cls.server = Server(INGLE, "--api-key-file", cls.path, "--max-priority", "b=3")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    @classmethod
    def write(cls, text, mode):
        with open(cls.path + ".new", "w") as file:
            file.write(text)
        os.chmod(cls.path + ".new", mode)
        os.replace(cls.path + ".new", cls.path)

    def knows(self, key):
        return self.server.get("/props", {"X-Api-Key": key})[0] == 200

    def test_rotation(self):
        self.assertEqual([self.knows(k) for k in ("one", "two", "new")], [True, True, False])
        self.write("b:new\n", 0o600)
        until(lambda: self.knows("new"))
        self.assertEqual([self.knows(k) for k in ("one", "two", "new")], [False, False, True])
        for wrong, mode, words in (("", 0o600, "has no key"), ("x:\n", 0o600, "line 1 is neither"), ("c:other\n", 0o666, "is open to others")):
            before = len(self.server.log)
            self.write(wrong, mode)
            for _ in attempts(words):
                self.assertTrue(self.knows("new"))
                if any("old keys stay" in line and words in line for line in self.server.log[before:]):
                    break
        status, _, r = self.server.post("/v1/chat/completions", {**USER, "max_tokens": 1, "priority": 3}, {"X-Api-Key": "new"})
        self.assertEqual(status, 200, r)

    def test_a_change_is_seen_without_requests(self):
        before = len(self.server.log)
        self.write("x:\n", 0o600)
        until(lambda: any("old keys stay" in line for line in self.server.log[before:]))
        self.write("a:one\nb:two\n", 0o600)

    @unittest.skipUnless(os.getuid() == 0, "files of root and of a group need root")
    def test_secrets(self):
        """root:GROUP 0440, as Kubernetes mounts a secret for a process with fsGroup."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            path = os.path.join(folder, "keys")
            with open(path, "w") as file:
                file.write("k\n")
            os.chmod(path, 0o440)
            os.chown(path, 0, 12345)
            for groups, fine in (([12345], True), ([54321], False)):
                ask = [INGLE, "serve", "--port", "0", "--api-key-file", path, "--tls-cert", "/no/such"]
                r = subprocess.run(ask, capture_output=True, text=True, extra_groups=groups)
                self.assertNotEqual(r.returncode, 0)
                self.assertEqual("is open to others" not in r.stderr, fine, r.stderr)


class Signals(Case):
    """SIGUSR2 and SIGTERM with --linger: the server says that nothing new should come, and answers what comes."""
    options = ["--linger", "1.5", "--temp", "0"]

    def test_both(self):
        p = self.server.process
        for status in (503, 200):
            p.send_signal(signal.SIGUSR2)
            until(lambda: self.server.get("/readyz")[0] == status)
            self.assertEqual(self.server.get("/health")[0], 200)
            self.assertEqual(self.server.post("/v1/chat/completions", {**USER, "max_tokens": 2})[0], 200)
        begun, answers = time.monotonic(), 0
        p.terminate()
        try:
            until(lambda: self.server.get("/readyz")[0] == 503)
            while answers < 5:
                self.assertEqual(self.server.post("/v1/chat/completions", {**USER, "max_tokens": 2})[0], 200)
                answers += 1
        except (OSError, http.client.HTTPException):  # this test was stopped for longer than the server waits
            self.assertGreater(time.monotonic() - begun, 1.4)
        self.assertEqual(p.wait(TIMEOUT), 0)
        self.assertGreater(time.monotonic() - begun, 1.4)


class Last(unittest.TestCase):
    """A connection that came before --linger was over, and asks when it is."""

    def check(self, *options):
        with Server(INGLE, "--linger", "0.3", "--temp", "0", *options) as server:
            last = server.connect()
            last.connect()
            server.process.terminate()
            while True:
                try:
                    socket.create_connection(("127.0.0.1", server.port), TIMEOUT).close()
                except OSError:
                    break
                time.sleep(0.01)
            begun = time.monotonic()
            try:
                last.request("POST", "/tokenize", json.dumps({"prompt": "Hello", "model": "nano-v4-MXFP4"}), {"Content-Type": "application/json"})
                status = last.getresponse().status
            except (OSError, http.client.HTTPException):
                status = 0
            if time.monotonic() - begun < 1:  # else this test was stopped for longer than the server waits
                self.assertEqual(status, 200)
            last.close()

    def test_it_has_its_answer(self):
        self.check()
        self.check("--models", "tests/data/nano-v4")


class Names(unittest.TestCase):
    def test_two_of_one_name_are_told(self):
        with tempfile.TemporaryDirectory() as folder:
            options = (INGLE, "--store", folder, "--replica", "one")
            with Server(*options):
                with Server(*options) as second, Server(INGLE, "--store", folder, "--replica", "two") as other:
                    self.assertRegex("".join(second.log), "'one'.*has this name, too \\(--replica\\)")
                    self.assertNotIn("has this name", "".join(other.log))


class Several(Case):
    """A router answers probes itself."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(INGLE, "--models", "tests/data/nano-v4")

    def test_probes(self):
        for path in ("/livez", "/readyz", "/version", "/load", "/is_sleeping"):
            self.assertEqual(self.server.get(path)[0], 200, path)
        self.server.process.send_signal(signal.SIGUSR2)
        until(lambda: self.server.get("/readyz")[0] == 503)
        self.assertEqual(self.server.get("/ping")[0], 200)


main()
