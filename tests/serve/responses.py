#!/usr/bin/env python3
"""responses.py - /v1/responses on the built-in model: shapes, events, tools, thoughts, the store.

usage: responses.py INGLE [unittest options]
"""
import json

import client
from client import WEATHER

TOOL = {"type": "function", "name": "get_weather", "description": "Weather in a city",
        "parameters": WEATHER}
QUESTION = "What is the weather in Paris?"
ANSWER = '{"city": "Paris", "sky": "sunny", "celsius": 21}'
DONE = ["response.created", "response.in_progress"]
TEXT = ["response.output_item.added", "response.content_part.added", "response.output_text.delta",
        "response.output_text.done", "response.content_part.done", "response.output_item.done"]
SUMMARY = ["response.output_item.added", "response.reasoning_summary_part.added",
           "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
           "response.reasoning_summary_part.done", "response.output_item.done"]
RAW = ["response.output_item.added", "response.reasoning_text.delta",
       "response.reasoning_text.done", "response.output_item.done"]
CALL = ["response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done"]
END = ["response.completed"]


def short(events):
    """The names, a run of equal ones once."""
    names = [name for name, _ in events]
    return [n for i, n in enumerate(names) if not i or names[i - 1] != n]


def text_of(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                   for part in item["content"])


class Responses(client.Case):
    def whole(self, **body):
        status, _, answer = self.server.post("/v1/responses", body)
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, status, **body):
        got, _, answer = self.server.post("/v1/responses", body)
        self.assertEqual(got, status, answer)
        self.assertEqual(answer["error"]["type"], "invalid_request_error")
        return answer["error"]

    def events(self, **body):
        events = self.server.stream("/v1/responses", body)
        for i, (name, data) in enumerate(events):
            self.assertEqual(data["type"], name)
            self.assertEqual(data["sequence_number"], i)
        return events

    def test_whole(self):
        r = self.whole(input="What is the capital of Norway?", instructions="Answer briefly.",
                       metadata={"a": "b"})
        self.assertEqual(text_of(r), "The capital of Norway is Oslo.")
        self.assertEqual(r["object"], "response")
        self.assertTrue(r["id"].startswith("resp_"))
        self.assertEqual(r["status"], "completed")
        self.assertTrue(r["output"][0]["id"].startswith("msg_"))
        self.assertEqual(r["metadata"], {"a": "b"})
        self.assertEqual(r["instructions"], "Answer briefly.")
        self.assertIsNone(r["error"])
        u = r["usage"]
        self.assertEqual(u["total_tokens"], u["input_tokens"] + u["output_tokens"])
        self.assertNotIn("timings", r)

    def test_stream(self):
        events = self.events(input="Who are you?")
        self.assertEqual(short(events), DONE + TEXT + END)
        final = events[-1][1]["response"]
        deltas = "".join(d["delta"] for n, d in events if n == "response.output_text.delta")
        self.assertEqual(deltas, text_of(final))
        self.assertEqual(deltas, text_of(self.whole(input="Who are you?")))
        done = [d["item"] for n, d in events if n == "response.output_item.done"]
        self.assertEqual(done, final["output"])
        self.assertEqual(events[0][1]["response"]["id"], final["id"])
        self.assertEqual(events[0][1]["response"]["status"], "in_progress")

    def test_paths(self):
        for path in "/responses", "/v1/responses/", "/v1/responses?client_version=1":
            self.assertEqual(self.server.post(path, {"input": "hi", "max_output_tokens": 1})[0], 200)

    def test_cut(self):
        r = self.whole(input="Count from 1 to 60.", max_output_tokens=5)
        self.assertEqual(r["status"], "incomplete")
        self.assertEqual(r["incomplete_details"], {"reason": "max_output_tokens"})
        events = self.events(input="Count from 1 to 60.", max_output_tokens=5)
        self.assertEqual(events[-1][0], "response.incomplete")
        self.assertEqual(events[-1][1]["response"]["usage"]["output_tokens"], 5)

    def test_thoughts_as_summary(self):
        events = self.events(input="What is 8+9?", reasoning={"effort": "high", "summary": "auto"})
        self.assertEqual(short(events), DONE + SUMMARY + TEXT + END)
        item = events[-1][1]["response"]["output"][0]
        self.assertEqual(item["type"], "reasoning")
        self.assertIn("17", item["summary"][0]["text"])
        self.assertEqual(text_of(events[-1][1]["response"]), "17")
        self.assertGreater(
            events[-1][1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"], 5)
        part = [d for n, d in events if n == "response.reasoning_summary_text.delta"][0]
        self.assertEqual(part["summary_index"], 0)

    def test_raw_thoughts(self):
        events = self.events(input="What is 8+9?", reasoning={"effort": "high"})
        self.assertEqual(short(events), DONE + RAW + TEXT + END)
        item = events[-1][1]["response"]["output"][0]
        self.assertEqual(item["content"][0]["type"], "reasoning_text")
        self.assertEqual(item["summary"], [])
        self.assertIsNone(item["encrypted_content"])

    def test_sealed_thoughts_come_back(self):
        ask = {"role": "user", "content": "What is 8+9?"}
        more = {"role": "user", "content": "Who are you?"}
        r = self.whole(input=[ask], reasoning={"effort": "high"}, store=False)
        thought = dict(r["output"][0], content=None)
        self.assertTrue(thought["encrypted_content"])
        count = lambda items: self.server.post("/v1/responses/input_tokens", {
            "input": items, "reasoning": {"effort": "high"}})[2]["input_tokens"]
        self.assertGreater(count([ask, thought, r["output"][1]]), count([ask, r["output"][1]]))
        self.assertEqual(count([ask, thought, r["output"][1], more]),
                         count([ask, r["output"][0], r["output"][1], more]))

    def test_no_thoughts(self):
        r = self.whole(input="What is 8+9?", reasoning={"effort": "none"})
        self.assertEqual([i["type"] for i in r["output"]], ["message"])

    def test_call(self):
        events = self.events(input=QUESTION, tools=[TOOL])
        self.assertEqual(short(events), DONE + CALL + END)
        item = events[-1][1]["response"]["output"][0]
        self.assertEqual((item["type"], item["name"], item["status"]),
                         ("function_call", "get_weather", "completed"))
        self.assertEqual(json.loads(item["arguments"]), {"city": "Paris"})
        self.assertTrue(item["call_id"].startswith("call_"))
        added = [d["item"] for n, d in events if n == "response.output_item.added"][0]
        self.assertEqual((added["arguments"], added["status"]), ("", "in_progress"))
        done = [d for n, d in events if n == "response.function_call_arguments.done"][0]
        self.assertEqual((done["name"], done["arguments"]), ("get_weather", item["arguments"]))

    def test_cut_calls(self):
        n = self.whole(input=QUESTION, tools=[TOOL])["usage"]["output_tokens"]
        seen = set()
        for k in range(16, 0, -1) if n > 16 else range(n - 1, 0, -1):
            r = self.whole(input=QUESTION, tools=[TOOL], max_output_tokens=k)
            self.assertEqual(r["status"], "incomplete")
            events = self.events(input=QUESTION, tools=[TOOL], max_output_tokens=k)
            self.assertEqual(events[-1][0], "response.incomplete")
            streamed = events[-1][1]["response"]["output"]
            plain = [{key: v for key, v in i.items() if key not in ("id", "call_id")} for i in r["output"]]
            self.assertEqual(plain, [{key: v for key, v in i.items() if key not in ("id", "call_id")}
                                     for i in streamed])
            if not r["output"]:
                continue
            call = r["output"][0]
            self.assertEqual((call["type"], call["name"]), ("function_call", "get_weather"))
            whole = call["arguments"] == '{"city": "Paris"}'
            self.assertEqual(call["status"], "completed" if whole else "incomplete")
            deltas = [d["delta"] for name, d in events if name == "response.function_call_arguments.delta"]
            self.assertEqual("".join(deltas), call["arguments"])
            if call["arguments"] not in seen:
                self.whole(tools=[TOOL], max_output_tokens=1, input=[
                    {"role": "user", "content": QUESTION}, call, {
                        "type": "function_call_output", "call_id": call["call_id"], "output": "cut off"}])
            seen.add(call["arguments"])
        self.assertGreater(len(seen), 4)

    def test_results(self):
        ask = {"role": "user", "content": QUESTION}
        call = self.whole(input=[ask], tools=[TOOL])["output"][0]
        for output in ANSWER, [{"type": "input_text", "text": ANSWER}]:
            r = self.whole(tools=[TOOL], input=[ask, call, {
                "type": "function_call_output", "call_id": call["call_id"], "output": output}])
            self.assertEqual(text_of(r), "It is sunny in Paris, 21 degrees.")

    def test_namespace(self):
        tools = [{"type": "namespace", "name": "get", "description": "", "tools": [
            dict(TOOL, name="weather")]}]
        r = self.whole(input=QUESTION, tools=tools, tool_choice="required")
        self.assertEqual((r["output"][0]["name"], r["output"][0]["namespace"]), ("weather", "get"))

    def test_custom(self):
        tools = [{"type": "custom", "name": "get_weather", "description": "Weather in a city",
                  "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}]
        choice = {"type": "custom", "name": "get_weather"}
        events = self.events(input=QUESTION, tools=tools, tool_choice=choice)
        item = events[-1][1]["response"]["output"][0]
        self.assertEqual(item["type"], "custom_tool_call")
        names = [n for n, _ in events]
        self.assertIn("response.custom_tool_call_input.delta", names)
        done = [d for n, d in events if n == "response.custom_tool_call_input.done"][0]
        self.assertEqual(done["input"], item["input"])
        deltas = [d["delta"] for n, d in events if n == "response.custom_tool_call_input.delta"]
        self.assertGreater(len(deltas), 1)
        self.assertEqual("".join(deltas), item["input"])
        for k in (8, 10, 12):
            cut = self.whole(input=QUESTION, tools=tools, tool_choice=choice, max_output_tokens=k)
            events = self.events(input=QUESTION, tools=tools, tool_choice=choice, max_output_tokens=k)
            deltas = [d["delta"] for n, d in events if n == "response.custom_tool_call_input.delta"]
            for call in cut["output"]:
                self.assertEqual((call["type"], call["status"]), ("custom_tool_call", "incomplete"))
                self.assertEqual("".join(deltas), call["input"])

    def test_other_tools_are_skipped(self):
        tools = [{"type": t} for t in ("web_search", "image_generation", "file_search", "mcp",
                                       "code_interpreter", "computer_use", "from_the_future")]
        self.assertEqual(text_of(self.whole(input="What is 7+5?", tools=tools,
                                            tool_choice={"type": "web_search"})), "12")

    def test_allowed_tools(self):
        tools = [{"type": "function", "name": n, "parameters": client.WEATHER} for n in ("a", "b", "get_weather")]
        tools += [{"type": "web_search"}, {"type": "namespace", "name": "ns", "tools": [tools[0]]}]
        for mode in "required", "auto":
            for seed in range(4):
                r = self.whole(input="What is the weather in Rome?", tools=tools, seed=seed, **client.HOT, tool_choice={
                    "type": "allowed_tools", "mode": mode, "tools": [
                        {"type": "function", "name": "b"}, {"type": "function", "name": "a", "namespace": "ns"},
                        {"type": "web_search"}]})
                calls = [(i["name"], i.get("namespace")) for i in r["output"] if i["type"] == "function_call"]
                self.assertLessEqual(set(calls), {("b", None), ("a", "ns")})
                self.assertTrue(calls or mode == "auto" or r["status"] == "incomplete")
        r = self.whole(input="What is the weather in Rome?", tools=tools, tool_choice={
            "type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]})
        self.assertEqual(r["output"][-1]["type"], "message")

    def test_schema(self):
        schema = {"type": "object", "properties": {"name": {"type": "string"},
                                                   "age": {"type": "integer"}},
                  "required": ["name", "age"], "additionalProperties": False}
        r = self.whole(input="Give me a JSON object with name Leo and age 42.",
                       text={"format": {"type": "json_schema", "name": "p", "schema": schema}})
        self.assertEqual(text_of(r).replace(" ", ""), '{"name":"Leo","age":42}')

    def test_logprobs(self):
        r = self.whole(input="What is 7+5?", include=["message.output_text.logprobs"],
                       top_logprobs=2)
        probs = r["output"][0]["content"][0]["logprobs"]
        self.assertEqual("".join(p["token"] for p in probs), "12")
        self.assertEqual(len(probs[0]["top_logprobs"]), 2)
        self.assertLessEqual(probs[0]["logprob"], 0)

    def test_store(self):
        first = self.whole(input="My name is Ada.")
        second = self.whole(input="What is my name?", previous_response_id=first["id"])
        self.assertEqual(text_of(second), "Your name is Ada.")
        self.assertEqual(second["previous_response_id"], first["id"])
        self.assertGreater(second["usage"]["input_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(self.server.get("/v1/responses/" + first["id"])[2], first)
        status, _, gone = self.server.request("DELETE", "/v1/responses/" + first["id"])
        self.assertEqual((status, gone["deleted"], gone["id"]), (200, True, first["id"]))
        self.assertEqual(self.server.get("/v1/responses/" + first["id"])[0], 404)
        self.assertEqual(self.server.request("DELETE", "/v1/responses/" + first["id"])[0], 404)
        self.refused(404, input="x", previous_response_id=first["id"])
        self.whole(input="x", previous_response_id=second["id"], max_output_tokens=1)
        hidden = self.whole(input="hi", store=False)
        self.assertEqual(self.server.get("/v1/responses/" + hidden["id"])[0], 404)

    def test_streams_are_kept(self):
        final = self.events(input="hi")[-1][1]["response"]
        self.assertEqual(self.server.get("/v1/responses/" + final["id"])[2], final)

    def test_item_reference(self):
        item = self.whole(input="My name is Ada.")["output"][0]
        r = self.whole(input=[{"role": "user", "content": "My name is Ada."},
                              {"type": "item_reference", "id": item["id"]},
                              {"role": "user", "content": "What is my name?"}])
        self.assertEqual(text_of(r), "Your name is Ada.")
        self.refused(404, input=[{"type": "item_reference", "id": "msg_none"}])

    def test_count(self):
        status, _, n = self.server.post("/v1/responses/input_tokens", {"input": "Who are you?"})
        self.assertEqual((status, n["object"]), (200, "response.input_tokens"))
        self.assertEqual(n["input_tokens"],
                         self.whole(input="Who are you?")["usage"]["input_tokens"])
        self.assertEqual(self.server.post("/v1/responses/input_tokens", {})[0], 400)

    def compact(self, status=200, **body):
        got, _, r = self.server.post("/v1/responses/compact", {"max_output_tokens": 40, **body})
        self.assertEqual(got, status, r)
        return r

    def test_compaction(self):
        talk = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada."}]
        r = self.compact(input=talk, instructions="Be brief.", tools=[TOOL], parallel_tool_calls=True)
        self.assertEqual((r["object"], [i["type"] for i in r["output"]]), ("response.compaction", ["compaction"]))
        self.assertEqual(set(r["output"][0]), {"id", "type", "encrypted_content"})
        self.assertEqual(r["usage"]["total_tokens"], r["usage"]["input_tokens"] + r["usage"]["output_tokens"])
        count = lambda items: self.server.post("/v1/responses/input_tokens", {"input": items})[2]["input_tokens"]
        more = [{"role": "user", "content": QUESTION}]
        self.assertGreater(count(r["output"] + more), count(more) + 5)  # the summary is read
        self.assertNotIn("warnings", self.whole(input=r["output"] + more))
        again = self.compact(input=r["output"] + more)
        self.assertEqual(len(again["output"]), 1)
        stored = self.whole(input="My name is Ada.")
        longer = self.compact(previous_response_id=stored["id"])["usage"]["input_tokens"]
        self.assertGreater(longer, self.compact(input="My name is Ada.")["usage"]["input_tokens"])
        for other in ({}, {"encrypted_content": "gAAAA"}, {"encrypted_content": r["output"][0]["encrypted_content"][:-3]}):
            left = self.whole(input=[{"type": "compaction", **other}] + more)
            self.assertIn("compaction", left["warnings"][0])

    def test_compaction_is_refused_or_told(self):
        for bad in ({}, {"input": "x", "stream": True}, {"input": "x", "background": True}, {"input": 5}):
            self.assertIn(self.compact(400, **bad)["error"]["param"], ("input", "stream", "background"))
        self.compact(404, previous_response_id="resp_none")
        r = self.compact(input="x", max_output_tokens=2, stop=None)
        self.assertIn("max_output_tokens", r["warnings"][0])
        r = self.compact(input=[{"role": "user", "content": "x"}], max_output_tokens=0)  # no summary: nothing is lost
        self.assertEqual([i["role"] for i in r["output"]], ["user"])
        self.assertIn("no summary", r["warnings"][0])
        for method in ("GET", "DELETE"):
            self.assertEqual(self.server.request(method, "/v1/responses/compact")[0], 405)

    def test_bad_requests(self):
        self.assertEqual(self.refused(400)["param"], "input")
        self.assertEqual(self.refused(400, input=[1])["param"], "input[0]")
        self.assertEqual(self.refused(400, input="x", stream=True, temperature=9)["param"],
                         "temperature")
        self.assertEqual(self.refused(400, input="x", text={"format": {
            "type": "json_schema", "name": "n", "schema": {"not": {}}}})["param"], "text.format.schema")
        self.assertEqual(self.refused(400, input="x", tool_choice="required")["param"], "tool_choice")
        self.whole(input="x", tool_choice="required", tools=[{"type": "web_search"}])
        self.assertEqual(self.server.request("POST", "/v1/responses", b"{")[0], 400)
        self.assertEqual(self.server.request("POST", "/v1/responses", b"[]")[0], 400)

    def test_overflow(self):
        long = "What is the capital of Norway? " * 2000
        e = self.refused(400, input=long)
        self.assertEqual((e["code"], e["param"]), ("context_length_exceeded", "input"))
        events = self.events(input=long)
        self.assertEqual(short(events), DONE + ["response.failed"])
        failed = events[-1][1]["response"]
        self.assertEqual(failed["status"], "failed")
        self.assertEqual(failed["error"]["code"], "context_length_exceeded")
        self.assertRegex(failed["id"], "^resp_[0-9a-f]{32}$")
        self.assertNotEqual(failed["id"], self.events(input=long)[-1][1]["response"]["id"])
        self.assertEqual(failed["model"], self.server.get("/v1/models")[2]["data"][0]["id"])


class KeepAlive(client.Case):
    options = ["--temp", "0", "--limit", "keep-alive=0.1", "--parallel", "1"]

    def test_silence(self):
        """A request that waits for another one says so, with an event and not a comment."""
        story = {"input": "Count from 1 to 60.", "max_output_tokens": 2000, "stream": True,
                 "text": {"format": {"type": "json_schema", "name": "long", "schema": {
                     "type": "array", "items": {"const": 1}, "minItems": 600, "maxItems": 600}}}}
        c, r = self.server.open("POST", "/v1/responses", story)
        r.read(120)
        events = self.server.stream("/v1/responses", {"input": "What is 7+5?"})
        c.close()
        names = [n for n, _ in events]
        self.assertEqual(names[:2], DONE)
        self.assertNotIn("comment", names)
        self.assertEqual(short(events), DONE + TEXT + END)
        self.assertEqual([d["sequence_number"] for _, d in events], list(range(len(events))))


class Bounded(client.Case):
    options = ["--temp", "0", "--limit", "responses=2"]

    def test_eviction(self):
        ids = [self.server.post("/v1/responses", {"input": "hi", "max_output_tokens": 1})[2]["id"]
               for _ in range(3)]
        self.assertEqual([self.server.get("/v1/responses/" + i)[0] for i in ids], [404, 200, 200])


class DeepSeek(client.Case):
    @classmethod
    def setUpClass(cls):
        cls.options = ["--temp", "0", "--model", client.nano_v4()]
        super().setUpClass()

    def test_thoughts(self):
        events = self.server.stream("/v1/responses", {
            "input": "What is 8+9?", "reasoning": {"effort": "high", "summary": "auto"},
            "max_output_tokens": 200})
        self.assertEqual(short(events)[:2], DONE)
        self.assertEqual(events[-1][1]["response"]["output"][0]["type"], "reasoning")

    def test_call(self):
        status, _, r = self.server.post("/v1/responses", {"input": QUESTION, "tools": [TOOL],
                                                          "tool_choice": "required"})
        self.assertEqual(r["output"][-1]["type"], "function_call", r["output"])


if __name__ == "__main__":
    client.main()
