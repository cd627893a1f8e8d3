#!/usr/bin/env python3
"""matrix_sdk.py - every dialect with and without stream, tools, thought and format, left and in error, with
the real packages; all that comes is checked against their types.

usage: PYTHON matrix_sdk.py INGLE      PYTHON has the packages openai, anthropic and pydantic; else exit 77
"""
import itertools
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import client  # noqa: E402
from client import WEATHER  # noqa: E402

try:
    import anthropic
    import openai
    import pydantic
    from anthropic import types as a
    from openai import types as o
    from openai.types import responses as r
except ImportError:
    sys.exit(77)

QUESTION = "What is the weather in Paris?"
PERSON = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"enum": [7, 8]}}}
FUNCTION = {"name": "get_weather", "description": "Weather in a city", "parameters": WEATHER}
RESPONSE_EVENT = pydantic.TypeAdapter(r.ResponseStreamEvent)
MESSAGE_EVENT = pydantic.TypeAdapter(a.RawMessageStreamEvent)


class Answer:
    """What all dialects tell: text, thought, calls {name: arguments}."""

    def __init__(self, text="", thought="", calls=()):
        self.text, self.thought, self.calls = text, thought, list(calls)


class Chat:
    def __init__(self, url, **more):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, **more)
        self.errors = openai

    def body(self, text, tools, think, form, **more):
        out = {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 300,
               "extra_body": {"think": think, "thinking_budget_tokens": 60, **more}}
        if tools:
            out["tools"] = [{"type": "function", "function": FUNCTION}]
        if form:
            out["response_format"] = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
        return out

    def start(self, **body):
        return self.client.chat.completions.create(stream=True, **body)

    def whole(self, **body):
        raw = self.client.chat.completions.with_raw_response.create(**body)
        o.chat.ChatCompletion.model_validate_json(raw.text, strict=True)
        m = raw.parse().choices[0].message
        return Answer(m.content or "", getattr(m, "reasoning_content", ""),
                      [(c.function.name, c.function.arguments) for c in m.tool_calls or []])

    def stream(self, **body):
        out, calls = Answer(), {}
        for c in self.start(**body):
            o.chat.ChatCompletionChunk.model_validate_json(c.to_json(), strict=True)
            for d in (x.delta for x in c.choices):
                out.text += d.content or ""
                out.thought += getattr(d, "reasoning_content", None) or ""
                for t in d.tool_calls or []:
                    name, arguments = calls.get(t.index, ("", ""))
                    calls[t.index] = (name + (t.function.name or ""), arguments + t.function.arguments)
        out.calls = list(calls.values())
        return out


class Responses(Chat):
    def body(self, text, tools, think, form, **more):
        out = {"model": "any", "input": text, "max_output_tokens": 300,
               "reasoning": {"effort": "high" if think else "none"}, "extra_body": more}
        if tools:
            out["tools"] = [{"type": "function", **FUNCTION}]
        if form:
            out["text"] = {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}
        return out

    def start(self, **body):
        return self.client.responses.create(stream=True, **body)

    def answer(self, response):
        r.Response.model_validate_json(response.to_json())
        return Answer(response.output_text,
                      "".join(c.text for i in response.output if i.type == "reasoning" for c in i.content),
                      [(i.name, i.arguments) for i in response.output if i.type == "function_call"])

    def whole(self, **body):
        return self.answer(self.client.responses.create(**body))

    def stream(self, **body):
        """The deltas, the items that are done and the last object tell the same."""
        text, thought, calls, done = "", "", [], []
        for i, e in enumerate(self.start(**body)):
            RESPONSE_EVENT.validate_python(e.to_dict(), strict=True)
            assert e.sequence_number == i
            if e.type == "response.output_text.delta":
                text += e.delta
            elif e.type == "response.reasoning_text.delta":
                thought += e.delta
            elif e.type == "response.function_call_arguments.done":
                calls.append((e.name, e.arguments))
            elif e.type == "response.output_item.done":
                done.append(e.item)
        last = self.answer(e.response)
        assert done == e.response.output
        assert (text, thought, calls) == (last.text, last.thought, last.calls)
        return last


