#!/usr/bin/env python3
"""llama.py INGLE - what clients of llama-server look for beyond the words of OpenAI."""
import http.client
import json
import os
import re
import socket
import sys
import tempfile
import time

from client import TIMEOUT, Case, main
from wait import busy, until

CHAT = "/v1/chat/completions"
TIMES = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
         "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


class Llama(Case):
    options = ["-c", "1024", "--parallel", "2", "--seed", "42", "--chunk", "32", "--temp", "1",
               "--alias", "one", "--tag", "small", "--tag", "code"]

    def native(self, prompt, **more):
        status, _, r = self.server.post("/completion", {"prompt": prompt, "ignore_eos": True, **more})
        self.assertEqual(status, 200, r)
        return r

    def test_the_servers_seed(self):
        one, two, other = (self.native("Once upon a time", n_predict=16, **more)
                           for more in ({}, {}, {"seed": 43}))
        self.assertEqual(one["generation_settings"]["seed"], 42)
        self.assertEqual(one["content"], two["content"])
        self.assertNotEqual(one["content"], other["content"])

    def test_tokens_of_a_stream(self):
        got = self.server.stream("/completion", {"prompt": "Once upon", "n_predict": 8, "temperature": 0,
                                                 "ignore_eos": True})
        ids = [t for _, e in got for t in e["tokens"]]
        whole = self.native("Once upon", n_predict=8, temperature=0, return_tokens=True)
        self.assertEqual(ids, whole["tokens"])
        self.assertEqual(self.native("Once upon", n_predict=2)["tokens"], [])

    def test_fields_keep_their_path(self):
        r = self.native("Once", n_predict=3, response_fields=["content", "generation_settings/n_predict",
                                                              "no/such"])
        self.assertEqual(set(r), {"content", "generation_settings/n_predict"})
        self.assertEqual(r["generation_settings/n_predict"], 3)

    def test_biases_that_count(self):
        r = self.native("Once", n_predict=2, logit_bias=[[7, -2], [8, False]])
        biases = r["generation_settings"]["logit_bias"]
        self.assertEqual(biases[:2], [{"token": 7, "bias": -2}, {"token": 8, "bias": None}])
        self.assertTrue(biases[2:] and all(b["bias"] is None for b in biases[2:]), biases)
        r = self.native("Once", n_predict=2, ignore_eos=False)
        self.assertEqual(r["generation_settings"]["logit_bias"], [])

    def test_what_was_drawn_from(self):
        wish = {"n_probs": 10, "post_sampling_probs": True, "n_predict": 8, "seed": 4}
        r = self.native("Once upon a", **wish, temperature=40, top_k=5, top_p=1, min_p=0)
        tokens = r["completion_probabilities"]
        self.assertEqual(len(tokens), 8)
        for t in tokens:
            probs = [p["prob"] for p in t["top_probs"]]
            self.assertEqual(len(probs), 5)
            self.assertAlmostEqual(sum(probs), 1, 5)
            self.assertEqual(probs, sorted(probs, reverse=True))
            self.assertLess(probs[0], 0.6)  # so hot that all of them are likely
            self.assertIn((t["id"], t["prob"]), [(p["id"], p["prob"]) for p in t["top_probs"]])
            self.assertNotIn("logprob", t)
        for t in self.native("Once upon a", **wish, temperature=0)["completion_probabilities"]:
            self.assertEqual([(p["id"], p["prob"]) for p in t["top_probs"]], [(t["id"], 1)])
        r = self.native("Once upon a", **wish, temperature=1, grammar='root ::= "yes" | "no"', ignore_eos=False)
        for t in r["completion_probabilities"]:
            self.assertAlmostEqual(sum(p["prob"] for p in t["top_probs"]), 1, 5)
        body = user("Say yes.", logprobs=True, top_logprobs=3, post_sampling_probs=True)
        for t in self.server.post(CHAT, body)[2]["choices"][0]["logprobs"]["content"]:
            self.assertEqual((t["logprob"], len(t["top_logprobs"])), (0, 1))

    def test_own_limits(self):
        for field, v in (("temperature", 3), ("temperature", 1e9), ("presence_penalty", -30), ("frequency_penalty", 30)):
            self.native("Once", n_predict=2, **{field: v})
            self.assertEqual(self.server.post(CHAT, user("Hello", **{"max_tokens": 1, field: v}))[0], 400)
        for field, v in (("temperature", -1), ("temperature", 1e39), ("presence_penalty", 1001)):
            status, _, r = self.server.post("/completion", {"prompt": "Once", "n_predict": 1, field: v})
            self.assertEqual((status, r["error"]["param"]), (400, field))

    def test_zeros_are_off_and_xtc_has_a_threshold(self):
        prompt = "the the the the the a a a a b b"
        def text(**fields):
            return self.native(prompt, n_predict=12, ignore_eos=True, **fields)["content"]
        plain = text()
        for strong in ({"repeat_penalty": 5}, {"frequency_penalty": 9}, {"presence_penalty": 90}):
            self.assertNotEqual(text(**strong), plain, strong)
            self.assertEqual(text(**strong, repeat_last_n=0), plain, strong)
        dry = {"dry_multiplier": 50, "dry_allowed_length": 1}
        self.assertNotEqual(text(**dry), plain)
        self.assertEqual(text(**dry, dry_penalty_last_n=0), plain)
        self.assertEqual(text(**dry, dry_base=0.5), text(**dry, dry_base=1.75))
        self.assertEqual(text(xtc_probability=1), text(xtc_probability=1, xtc_threshold=0.1))
        self.assertNotEqual(text(xtc_probability=1), text(xtc_probability=1, xtc_threshold=0))

    def test_settings_are_those_that_count(self):
        s = self.native("Once", n_predict=1)["generation_settings"]
        self.assertEqual([s[k] for k in ("repeat_last_n", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
                                         "xtc_threshold")], [64, 1.75, 2, -1, 0.1])

    def test_rates(self):
        t = self.native("Once", n_predict=1)["timings"]
        self.assertEqual((t["predicted_n"], t["predicted_per_second"], t["predicted_per_token_ms"]), (1, 0, 0))
        t = self.native("Once", n_predict=16)["timings"]
        self.assertAlmostEqual(t["predicted_per_second"], 15e3 / t["predicted_ms"])

    def test_progress_and_timings(self):
        prompt = "the quick brown fox jumps over the lazy dog " * 8
        wish = {"return_progress": True, "timings_per_token": True}
        for path, body in (("/completion", {"prompt": prompt, "n_predict": 4, "ignore_eos": True}),
                           (CHAT, user(prompt, max_tokens=4, ignore_eos=True))):
            events = [e for _, e in self.server.stream(path, {**body, **wish}) if e != "[DONE]"]
            steps = [e for e in events if "prompt_progress" in e]
            self.assertGreater(len(steps), 2, path)
            first, last = steps[0]["prompt_progress"], steps[-1]["prompt_progress"]
            self.assertEqual(first["processed"], first["cache"])
            self.assertEqual(last["processed"], last["total"])
            self.assertEqual((steps[0]["timings"]["prompt_n"], steps[0]["timings"]["prompt_ms"]), (0, 0))
            for a, b in zip(steps, steps[1:]):
                self.assertLess(a["prompt_progress"]["processed"], b["prompt_progress"]["processed"])
                self.assertLessEqual(a["timings"]["prompt_ms"], b["timings"]["prompt_ms"])
            texts = [e for e in events[events.index(steps[-1]) + 1:] if "timings" in e]
            self.assertTrue(texts, path)
            for e in steps + texts:
                self.assertLessEqual(TIMES, set(e["timings"]))
            prompt = "a slow red hen sits under the old tree " * 8

    def test_progress_of_responses(self):
        events = self.server.stream("/v1/responses", {
            "input": "This is a test. " * 20, "max_output_tokens": 4, "return_progress": True,
            "timings_per_token": True})
        steps = [e for name, e in events if "prompt_progress" in e]
        self.assertGreater(len(steps), 1)
        self.assertEqual({e["type"] for e in steps}, {"response.in_progress"})
        deltas = [e for name, e in events if name == "response.output_text.delta"]
        self.assertTrue(deltas and all(TIMES <= set(e["timings"]) for e in deltas), deltas)
        self.assertIn("timings", events[-1][1])
        self.assertEqual([e["sequence_number"] for _, e in events], list(range(len(events))))
        plain = self.server.stream("/v1/responses", {"input": "Hello", "max_output_tokens": 4})
        self.assertFalse([e for _, e in plain if "timings" in e or "prompt_progress" in e])

    def test_count_of_a_conversation(self):
        body = user("What is the best book?")
        status, _, r = self.server.post(CHAT + "/input_tokens", body)
        self.assertEqual((status, r["object"]), (200, "response.input_tokens"), r)
        status, _, whole = self.server.post(CHAT, {**body, "max_tokens": 1})
        self.assertEqual(r["input_tokens"], whole["usage"]["prompt_tokens"])
        status, _, r = self.server.post(CHAT + "/input_tokens", {"messages": 1})
        self.assertEqual((status, r["error"]["type"]), (400, "invalid_request_error"), r)

    def test_verbose(self):
        for wish in (True, False):
            r = self.server.post(CHAT, user("Which book?", max_tokens=1, verbose=wish))[2]
            self.assertEqual("Which book?" in r.get("__verbose", {}).get("prompt", ""), wish)

    def prompt(self, *messages, **more):
        roles = ["user", "assistant", "user"]
        status, _, r = self.server.post("/apply-template", {
            "messages": [{"role": role, "content": m} for role, m in zip(roles, messages)], **more})
        self.assertEqual(status, 200, r)
        return r["prompt"]

    def test_ends_of_a_prompt(self):
        asks = self.prompt("Hi")
        silent = self.prompt("Hi", add_generation_prompt=False)
        self.assertTrue(asks.startswith(silent) and len(asks) > len(silent), (asks, silent))
        self.assertEqual(asks, self.prompt("Hi", add_generation_prompt=True))
        on = self.prompt("Hi", "Hello the")
        self.assertTrue(on.endswith("Hello the"), on)
        self.assertEqual(on, self.prompt("Hi", "Hello the", add_generation_prompt=False,
                                         continue_final_message=True))
        closed = self.prompt("Hi", "Hello the", add_generation_prompt=False)
        self.assertFalse(closed.endswith("Hello the"), closed)
        asked = self.prompt("Hi", "Hello the", add_generation_prompt=True)
        self.assertTrue(asked.startswith(closed) and len(asked) > len(closed), (asked, closed))
        status, _, r = self.server.post(CHAT, user("Hi", add_generation_prompt=True,
                                                   continue_final_message=True))
        self.assertEqual((status, r["error"]["param"]), (400, "continue_final_message"), r)

    def test_too_long(self):
        status, _, r = self.server.post(CHAT, user("word " * 3000))
        self.assertEqual((status, r["error"]["code"]), (400, "context_length_exceeded"))
        self.assertIn("exceeds the available context size", r["error"]["message"])

    def test_idle_when_the_answer_is_there(self):
        for _ in range(20):
            self.native("Once", n_predict=2)
            slots = self.server.get("/slots")[2]
            self.assertFalse(any(s["is_processing"] for s in slots), slots)
            self.assertEqual([s["next_token"][0]["n_remain"] for s in slots], [-1, -1])
        _, headers, text = self.server.get("/metrics")
        self.assertIn("\nllamacpp:requests_processing 0\n", text)
        self.assertIn("\nllamacpp:prompt_tokens_cached_total ", text)
        self.assertGreater(int(headers["Process-Start-Time-Unix"]), 10**9)

    def test_counted_when_the_answer_is_there(self):
        def counters():
            text = self.server.get("/metrics")[2]
            ok = re.search(r'^ingle_requests_total\{dialect="llama-completion",outcome="ok"\} (\d+)$', text, re.M)
            return int(re.search(r"^llamacpp:tokens_predicted_total (\d+)$", text, re.M)[1]), int(ok[1]) if ok else 0
        self.native("Once", n_predict=1)
        tokens, answers = counters()
        for _ in range(30):
            tokens, answers = tokens + self.native("Once", n_predict=3)["timings"]["predicted_n"], answers + 1
            self.assertEqual(counters(), (tokens, answers))

    def test_tags(self):
        model = self.server.get("/v1/models")[2]["data"][0]
        self.assertEqual((model["aliases"], model["tags"]), (["one"], ["small", "code"]))


