#!/usr/bin/env python3
"""fleet.py INGLE - what routers, probes and scrapers of a fleet ask a server."""
import http.client
import re
import signal
import subprocess
import sys
import time

from client import Case, Server, main

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
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
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


class Signals(Case):
    """SIGUSR2 and SIGTERM with --linger: the server says that nothing new should come, and answers what comes."""
    options = ["--linger", "1.5", "--temp", "0"]

    def wait_for(self, status):
        for _ in range(500):
            if self.server.get("/readyz")[0] == status:
                return
            time.sleep(0.01)
        self.fail(self.server.get("/readyz"))

    def test_both(self):
        p = self.server.process
        for status in (503, 200):
            p.send_signal(signal.SIGUSR2)
            self.wait_for(status)
            self.assertEqual(self.server.get("/health")[0], 200)
            self.assertEqual(self.server.post("/v1/chat/completions", {**USER, "max_tokens": 2})[0], 200)
        begun = time.monotonic()
        p.terminate()
        self.wait_for(503)
        while time.monotonic() - begun < 1:
            self.assertEqual(self.server.post("/v1/chat/completions", {**USER, "max_tokens": 2})[0], 200)
        self.assertEqual(p.wait(60), 0)
        self.assertGreater(time.monotonic() - begun, 1.4)


class Several(Case):
    """A router answers probes itself."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(INGLE, "--models", "tests/data/nano-v4")

    def test_probes(self):
        for path in ("/livez", "/readyz", "/version", "/load", "/is_sleeping"):
            self.assertEqual(self.server.get(path)[0], 200, path)
        self.server.process.send_signal(signal.SIGUSR2)
        while self.server.get("/readyz")[0] != 503:
            time.sleep(0.01)
        self.assertEqual(self.server.get("/ping")[0], 200)


main()