class Messages(Chat):
    def __init__(self, url, **more):
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, **more)
        self.errors = anthropic

    def body(self, text, tools, think, form, **more):
        kind = {"type": "enabled", "budget_tokens": 1024} if think else {"type": "disabled"}
        out = {"model": "any", "max_tokens": 300, "messages": [{"role": "user", "content": text}],
               "thinking": kind, "extra_body": dict(more)}
        if tools:
            out["tools"] = [{"name": "get_weather", "description": "Weather", "input_schema": WEATHER}]
        if form:
            out["extra_body"]["output_config"] = {"format": {"type": "json_schema", "schema": PERSON}}
        return out

    def start(self, **body):
        return self.client.messages.create(stream=True, **body)

    def answer(self, m):
        a.Message.model_validate_json(m.to_json())
        of = lambda kind: [b for b in m.content if b.type == kind]
        return Answer("".join(b.text for b in of("text")), "".join(b.thinking for b in of("thinking")),
                      [(b.name, json.dumps(b.input)) for b in of("tool_use")])

    def whole(self, **body):
        return self.answer(self.client.messages.create(**body))

    def stream(self, **body):
        for e in self.start(**body):
            MESSAGE_EVENT.validate_python(e.to_dict(), strict=True)
        extra = body.pop("extra_body")
        with self.client.messages.stream(**body, extra_body=extra) as stream:
            return self.answer(stream.get_final_message())


DIALECTS = Chat, Responses, Messages


class Matrix(client.Case):
    options = ["--temp", "0", "-c", "4096"]

    def test_all(self):
        for dialect, tools, think, form in itertools.product(DIALECTS, *[(False, True)] * 3):
            with self.subTest(dialect=dialect.__name__, tools=tools, think=think, form=form):
                d = dialect(self.server.url)
                self.addCleanup(d.client.close)
                got = [f(**d.body(QUESTION, tools, think, form)) for f in (d.whole, d.stream)]
                self.assertEqual(vars(got[0]), vars(got[1]))
                for x in got:
                    self.assertEqual(bool(x.thought), think, vars(x))
                    if tools:
                        self.assertEqual([(n, json.loads(v)) for n, v in x.calls],
                                         [("get_weather", {"city": "Paris"})])
                    elif form:
                        self.assertEqual(set(json.loads(x.text)), {"name", "age"})
                    else:
                        self.assertTrue(x.text)
                    self.assertEqual(bool(x.calls), tools)


class Ends(client.Case):
    """One answer at a time: a client that leaves makes room for the next."""
    options = ["--temp", "0", "-c", "32768", "--parallel", "1", "--limit", "request-seconds=1.5",
               "--strict-model", "--alias", "any"]
    ENDLESS = {"type": "object", "required": ["x"], "properties": {"x": {
        "type": "array", "items": {"const": 1}, "minItems": 15000}}}

    def endless(self, d):
        body = d.body("Count", False, False, True)
        text = json.dumps(body).replace(json.dumps(PERSON), json.dumps(self.ENDLESS))
        body = json.loads(text.replace("300", "30000"))
        body["timeout"] = 60
        return body

    def test_leaving(self):
        for dialect in DIALECTS:
            with self.subTest(dialect=dialect.__name__):
                d = dialect(self.server.url)
                for _ in range(3):
                    stream = d.start(**self.endless(d))
                    for i, _ in enumerate(stream):
                        if i > 20:
                            break
                    stream.close()
                self.assertTrue(d.whole(**d.body("Who are you?", False, False, False)).text)

    def test_time_is_up(self):
        for dialect in DIALECTS:
            with self.subTest(dialect=dialect.__name__):
                d = dialect(self.server.url)
                with self.assertRaises(d.errors.APIStatusError) as e:
                    d.whole(**self.endless(d))
                self.assertEqual(e.exception.status_code, 504)
                if dialect is Responses:
                    self.assertEqual(list(d.start(**self.endless(d)))[-1].type, "response.failed")
                    continue
                with self.assertRaises(d.errors.APIError):
                    list(d.start(**self.endless(d)))

    def test_refusals(self):
        long = "What is the capital of Norway? " * 12000
        for dialect in DIALECTS:
            d = dialect(self.server.url)
            for change, status in (({"model": "other"}, 404), ({"extra_body": {"temperature": 3}}, 400),
                                   ({"tool_choice": {"type": "tool", "name": "none"}}, 400)):
                for start in d.whole, d.start:
                    with self.subTest(dialect=dialect.__name__, change=change, start=start.__name__):
                        with self.assertRaises(d.errors.APIStatusError) as e:
                            start(**{**d.body("Who?", False, False, False), **change})
                        self.assertEqual(e.exception.status_code, status)
            with self.assertRaisesRegex(d.errors.BadRequestError, "context|prompt is too long"):
                d.whole(**d.body(long, False, False, False))

    def test_wrong_address(self):
        for dialect in DIALECTS:
            d = dialect(self.server.url + "/nowhere")
            with self.assertRaises(d.errors.NotFoundError):
                d.whole(**d.body("Who?", False, False, False))


if __name__ == "__main__":
    client.main()