def answer_text(raw):
    """What the events of a stream of /chat/completions say."""
    out = ""
    for block in raw.split("\n\n"):
        if block.startswith("data: {"):
            for c in json.loads(block[6:])["choices"]:
                out += c["delta"].get("content") or ""
    return out


class ResumedByWish(Case):
    """Without --resumable a stream outlives its client only if the request asks for it."""

    def left(self, name, **more):
        c, r = self.server.open("POST", CHAT, user("Count from 1 to 20.", stream=True, ignore_eos=True,
                                                   max_tokens=30, **more), {"X-Conversation-Id": name})
        r.read(40)
        c.close()
        return self.server.get("/v1/stream?conv_id=" + name)

    def test_wish(self):
        status, _, raw = self.left("w", resumable=True)
        self.assertEqual(status, 200)
        self.assertTrue(raw.endswith("data: [DONE]\n\n"), raw[-100:])
        self.assertEqual(self.left("n")[0], 404)
        self.assertEqual(self.server.post(CHAT, user("x", resumable="yes"))[2]["error"]["param"], "resumable")


class Resumed(Case):
    options = ["-c", "4096", "--parallel", "2", "--limit", "resumable=2", "--limit", "resumable-bytes=64K"]
    NAME = "/v1/stream?conv_id=a%2Fb"

    def stream(self, name, **more):
        body = user("Count from 1 to 20.", stream=True, ignore_eos=True, **more)
        return self.server.open("POST", CHAT, body, {"X-Conversation-Id": name})

    def text(self, path):
        status, headers, raw = self.server.get(path)
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"), raw)
        return raw

    def idle(self):
        until(lambda: not busy(self.server))

    def test_again_and_from_the_middle(self):
        c, r = self.stream("a/b", max_tokens=40)
        raw = r.read().decode()
        c.close()
        self.assertTrue(raw.endswith("data: [DONE]\n\n"), raw[-100:])
        self.assertEqual(self.text(self.NAME), raw)
        self.assertEqual(self.text(self.NAME + "&from=0"), raw)
        self.assertEqual(self.text(self.NAME + "&from=300"), raw[300:])
        self.assertEqual(self.text(self.NAME + f"&from={len(raw)}"), "")
        for bad in ("x", "-1", "1e3", str(len(raw) + 1), "99999999999999999999"):
            status, _, e = self.server.get(self.NAME + "&from=" + bad)
            self.assertEqual((status, e["error"]["param"]), (400, "from"), bad)

    def test_the_client_left(self):
        c, r = self.stream("a/b", max_tokens=300)
        seen = r.read(700).decode()
        c.close()
        rest = self.text(self.NAME + f"&from={len(seen)}")
        self.assertTrue(rest.endswith("data: [DONE]\n\n"), rest[-100:])
        whole = self.server.post(CHAT, user("Count from 1 to 20.", ignore_eos=True, max_tokens=300))[2]
        self.assertEqual(answer_text(seen + rest), whole["choices"][0]["message"]["content"])

    def test_stop(self):
        c, r = self.stream("a/b", max_tokens=4000)
        r.read(500)
        for _ in range(2):
            self.assertEqual(self.server.request("DELETE", self.NAME)[0], 204)
        end = r.read().decode()
        self.assertTrue("its stream was deleted" in end[-300:] or end.endswith("[DONE]\n\n"), end[-300:])
        c.close()
        self.idle()
        status, _, e = self.server.get(self.NAME)
        self.assertEqual((status, e["error"]["code"]), (404, "not_found"))

    def test_one_stream_a_name_and_few_names(self):
        first = self.stream("one", max_tokens=4000)
        first[1].read(300)
        second = self.stream("one", max_tokens=8)
        raw = second[1].read().decode()
        first[1].read()  # the newer one ended it
        self.assertEqual(self.text("/v1/stream?conv_id=one"), raw)
        for name in ("two", "three"):
            c, r = self.stream(name, max_tokens=4)
            r.read()
            c.close()
        self.assertEqual(self.server.get("/v1/stream?conv_id=one")[0], 404)
        self.assertEqual(self.server.get("/v1/stream?conv_id=two")[0], 200)
        for c, _ in (first, second):
            c.close()

    def test_a_long_one_forgets_its_beginning(self):
        c, r = self.stream("long", max_tokens=1000, logit_bias={"1": -100, "106": -100, "50": -100})
        raw = r.read().decode()
        c.close()
        self.assertGreater(len(raw), 1 << 17)
        self.assertEqual(self.server.get("/v1/stream?conv_id=long")[0], 400)
        self.assertEqual(self.text(f"/v1/stream?conv_id=long&from={len(raw) - 2000}"), raw[-2000:])

    def test_what_is_refused_leaves_nothing(self):
        for body in (user("x " * 9000, stream=True), user("x", stream=True, temperature=9), "{"):
            status = self.server.post(CHAT, body, {"X-Conversation-Id": "bad"})[0]
            self.assertEqual(status, 400)
        self.assertEqual(self.server.get("/v1/stream?conv_id=bad")[0], 404)
        self.assertEqual(self.server.get("/v1/stream")[0], 400)
        self.assertEqual(self.server.request("DELETE", "/v1/stream?conv_id=" + "a" * 513)[0], 400)
        whole = self.server.post(CHAT, user("x", max_tokens=2), {"X-Conversation-Id": "bad"})
        self.assertEqual(whole[0], 200)
        self.assertEqual(self.server.get("/v1/stream?conv_id=bad")[0], 404)

    def test_completions_too(self):
        for path in ("/v1/completions", "/completion"):
            c, r = self.server.open("POST", path, {"prompt": "Once", "max_tokens": 8, "n_predict": 8,
                                                   "stream": True}, {"X-Conversation-Id": path})
            raw = r.read().decode()
            c.close()
            self.assertEqual(self.text("/stream?conv_id=" + path), raw)


