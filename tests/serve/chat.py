#!/usr/bin/env python3
"""chat.py INGLE - /chat/completions on the built-in model, as clients use it."""
import json, re, sys, time, unittest

import client
from client import SANITIZED, Case, Server, main, together
from wait import LASTS, STAYS, attempts, busy, read_until, until

INGLE = sys.argv[1]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather in a city", "parameters": client.WEATHER}}
LONG = " ".join(str(i % 140) for i in range(12000))
A_WHILE = " ".join(str(i % 140) for i in range(2500 if SANITIZED else 12000))  # reading it takes some tenths of a second


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def joined(events):
    """A stream put together: {index: message with content, reasoning, calls, finish}."""
    out = {}
    for _, e in events:
        if e == "[DONE]" or _ == "comment":
            continue
        for c in e["choices"]:
            m = out.setdefault(c["index"], {"content": "", "reasoning": "", "calls": [],
                                            "finish": None, "logprobs": []})
            d = c["delta"]
            assert not m["finish"], "something behind the end"
            m["content"] += d.get("content") or ""
            m["reasoning"] += d.get("reasoning_content") or ""
            for call in d.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(m["calls"]), call
                    assert call["type"] == "function" and call["function"]["name"], call
                    m["calls"].append({"id": call["id"], "name": call["function"]["name"],
                                       "arguments": ""})
                else:
                    assert "name" not in call["function"], call
                m["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            m["logprobs"] += (c.get("logprobs") or {}).get("content", [])
            m["finish"] = c["finish_reason"]
    return out


class Chat(Case):
    options = ["-c", "4096", "--parallel", "4", "--verbose-replies"]

    def ask(self, body, path="/v1/chat/completions", status=200):
        got, _, r = self.server.post(path, body)
        self.assertEqual(got, status, r)
        return r

    def one(self, body):
        return self.ask(body)["choices"][0]

    def stream(self, body, path="/v1/chat/completions"):
        return self.server.events(path, {**body, "stream": True})

    def refused(self, body, param=None, says="", status=400):
        r = self.ask(body, status=status)["error"]
        self.assertEqual(r["type"], "invalid_request_error")
        self.assertEqual(r["status"], status)
        self.assertIn(says, r["message"])
        if param:
            self.assertEqual(r["param"], param)
        return r

    # ---- shapes ----

    def test_whole(self):
        r = self.ask(user("What is the capital of France?", seed=2 ** 63 + 5))
        self.assertTrue(r["id"].startswith("chatcmpl-"))
        self.assertEqual(r["object"], "chat.completion")
        self.assertTrue(r["system_fingerprint"].startswith("b"))
        self.assertIsInstance(r["created"], int)
        self.assertEqual(r["model"], "nano-gemma4")
        c = r["choices"][0]
        self.assertEqual(c["message"]["role"], "assistant")
        self.assertEqual(c["message"]["content"], "The capital of France is Paris.")
        self.assertEqual(c["finish_reason"], "stop")
        u = r["usage"]
        self.assertEqual(u["total_tokens"], u["prompt_tokens"] + u["completion_tokens"])
        self.assertEqual(u["completion_tokens"], 8)
        t = r["timings"]
        self.assertEqual(t["prompt_n"] + t["cache_n"], u["prompt_tokens"])
        self.assertEqual(t["cache_n"], u["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual(t["predicted_n"], 8)
        self.assertEqual(t["ingle"]["reuse"]["tokens"], t["cache_n"])
        self.assertIn("capital of France", r["__verbose"]["prompt"])

    def test_without_v1_and_with_slash(self):
        for path in ("/chat/completions", "/v1/chat/completions/", "/v1/chat/completions?a=b"):
            self.ask(user("Who are you?", max_tokens=1), path)

    def test_usage_of_every_chunk(self):
        for n in (1, 2):
            wish = {"include_usage": True, "continuous_usage_stats": True}
            data = [d for _, d in self.stream(user("What is the capital of Norway?", n=n, stream_options=wish))[:-1]]
            last, so_far = data[-1]["usage"], {}
            for d in data[:-1]:
                u, i = d["usage"], d["choices"][0]["index"]
                self.assertEqual(u["prompt_tokens"], last["prompt_tokens"])
                self.assertEqual(u["total_tokens"], u["prompt_tokens"] + u["completion_tokens"])
                self.assertGreaterEqual(u["completion_tokens"], so_far.get(i, 0))
                so_far[i] = u["completion_tokens"]
            self.assertEqual(sum(so_far.values()), last["completion_tokens"])
            silent = {"continuous_usage_stats": True}  # alone it says nothing, as in vLLM
            for _, d in self.stream(user("What is the capital of Norway?", n=n, stream_options=silent))[:-1]:
                self.assertNotIn("usage", d)
        data = self.server.stream("/v1/completions", {"prompt": ["Once upon", "The"], "max_tokens": 4, "ignore_eos": True,
                                                      "stream_options": wish})
        self.assertEqual(max(d["usage"]["completion_tokens"] for _, d in data[:-2]), 4)
        self.assertEqual(data[-2][1]["usage"]["completion_tokens"], 8)

    def test_stream_order(self):
        e = self.stream(user("What is the capital of Norway?", stream_options={"include_usage": True}))
        self.assertTrue(all(name is None for name, _ in e))
        data = [d for _, d in e]
        self.assertEqual(data[-1], "[DONE]")
        first, last, usage = data[0], data[-3], data[-2]
        self.assertEqual(first["choices"][0]["delta"], {"role": "assistant", "content": None})
        self.assertNotIn("timings", first)
        self.assertEqual(last["choices"][0]["delta"], {})
        self.assertEqual(last["choices"][0]["finish_reason"], "stop")
        self.assertEqual(usage["choices"], [])
        self.assertEqual(usage["usage"]["completion_tokens"], 8)
        self.assertIn("timings", usage)
        self.assertEqual(len({d["id"] for d in data[:-1]}), 1)
        for d in data[1:-3]:
            self.assertNotIn("role", d["choices"][0]["delta"])
            self.assertTrue(d["choices"][0]["delta"]["content"])
            self.assertIsNone(d["usage"])
        self.assertTrue(all(d["object"] == "chat.completion.chunk" for d in data[:-1]))

    def test_stream_without_usage(self):
        data = [d for _, d in self.stream(user("Who are you?"))][:-1]
        self.assertTrue(all("usage" not in d and d["choices"] for d in data))
        self.assertIn("timings", data[-1])

    def test_stream_is_the_whole(self):
        for body in (user("Who are you?"), user("Count from 1 to 20."),
                     user("What is the weather in Paris?", tools=[WEATHER]),
                     user("What is 8+9?", think=True),
                     user("Tell me a story about a brave fox called Mia.", temperature=1.5, seed=7,
                          max_tokens=200, top_p=1, top_k=0),
                     user("Count from 1 to 20.", stop=[" 7", "9 10"])):
            whole, parts = self.one(body), joined(self.stream(body))[0]
            m = whole["message"]
            self.assertEqual(parts["content"], m["content"] or "")
            self.assertEqual(parts["reasoning"], m.get("reasoning_content", ""))
            self.assertEqual(parts["finish"], whole["finish_reason"])
            self.assertEqual([(c["name"], c["arguments"]) for c in parts["calls"]],
                             [(c["function"]["name"], c["function"]["arguments"])
                              for c in m.get("tool_calls", [])])

    # ---- sampling, n, stop, probabilities ----

    def test_n(self):
        body = user("Tell me a story about a brave fox called Mia.", temperature=1.2, seed=3, n=6,
                    max_tokens=24)
        r = self.ask(body)
        self.assertEqual([c["index"] for c in r["choices"]], list(range(6)))
        texts = [c["message"]["content"] for c in r["choices"]]
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(r["usage"]["completion_tokens"], 6 * 24)
        for i in range(6):  # choice i has seed + i
            self.assertEqual(self.one({**body, "n": 1, "seed": 3 + i})["message"]["content"], texts[i])
        parts = joined(self.stream(body))
        self.assertEqual([parts[i]["content"] for i in range(6)], texts)
        self.assertEqual({p["finish"] for p in parts.values()}, {"length"})

    def test_seed(self):
        body = user("Tell me a story about a brave fox called Mia.", temperature=1.5, max_tokens=32)
        same = {self.one({**body, "seed": 11})["message"]["content"] for _ in range(3)}
        self.assertEqual(len(same), 1)
        other = {self.one(body)["message"]["content"] for _ in range(6)}
        self.assertGreater(len(other), 1)

    def test_stop(self):
        c = self.one(user("Count from 1 to 20.", stop=" 7"))
        self.assertEqual(c["message"]["content"], "1 2 3 4 5 6")
        self.assertEqual(c["finish_reason"], "stop")
        self.assertEqual(c["finish_details"], {"type": "stop_string", "stop": " 7"})
        self.assertEqual(self.one(user("Count from 1 to 20.", stop=["x", "3 4"]))["message"]["content"],
                         "1 2 ")
        self.refused(user("x", stop=[str(i) for i in range(65)]), "stop")
        self.refused(user("x", stop=[1]), "stop")
        self.one(user("x", stop=None, max_tokens=1))

    def test_logprobs(self):
        body = user("Tell me a story about a brave fox called Mia.", logprobs=True, top_logprobs=3,
                    temperature=1.8, top_k=0, top_p=1, seed=5, max_tokens=64)
        c = self.one(body)
        tokens = c["logprobs"]["content"]
        self.assertEqual("".join(t["token"] for t in tokens), c["message"]["content"])
        for t in tokens:
            self.assertLessEqual(t["logprob"], 0)
            self.assertIsInstance(t["bytes"], list)
            self.assertEqual(len(t["top_logprobs"]), 3)
            top = [p["logprob"] for p in t["top_logprobs"]]
            self.assertEqual(top, sorted(top, reverse=True))
        parts = joined(self.stream(body))[0]
        self.assertEqual(parts["logprobs"], tokens)
        c = self.one(user("Count from 1 to 9.", logprobs=True, stop=" 5"))
        self.assertEqual("".join(t["token"] for t in c["logprobs"]["content"]), "1 2 3 4")
        self.assertEqual(c["logprobs"]["content"][0]["top_logprobs"], [])
        self.refused(user("x", top_logprobs=2), "top_logprobs")
        self.refused(user("x", logprobs=True, top_logprobs=21), "top_logprobs")
        self.assertIsNone(self.one(user("x", max_tokens=1))["logprobs"])

    def test_logprobs_of_characters_in_pieces(self):
        """Characters that no token has alone come from byte tokens: together they are the text."""
        r = self.ask({"messages": [{"role": "user", "content": "Repeat: \u00e9"}], "seed": 1,
                      "temperature": 2, "top_k": 0, "top_p": 1, "logprobs": True, "max_tokens": 200,
                      "logit_bias": {str(i): 14 for i in range(110, 366)}})["choices"][0]
        self.assertEqual("".join(t["token"] for t in r["logprobs"]["content"]),
                         r["message"]["content"])

    def test_logit_bias(self):
        c = self.one(user("Who are you?", max_tokens=4, logit_bias={"1862": 100}))
        self.assertEqual(c["message"]["content"], " Paris" * 4)
        c = self.one(user("Who are you?", max_tokens=1, logit_bias=[["I", False]]))
        self.assertNotEqual(c["message"]["content"], "I")
        self.refused(user("x", logit_bias={"99999": 1}), "logit_bias")
        self.refused(user("x", logit_bias={"5": "x"}), "logit_bias")
        self.refused(user("x", logit_bias=[[i, 0] for i in range(1025)]), "logit_bias")

    def test_forbidden_ends(self):
        """An answer that fits ends there, whatever forbids or ignores the end of generation."""
        body = user("Who are you?", response_format={"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"enum": ["yes", "no"]}}}, max_tokens=30)
        plain = self.one(body)
        ends = [i for i in range(110) if self.server.post("/detokenize", {"tokens": [i]})[2]["content"]
                in ("<eos>", "<turn|>")]
        self.assertGreaterEqual(len(ends), 2)
        for more in ({"logit_bias": {str(i): -100 for i in ends}}, {"ignore_eos": True},
                     {"logit_bias": [[i, False] for i in ends]},
                     {"logit_bias": [[i, False] for i in ends], "temperature": 1, "logprobs": True}):
            with self.subTest(more):
                c = self.one({**body, **more})
                self.assertEqual(c["finish_reason"], "stop")
                self.assertIn(json.loads(c["message"]["content"]), ("yes", "no"))
                if "temperature" not in more:
                    self.assertEqual(c["message"], plain["message"])

    def test_grammars_without_an_end(self):
        """With ignore_eos an end is drawn only where the grammar allows nothing else."""
        body = user("Tell me a story", grammar="root ::= [a-z ]+", max_tokens=60)
        self.assertEqual(self.one(body)["finish_reason"], "stop")
        for more in ({}, client.HOT, {"logprobs": True}):
            with self.subTest(more):
                c = self.one({**body, **more, "ignore_eos": True})
                self.assertEqual(c["finish_reason"], "length")
                self.assertRegex(c["message"]["content"], "^[a-z ]+$")

    def test_schemas_that_are_not_supported(self):
        """They are refused, or keywords are left out, which the reply says; one tool never refuses the others."""
        schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "if": {}}
        body = user("x", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        self.refused(body, says="'if' is not supported")
        self.refused({**body, "schema_unsupported": "x"}, "schema_unsupported")
        status, headers, r = self.server.post("/v1/chat/completions", {**body, "schema_unsupported": "drop"})
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(r["choices"][0]["message"]["content"]), {"a": 1})
        self.assertIn("'if' is not supported", r["warnings"][0])
        self.assertIn("'if' is not supported", headers["X-Ingle-Warnings"])
        tools = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in (
            ("odd", schema), ("plain", {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}))]
        r = self.ask(user("x", tools=tools, tool_choice="required", seed=1, temperature=1))
        self.assertEqual(len(r["warnings"]), 1)
        self.assertIn("odd", r["warnings"][0])
        for call in r["choices"][0]["message"]["tool_calls"]:
            if call["function"]["name"] == "plain":
                self.assertEqual(json.loads(call["function"]["arguments"]), {"a": 7})
        self.assertNotIn("warnings", self.ask(user("x", tools=tools[1:], max_tokens=3)))
        # Where nothing but that tool can be called: refused, or held to what is left of its schema.
        named = {"type": "function", "function": {"name": "odd"}}
        for forced in ({"tools": tools[:1], "tool_choice": "required"}, {"tools": tools, "tool_choice": named}):
            self.refused(user("x", **forced), says="'if' is not supported")
            r = self.ask(user("x", schema_unsupported="drop", **forced))
            self.assertIn("left out", r["warnings"][0])
            self.assertEqual(json.loads(r["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]), {"a": 1})
        drop = {"schema_unsupported": "drop"}
        for path, body in (("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}, **drop}),
                           ("/v1/messages", {"max_tokens": 9, "output_format": {"type": "json_schema", "schema": schema}, **user("x"), **drop}),
                           ("/v1/completions", {"prompt": "x", "json_schema": schema, **drop}), ("/completion", {"prompt": "x", "json_schema": schema, **drop}),
                           ("/api/chat", {"format": schema, "stream": False, **user("x"), "options": drop}),
                           ("/api/generate", {"format": schema, "stream": False, "prompt": "x", "options": drop})):
            status, _, r = self.server.post(path, body)
            self.assertEqual(status, 200, r)
            self.assertIn("'if' is not supported", r["warnings"][0], path)

    def test_lengths(self):
        self.assertEqual(self.one(user("Count from 1 to 20.", max_tokens=3))["finish_reason"], "length")
        c = self.one(user("Count from 1 to 20.", max_completion_tokens=2, max_tokens=9))
        self.assertEqual(c["message"]["content"], "1 2")
        r = self.ask(user("Count from 1 to 20.", max_tokens=0))
        self.assertEqual(r["usage"]["completion_tokens"], 0)
        self.assertEqual(r["choices"][0]["finish_reason"], "length")
        self.refused(user("x", max_tokens=-2), "max_tokens")
        c = self.one(user("Count from 1 to 20.", ignore_eos=True, max_tokens=100))
        self.assertEqual(c["finish_reason"], "length")

    # ---- tools ----

    def test_tool_call(self):
        body = user("What is the weather in Paris?", tools=[WEATHER])
        c = self.one(body)
        self.assertEqual(c["finish_reason"], "tool_calls")
        self.assertIsNone(c["message"]["content"])
        call = c["message"]["tool_calls"][0]
        self.assertEqual(call["type"], "function")
        self.assertTrue(call["id"].startswith("call_"))
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Paris"})
        done = [*body["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": '{"sky":"sunny","degrees":21}'}]
        c = self.one({**body, "messages": done})
        self.assertEqual(c["finish_reason"], "stop")
        self.assertIn("Paris", c["message"]["content"])
        # Without ids the results are matched by their place.
        bare = [*body["messages"], {"role": "assistant", "tool_calls": [{**call, "id": None}]},
                {"role": "tool", "content": '{"sky":"sunny","degrees":21}'}]
        self.assertEqual(self.one({**body, "messages": bare})["message"]["content"],
                         c["message"]["content"])

    def test_tool_choice(self):
        body = user("What is the weather in Paris?", tools=[WEATHER])
        self.assertNotIn("tool_calls", self.one({**body, "tool_choice": "none"})["message"])
        for choice in ("auto", None, {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}):
            self.assertEqual(self.one({**body, "tool_choice": choice})["finish_reason"], "tool_calls")
        self.refused(user("x", tool_choice="required"), "tool_choice")
        self.refused({**body, "tool_choice": "sometimes"}, "tool_choice")
        self.refused({**body, "tool_choice": {"type": "function", "function": {"name": "f"}}},
                     "tool_choice")

    def test_allowed_tools(self):
        names = ["a", "b", "c", "get_weather"]
        tools = [{"type": "function", "function": {"name": n, "parameters": client.WEATHER}} for n in names]
        def named(*some):
            return [{"type": "function", "function": {"name": n}} for n in some]
        for mode, some in (("required", "bc"), ("required", ["a"]), ("auto", "bc"), ("auto", ["get_weather"])):
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named(*some)}}
            for seed in range(4):
                c = self.one(user("What is the weather in Oslo?", tools=tools, tool_choice=choice, seed=seed,
                                  max_tokens=100, **client.HOT))
                for call in c["message"].get("tool_calls", []):
                    self.assertIn(call["function"]["name"], some)
                self.assertTrue(mode == "auto" or c["message"]["tool_calls"])
        self.refused(user("x", tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": named("d")}}), "tool_choice")

    def test_forced_calls(self):
        time_tool = {"type": "function", "function": {**WEATHER["function"], "name": "get_time"}}
        named = {"type": "function", "function": {"name": "get_time"}}
        for more in ({}, {"think": True}):
            for choice, names in (("required", ("get_time", "get_weather")), (named, ("get_time",))):
                body = user("Who are you?", tools=[WEATHER, time_tool], tool_choice=choice,
                            max_tokens=400, **more)
                c = self.one(body)
                self.assertEqual(c["finish_reason"], "tool_calls", c)
                self.assertEqual("reasoning_content" in c["message"], bool(more))
                for call in c["message"]["tool_calls"]:
                    self.assertIn(call["function"]["name"], names)
                    arguments = json.loads(call["function"]["arguments"])
                    self.assertEqual(list(arguments), ["city"])
                    self.assertIsInstance(arguments["city"], str)
                parts = joined(self.stream(body))[0]
                self.assertEqual([x["arguments"] for x in parts["calls"]],
                                 [x["function"]["arguments"] for x in c["message"]["tool_calls"]])
        for seed in range(1, 9):
            c = self.one({**body, "parallel_tool_calls": False, "temperature": 1, "seed": seed,
                          "thinking_budget_tokens": 64})
            if c["finish_reason"] != "length":
                self.assertEqual(len(c["message"]["tool_calls"]), 1)

    def test_calls_are_told_as_they_come(self):
        body = user("What is the weather in Paris?", tools=[WEATHER])
        for more in ({}, {"tool_choice": "required"}, {"parallel_tool_calls": False},
                     {"response_format": {"type": "json_object"}}):
            with self.subTest(more):
                whole = self.one({**body, **more})["message"]["tool_calls"][0]["function"]
                events = self.stream({**body, **more})
                pieces = [c["function"]["arguments"] for _, e in events[:-1] for k in e["choices"]
                          for c in k["delta"].get("tool_calls", [])]
                self.assertGreater(len(pieces), 5)
                self.assertEqual("".join(pieces), whole["arguments"])
                self.assertEqual(whole["arguments"], '{"city": "Paris"}')

    def test_calls_that_no_grammar_holds(self):
        """A name that cannot stand in a grammar: calls are read as they come."""
        odd = {"type": "function", "function": {"name": "get weather!", "parameters": client.WEATHER}}
        body = user("What is the weather in Paris?", tools=[WEATHER, odd])
        c = self.one(body)
        self.assertEqual(c["message"]["tool_calls"][0]["function"]["arguments"], '{"city": "Paris"}')
        events = self.stream(body)
        self.assertEqual(len([1 for _, e in events[:-1] for k in e["choices"]
                              if k["delta"].get("tool_calls")]), 2)

    def test_calls_of_tools_with_hard_schemas(self):
        """What the grammar does not know is not enforced, and the rest is."""
        hard = {"type": "function", "function": {
            **WEATHER["function"], "parameters": {**client.WEATHER, "minProperties": 1}}}
        body = user("What is the weather in Paris?", tools=[hard])
        self.refused({**body, "tool_choice": "required"}, "tools")
        c = self.one(body)
        self.assertEqual(c["message"]["tool_calls"][0]["function"]["arguments"], '{"city": "Paris"}')
        self.assertGreater(len([1 for _, e in self.stream(body)[:-1] for k in e["choices"]
                                if k["delta"].get("tool_calls")]), 5)

    def test_calls_of_the_models_own_accord_of_any_seed(self):
        """Once a call has begun it is one, of a tool that there is, with arguments that fit."""
        body = user("What is the weather in Paris?", tools=[WEATHER], max_tokens=100,
                    parallel_tool_calls=False, logit_bias=[["<|tool_call>", 100]], **{**client.HOT})
        n = 0
        for c in together([lambda s=s: self.one({**body, "seed": s}) for s in range(1, 13)]):
            calls = c["message"]["tool_calls"]
            self.assertEqual(len(calls), 1)
            self.assertEqual(calls[0]["function"]["name"], "get_weather")
            self.assertFalse(c["message"].get("content"))
            if c["finish_reason"] == "tool_calls":
                n += 1
                self.assertEqual(list(json.loads(calls[0]["function"]["arguments"])), ["city"])
        self.assertGreater(n, 0)

    def test_cut_calls(self):
        """Tokens run out inside of a call: its beginning, the same in pieces, and again as history."""
        body = user("What is the weather in Paris?", tools=[WEATHER])
        n = self.ask(body)["usage"]["completion_tokens"]
        whole = '{"city": "Paris"}'
        seen = set()
        for k in range(1, n):
            c = self.one({**body, "max_tokens": k})
            self.assertEqual(c["finish_reason"], "length")
            self.assertFalse(c["message"].get("content"))
            calls = c["message"].get("tool_calls", [])
            parts = joined(self.stream({**body, "max_tokens": k}))[0]
            self.assertEqual((parts["finish"], parts["content"]), ("length", ""))
            self.assertEqual([(x["name"], x["arguments"]) for x in parts["calls"]],
                             [(x["function"]["name"], x["function"]["arguments"]) for x in calls])
            if not calls:
                continue
            self.assertEqual(calls[0]["function"]["name"], "get_weather")
            arguments = calls[0]["function"]["arguments"]
            self.assertTrue(whole.startswith(arguments), arguments)
            if arguments not in seen:
                self.ask({**body, "max_tokens": 1, "messages": [
                    *body["messages"], c["message"],
                    {"role": "tool", "tool_call_id": calls[0]["id"], "content": "cut off"}]})
            seen.add(arguments)
        self.assertGreater(len(seen), 4)

    def test_forced_calls_of_any_seed(self):
        """Whatever is drawn, the call is there, or the answer was too long and says so."""
        bodies = [user("Who are you?", tools=[WEATHER], tool_choice="required", max_tokens=300, seed=seed,
                       **{**client.HOT, "think": seed % 2 == 0}) for seed in range(1, 25)]
        for c in together([lambda b=b: self.one(b) for b in bodies]):
            if c["finish_reason"] == "length":
                continue
            self.assertEqual(c["finish_reason"], "tool_calls", c)
            for call in c["message"]["tool_calls"]:
                self.assertEqual(list(json.loads(call["function"]["arguments"])), ["city"])

    def test_format_behind_a_thought_of_any_seed(self):
        """The same for what a format asks for: a thought does not end the answer."""
        for seed in range(1, 9):
            c = self.one(user("What is 7+5?", json_schema={"type": "boolean"}, think=True, seed=seed,
                              max_tokens=300, **client.HOT))
            if c["finish_reason"] == "stop":
                self.assertIn(json.loads(c["message"]["content"]), (True, False))

    def test_calls_or_json(self):
        """With a format beside tools an answer is either: a call, or JSON of the schema."""
        schema = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
                  "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"enum": [7, 8]}}}
        for form in ({"type": "json_schema", "json_schema": {"schema": schema}}, {"type": "json_object"}):
            body = user("What is the weather in Paris?", tools=[WEATHER], response_format=form,
                        max_tokens=300)
            c = self.one(body)
            self.assertEqual(c["finish_reason"], "tool_calls", c)
            self.assertEqual(json.loads(c["message"]["tool_calls"][0]["function"]["arguments"]),
                             {"city": "Paris"})
            for more in ({}, {"think": True, "thinking_budget_tokens": 20}):
                c = self.one({**body, "logit_bias": [["<|tool_call>", False]], **more})
                self.assertNotIn("tool_calls", c["message"])
                if form["type"] == "json_schema":
                    self.assertEqual(set(json.loads(c["message"]["content"])), {"name", "age"})
                else:
                    self.assertEqual(c["message"]["content"][0], "{")
        for form in ({"response_format": {"type": "regex", "pattern": "a+"}}, {"grammar": 'root ::= "a"'}):
            self.refused(user("x", tools=[WEATHER], **form))
            self.one(user("x", tools=[WEATHER], tool_choice="none", max_tokens=5, **form))

    def test_tools_checked(self):
        function = WEATHER["function"]
        for bad in ({"type": "function"}, 5,
                    {"type": "function", "function": {**function, "name": "x" * 257}},
                    {"type": "function", "function": {**function, "name": ""}}):
            self.refused(user("x", tools=[bad]))
        self.refused(user("x", tools=[WEATHER] * 257), "tools")
        self.one(user("x", tools=[], tool_choice="auto", max_tokens=1))

    def test_legacy_functions(self):
        body = user("What is the weather in Paris?", functions=[WEATHER["function"]])
        c = self.one(body)
        self.assertEqual(c["finish_reason"], "function_call")
        self.assertEqual(c["message"]["function_call"]["name"], "get_weather")
        e = [d for _, d in self.stream(body)][:-1]
        call = {"name": "", "arguments": ""}
        for d in e:
            for k, v in d["choices"][0]["delta"].get("function_call", {}).items():
                call[k] += v
        self.assertEqual(call, c["message"]["function_call"])
        again = [*body["messages"], c["message"],
                 {"role": "function", "name": "get_weather", "content": "sunny, 21 degrees"}]
        self.assertEqual(self.one({**body, "messages": again})["finish_reason"], "stop")

    # ---- formats ----

    def test_formats(self):
        ask = "Give me a JSON object with name Leo and age 42."
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
                                                   "age": {"type": "integer", "maximum": 50}},
                  "required": ["name", "age"], "additionalProperties": False}
        for more in ({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
                     {"response_format": {"type": "json_schema", "schema": schema}},
                     {"response_format": {"type": "json_object", "schema": schema}},
                     {"json_schema": schema}):
            body = user(ask, **more)
            self.assertEqual(json.loads(self.one(body)["message"]["content"]), {"name": "Leo", "age": 42})
            hot = self.ask({**body, "temperature": 2, "top_k": 0, "top_p": 1, "seed": 3, "n": 5,
                            "max_tokens": 200})
            for c in hot["choices"]:
                v = json.loads(c["message"]["content"])
                self.assertEqual(list(v), ["name", "age"])
                self.assertLessEqual(len(v["name"]), 6)
            parts = joined(self.stream({**body, "temperature": 2, "seed": 3, "top_k": 0, "top_p": 1}))
            self.assertEqual(parts[0]["content"], hot["choices"][0]["message"]["content"])
        c = self.one(user(ask, response_format={"type": "json_object"}, max_tokens=200))
        self.assertIsInstance(json.loads(c["message"]["content"]), dict)
        c = self.one(user("Who are you?", grammar='root ::= "yes" | "no"', temperature=2))
        self.assertIn(c["message"]["content"], ("yes", "no"))
        c = self.one(user("Who are you?", response_format={"type": "regex", "pattern": "[a-f]{7}"}))
        self.assertRegex(c["message"]["content"], "^[a-f]{7}$")

    def test_a_format_behind_the_thought(self):
        body = user("What is 8+9?", think=True, grammar='root ::= "It is " [0-9]{2} "."')
        c = self.one(body)
        self.assertIn("8+9", c["message"]["reasoning_content"])
        self.assertRegex(c["message"]["content"], r"^It is \d\d\.$")
        parts = joined(self.stream(body))[0]
        self.assertEqual((parts["content"], parts["reasoning"]),
                         (c["message"]["content"], c["message"]["reasoning_content"]))

    def test_wrong_formats(self):
        self.refused(user("x", grammar="root ::= nothing"), "grammar", "nothing")
        self.refused(user("x", json_schema={"if": {}}), "json_schema.if", "'if' is not supported")
        self.refused(user("x", json_schema={}, grammar='root ::= "a"'), "grammar")
        self.refused(user("x", grammar=5), "grammar")
        # Only following it tells what these cost.
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": ".*" * 500 + "x"}}, "required": ["a"]}
        self.refused(user("x", json_schema=schema), says="ambiguous")

    # ---- thinking ----

    def test_thinking(self):
        spellings = [{"think": True}, {"enable_thinking": True}, {"reasoning_effort": "high"},
                     {"reasoning": {"effort": "low"}}, {"thinking": {"type": "enabled"}},
                     {"chat_template_kwargs": {"enable_thinking": True, "unknown": 1}},
                     {"reasoning_effort": "xhigh"}]
        for s in spellings:
            r = self.ask(user("What is 8+9?", **s))
            m = r["choices"][0]["message"]
            self.assertEqual(m["content"], "17", s)
            self.assertIn("8+9", m["reasoning_content"])
            self.assertEqual(m["reasoning"], m["reasoning_content"])
            n = r["usage"]["completion_tokens_details"]["reasoning_tokens"]
            self.assertGreater(n, 10)
            self.assertLess(n, r["usage"]["completion_tokens"])
        for s in ({}, {"think": False}, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}):
            r = self.ask(user("What is 8+9?", **s))
            self.assertNotIn("reasoning_content", r["choices"][0]["message"], s)
            self.assertEqual(r["usage"]["completion_tokens_details"]["reasoning_tokens"], 0)

    def test_budget_of_a_thought(self):
        whole = self.ask(user("What is 8+9?", think=True))
        long = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
        for more in ({"thinking_budget_tokens": 6}, {"reasoning": {"enabled": True, "max_tokens": 6}},
                     {"thinking": {"type": "enabled", "budget_tokens": 6}}):
            r = self.ask(user("What is 8+9?", **{"think": True, **more}))
            m = r["choices"][0]["message"]
            self.assertTrue(m["reasoning_content"] and m["content"], m)
            self.assertLess(r["usage"]["completion_tokens_details"]["reasoning_tokens"], long)
            self.assertTrue(whole["choices"][0]["message"]["reasoning_content"]
                            .startswith(m["reasoning_content"]))
        c = self.one(user("What is 8+9?", think=True, thinking_budget_tokens=6, grammar='root ::= "yes"'))
        self.assertEqual(c["message"]["content"], "yes")
        c = self.one(user("What is 8+9?", think=True, thinking_budget_tokens=0))
        self.assertNotIn("reasoning_content", c["message"])

    def test_probabilities_are_of_the_content_alone(self):
        c = self.one(user("What is 8+9?", think=True, logprobs=True))
        self.assertEqual("".join(t["token"] for t in c["logprobs"]["content"]), "17")

    # ---- messages ----

    def test_messages(self):
        hello = {"role": "user", "content": "What is the capital of Norway?"}
        for messages in ([{"role": "developer", "content": "Answer briefly."}, hello],
                         [{"role": "system", "content": [{"type": "text", "text": "Answer briefly."}]},
                          hello],
                         [{"role": "user", "content": [{"type": "text", "text": hello["content"]}]}]):
            m = self.one({"messages": messages, "temperature": 0})["message"]
            self.assertEqual(m["content"], "The capital of Norway is Oslo.")
        for bad, param in (
                ([], "messages"), ("x", "messages"), (None, "messages"), ([5], "messages[0].role"),
                ([{"role": "user", "content": 5}], "messages[0].content"),
                ([{"role": "user"}], "messages[0].content"),
                ([{"role": "assistant"}], "messages[0].content"),
                ([{"content": "x"}], "messages[0].role"),
                ([{"role": "robot", "content": "x"}], "messages[0].role"),
                ([hello, {"role": "user", "content": [{"type": "image_url"}]}],
                 "messages[1].content[0]"),
                ([hello, {"role": "user", "content": [{"type": "hologram"}]}], "messages[1].content[0]"),
                ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
                ([{"role": "assistant", "tool_calls": [{"function": 3}]}],
                 "messages[0].tool_calls[0].function")):
            self.refused({"messages": bad}, param)

    def test_arguments_that_are_no_object_come_back(self):
        for arguments in ('[1]', 'null', 'go on', '"x"', '', ' ', '{"a": 1}', '{"a": [1, '):
            self.one({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
                {"role": "tool", "tool_call_id": "c", "content": "12"}], "max_tokens": 1})

    def test_prefill(self):
        m = [{"role": "user", "content": "What is the capital of France?"},
             {"role": "assistant", "content": "The capital of"}]
        c = self.one({"messages": m, "temperature": 0})
        self.assertEqual(c["message"]["content"], " France is Paris.")
        m += [{"role": "assistant", "content": "more"}]
        self.refused({"messages": m}, "messages")

    def test_prefill_of_a_thought(self):
        m = [{"role": "user", "content": "What is 8+9?"},
             {"role": "assistant", "reasoning_content": "The user asks for 8+9. 8+9"}]
        c = self.one({"messages": m, "temperature": 0})
        self.assertTrue(c["message"]["reasoning_content"].startswith(" = 17"))
        self.assertEqual(c["message"]["content"], "17")

    # ---- what is wrong ----

    def test_bodies(self):
        for body in ("", "{", "[]", "5", '{"messages": [}', b"\xff\xfe", '{"a": "\ud83d"'):
            got, _, r = self.server.post("/v1/chat/completions", body.encode("utf-8", "surrogatepass")
                                         if isinstance(body, str) else body)
            self.assertEqual(got, 400, body)
            self.assertEqual(r["error"]["type"], "invalid_request_error")
        got, _, r = self.server.post("/v1/chat/completions", b"\xef\xbb\xbf" + json.dumps(user("x", max_tokens=1)).encode())
        self.assertEqual(got, 200, r)
        # A half of a pair, as a client cuts it: U+FFFD, no refusal.
        got, _, r = self.server.post("/v1/chat/completions",
                                     '{"messages":[{"role":"user","content":"\\ud83d"}],"max_tokens":1}')
        self.assertEqual(got, 200, r)

    def test_fields(self):
        for field, values in {
                "temperature": (-0.1, 2.1, "hot", []), "top_p": (-1, 1.1), "n": (0, 17, 1.5, "2"),
                "frequency_penalty": (-3, 3), "presence_penalty": (-3, 3), "top_k": (-2, 1.5),
                "stream": ("yes", 1), "logprobs": (3,), "seed": ("x", {}), "min_p": (2,),
                "max_tokens": (1.5, 1e30, "9"), "n_discard": (-1,), "mirostat": (1,),
                "priority": (11,), "deadline_seconds": (-1,), "model": (5,),
                "stream_options": ([],), "response_format": ("json",), "audio": ({},),
                "parallel_tool_calls": ("no",), "lora": ([{"id": 0}],)}.items():
            for v in values:
                r = self.refused(user("x", **{field: v}), says=field if field != "audio" else "")
                self.assertEqual(r["param"], field, v)
        self.refused(user("x", modalities=["text", "audio"]), "modalities")
        for schema in ({"type": 123}, {"type": "hiccup"}, {"type": "json_schema", "json_schema": 5},
                       {"type": "json_schema", "json_schema": {"schema": 5}},
                       {"type": "json_object", "schema": "x"}):
            self.refused(user("x", response_format=schema))

    def test_what_is_ignored(self):
        self.one(user("Who are you?", max_tokens=1, unknown_key={"a": 1}, user="u", metadata={"a": "b"},
                      store=True, service_tier="auto", tools=None, stop=None, n=None, top_p=None,
                      response_format=None, stream_options=None, logit_bias=None, tool_choice=None,
                      modalities=["text"], cache_prompt=True, prompt_cache_key="k", session_id="s",
                      response_format_={"type": "text"}, seed=-1, max_completion_tokens=None))
        self.one(user("Who are you?", max_tokens=1, response_format={"type": "text"}))
        self.one(user("Who are you?", max_tokens=2.0, top_k=40.0, seed=1e300))

    def test_too_long(self):
        for stream in (False, True):
            r = self.refused(user(LONG, stream=stream))
            self.assertEqual(r["code"], "context_length_exceeded")
            self.assertEqual(r["n_ctx"], 4096)
            self.assertGreater(r["n_prompt_tokens"], 4096)

    # ---- many at once, reuse ----

    def test_the_same_alone_and_among_others(self):
        bodies = [user(f"Tell me a story about a brave {a} called {n}.", temperature=1.3, seed=i,
                       max_tokens=40)
                  for i, (a, n) in enumerate((a, n) for a in ("fox", "cat", "toad", "owl")
                                             for n in ("Mia", "Leo", "Ada", "Tom"))]
        alone = [self.one(b)["message"]["content"] for b in bodies]
        many = together([lambda b=b: self.one(b)["message"]["content"] for b in bodies])
        self.assertEqual(many, alone)

    def test_reuse(self):
        text = "Say these words: " + " ".join(f"word {i % 97}" for i in range(60))
        self.ask(user(text, max_tokens=1))
        r = self.ask(user(text, max_tokens=1))
        n = r["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(n, r["usage"]["prompt_tokens"] // 2)
        reuse = r["timings"]["ingle"]["reuse"]
        self.assertEqual(reuse["tokens"],
                         reuse["from_session"] + reuse["from_cache"] + reuse["from_disk"])

    def test_progress_and_timings(self):
        e = [d for _, d in self.stream(user(" ".join(["Hello."] * 1200) + " Count from 1 to 20.",
                                            return_progress=True, timings_per_token=True,
                                            max_tokens=3, ignore_eos=True))][:-1]
        progress = [d["prompt_progress"] for d in e if "prompt_progress" in d]
        self.assertGreater(len(progress), 1)
        self.assertEqual(progress[-1]["processed"], progress[-1]["total"])
        done = [p["processed"] for p in progress]
        self.assertEqual(done, sorted(done))
        self.assertTrue(any(d["choices"] and d["choices"][0]["delta"].get("content") and
                            d["timings"]["predicted_n"] for d in e))


class Leaving(unittest.TestCase):
    """Clients that leave, servers that are busy or slow.  One answer runs at a time."""

    def setUp(self):
        self.server = Server(INGLE, *STAYS, "--parallel", "1", "--limit", "waiting=2",
                             "--limit", "keep-alive=0.1", "--chunk", "32", "--limit", "retry-grace=60")

    def tearDown(self):
        self.assertEqual(self.server.close(), 0)

    def ask(self, body):
        status, headers, r = self.server.post("/v1/chat/completions", body)
        return status, headers, r

    def count(self):
        """Requests that are over."""
        return sum(int(n) for n in re.findall(r"^ingle_requests_total\{.*\} (\d+)$", self.server.get("/metrics")[2], re.M))

    def test_leaving_ends_the_answer(self):
        """Without a cancel each would keep the only place for 30,000 tokens."""
        body = user("Count from 1 to 20.", **LASTS)
        for _ in range(5):
            s = self.server.begin("/v1/chat/completions", body)
            read_until(s, b"content")
            s.close()  # in the middle of it
        status, _, r = self.ask(user("Who are you?"))
        self.assertEqual(status, 200, r)

    def test_keep_alive(self):
        """Who waits for the only place gets comments, and then the answer."""
        first = self.server.begin("/v1/chat/completions", user("Count from 1 to 20.", **LASTS))
        read_until(first, b"content")
        s = self.server.begin("/v1/chat/completions", user("Who are you?", stream=True, max_tokens=2), alone=True)
        read_until(s, b"\n: keep-alive\n\n")
        first.close()
        self.assertIn(b'"finish_reason":"length"', read_until(s, b"data: [DONE]\n\n"))
        s.close()

    def test_the_same_once_more_takes_over(self):
        for stream in (False, True):
            text = A_WHILE + (" again" if stream else "")
            body = user(text, max_tokens=1, stream=stream, stream_options={"include_usage": True})
            before = self.count()
            s = self.server.begin("/v1/chat/completions", body)
            until(lambda: busy(self.server) or self.count() > before)
            s.close()
            time.sleep(0.2)  # its end is seen, or is not: both are right
            if stream:
                r = self.server.events("/v1/chat/completions", body)[-2][1]
            else:
                r = self.ask(body)[2]
            # A fast machine has read the prompt by then: what it read is not read again.
            again = r["usage"]["prompt_tokens"] - r["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertTrue(r["timings"]["ingle"]["attached"] or again < 64, r)

    def test_full(self):
        first = self.server.begin("/v1/chat/completions", user("Count from 1 to 20.", **LASTS))
        read_until(first, b"content")
        waiting = [self.server.begin("/v1/chat/completions", user(f"Who are you? {i}")) for i in range(2)]
        until(lambda: "requests_deferred 2\n" in self.server.get("/metrics")[2])
        status, headers, r = self.ask(user("Who?"))
        self.assertEqual(status, 429, r)
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        self.assertEqual(r["error"]["type"], "rate_limit_error")
        for s in (first, *waiting):
            s.close()
        until(lambda: self.ask(user("Who?"))[0] == 200)

    def test_deadline(self):
        status, _, r = self.ask(user("Count from 1 to 20.", ignore_eos=True, deadline_seconds=0.2))
        self.assertEqual(status, 504, r)
        self.assertEqual(r["error"]["code"], "deadline_exceeded")
        e = self.server.events("/v1/chat/completions", user("Count from 1 to 20.", ignore_eos=True,
                                                            deadline_seconds=0.2, stream=True))
        self.assertEqual(e[-1][1]["error"]["code"], "deadline_exceeded")

    def test_stopping_tells(self):
        for _ in attempts("an answer that is not over when its server stops"):
            server = Server(INGLE, *STAYS, "--drain", "0")
            # Tokens without a text: a client that does not read has room for all.
            s = server.begin("/v1/chat/completions", user("Count from 1 to 20.", ignore_eos=True, stream=True))
            text = read_until(s, b"content")
            self.assertEqual(server.close(), 0)
            while piece := s.recv(65536):
                text += piece
            s.close()
            if b"[DONE]" not in text:
                break
        self.assertIn(b'"unavailable_error"', text)


if __name__ == "__main__":
    main()
