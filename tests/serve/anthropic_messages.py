#!/usr/bin/env python3
"""anthropic_messages.py - /v1/messages on the built-in model: shapes, events, tools, thoughts.

usage: anthropic_messages.py INGLE [unittest options]
"""
import json

import client
from client import WEATHER

TOOL = {"name": "get_weather", "description": "Weather in a city", "input_schema": WEATHER}
QUESTION = "What is the weather in Paris?"
ANSWER = '{"city": "Paris", "sky": "sunny", "celsius": 21}'
BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]
END = ["message_delta", "message_stop"]


def user(content):
    return {"role": "user", "content": content}


def short(events):
    """The names, a run of equal ones once."""
    names = [name for name, _ in events]
    return [n for i, n in enumerate(names) if not i or names[i - 1] != n]


class Messages(client.Case):
    def whole(self, *messages, **body):
        status, _, answer = self.server.post("/v1/messages", dict(
            {"model": "claude", "max_tokens": 200, "messages": list(messages)}, **body))
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, status, **body):
        got, headers, answer = self.server.post("/v1/messages", body)
        self.assertEqual(got, status, answer)
        self.assertEqual(answer["type"], "error")
        self.assertEqual(answer["request_id"], headers["request-id"])
        self.assertEqual(set(answer["error"]), {"type", "message"})
        return answer["error"]

    def events(self, *messages, **body):
        events = self.server.stream("/v1/messages", dict(
            {"max_tokens": 200, "messages": list(messages)}, **body))
        opened = None
        index = -1
        for name, data in events:
            self.assertEqual(data["type"], name)
            if name == "content_block_start":
                self.assertIsNone(opened)
                index += 1
                opened = index
            if name.startswith("content_block"):
                self.assertEqual(data["index"], opened)
            if name == "content_block_stop":
                opened = None
        self.assertIsNone(opened)
        return events

    def test_whole(self):
        r = self.whole(user("What is the capital of Norway?"), system="Answer briefly.")
        self.assertEqual(r["content"], [{"type": "text", "text": "The capital of Norway is Oslo."}])
        self.assertEqual((r["type"], r["role"], r["stop_reason"], r["stop_sequence"]),
                         ("message", "assistant", "end_turn", None))
        self.assertTrue(r["id"].startswith("msg_"))
        self.assertNotIn("timings", r)
        for key in "input_tokens", "output_tokens", "cache_read_input_tokens", \
                   "cache_creation_input_tokens":
            self.assertIsInstance(r["usage"][key], int)

    def test_cached_tokens_count_apart(self):
        first = self.whole(user("Who are you?"))["usage"]
        again = self.whole(user("Who are you?"))["usage"]
        n = first["input_tokens"] + first["cache_read_input_tokens"]
        self.assertGreater(again["cache_read_input_tokens"], 0)
        self.assertGreater(again["input_tokens"], 0)
        self.assertEqual(again["input_tokens"] + again["cache_read_input_tokens"], n)

    def test_stream(self):
        events = self.events(user("Who are you?"))
        self.assertEqual(short(events), ["message_start"] + BLOCK + END)
        start = events[0][1]["message"]
        self.assertEqual((start["content"], start["stop_reason"]), ([], None))
        self.assertGreater(start["usage"]["input_tokens"], 0)
        text = "".join(d["delta"]["text"] for n, d in events if n == "content_block_delta")
        self.assertEqual(text, self.whole(user("Who are you?"))["content"][0]["text"])
        delta = events[-2][1]
        self.assertEqual(delta["delta"], {"stop_reason": "end_turn", "stop_sequence": None})
        self.assertGreater(delta["usage"]["output_tokens"], 5)

    def test_stop_reasons(self):
        r = self.whole(user("Count from 1 to 60."), max_tokens=5)
        self.assertEqual(r["stop_reason"], "max_tokens")
        self.assertEqual(r["usage"]["output_tokens"], 5)
        r = self.whole(user("Count from 1 to 60."), stop_sequences=["7", "9"])
        self.assertEqual((r["stop_reason"], r["stop_sequence"]), ("stop_sequence", "7"))
        self.assertTrue(r["content"][0]["text"].startswith("1 2 3"))
        self.assertNotIn("7", r["content"][0]["text"])
        self.assertEqual(self.whole(user("hi"), max_tokens=None)["stop_reason"], "end_turn")

    def test_billing_header_does_not_spoil_the_prefix(self):
        def system(nonce):
            return [{"type": "text", "text": f"x-anthropic-billing-header: cch={nonce};"},
                    {"type": "text", "text": "Answer briefly.",
                     "cache_control": {"type": "ephemeral"}}]
        self.whole(user("What is the capital of Peru?"), system=system("1"))
        r = self.whole(user("What is the capital of Peru?"), system=system("2"))
        self.assertLess(r["usage"]["input_tokens"], 16)

    def test_thinking(self):
        on = {"type": "enabled", "budget_tokens": 1024}
        events = self.events(user("What is 8+9?"), thinking=on)
        self.assertEqual(short(events), ["message_start"] + BLOCK + BLOCK + END)
        deltas = [d["delta"] for n, d in events if n == "content_block_delta" and not d["index"]]
        self.assertEqual({d["type"] for d in deltas[:-1]}, {"thinking_delta"})
        self.assertEqual(deltas[-1]["type"], "signature_delta")
        thinking, text = self.whole(user("What is 8+9?"), thinking=on)["content"]
        self.assertEqual(thinking, {"type": "thinking", "signature": deltas[-1]["signature"],
                                    "thinking": "".join(d["thinking"] for d in deltas[:-1])})
        self.assertEqual(text["text"], "17")
        for kind in "adaptive", "disabled":
            n = len(self.whole(user("What is 8+9?"), thinking={"type": kind})["content"])
            self.assertEqual(n, 2 if kind == "adaptive" else 1)

    def count(self, *messages, **body):
        return self.server.post("/v1/messages/count_tokens",
                                dict({"messages": list(messages)}, **body))[2]["input_tokens"]

    def test_thinking_comes_back(self):
        ask, on = user("What is 8+9?"), {"type": "enabled", "budget_tokens": 1024}
        thinking, text = self.whole(ask, thinking=on)["content"]
        hidden, _ = self.whole(ask, thinking=dict(on, display="omitted"))["content"]
        self.assertEqual(hidden["thinking"], "")
        def replay(*content):
            return self.count(ask, {"role": "assistant", "content": list(content)}, thinking=on)
        whole = replay(thinking, text)
        self.assertGreater(whole, replay(text))
        self.assertEqual(replay(hidden, text), whole)
        self.assertEqual(replay({"type": "redacted_thinking", "data": hidden["signature"]}, text),
                         whole)
        self.assertEqual(replay({"type": "thinking", "thinking": thinking["thinking"]}, text), whole)
        self.assertEqual(replay(dict(thinking, thinking="Another thought."), text), replay(text))
        self.assertEqual(replay(dict(thinking, signature="EqQBCgIYAhIM"), text), replay(text))

    def test_call(self):
        events = self.events(user(QUESTION), tools=[TOOL])
        self.assertEqual(short(events), ["message_start"] + BLOCK + END)
        block = events[1][1]["content_block"]
        self.assertEqual((block["type"], block["name"], block["input"]),
                         ("tool_use", "get_weather", {}))
        self.assertTrue(block["id"].startswith("toolu_"))
        pieces = [d["delta"] for n, d in events if n == "content_block_delta"]
        self.assertEqual({p["type"] for p in pieces}, {"input_json_delta"})
        self.assertEqual(json.loads("".join(p["partial_json"] for p in pieces)), {"city": "Paris"})
        self.assertEqual(events[-2][1]["delta"]["stop_reason"], "tool_use")
        r = self.whole(user(QUESTION), tools=[TOOL])
        self.assertEqual(r["content"][0]["input"], {"city": "Paris"})
        self.assertEqual(r["stop_reason"], "tool_use")

    def test_cut_calls(self):
        """What is complete of the input, and clients make the same of the pieces."""
        n = self.whole(user(QUESTION), tools=[TOOL])["usage"]["output_tokens"]
        seen = []
        for k in range(1, n):
            r = self.whole(user(QUESTION), tools=[TOOL], max_tokens=k)
            self.assertEqual(r["stop_reason"], "max_tokens")
            events = self.events(user(QUESTION), tools=[TOOL], max_tokens=k)
            self.assertEqual(events[-2][1]["delta"]["stop_reason"], "max_tokens")
            self.assertEqual(len(r["content"]),
                             len([1 for name, _ in events if name == "content_block_start"]))
            if not r["content"]:
                continue
            block = r["content"][0]
            self.assertEqual((block["type"], block["name"]), ("tool_use", "get_weather"))
            self.assertIn(block["input"], ({}, {"city": "Paris"}))
            pieces = "".join(d["delta"]["partial_json"] for name, d in events
                             if name == "content_block_delta")
            self.assertTrue('{"city": "Paris"}'.startswith(pieces), pieces)
            self.assertEqual(block["input"] == {}, not pieces.endswith(('Paris"', "}")), pieces)
            if block["input"] not in seen:
                seen.append(block["input"])
                self.whole(user(QUESTION), {"role": "assistant", "content": r["content"]},
                           user([{"type": "tool_result", "tool_use_id": block["id"], "content": "cut off"}]),
                           tools=[TOOL], max_tokens=1)
        self.assertEqual(len(seen), 2)

    def test_results(self):
        call = self.whole(user(QUESTION), tools=[TOOL])
        for content in ANSWER, [{"type": "text", "text": ANSWER}]:
            result = {"type": "tool_result", "tool_use_id": call["content"][0]["id"],
                      "content": content}
            r = self.whole(user(QUESTION), {"role": "assistant", "content": call["content"]},
                           user([result]), tools=[TOOL])
            self.assertEqual(r["content"][0]["text"], "It is sunny in Paris, 21 degrees.")
            self.whole(user(QUESTION), {"role": "assistant", "content": call["content"]},
                       user([result, {"type": "text", "text": "Who are you?"}]), tools=[TOOL])

    def test_choices(self):
        tools = [TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
        for choice, kind in (({"type": "any"}, "tool_use"), ({"type": "none"}, "text"),
                             ({"type": "tool", "name": "get_weather",
                               "disable_parallel_tool_use": True}, "tool_use")):
            r = self.whole(user("What is the weather in Rome?"), tools=tools, tool_choice=choice)
            self.assertEqual(r["content"][0]["type"], kind, choice)
        self.refused(400, messages=[user("x")], tools=tools,
                     tool_choice={"type": "tool", "name": "nothing"})
        self.assertIn("tool_choice", self.refused(400, messages=[user("x")], tool_choice={"type": "any"})["message"])
        for some in (tools, tools[1:]):  # one that was skipped cannot be forced
            r = self.whole(user("Who are you?"), tools=some, tool_choice={"type": "tool", "name": "web_search"})
            self.assertEqual(r["content"][0]["type"], "text")

    def test_schema(self):
        schema = {"type": "object", "properties": {"name": {"type": "string"},
                                                   "age": {"type": "integer"}},
                  "required": ["name", "age"], "additionalProperties": False}
        r = self.whole(user("Give me a JSON object with name Leo and age 42."), output_config={
            "effort": "low", "format": {"type": "json_schema", "schema": schema}},
            thinking={"type": "disabled"})
        self.assertEqual(json.loads(r["content"][0]["text"]), {"name": "Leo", "age": 42})

    def test_count(self):
        body = {"messages": [user("Who are you?")], "tools": [TOOL], "system": "Answer briefly."}
        status, _, n = self.server.post("/v1/messages/count_tokens", body)
        self.assertEqual((status, list(n)), (200, ["input_tokens"]))
        usage = self.whole(**body)["usage"]
        self.assertEqual(n["input_tokens"],
                         usage["input_tokens"] + usage["cache_read_input_tokens"])
        status, _, answer = self.server.post("/v1/messages/count_tokens", {"messages": 1})
        self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))

    def test_bad_requests(self):
        self.assertIn("messages", self.refused(400)["message"])
        self.assertIn("messages[0]", self.refused(400, messages=[{"role": "x", "content": ""}])[
            "message"])
        for bad in ({"type": "text"}, {"type": "text", "text": 5}, {"type": "hologram"}, {}):
            self.assertIn("messages[0]", self.refused(400, messages=[user([bad])])["message"])
            self.assertIn("messages[2]", self.refused(400, messages=[user("x"), {"role": "assistant", "content": "y"},
                                                                     user([bad])])["message"])
        self.assertIn("output_config.format.schema", self.refused(400, messages=[user("x")], output_config={
            "format": {"type": "json_schema", "schema": {"not": {}}}})["message"])
        self.assertIn("message 1, block 1", self.refused(400, messages=[user([{
            "type": "image", "source": {"type": "base64", "data": ""}}])])["message"])
        self.assertEqual(self.refused(400, messages=[user("x")], stream=True, top_p=7)["type"],
                         "invalid_request_error")
        status, _, answer = self.server.request("POST", "/v1/messages", b"nonsense")
        self.assertEqual((status, answer["type"]), (400, "error"))

    def test_models(self):
        version = {"anthropic-version": "2023-06-01"}
        status, _, r = self.server.get("/v1/models", version)
        one, = r["data"]
        self.assertEqual((status, one["type"], r["first_id"]), (200, "model", one["id"]))
        self.assertEqual(self.server.get("/v1/models/" + one["id"], version)[2], one)
        status, _, r = self.server.get("/v1/models/none", version)
        self.assertEqual((status, r["type"], r["error"]["type"]), (404, "error", "not_found_error"))

    def test_overflow(self):
        body = {"messages": [user("What is the capital of Norway? " * 2000)], "max_tokens": 5}
        for stream in False, True:
            e = self.refused(400, stream=stream, **body)
            self.assertRegex(e["message"], r"^prompt is too long: \d+ tokens > 4096 maximum")
            self.assertEqual(e["type"], "invalid_request_error")

    def test_unknown_fields(self):
        self.whole(user([{"type": "text", "text": "hi", "citations": None, "new": 1}]),
                   context_management={}, service_tier="auto", container=None, betas=[],
                   metadata={"user_id": "x"}, speed="fast", tools=None, stop_sequences=None)