class LateReaders(Case):
    """Over a socket whose buffer is small: its client reads when the answer has ended."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = os.path.join(folder.name, "s")
        cls.options = ["-c", "4096", "--host", "unix:" + cls.path, "--host", "127.0.0.1", "--limit", "resumable-bytes=256K", "--limit", "unread=32K",
                       "--limit", "keep-alive=0.1", "--limit", "stall-timeout=300"]
        super().setUpClass()

    def read_late(self, n, name, pause):
        """Events and comments of n tokens."""
        c = http.client.HTTPConnection("localhost", timeout=TIMEOUT)
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.settimeout(TIMEOUT)
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        c.sock.connect(self.path)
        body = user("x", stream=True, resumable=True, max_tokens=n, logprobs=True, top_logprobs=20,
                    logit_bias={"1": -100, "106": -100, "50": -100})
        c.request("POST", CHAT, json.dumps(body), {"X-Conversation-Id": name})
        r = c.getresponse()
        self.assertEqual(self.server.get("/v1/stream?conv_id=" + name)[0], 200)  # to its end
        time.sleep(pause)
        raw = r.read().decode()
        c.close()
        self.assertTrue(raw.endswith("\n\n"), raw[-200:])
        return raw[:-2].split("\n\n")

    def test_what_comes_in_silence(self):
        """Comments stand between events."""
        whole = self.read_late(140, "a", 0.5)
        self.assertEqual(whole[-1], "data: [DONE]")
        for event in whole[:-1]:
            self.assertTrue(event.startswith((": ", "data: {")), event[:200])
            if event.startswith("data"):
                json.loads(event[6:])

    def test_what_was_not_read_in_time(self):
        """An error says that events are missing, behind whole ones."""
        whole = self.read_late(300, "b", 0)
        for event in whole[:-1]:
            self.assertTrue(event.startswith((": ", "data: {")), event[:200])
        kind, data = whole[-1].split("\n")
        self.assertEqual((kind, json.loads(data[6:])["error"]["code"]), ("event: error", "stream_forgotten"))


class Control(Case):
    options = ["-c", "32768", "--temp", "0", "--think"]

    def control(self, id, action="reasoning_end"):
        return self.server.post(CHAT + "/control", {"id": id, "action": action})

    def think(self, **more):
        """A stream in a thought that does not end by itself: its id, connection, and a function for the
        rest."""
        bias = [[end, -1000] for end in ("<channel|>", "<turn|>", "<eos>", "<|tool_response>", "<|tool_call>")]
        c, r = self.server.open("POST", CHAT, user("What is 2 and 2?", stream=True, max_tokens=30000,
                                                   logit_bias=bias, **more))
        seen = b""
        while b"reasoning_content" not in seen:
            piece = r.read1(65536)
            self.assertTrue(piece, seen[-2000:])
            seen += piece
        id = json.loads(seen.split(b"\n\n")[0][6:])["id"]

        def rest():
            raw = (seen + r.read()).decode()
            c.close()
            return [json.loads(b[6:]) for b in raw.split("\n\n") if b.startswith("data: {")]
        return id, c, rest

    def test_the_end_of_a_thought(self):
        id, c, rest = self.think(reasoning_control=True, stop=["a", "e", "i", "o", "u", "1", "2", "3", "4"])
        status, _, r = self.control(id)
        self.assertEqual((status, r), (200, {"success": True}))
        events = rest()
        deltas = [c["delta"] for e in events for c in e["choices"]]
        thoughts = [i for i, d in enumerate(deltas) if "reasoning_content" in d]
        self.assertTrue(thoughts, deltas[-5:])
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "stop", events[-1])
        self.assertFalse(self.control(id)[2]["success"])

    def test_only_who_asked_for_it(self):
        id, c, rest = self.think()
        status, _, r = self.control(id)
        self.assertEqual((status, r["success"]), (200, False))
        self.assertIn("reasoning_control", r["message"])
        self.assertIn("no answer", self.control("chatcmpl-0123")[2]["message"])
        for id, action in (("x", "reasoning_end"), ("chatcmpl-1", "stop"), (1, "reasoning_end")):
            self.assertEqual(self.control(id, action)[0], 400, (id, action))
        c.close()


class Local(Case):
    options = ["--cors-origins", "localhost,https://a.example"]

    def test_pages_of_this_machine(self):
        for origin, fine in (("http://localhost", True), ("http://localhost:3000", True),
                             ("https://127.0.0.1:1", True), ("http://[::1]:80", True),
                             ("https://a.example", True), ("http://localhost.evil.com", False),
                             ("http://notlocalhost", False), ("http://localhost:80.evil.com", False),
                             ("http://localhost:", False), ("null", False)):
            ask = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            status, headers, _ = self.server.request("OPTIONS", CHAT, None, ask)
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]),
                             (200, origin if fine else None), origin)
            status = self.server.post(CHAT, user("Hi", max_tokens=1), {"Origin": origin})[0]
            self.assertEqual(status, 200 if fine else 403, origin)


if __name__ == "__main__":
    main()
