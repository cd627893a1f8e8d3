#!/usr/bin/env python3
"""prefixes.py INGLE - what a second user, an edit and a branch reuse: every dialect, both families, also behind a restart."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

import client
from client import SANITIZED, Server, main

WORDS = "tree river stone light answer number code table".split()
NEAR = 40  # tokens of the last message, and of what opens turns
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks at a place. " * 12, "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}]


def words(seed, n):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


SYSTEM = words(1, 220)


def chat(s, turns, system=SYSTEM, **more):
    messages = [{"role": "system", "content": system}]
    messages += [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)]
    r = s.post("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0, **more})[2]
    return r["usage"]["prompt_tokens"], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def messages(s, turns, system=SYSTEM, **more):
    body = [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)]
    u = s.post("/v1/messages", {"model": "x", "system": system, "messages": body, "max_tokens": 4, "temperature": 0, **more})[2]["usage"]
    return u["input_tokens"] + u["cache_read_input_tokens"], u["cache_read_input_tokens"]


def responses(s, turns, system=SYSTEM, **more):
    body = [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)]
    u = s.post("/v1/responses", {"model": "x", "instructions": system, "input": body, "max_output_tokens": 4, "store": False,
                                 "temperature": 0, **more})[2]["usage"]
    return u["input_tokens"], u["input_tokens_details"]["cached_tokens"]


def native(s, turns, system=SYSTEM):
    body = [{"role": "system", "content": system}]
    body += [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)]
    prompt = s.post("/apply-template", {"messages": body})[2]["prompt"]
    r = s.post("/completion", {"prompt": prompt, "n_predict": 4, "temperature": 0})[2]
    return r["tokens_evaluated"], r["timings"]["cache_n"]


class Gemma(unittest.TestCase):
    model = []

    def start(self, *more):
        return Server(sys.argv[1], "-c", "4096", *self.model, *more)

    def test_dialects(self):
        """Each has a system prompt of its own, so that none finds what another one left."""
        for ask in (chat, messages, responses, native):
            with self.subTest(ask.__name__), self.start() as s:
                first, cached = ask(s, ["A question about rivers"])
                self.assertEqual(cached, 0)
                second, cached = ask(s, ["Something wholly different"])
                self.assertGreaterEqual(cached, second - NEAR)
                history = [words(2, 40), words(3, 40), words(4, 40), words(5, 40)]
                n, _ = ask(s, [*history, "And then?"])
                again, cached = ask(s, [*history, "Why?"])
                self.assertGreaterEqual(cached, again - NEAR, "the last message")
                n, cached = ask(s, [*history[:2], "Why?"])
                self.assertGreaterEqual(cached, n - NEAR, "the second last message of the user")
                other, cached = ask(s, ["A question about rivers"], system="B " + SYSTEM)
                self.assertLess(cached, 20)

    def test_tools(self):
        """The end of the tools is the end of the system turn."""
        with self.start() as s:
            for ask, more in ((chat, TOOLS), (messages, [{"name": "look", "description": "Looks. " * 30,
                                                            "input_schema": TOOLS[0]["function"]["parameters"]}])):
                ask(s, ["A question about rivers"], tools=more, system="Be brief.")
                n, cached = ask(s, ["Something wholly different"], tools=more, system="Be brief.")
                self.assertGreaterEqual(cached, n - NEAR)
                self.assertGreater(cached, 60)

    def test_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            store = "--store", os.path.join(folder, "store"), "--store-tokens", "64"
            with self.start(*store) as s:
                chat(s, ["A question about rivers"])
            with self.start(*store) as s:
                n, cached = chat(s, ["Something wholly different"])
                self.assertGreaterEqual(cached, n - NEAR)

    def test_daemon(self):
        p = subprocess.Popen([sys.argv[1], "daemon", "-c", "4096", *self.model], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
        self.addCleanup(p.wait)
        with p.stdin, p.stdout:
            reused = []
            for i, text in enumerate(["A question about rivers", "Something wholly different"]):
                p.stdin.write(json.dumps({"do": "generate", "id": str(i), "max_tokens": 4, "temperature": 0, "messages": [
                    {"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]}) + "\n")
                p.stdin.flush()
                for line in p.stdout:
                    event = json.loads(line)
                    if event.get("event") in ("end", "error"):
                        reused.append(event)
                        break
            self.assertEqual(len(reused), 2, reused)
            self.assertGreater(reused[1]["reused_tokens"], 200, reused)


@unittest.skipIf(SANITIZED, "unit_engine_restore and golden_one_arithmetic have this model's rows")
class DeepSeek(Gemma):
    model = ["-m", client.nano_v4()]


if __name__ == "__main__":
    main()
