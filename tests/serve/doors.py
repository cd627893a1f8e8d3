#!/usr/bin/env python3
"""doors.py INGLE - options that mean the same at every door: the command, the daemon and the server."""
import json, os, subprocess, sys, tempfile, unittest

from client import TIMEOUT, Server, main

INGLE = sys.argv[1]
V4 = "tests/data/nano-v4/nano-v4-MXFP4.gguf"
TALKS = [[{"role": "system", "content": "S"}, {"role": "developer", "content": "D"}, {"role": "user", "content": "u"}],
         [{"role": "developer", "content": "D"}, {"role": "user", "content": "u"}],
         [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}, {"role": "developer", "content": "D"},
          {"role": "user", "content": "w"}]]


def run(*args, stdin=None):
    return subprocess.run([INGLE, *args], input=stdin, capture_output=True, text=True, timeout=TIMEOUT)


class Doors(unittest.TestCase):
    def test_developer(self):
        """One rule for render, the daemon, chat completions, responses, messages and Ollama's API."""
        for model in (None, V4):
            seen = {}
            for role in ("system", "own"):
                options = [*(["-m", model] if model else []), "--developer-role", role]
                with Server(INGLE, *options) as s, tempfile.NamedTemporaryFile("w") as f:
                    for k, talk in enumerate(TALKS):
                        f.seek(0)
                        f.truncate()
                        json.dump(talk, f)
                        f.flush()
                        r = run("render", "--json", "-f", f.name, *options)
                        self.assertEqual(r.returncode, 0, r.stderr)
                        prompt = json.loads(r.stdout)
                        seen[role, k] = prompt["prompt"]
                        self.assertEqual(s.post("/apply-template", {"messages": talk})[2]["prompt"], prompt["prompt"])
                        n = s.post("/v1/chat/completions", {"messages": talk, "max_tokens": 1})[2]["usage"]["prompt_tokens"]
                        self.assertEqual(n, len(prompt["ids"]))
                        line = json.dumps({"do": "generate", "id": "1", "messages": talk, "max_tokens": 1}) + "\n"
                        events = [json.loads(e) for e in run("daemon", *options, stdin=line).stdout.splitlines()]
                        self.assertEqual(events[-1]["prompt_tokens"], n, events)
                        if role == "own" and model or k == 1:
                            r = s.post("/v1/responses/input_tokens", {"input": talk})[2]
                            self.assertEqual(r["input_tokens"], n, (model, role, k))
                            r = s.post("/v1/messages/count_tokens", {"messages": talk})[2]
                            self.assertEqual(r["input_tokens"], n, (model, role, k))
                            r = s.post("/v1/messages", {"messages": talk, "max_tokens": 1})[2]
                            self.assertEqual(r["usage"]["input_tokens"] + r["usage"]["cache_read_input_tokens"], n, (model, role, k))
                        r = s.post("/api/chat", {"messages": talk, "options": {"num_predict": 1}, "stream": False})[2]
                        self.assertEqual(r["prompt_eval_count"], n, (model, role, k))
            for k in range(len(TALKS)):
                # Gemma 4's template makes one system turn of a first message, whoever's it is.
                self.assertEqual(seen["system", k] == seen["own", k], not model and k == 1)
                as_system = [{**m, "role": "system" if m["role"] == "developer" else m["role"]} for m in TALKS[k]]
                with tempfile.NamedTemporaryFile("w") as f:
                    json.dump(as_system, f)
                    f.flush()
                    out = run("render", *(["-m", model] if model else []), "-f", f.name).stdout
                self.assertEqual(out, seen["system", k])

    def test_ignore_eos(self):
        ask = {"messages": [{"role": "user", "content": "Capital of Japan?"}], "max_tokens": 40, "temperature": 0}
        with Server(INGLE, "--ignore-eos") as s:
            for path, more, n in (("/v1/chat/completions", {}, 40), ("/v1/chat/completions", {"ignore_eos": False}, 8)):
                self.assertEqual(s.post(path, {**ask, **more})[2]["usage"]["completion_tokens"], n, more)
            r = s.post("/v1/messages", {**ask, "model": "x"})[2]
            self.assertEqual(r["usage"]["output_tokens"], 40)
        r = run("run", "--json", "--temp", "0", "-n", "40", "--ignore-eos", "Capital of Japan?")
        self.assertEqual(json.loads(r.stdout)["completion_tokens"], 40)
        line = json.dumps({"do": "generate", "messages": ask["messages"], "max_tokens": 40, "temperature": 0}) + "\n"
        for more, n in ((["--ignore-eos"], 40), ([], 8), (["--predict", "3"], 8)):
            events = [json.loads(e) for e in run("daemon", *more, stdin=line).stdout.splitlines()]
            self.assertEqual(events[-1]["tokens"], n, more)

    def test_api_key(self):
        ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        with Server(INGLE, "--api-key", "one", "--api-key", "ada:two") as s:
            self.assertEqual(s.post("/v1/chat/completions", ask)[0], 401)
            for key in ("one", "two"):
                self.assertEqual(s.post("/v1/chat/completions", ask, {"Authorization": f"Bearer {key}"})[0], 200)
        r = run("serve", "--port", "0", "--api-key", "a b")
        self.assertEqual(r.returncode, 1)
        self.assertIn("--api-key: a key has a byte 0x20", r.stderr)

    def test_what_is_named_is_opened_before_the_address(self):
        for option, value in (("--store", "/proc/x"), ("--slot-save-path", "/proc/x"), ("--api-key-file", "nowhere"), ("--codex-model", "nowhere"), ("-m", "nowhere"),
                              ("--logit-bias", "99999999=1")):
            r = run("serve", "--port", "0", option, value)
            self.assertEqual((r.returncode, r.stdout), (1, ""), (option, r.stderr))
            self.assertIn(value.split("=")[0], r.stderr)


if __name__ == "__main__":
    main()
