#!/usr/bin/env python3
"""responses_sdk.py - /v1/responses with the real openai package.

usage: PYTHON responses_sdk.py INGLE      PYTHON has the packages openai and pydantic; else exit 77
"""
import json
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import client
from client import WEATHER

try:
    import openai
    import pydantic
    from openai.types import responses as types
except ImportError:
    sys.exit(77)

TOOL = {"type": "function", "name": "get_weather", "description": "Weather in a city",
        "parameters": WEATHER, "strict": False}
QUESTION = "What is the weather in Paris?"
ANSWER = '{"city": "Paris", "sky": "sunny", "celsius": 21}'
EVENT = pydantic.TypeAdapter(types.ResponseStreamEvent)


class Person(pydantic.BaseModel):
    name: str
    age: int


class Sdk(client.Case):
    def setUp(self):
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1",
                                    api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def create(self, **more):
        """A whole answer, whose JSON is checked against the package's types."""
        raw = self.client.responses.with_raw_response.create(**dict({"model": "any"}, **more))
        self.assertTrue(raw.headers["x-request-id"])
        types.Response.model_validate_json(raw.text)
        return raw.parse()

    def events(self, **more):
        stream = self.client.responses.create(**dict({"model": "any"}, stream=True, **more))
        events = list(stream)
        for e in events:
            EVENT.validate_python(e.to_dict())
        return events

    def test_text(self):
        r = self.create(input="What is the capital of Norway?", instructions="Answer briefly.")
        self.assertEqual(r.output_text, "The capital of Norway is Oslo.")
        self.assertEqual((r.status, r.usage.total_tokens > 20), ("completed", True))

    def test_messages(self):
        r = self.create(input=[
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Nice to meet you, Ada!"},
            {"role": "user", "content": [{"type": "input_text", "text": "What is my name?"}]}])
        self.assertEqual(r.output_text, "Your name is Ada.")

    def test_output_is_input(self):
        first = self.create(input="My name is Ada.")
        r = self.create(input=[{"role": "user", "content": "My name is Ada."}] + first.output +
                        [{"role": "user", "content": "What is my name?"}])
        self.assertEqual(r.output_text, "Your name is Ada.")

    def test_stream(self):
        events = self.events(input="Who are you?")
        deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(deltas, events[-1].response.output_text)
        self.assertEqual(events[-1].type, "response.completed")

    def test_stream_helper(self):
        with self.client.responses.stream(model="any", input="Who are you?") as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            self.assertEqual(stream.get_final_response().output_text, text)

    def test_helper_with_a_call(self):
        with self.client.responses.stream(model="any", input=QUESTION, tools=[TOOL]) as stream:
            stream.until_done()
            call = stream.get_final_response().output[0]
        self.assertEqual((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Paris"}))

    def test_async(self):
        import asyncio

        async def run():
            async with openai.AsyncOpenAI(base_url=self.client.base_url, api_key="x") as client:
                several = [client.responses.create(model="any", input="What is 7+5?")
                           for _ in range(6)]
                return [r.output_text for r in await asyncio.gather(*several)]
        self.assertEqual(asyncio.run(run()), ["12"] * 6)

    def test_call_and_result(self):
        items = [{"role": "user", "content": QUESTION}]
        call = self.create(input=items, tools=[TOOL]).output[0]
        self.assertEqual(call.type, "function_call")
        items += [call, {"type": "function_call_output", "call_id": call.call_id, "output": ANSWER}]
        self.assertEqual(self.create(input=items, tools=[TOOL]).output_text,
                         "It is sunny in Paris, 21 degrees.")

    def test_call_over_the_store(self):
        first = self.create(input=QUESTION, tools=[TOOL])
        r = self.create(previous_response_id=first.id, tools=[TOOL], input=[
            {"type": "function_call_output", "call_id": first.output[0].call_id, "output": ANSWER}])
        self.assertEqual(r.output_text, "It is sunny in Paris, 21 degrees.")

    def test_required(self):
        r = self.create(input="What is the weather in Rome?", tools=[TOOL], tool_choice="required")
        self.assertEqual(r.output[-1].type, "function_call")

    def test_no_tools(self):
        r = self.create(input="What is 7+5?", tools=[TOOL], tool_choice="none")
        self.assertEqual(r.output_text, "12")

    def test_hosted_tools(self):
        r = self.create(input="What is 7+5?", tools=[{"type": "web_search"}, TOOL])
        self.assertEqual(r.output_text, "12")

    def test_custom_tool(self):
        r = self.create(input=QUESTION, tools=[{"type": "custom", "name": "get_weather"}],
                        tool_choice="required")
        self.assertEqual(r.output[0].type, "custom_tool_call")

    def test_reasoning(self):
        events = self.events(input="What is 8+9?", reasoning={"effort": "high", "summary": "auto"})
        r = events[-1].response
        self.assertEqual([i.type for i in r.output], ["reasoning", "message"])
        self.assertIn("17", r.output[0].summary[0].text)
        self.assertGreater(r.usage.output_tokens_details.reasoning_tokens, 0)

    def test_raw_reasoning(self):
        events = self.events(input="What is 8+9?", reasoning={"effort": "high"})
        self.assertIn("17", events[-1].response.output[0].content[0].text)

    def test_encrypted_reasoning(self):
        first = self.create(input="What is 8+9?", reasoning={"effort": "high"}, store=False,
                            include=["reasoning.encrypted_content"])
        self.assertTrue(first.output[0].encrypted_content)
        r = self.create(input=[{"role": "user", "content": "What is 8+9?"}] + first.output +
                        [{"role": "user", "content": "What is 7+5?"}], reasoning={"effort": "none"})
        self.assertEqual(r.output_text, "12")

    def test_parse(self):
        r = self.client.responses.parse(
            model="any", input="Give me a JSON object with name Leo and age 42.",
            text_format=Person)
        self.assertEqual(r.output_parsed, Person(name="Leo", age=42))

    def test_incomplete(self):
        r = self.create(input="Count from 1 to 60.", max_output_tokens=16)
        self.assertEqual((r.status, r.incomplete_details.reason),
                         ("incomplete", "max_output_tokens"))

    def test_retrieve_and_delete(self):
        r = self.create(input="hi", metadata={"k": "v"})
        again = self.client.responses.retrieve(r.id)
        self.assertEqual((again.output_text, again.metadata), (r.output_text, {"k": "v"}))
        self.client.responses.delete(r.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(r.id)

    def test_input_tokens(self):
        n = self.client.responses.input_tokens.count(model="any", input="Who are you?")
        self.assertEqual(n.input_tokens, self.create(input="Who are you?").usage.input_tokens)

    def test_logprobs(self):
        r = self.create(input="What is 7+5?", include=["message.output_text.logprobs"],
                        top_logprobs=3)
        self.assertEqual(len(r.output[0].content[0].logprobs[0].top_logprobs), 3)
        events = self.events(input="What is 7+5?", include=["message.output_text.logprobs"])
        self.assertTrue([e for e in events if e.type == "response.output_text.delta"][0].logprobs)

    def test_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.create(input="x", temperature=7)
        self.assertEqual(e.exception.param, "temperature")

    def test_overflow(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.create(input="word " * 9000)
        self.assertEqual(e.exception.code, "context_length_exceeded")

    def test_overflow_in_a_stream(self):
        with self.client.responses.create(model="any", input="word " * 9000, stream=True) as stream:
            last = list(stream)[-1]
        self.assertEqual((last.type, last.response.error.code),
                         ("response.failed", "context_length_exceeded"))

    def test_leaving_a_stream(self):
        with self.client.responses.create(model="any", input="Count from 1 to 60.",
                                          stream=True) as stream:
            next(iter(stream))
        self.assertEqual(self.create(input="What is 7+5?").output_text, "12")

    def poll(self, r):
        while r.status in ("queued", "in_progress"):
            time.sleep(0.02)
            r = self.client.responses.retrieve(r.id)
            types.Response.model_validate(r.to_dict())
        return r

    def test_background(self):
        r = self.poll(self.create(input="Count from 1 to 20.", background=True))
        self.assertEqual((r.status, r.output_text), ("completed", " ".join(map(str, range(1, 21)))))
        self.assertEqual(list(self.client.responses.input_items.list(r.id))[0].content[0].text,
                         "Count from 1 to 20.")
        self.client.responses.delete(r.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(r.id)

    def test_background_stream_goes_on(self):
        first = []
        with self.client.responses.create(model="any", input="Count from 1 to 50.", background=True,
                                          stream=True) as stream:
            for e in stream:
                first.append(e)
                if len(first) == 9:
                    break
        r = first[0].response
        rest = list(self.client.responses.retrieve(r.id, stream=True,
                                                   starting_after=first[-1].sequence_number))
        for e in first + rest:
            EVENT.validate_python(e.to_dict())
        self.assertEqual([e.sequence_number for e in first + rest], list(range(len(first + rest))))
        self.assertEqual("".join(e.delta for e in first + rest if e.type == "response.output_text.delta"),
                         self.client.responses.retrieve(r.id).output_text)

    def test_background_cancel(self):
        r = self.create(input="Tell me a story.", background=True, extra_body={"text": {"format": {
            "type": "json_schema", "name": "n", "schema": {"type": "array", "minItems": 4000}}}})
        self.assertEqual(self.client.responses.cancel(r.id).status, "cancelled")
        self.assertEqual(self.poll(self.client.responses.retrieve(r.id)).status, "cancelled")

    def test_conversations(self):
        c = self.client.conversations.create(metadata={"a": "b"}, items=[
            {"type": "message", "role": "user", "content": "My name is Leo."}])
        r = self.create(input="What is the capital of Italy?", conversation=c.id)
        self.assertEqual(r.conversation.id, c.id)
        items = list(self.client.conversations.items.list(c.id, order="asc", limit=2))
        self.assertEqual([i.role for i in items], ["user", "user", "assistant"])
        self.assertEqual(items[2].content[0].text, r.output_text)
        self.assertEqual(self.client.conversations.update(c.id, metadata={"x": "y"}).metadata, {"x": "y"})
        new = self.client.conversations.items.create(c.id, items=[{"role": "user", "content": "one"}]).data[0]
        self.assertEqual(self.client.conversations.items.retrieve(new.id, conversation_id=c.id), new)
        self.assertEqual(self.client.conversations.items.delete(new.id, conversation_id=c.id).id, c.id)
        self.assertTrue(self.client.conversations.delete(c.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.create(input="x", conversation=c.id)


if __name__ == "__main__":
    client.main()
