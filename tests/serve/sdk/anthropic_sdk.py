#!/usr/bin/env python3
"""anthropic_sdk.py - /v1/messages with the real anthropic package.

usage: PYTHON anthropic_sdk.py INGLE      PYTHON has the packages anthropic and pydantic; else exit 77
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import client
from client import WEATHER

try:
    import anthropic
    import pydantic
    from anthropic import types
except ImportError:
    sys.exit(77)

TOOL = {"name": "get_weather", "description": "Weather in a city", "input_schema": WEATHER}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
ANSWER = '{"city": "Paris", "sky": "sunny", "celsius": 21}'
EVENT = pydantic.TypeAdapter(types.RawMessageStreamEvent)
THINK = {"type": "enabled", "budget_tokens": 1024}


class Person(pydantic.BaseModel):
    name: str
    age: int


def user(text):
    return [{"role": "user", "content": text}]


class Sdk(client.Case):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{self.server.port}",
                                          api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def create(self, messages, **more):
        """A whole answer, whose JSON is checked against the package's types."""
        raw = self.client.messages.with_raw_response.create(
            **dict({"model": "any", "max_tokens": 1000, "messages": messages}, **more))
        self.assertTrue(raw.headers["request-id"])
        types.Message.model_validate_json(raw.text())
        return raw.parse()

    def events(self, messages, **more):
        with self.client.messages.create(model="any", max_tokens=1000, messages=messages,
                                         stream=True, **more) as stream:
            events = list(stream)
        for e in events:
            EVENT.validate_python(e.to_dict())
        return events

    def test_text(self):
        m = self.create(user("What is the capital of Norway?"), system="Answer briefly.")
        self.assertEqual(m.content[0].text, "The capital of Norway is Oslo.")
        self.assertEqual((m.stop_reason, m.usage.cache_creation_input_tokens), ("end_turn", 0))

    def test_system_blocks(self):
        m = self.create(user("What is the capital of Norway?"), system=[
            {"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}])
        self.assertEqual(m.content[0].text, "The capital of Norway is Oslo.")

    def test_conversation(self):
        m = self.create([{"role": "user", "content": "My name is Ada."},
                         {"role": "assistant", "content": "Nice to meet you, Ada!"},
                         {"role": "user", "content": "What is my name?"}])
        self.assertEqual(m.content[0].text, "Your name is Ada.")

    def test_raw_stream(self):
        events = self.events(user("Who are you?"))
        self.assertEqual(events[0].type, "message_start")
        self.assertEqual([e.type for e in events[-3:]],
                         ["content_block_stop", "message_delta", "message_stop"])

    def test_stream_helper(self):
        with self.client.messages.stream(model="any", max_tokens=100,
                                         messages=user("Who are you?")) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(final.content[0].text, text)
        self.assertTrue(text.startswith("I am nano"))
        self.assertGreater(final.usage.output_tokens, 10)

    def test_helper_with_a_call(self):
        with self.client.messages.stream(model="any", max_tokens=100, messages=[QUESTION],
                                         tools=[TOOL]) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.content[0].input),
                         ("tool_use", {"city": "Paris"}))

    def test_helper_with_thinking(self):
        with self.client.messages.stream(model="any", max_tokens=2000, thinking=THINK,
                                         messages=user("What is 8+9?")) as stream:
            kinds = {e.type for e in stream}
            final = stream.get_final_message()
        self.assertLessEqual({"thinking", "signature", "text"}, kinds)
        self.assertEqual([b.type for b in final.content], ["thinking", "text"])
        self.assertTrue(final.content[0].signature)

    def test_async(self):
        import asyncio

        async def run():
            async with anthropic.AsyncAnthropic(base_url=self.client.base_url,
                                                api_key="x") as client:
                several = [client.messages.create(model="any", max_tokens=20,
                                                  messages=user("What is 7+5?"))
                           for _ in range(6)]
                return [m.content[0].text for m in await asyncio.gather(*several)]
        self.assertEqual(asyncio.run(run()), ["12"] * 6)

    def test_call_and_result(self):
        call = self.create([QUESTION], tools=[TOOL])
        result = {"type": "tool_result", "tool_use_id": call.content[0].id, "content": ANSWER}
        m = self.create([QUESTION, {"role": "assistant", "content": call.content},
                         {"role": "user", "content": [result]}], tools=[TOOL])
        self.assertEqual(m.content[0].text, "It is sunny in Paris, 21 degrees.")

    def test_result_with_text(self):
        call = self.create([QUESTION], tools=[TOOL])
        result = {"type": "tool_result", "tool_use_id": call.content[0].id, "is_error": True,
                  "content": [{"type": "text", "text": "no network"}]}
        m = self.create([QUESTION, {"role": "assistant", "content": call.content},
                         {"role": "user", "content": [result, {"type": "text", "text": "Hm."}]}],
                        tools=[TOOL])
        self.assertIn(m.stop_reason, ("end_turn", "tool_use"))

    def test_thinking_is_replayed(self):
        first = self.create(user("What is 8+9?"), thinking=THINK, max_tokens=2000)
        m = self.create(user("What is 8+9?") + [{"role": "assistant", "content": first.content}] +
                        user("What is 7+5?"))
        self.assertEqual(m.content[0].text, "12")

    def test_choices(self):
        for choice in {"type": "any"}, {"type": "tool", "name": "get_weather"}:
            m = self.create(user("What is the weather in Rome?"), tools=[TOOL], tool_choice=choice)
            self.assertEqual(m.content[-1].type, "tool_use")

    def test_no_tools(self):
        m = self.create(user("What is 7+5?"), tools=[TOOL], tool_choice={"type": "none"})
        self.assertEqual(m.content[0].text, "12")

    def test_server_tools(self):
        m = self.create(user("What is 7+5?"), tools=[
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}])
        self.assertEqual(m.content[0].text, "12")

    def test_parse(self):
        m = self.client.messages.parse(
            model="any", max_tokens=100, output_format=Person,
            messages=user("Give me a JSON object with name Leo and age 42."))
        self.assertEqual(m.parsed_output, Person(name="Leo", age=42))

    def test_stop_sequences(self):
        m = self.create(user("Count from 1 to 60."), stop_sequences=["5"])
        self.assertEqual((m.stop_reason, m.stop_sequence), ("stop_sequence", "5"))

    def test_max_tokens(self):
        self.assertEqual(self.create(user("Count from 1 to 60."), max_tokens=3).stop_reason,
                         "max_tokens")

    def test_count_tokens(self):
        n = self.client.messages.count_tokens(model="any", messages=[QUESTION], tools=[TOOL])
        u = self.create([QUESTION], tools=[TOOL]).usage
        self.assertEqual(n.input_tokens, u.input_tokens + u.cache_read_input_tokens)

    def test_cache(self):
        self.create(user("What is the capital of Peru?"))
        u = self.create(user("What is the capital of Peru?")).usage
        self.assertGreater(u.cache_read_input_tokens, 0)
        self.assertLess(u.input_tokens, 16)

    def test_bad_request(self):
        with self.assertRaises(anthropic.BadRequestError) as e:
            self.create([], max_tokens=5)
        self.assertEqual(e.exception.body["error"]["type"], "invalid_request_error")
        self.assertTrue(e.exception.body["request_id"].startswith("req_"))

    def test_overflow(self):
        with self.assertRaises(anthropic.BadRequestError) as e:
            self.create(user("word " * 9000))
        self.assertRegex(e.exception.body["error"]["message"], "^prompt is too long: [0-9]+ tokens")

    def test_leaving_a_stream(self):
        with self.client.messages.create(model="any", max_tokens=100, stream=True,
                                         messages=user("Count from 1 to 60.")) as stream:
            next(iter(stream))
        self.assertEqual(self.create(user("What is 7+5?")).content[0].text, "12")


class Keys(client.Case):
    @classmethod
    def setUpClass(cls):
        import tempfile
        cls.file = tempfile.NamedTemporaryFile("w", suffix=".keys")
        cls.file.write("sesame\n")
        cls.file.flush()
        os.chmod(cls.file.name, 0o600)
        cls.options = ["--temp", "0", "--api-key-file", cls.file.name]
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.file.close()

    def test_both_headers(self):
        url = f"http://127.0.0.1:{self.server.port}"
        for words in {"api_key": "sesame"}, {"auth_token": "sesame"}:
            with anthropic.Anthropic(base_url=url, max_retries=0, **words) as client:
                client.messages.create(model="any", max_tokens=1, messages=user("hi"))
        with anthropic.Anthropic(base_url=url, max_retries=0, api_key="wrong") as client:
            with self.assertRaises(anthropic.AuthenticationError):
                client.messages.create(model="any", max_tokens=1, messages=user("hi"))


if __name__ == "__main__":
    client.main()