class KeepAlive(client.Case):
    options = ["--temp", "0", "--limit", "keep-alive=0.1", "--parallel", "1"]

    def test_silence(self):
        """message_start at once and pings, while another answer runs; counting does not wait."""
        schema = {"type": "array", "items": {"const": 1}, "minItems": 600, "maxItems": 600}
        c, r = self.server.open("POST", "/v1/messages", {
            "messages": [user("Count from 1 to 60.")], "max_tokens": 2000, "stream": True,
            "output_config": {"format": {"type": "json_schema", "schema": schema}}})
        r.read(120)
        status, _, n = self.server.post("/v1/messages/count_tokens", {"messages": [user("hi")]})
        self.assertEqual(status, 200)
        events = self.server.stream("/v1/messages", {"messages": [user("What is 7+5?")]})
        c.close()
        self.assertEqual(events[0][0], "message_start")
        self.assertEqual([n for n in short(events) if n != "ping"],
                         ["message_start"] + BLOCK + END)


class DeepSeek(client.Case):
    @classmethod
    def setUpClass(cls):
        cls.options = ["--temp", "0", "--model", client.nano_v4()]
        super().setUpClass()

    def test_thinking(self):
        r = self.server.post("/v1/messages", {
            "messages": [user("What is 8+9?")], "max_tokens": 200,
            "thinking": {"type": "enabled", "budget_tokens": 1024}})[2]
        self.assertEqual(r["content"][0]["type"], "thinking", r)

    def test_turns_of_an_agent(self):
        """As Claude Code sends them: a system message behind the user's, a search that names a deferred tool.
        The second prompt goes on where the first one ended, and the tool can be called."""
        def only(**values):
            return {"type": "object", "properties": {k: {"const": v} for k, v in values.items()},
                    "required": list(values), "additionalProperties": False}
        tools = [{"name": "search", "input_schema": only(query="x")},
                 {"name": "late", "description": "Comes later.", "input_schema": only(day=1), "defer_loading": True}]
        for thinking in {"type": "disabled"}, {"type": "adaptive", "display": "updates"}:
            messages = [user("word " * 300 + thinking["type"]),
                        {"role": "system", "content": [{"type": "text", "text": "The date is 2026-11-21. " * 10}]}]
            body = {"max_tokens": 300, "tools": tools, "thinking": thinking, "context_management": {"edits": [
                {"type": "clear_thinking_20251015", "keep": "all"}]}, "output_config": {"effort": "high"}}
            first = self.server.post("/v1/messages", {
                **body, "messages": messages, "tool_choice": {"type": "tool", "name": "search"}})[2]
            call = first["content"][-1]
            self.assertEqual(call["name"], "search", first)
            messages += [{"role": "assistant", "content": first["content"]}, user([
                {"type": "tool_result", "tool_use_id": call["id"],
                 "content": [{"type": "tool_reference", "tool_name": "late"}]}])]
            second = self.server.post("/v1/messages", {
                **body, "messages": messages, "tool_choice": {"type": "tool", "name": "late"}})[2]
            self.assertEqual(second["stop_reason"], "tool_use", second)
            self.assertEqual((second["content"][-1]["name"], second["content"][-1]["input"]), ("late", {"day": 1}))
            known = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
            self.assertGreater(second["usage"]["cache_read_input_tokens"], 0.9 * known, (first, second))

    def test_call(self):
        status, _, r = self.server.post("/v1/messages", {
            "messages": [user(QUESTION)], "max_tokens": 200, "tools": [TOOL],
            "tool_choice": {"type": "any"}})
        self.assertEqual(r["content"][-1]["type"], "tool_use", r)
        self.assertEqual(r["stop_reason"], "tool_use")


if __name__ == "__main__":
    client.main()
