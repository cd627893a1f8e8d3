#!/usr/bin/env python3
"""ollama_api.py INGLE - Ollama's API on the built-in model: answers whole and in lines, what editors ask of the model,
errors, keys and clients that leave."""
import json, os, tempfile

from client import WEATHER, Case, Server, main
from wait import attempts
import sys

ASK = "What is the capital of France?"
PARIS = "The capital of France is Paris."
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather in a city", "parameters": WEATHER}}
TIMES = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")
GREEDY = {"temperature": 0}


def user(text, **more):
    return [{"role": "user", "content": text, **more}]


class Ollama(Case):
    options = ["-c", "2048", "--parallel", "2", "--mmproj", "off"]

    def post(self, path, status=200, **body):
        got, headers, r = self.server.post(path, {"stream": False, "options": GREEDY, **body})
        self.assertEqual(got, status, r)
        self.assertEqual(headers["content-type"], "application/json")
        return r

    def lines(self, path, **body):
        c, r = self.server.open("POST", path, {"options": GREEDY, **body})
        raw = r.read().decode()
        c.close()
        self.assertEqual(r.status, 200, raw)
        self.assertEqual(r.getheader("content-type"), "application/x-ndjson")
        self.assertTrue(raw.endswith("\n"))
        out = [json.loads(line) for line in raw[:-1].split("\n")]
        self.assertEqual([x["done"] for x in out], [False] * (len(out) - 1) + [True])
        for x in out:
            self.assertRegex(x["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")
            self.assertEqual(x["model"], "nano-gemma4")
        return out

    def refused(self, path, word, status=400, **body):
        r = self.post(path, status, **body)
        self.assertEqual(list(r), ["error"])
        self.assertIn(word, r["error"])

    def ended(self, r, reason="stop"):
        self.assertEqual((r["done"], r["done_reason"]), (True, reason))
        for key in TIMES:
            self.assertIsInstance(r[key], int, key)
        self.assertGreaterEqual(r["total_duration"], r["eval_duration"])

    # ---- answers ----

    def test_chat(self):
        r = self.post("/api/chat", messages=user(ASK), model="any:latest")
        self.assertEqual(r["message"], {"role": "assistant", "content": PARIS})
        self.ended(r)
        lines = self.lines("/api/chat", messages=user(ASK))
        self.assertGreater(len(lines), 3)
        self.assertEqual("".join(x["message"]["content"] for x in lines), PARIS)
        self.ended(lines[-1])
        self.assertEqual(lines[-1]["eval_count"], r["eval_count"])
        self.assertEqual(self.post("/v1/api/chat", messages=user(ASK))["message"]["content"], PARIS)

    def test_thoughts(self):
        r = self.post("/api/chat", messages=user("What is 8+9?"), think=True)
        self.assertEqual(r["message"]["content"], "17")
        self.assertIn("8+9", r["message"]["thinking"])
        lines = self.lines("/api/chat", messages=user("What is 8+9?"), think="high")
        self.assertEqual("".join(x["message"].get("thinking", "") for x in lines), r["message"]["thinking"])
        self.assertNotIn("thinking", self.post("/api/chat", messages=user("What is 8+9?"), think=False)["message"])
        self.refused("/api/chat", "think", messages=user("x"), think="banana")
        r = self.post("/api/generate", prompt="What is 8+9?", think=True)
        self.assertEqual(r["response"], "17")
        self.assertIn("8+9", r["thinking"])

    def test_tools(self):
        ask = user("What is the weather in Paris?")
        r = self.post("/api/chat", messages=ask, tools=[TOOL])
        call, = r["message"]["tool_calls"]
        self.assertEqual(call["function"], {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}})
        lines = self.lines("/api/chat", messages=ask, tools=[TOOL])
        calls = [k for x in lines for k in x["message"].get("tool_calls", [])]
        self.assertEqual([k["function"] for k in calls], [call["function"]])
        self.assertEqual(lines[-1]["done_reason"], "stop")
        back = [*ask, r["message"], {"role": "tool", "tool_name": "get_weather",
                                     "content": '{"city": "Paris", "sky": "sunny", "celsius": 21}'}]
        r = self.post("/api/chat", messages=back, tools=[TOOL])
        self.assertIn("sunny", r["message"]["content"])
        # The prompt is that of the other dialects.
        status, _, other = self.server.post("/v1/chat/completions", {"temperature": 0, "tools": [TOOL], "messages": [
            *ask, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {
                "name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
            {"role": "tool", "tool_call_id": "1", "content": back[2]["content"]}]})
        self.assertEqual(status, 200, other)
        self.assertEqual(other["choices"][0]["message"]["content"], r["message"]["content"])
        self.assertEqual(other["usage"]["prompt_tokens"], r["prompt_eval_count"])

    def test_formats(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        for path, more in (("/api/chat", {"messages": user("Give me n.")}), ("/api/generate", {"prompt": "Give me n."})):
            r = self.post(path, format=schema, **more)
            self.assertIsInstance(json.loads(r.get("response") or r["message"]["content"])["n"], int)
            r = self.post(path, format="json", **more)
            self.assertIsInstance(json.loads(r.get("response") or r["message"]["content"]), dict)
            self.post(path, format="", **more)
            self.refused(path, "format", format="yaml", **more)

    def test_options(self):
        def say(**options):
            return self.post("/api/chat", messages=user(ASK), options={**GREEDY, **options})
        r = say(num_predict=3)
        self.ended(r, "length")
        self.assertEqual(r["eval_count"], 3)
        for n in (-1, -2, 0):
            self.assertEqual(say(num_predict=n)["message"]["content"], PARIS)
        self.assertEqual(say(stop=[" Paris"])["message"]["content"], "The capital of France is")
        self.assertEqual(say(stop=" is")["message"]["content"], "The capital of France")
        load = {"num_ctx": 99999, "num_gpu": 99, "num_thread": 4, "num_batch": 5, "num_keep": 4, "use_mmap": True, "numa": False,
                "top_k": 40, "top_p": 0.9, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.1, "repeat_last_n": -1,
                "presence_penalty": 0, "frequency_penalty": 0, "seed": 0, "mirostat": 0, "tfs_z": 1.0, "penalize_newline": True}
        self.assertEqual(say(**load)["message"]["content"], PARIS)
        hot = {"temperature": 1.5, "top_k": 0, "top_p": 1}
        self.assertEqual(say(**hot, seed=7)["message"], say(**hot, seed=7)["message"])
        for bad in ({"temperature": -1}, {"top_p": 2}, {"mirostat": 2}, {"num_predict": -3}, {"stop": 5}):
            self.refused("/api/chat", next(iter(bad)), messages=user("x"), options=bad)
        self.refused("/api/chat", "options", messages=user("x"), options=[])
        r = self.post("/api/chat", messages=user(ASK), logprobs=True, top_logprobs=2)
        self.assertEqual("".join(t["token"] for t in r["logprobs"]), PARIS)
        lines = self.lines("/api/chat", messages=user(ASK), logprobs=True, top_logprobs=2)
        self.assertEqual([t for x in lines for t in x.get("logprobs", [])], r["logprobs"])

    def test_generate(self):
        r = self.post("/api/generate", prompt=ASK)
        self.assertEqual(r["response"], PARIS)
        self.ended(r)
        lines = self.lines("/api/generate", prompt=ASK)
        self.assertEqual("".join(x["response"] for x in lines), PARIS)
        chat = self.post("/api/chat", messages=[{"role": "system", "content": "Be brief."}, *user(ASK)])
        r = self.post("/api/generate", prompt=ASK, system="Be brief.")
        self.assertEqual((r["response"], r["prompt_eval_count"]), (chat["message"]["content"], chat["prompt_eval_count"]))
        raw = self.post("/api/generate", prompt="Once upon a time there was a", raw=True, options={**GREEDY, "num_predict": 8})
        status, _, same = self.server.post("/v1/completions", {"prompt": "Once upon a time there was a", "max_tokens": 8,
                                                               "temperature": 0})
        self.assertEqual(raw["response"], same["choices"][0]["text"])
        self.refused("/api/generate", "suffix", prompt="x", suffix="y")
        self.refused("/api/generate", "template", prompt="x", template="{{ .Prompt }}")
        self.refused("/api/generate", "context", prompt="x", context=[1, 2])
        self.refused("/api/generate", "image", prompt="x", images=["AAAA"])
        self.post("/api/generate", prompt="x", suffix="", template="", context=[], images=[], options={"num_predict": 1})

    def test_nothing_to_say(self):
        """So clients load a model, and let it go."""
        for path, body in (("/api/chat", {"messages": []}), ("/api/chat", {}), ("/api/generate", {"prompt": ""}), ("/api/generate", {})):
            self.assertEqual(self.post(path, **body)["done_reason"], "load")
            self.assertIn("'eagle', which is none of auto", self.post(path, 400, options={"draft_method": "eagle"}, **body)["error"])
            self.assertEqual(self.post(path, keep_alive=0, **body)["done_reason"], "load")
        self.post("/api/chat", messages=user("x"), keep_alive="5m", options={"num_predict": 1})
        for path in ("/api/chat", "/api/generate"):
            self.refused(path, "deadline_seconds", options={"deadline_seconds": -1})
            self.refused(path, "num_predict", options={"num_predict": -3})
            self.refused(path, "nothing", format={"type": "nothing"})
            self.refused(path, "top_logprobs", top_logprobs=999)
            self.refused(path, "priority", options={"priority": 11})
        self.refused("/api/chat", "schema", tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}],
                     tool_choice="required")
        self.refused("/api/generate", "images", raw=True, images=["AAAA"])

    def test_bad_requests(self):
        self.refused("/api/chat", "messages[0]", messages=[{"role": "nobody", "content": "x"}])
        self.refused("/api/chat", "messages", messages="x")
        self.refused("/api/chat", "images", messages=user("look", images=["AAAA"]))
        self.refused("/api/chat", "stream", messages=user("x"), stream="yes")
        for images in ({}, "x", 5):
            self.refused("/api/chat", "images", messages=user("x", images=images))
            self.refused("/api/chat", "images", messages=[{"role": "system", "content": None, "images": images}])
        self.refused("/api/generate", "prompt", prompt=5)
        status, _, r = self.server.post("/api/chat", b"{")
        self.assertEqual((status, list(r)), (400, ["error"]))
        r = self.post("/api/chat", messages=[*user("look", images=["AAAA"]), {"role": "assistant", "content": "Nice."}, *user(ASK)])
        self.assertEqual(r["message"]["content"], PARIS)
        self.refused("/api/chat", "context", messages=user("word " * 3000))

    # ---- the model ----

    def test_model(self):
        status, _, r = self.server.get("/api/tags")
        one, = r["models"]
        self.assertEqual((status, one["name"], one["model"]), (200, "nano-gemma4", "nano-gemma4"))
        self.assertRegex(one["digest"], "^[0-9a-f]{64}$")
        self.assertEqual(set(one["details"]), {"parent_model", "format", "family", "families", "parameter_size", "quantization_level"})
        status, _, r = self.server.get("/api/ps")
        self.assertEqual(r["models"][0]["context_length"], 2048)
        for body in ({"model": "nano-gemma4"}, {"name": "nano-gemma4:latest"}, {"model": "other", "verbose": True}):
            r = self.post("/api/show", **body)
            self.assertEqual(r["capabilities"], ["completion", "tools", "thinking"])
            self.assertEqual(r["model_info"]["general.architecture"], "gemma4")
            self.assertEqual(r["model_info"]["gemma4.context_length"], 2048)
        status, _, r = self.server.get("/api/version")
        self.assertGreaterEqual([int(n) for n in r["version"].split(".")], [0, 6, 4])
        self.assertEqual(self.server.request("HEAD", "/")[0], 200)

    def test_what_is_not_here(self):
        for method, path in (("POST", "/api/pull"), ("POST", "/api/create"), ("POST", "/api/embed"), ("POST", "/api/embeddings"),
                             ("POST", "/api/push"), ("POST", "/api/copy"), ("DELETE", "/api/delete")):
            status, _, r = self.server.request(method, path, {"model": "x"})
            self.assertEqual((status, list(r)), (501, ["error"]), path)
            self.assertIn(path, r["error"])
        status, _, r = self.server.get("/api/nothing")
        self.assertEqual((status, list(r)), (404, ["error"]))
        status, _, r = self.server.get("/api/chat")
        self.assertEqual((status, list(r)), (405, ["error"]))

    def test_a_client_that_leaves(self):
        for _ in attempts("an answer that is not over when its client leaves"):
            s = self.server.begin("/api/chat", {"messages": user("Count from 1 to 20."), "options": {"ignore_eos": True}})
            self.assertTrue(s.recv(64))
            s.close()
            if 'dialect="ollama-chat",outcome="cancelled"' in self.server.get("/metrics")[2]:
                break


class Keys(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        keys = os.path.join(cls.folder.name, "keys")
        with open(keys, "w") as f:
            f.write("secret\n")
        os.chmod(keys, 0o600)
        cls.server = Server(sys.argv[1], "--api-key-file", keys, "--strict-model", "-c", "512")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def test_keys(self):
        key = {"Authorization": "Bearer secret"}
        body = {"model": "nano-gemma4:latest", "messages": user("x"), "stream": False, "options": {"num_predict": 1}}
        status, _, r = self.server.post("/api/chat", body)
        self.assertEqual((status, list(r)), (401, ["error"]))
        self.assertEqual(self.server.post("/api/chat", body, key)[0], 200)
        self.assertEqual(self.server.get("/api/tags")[0], 200)
        self.assertEqual(self.server.get("/api/ps")[0], 401)
        status, _, r = self.server.post("/api/chat", {**body, "model": "other"}, key)
        self.assertEqual((status, list(r)), (404, ["error"]))
        self.assertEqual(self.server.post("/api/show", {"model": "other"}, key)[0], 404)
        self.assertEqual(self.server.post("/api/show", {"model": "nano-gemma4:latest"}, key)[0], 200)


if __name__ == "__main__":
    main()
