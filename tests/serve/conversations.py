#!/usr/bin/env python3
"""conversations.py INGLE - what a conversation becomes for the model and what the model writes becomes for the
client, on both families and in every API."""
import json

import client
from client import Case, HOT

WEATHER = {"name": "get_weather", "description": "Weather in a city", "parameters": client.WEATHER}
QUESTION = "What is the weather in Oslo?"


def chat(messages, **more):
    return "/v1/chat/completions", {"messages": messages, "max_tokens": 60, "temperature": 0, **more}


def doors(messages, tools=True, **more):
    """The same request without calls in each API: (path, body)."""
    body = {"messages": messages, "max_tokens": 60, "temperature": 0, **more}
    tool = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "none"} if tools else {}
    yield "/v1/chat/completions", {**body, **tool}
    tool = {"tools": [{"name": WEATHER["name"], "input_schema": client.WEATHER}],
            "tool_choice": {"type": "none"}} if tools else {}
    yield "/v1/messages", {**body, **tool}
    tool = {"tools": [{"type": "function", **WEATHER}], "tool_choice": "none"} if tools else {}
    yield "/v1/responses", {"input": messages, "max_output_tokens": 60, "temperature": 0, **more, **tool}


def user(text):
    return [{"role": "user", "content": text}]


class Both:
    """Tests of either family; MARKER begins a call, SPELLED are tokens that could write it."""

    def ask(self, path, body):
        status, _, r = self.server.post(path, body)
        self.assertEqual(status, 200, r)
        return r

    def prompt(self, messages, **more):
        return self.ask("/apply-template", {"messages": messages, **more})["prompt"]

    def bias(self):
        tokens = self.ask("/tokenize", {"content": self.SPELLED, "parse_special": False})["tokens"]
        marker = self.ask("/tokenize", {"content": self.MARKER, "parse_special": True})["tokens"]
        return [[t, 100] for t in dict.fromkeys(tokens + marker)]

    def test_schemas_of_libraries_are_shown(self):
        parameters = {"properties": {
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "mode": {"enum": ["fast", "slow"]}, "limit": {"type": ["integer", "null"]},
            "action": {"$ref": "#/$defs/Action"}}, "$defs": {"Action": {
                "type": "object", "properties": {"kind": {"type": "string", "enum": ["CLICK", "TYPE"]}}}}}
        tool = {"name": "act", "description": "Act", "parameters": parameters}
        prompt = self.prompt(user("Click"), tools=[{"type": "function", "function": tool}])
        self.assertIn("CLICK", prompt)
        self.assertNotIn("$ref", prompt)
        self.assertNotIn('type:<|"|><|"|>', prompt)

    def test_no_call_is_written_where_none_may_be(self):
        for tools in (True, False):
            for path, body in doors(user(QUESTION), tools):
                for stream in (False, True):
                    if stream:
                        text = json.dumps(self.server.stream(path, body), ensure_ascii=False)
                    else:
                        text = json.dumps(self.ask(path, body), ensure_ascii=False)
                    self.assertNotIn(self.MARKER, text, (path, tools))
                    self.assertNotIn('"tool_calls": [', text)

    def test_no_call_is_spelled(self):
        path, body = chat(user(QUESTION), logit_bias=self.bias(), n=3, seed=1)
        for more in (HOT, {"temperature": 0}, {"response_format": {"type": "json_object"}, **HOT},
                     {"grammar": "root ::= .*", **HOT}):
            r = self.ask(path, {**body, **more})
            for c in r["choices"]:
                self.assertNotIn(self.MARKER, c["message"]["content"], more)
                self.assertNotIn("tool_calls", c["message"])

    def test_what_is_no_text_is_not_drawn(self):
        for marker in self.NO_TEXT:
            token = self.ask("/tokenize", {"content": marker, "parse_special": True})["tokens"]
            self.assertEqual(len(token), 1, marker)
            for path, body in (chat(user("Hi"), logit_bias=[[token[0], 100]]),
                               ("/v1/completions", {"prompt": "Hi", "max_tokens": 8, "temperature": 0,
                                                    "logit_bias": {str(token[0]): 100}})):
                c = self.ask(path, body)["choices"][0]
                text = c["text"] if "text" in c else c["message"]["content"]
                self.assertNotIn(marker, text, path)


class Gemma(Both, Case):
    options = ["--temp", "0", "--parallel", "4"]
    MARKER = "<|tool_call>"
    SPELLED = "<|tool_call>"
    NO_TEXT = ["<|image|>", "<|audio|>", "<pad>", "<|turn>", "<bos>", "<mask>", "<|tool>"]

    def test_answers_to_results_behind_text(self):
        call = {"id": "1", "type": "function",
                "function": {"name": "get_weather", "arguments": json.dumps({"city": "Oslo"})}}
        messages = [*user(QUESTION), {"role": "assistant", "content": "I will look.", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "1", "content": "sunny, 20 degrees"}]
        tools = [{"type": "function", "function": WEATHER}]
        answer = self.ask(*chat(messages, tools=tools))["choices"][0]["message"]["content"]
        self.assertIn("sunny", answer)
        prompt = self.prompt(messages, tools=tools)
        self.assertTrue(prompt.endswith("<tool_response|>"), prompt)
        self.assertLess(prompt.index("I will look."), prompt.index("<|tool_call>"))
        later = self.prompt([*messages, {"role": "assistant", "content": answer}, *user("Thanks")], tools=tools)
        self.assertTrue(later.startswith(prompt + answer + "<turn|>"), later)

        theirs = [*user(QUESTION),
                  {"role": "assistant", "content": [
                      {"type": "text", "text": "I will look."},
                      {"type": "tool_use", "id": "1", "name": "get_weather", "input": {"city": "Oslo"}}]},
                  {"role": "user", "content": [
                      {"type": "tool_result", "tool_use_id": "1", "content": "sunny, 20 degrees"}]}]
        r = self.ask("/v1/messages", {"messages": theirs, "max_tokens": 60, "temperature": 0, "tools": [
            {"name": "get_weather", "description": WEATHER["description"], "input_schema": client.WEATHER}]})
        self.assertEqual(r["content"][0]["text"], answer)
        items = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "I will look."},
                 {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": '{"city":"Oslo"}'},
                 {"type": "function_call_output", "call_id": "1", "output": "sunny, 20 degrees"}]
        r = self.ask("/v1/responses", {"input": items, "max_output_tokens": 60, "temperature": 0,
                                       "tools": [{"type": "function", **WEATHER}]})
        self.assertEqual(r["output"][-1]["content"][0]["text"], answer)


class DeepSeek(Both, Case):
    MARKER = "\uff5cDSML\uff5c"
    SPELLED = "<\uff5cDSML\uff5cinvoke"
    NO_TEXT = ["<\uff5c\u2581pad\u2581\uff5c>", "<\uff5cUser\uff5c>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"]

    @classmethod
    def setUpClass(cls):
        cls.options = ["-m", client.nano_v4(), "-c", "2048", "--parallel", "4"]
        super().setUpClass()

    def test_system_behind_a_user(self):
        messages = [*user("What is the capital of Italy?"), {"role": "system", "content": "Be short."}]
        want = "Italy?\n\n<system>\nBe short.\n</system><\uff5cAssistant\uff5c>"
        self.assertIn(want, self.prompt(messages))
        counts = {self.ask(path, body)["usage"].get("prompt_tokens") or
                  self.ask(path, body)["usage"]["input_tokens"] for path, body in doors(messages, False)
                  if path != "/v1/messages"}
        self.assertEqual(len(counts), 1)


if __name__ == "__main__":
    client.main()
