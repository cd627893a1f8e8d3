#!/usr/bin/env python3
"""limits.py INGLE - what the options of a server forbid, and what it tells of them."""
import json
import sys
import time

from client import Case, Server, main

CHAT = "/v1/chat/completions"


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def endless(server, **more):
    """A socket with an answer that has begun and does not end."""
    s = server.begin(CHAT, user("Count from 1 to 20.", ignore_eos=True, stream=True, **more))
    while b"content\":\"" not in s.recv(65536):
        pass
    return s


class Queue(Case):
    options = ["-c", "32768", "--parallel", "1", "--max-waiting", "3", "--queue-timeout", "0.5"]

    def test_waiting_ends(self):
        busy = endless(self.server)
        for stream in (False, True):
            status, headers, r = self.server.post(CHAT, user("Who?", stream=stream))
            self.assertEqual(status, 429, r)
            self.assertIn("queue-timeout", r["error"]["message"])
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        status, _, r = self.server.post("/v1/messages", {**user("Who?"), "stream": True})
        self.assertEqual((status, r["error"]["type"]), (429, "rate_limit_error"), r)
        busy.close()

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
        end = time.monotonic() + 60
        while self.server.post(CHAT, user("Who?", max_tokens=1))[0] != 200:
            self.assertLess(time.monotonic(), end)


class Time(Case):
    options = ["-c", "32768", "--max-request-seconds", "0.5", "--strict-model", "--alias", "one",
               "--alias", "two", "--codex-model", "share/codex-model.json"]

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
        options = self.server.get("/props")[2]["options"]
        self.assertEqual(options["max-request-seconds"], 0.5)
        self.assertEqual(options["queue-timeout"], 0)
        self.assertIs(options["strict-model"], True)


class Without(Case):
    def test_no_codex(self):
        self.assertEqual(self.server.get("/v1/models")[2]["models"], [])

    def test_any_model(self):
        self.assertEqual(self.server.post(CHAT, user("Who?", max_tokens=1, model="any"))[0], 200)

    def test_bad_codex(self):
        with self.assertRaisesRegex(RuntimeError, "README.md"):
            Server(sys.argv[1], "--codex-model", "README.md")


if __name__ == "__main__":
    main()
