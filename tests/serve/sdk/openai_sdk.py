#!/usr/bin/env python3
"""openai_sdk.py - chat completions and completions with the real openai package.

usage: PYTHON openai_sdk.py INGLE      PYTHON has the packages openai and pydantic; else exit 77
"""
import asyncio, json, os, sys, threading, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import client  # noqa: E402
from client import Case, Server, main  # noqa: E402

try:
    import openai
    import pydantic
    from openai import types
except ImportError:
    sys.exit(77)

INGLE = sys.argv[1]
FUNCTION = {"name": "get_weather", "description": "Weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                           "required": ["city"]}}
TOOL = {"type": "function", "function": FUNCTION}
CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."
MODEL = "nano-gemma4"


class Person(pydantic.BaseModel):
    name: str
    age: int


def user(text):
    return [{"role": "user", "content": text}]


class Sdk(Case):
    options = ["-c", "4096", "--parallel", "4"]

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def chat(self, text, **more):
        """A whole answer, checked against the package's own types."""
        messages = text if isinstance(text, list) else user(text)
        raw = self.client.chat.completions.with_raw_response.create(
            **{"model": MODEL, "messages": messages, "temperature": 0, **more})
        types.chat.ChatCompletion.model_validate_json(raw.text, strict=True)
        return raw.parse()

    def chunks(self, text, **more):
        stream = self.client.chat.completions.create(
            **{"model": MODEL, "messages": user(text), "temperature": 0, "stream": True, **more})
        out = list(stream)
        for c in out:
            types.chat.ChatCompletionChunk.model_validate_json(c.to_json(), strict=True)
        return out

    def text(self, prompt, **more):
        raw = self.client.completions.with_raw_response.create(
            **{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8, **more})
        if not more.get("echo"):  # the first token of a prompt has no probability
            types.Completion.model_validate_json(raw.text, strict=True)
        return raw.parse()

    # ---- chat ----

    def test_answer(self):
        r = self.chat(CAPITAL)
        self.assertEqual(r.choices[0].message.content, PARIS)
        self.assertEqual(r.choices[0].finish_reason, "stop")
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)

    def test_request_id(self):
        self.assertTrue(self.chat(CAPITAL)._request_id)

    def test_stream(self):
        chunks = self.chunks(CAPITAL)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), PARIS)
        self.assertEqual([c.choices[0].delta.role for c in chunks if c.choices[0].delta.role],
                         ["assistant"])
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_stream_usage(self):
        chunks = self.chunks(CAPITAL, stream_options={"include_usage": True})
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_stream_helper(self):
        with self.client.chat.completions.stream(model=MODEL, messages=user(CAPITAL),
                                                 temperature=0) as s:
            kinds = [e.type for e in s]
            final = s.get_final_completion()
        self.assertEqual(final.choices[0].message.content, PARIS)
        self.assertIn("content.delta", kinds)
        self.assertIn("content.done", kinds)

    def test_stream_helper_with_tools(self):
        tool = {"type": "function", "function": {**FUNCTION, "strict": True}}
        with self.client.chat.completions.stream(model=MODEL, temperature=0, tools=[tool],
                                                 messages=user("What is the weather in Paris?")) as s:
            kinds = [e.type for e in s]
            final = s.get_final_completion()
        self.assertIn("tool_calls.function.arguments.done", kinds)
        call = final.choices[0].message.tool_calls[0]
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})

    def test_stream_closed_early(self):
        for _ in range(6):
            stream = self.client.chat.completions.create(
                model=MODEL, messages=user("Count from 1 to 60."), stream=True, temperature=0,
                extra_body={"ignore_eos": True})
            next(iter(stream))
            stream.close()
        self.assertEqual(self.chat(CAPITAL).choices[0].message.content, PARIS)

    def test_roles(self):
        r = self.chat([{"role": "developer", "content": "Answer briefly."}, *user(CAPITAL)])
        self.assertEqual(r.choices[0].message.content, PARIS)

    def test_parts(self):
        r = self.chat([{"role": "user", "content": [{"type": "text", "text": CAPITAL}]}])
        self.assertEqual(r.choices[0].message.content, PARIS)

    def test_turns(self):
        m = user("My name is Ada.")
        m.append(self.chat(m).choices[0].message)
        m += user("What is my name?")
        self.assertIn("Ada", self.chat(m).choices[0].message.content)

    def test_cached_tokens(self):
        self.chat(CAPITAL)
        u = self.chat(CAPITAL).usage
        self.assertGreater(u.prompt_tokens_details.cached_tokens, 0)

    def test_max_tokens(self):
        for name in ("max_tokens", "max_completion_tokens"):
            r = self.chat("Count from 1 to 20.", **{name: 4})
            self.assertEqual(r.choices[0].finish_reason, "length")
            self.assertEqual(r.usage.completion_tokens, 4)

    def test_stop(self):
        r = self.chat("Count from 1 to 20.", stop=[" 4", " 9"])
        self.assertEqual(r.choices[0].message.content, "1 2 3")

    def test_n(self):
        r = self.chat("Tell me a story about a brave fox called Mia.", n=4, seed=1, temperature=1.3,
                      max_tokens=16)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2, 3])
        self.assertGreater(len({c.message.content for c in r.choices}), 1)

    def test_seed(self):
        one, two = (self.chat("Tell me a story about a brave fox called Mia.", seed=5, temperature=1.3,
                              max_tokens=16) for _ in range(2))
        self.assertEqual(one.choices[0].message.content, two.choices[0].message.content)
        self.assertEqual(one.system_fingerprint, two.system_fingerprint)

    def test_logprobs(self):
        c = self.chat(CAPITAL, logprobs=True, top_logprobs=5).choices[0]
        self.assertEqual("".join(t.token for t in c.logprobs.content), PARIS)
        self.assertEqual(b"".join(bytes(t.bytes) for t in c.logprobs.content).decode(), PARIS)
        self.assertTrue(all(len(t.top_logprobs) == 5 for t in c.logprobs.content))

    def test_stream_logprobs(self):
        chunks = self.chunks(CAPITAL, logprobs=True)
        tokens = [t.token for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual("".join(tokens), PARIS)

    def test_logit_bias(self):
        r = self.chat(CAPITAL, logit_bias={"1862": 100}, max_tokens=2)
        self.assertEqual(r.choices[0].message.content, " Paris Paris")

    # ---- tools and formats ----

    def test_tools(self):
        m = user("What is the weather in Paris?")
        c = self.chat(m, tools=[TOOL]).choices[0]
        self.assertEqual(c.finish_reason, "tool_calls")
        call = c.message.tool_calls[0]
        self.assertEqual((call.function.name, json.loads(call.function.arguments)),
                         ("get_weather", {"city": "Paris"}))
        m += [c.message, {"role": "tool", "tool_call_id": call.id,
                          "content": '{"sky":"sunny","degrees":21}'}]
        self.assertIn("sunny", self.chat(m, tools=[TOOL]).choices[0].message.content)

    def test_stream_tools(self):
        chunks = self.chunks("What is the weather in Paris?", tools=[TOOL])
        calls = [t for c in chunks for t in c.choices[0].delta.tool_calls or []]
        self.assertEqual(calls[0].function.name, "get_weather")
        self.assertTrue(all(t.index == 0 and not t.function.name and not t.id for t in calls[1:]))
        self.assertEqual(json.loads("".join(t.function.arguments for t in calls)), {"city": "Paris"})
        self.assertEqual(chunks[-1].choices[0].finish_reason, "tool_calls")

    def test_tool_choice_none(self):
        r = self.chat("What is the weather in Paris?", tools=[TOOL], tool_choice="none")
        self.assertIsNone(r.choices[0].message.tool_calls)

    def test_tool_choice_required(self):
        r = self.chat("Who are you?", tools=[TOOL], tool_choice="required", max_tokens=200)
        call = r.choices[0].message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        self.assertIn("city", json.loads(call.function.arguments))

    def test_tool_choice_named(self):
        other = {"type": "function", "function": {**FUNCTION, "name": "get_time"}}
        r = self.chat("What is the weather in Paris?", tools=[TOOL, other], max_tokens=200,
                      tool_choice={"type": "function", "function": {"name": "get_time"}})
        self.assertEqual(r.choices[0].message.tool_calls[0].function.name, "get_time")

    def test_legacy_functions(self):
        r = self.chat("What is the weather in Paris?", functions=[FUNCTION])
        self.assertEqual(r.choices[0].finish_reason, "function_call")
        self.assertEqual(r.choices[0].message.function_call.name, "get_weather")

    def test_parse(self):
        r = self.client.chat.completions.parse(
            model=MODEL, messages=user("Give me a JSON object with name Leo and age 42."), temperature=0,
            response_format=Person)
        self.assertEqual(r.choices[0].message.parsed, Person(name="Leo", age=42))

    def test_json_object(self):
        r = self.chat("Who are you?", response_format={"type": "json_object"}, max_tokens=300)
        if r.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(r.choices[0].message.content), dict)
        self.assertTrue(r.choices[0].message.content.lstrip().startswith("{"))

    def test_json_schema_in_a_stream(self):
        schema = {"name": "person", "strict": True, "schema": {
            "type": "object", "additionalProperties": False, "required": ["name", "age"],
            "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}}}}
        chunks = self.chunks("Give me a JSON object with name Leo and age 42.",
                             response_format={"type": "json_schema", "json_schema": schema})
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        self.assertEqual(json.loads(text), {"name": "Leo", "age": 42})

    def test_format_behind_a_thought(self):
        r = self.chat("What is 8+9?", reasoning_effort="high", max_tokens=400,
                      response_format={"type": "json_schema", "json_schema": {
                          "name": "n", "schema": {"type": "integer", "minimum": 0, "maximum": 99}}})
        m = r.choices[0].message
        self.assertTrue(m.reasoning_content)
        self.assertRegex(m.content, r"^\s*\d{1,2}\s*$")

    # ---- thoughts ----

    def test_reasoning(self):
        r = self.chat("What is 8+9?", reasoning_effort="medium")
        self.assertEqual(r.choices[0].message.content, "17")
        self.assertIn("8+9", r.choices[0].message.reasoning_content)
        self.assertGreater(r.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_stream_reasoning(self):
        chunks = self.chunks("What is 8+9?", extra_body={"thinking": {"type": "enabled"}})
        kinds = ["r" if getattr(c.choices[0].delta, "reasoning_content", None) else "c"
                 for c in chunks if getattr(c.choices[0].delta, "reasoning_content", None) or
                 c.choices[0].delta.content]
        self.assertEqual("".join(kinds), "r" * kinds.count("r") + "c" * kinds.count("c"))
        self.assertGreater(kinds.count("r"), 1)

    # ---- completions ----

    def test_completion(self):
        r = self.text("Once upon a time there was a")
        self.assertEqual(r.choices[0].finish_reason, "length")
        self.assertTrue(r.choices[0].text)

    def test_completion_stream(self):
        whole = self.text("Once upon a time there was a")
        parts = list(self.client.completions.create(model=MODEL, prompt="Once upon a time there was a",
                                                    temperature=0, max_tokens=8, stream=True))
        self.assertEqual("".join(p.choices[0].text for p in parts), whole.choices[0].text)

    def test_completion_batch(self):
        r = self.text(["Once upon", "Hello", [2, 1182, 1194]], n=2)
        self.assertEqual([c.index for c in r.choices], list(range(6)))

    def test_completion_echo_logprobs(self):
        r = self.text([2, 1182, 1194, 794], echo=True, logprobs=1, max_tokens=1)
        p = r.choices[0].logprobs
        self.assertEqual(len(p.tokens), 5)
        self.assertIsNone(p.token_logprobs[0])
        self.assertEqual("".join(p.tokens), r.choices[0].text)

    def test_completion_best_of(self):
        self.assertEqual(len(self.text("Once", best_of=4, n=2, temperature=1).choices), 2)

    def test_completion_suffix(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.text("a", suffix="b")
        self.assertEqual(e.exception.param, "suffix")

    # ---- what is wrong ----

    def test_bad_field(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.chat("x", temperature=3)
        self.assertEqual(e.exception.param, "temperature")
        self.assertEqual(e.exception.type, "invalid_request_error")

    def test_too_long(self):
        for stream in (False, True):
            with self.assertRaises(openai.BadRequestError) as e:
                self.chat("x " * 9000) if not stream else self.chunks("x " * 9000)
            self.assertEqual(e.exception.code, "context_length_exceeded")

    def test_image(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.chat([{"role": "user", "content": [{"type": "image_url",
                                                     "image_url": {"url": "data:image/png;base64,AA=="}}]}])
        self.assertIn("content[0]", e.exception.param)

    def test_error_in_a_stream(self):
        with self.assertRaises(openai.APIError) as e:
            self.chunks("Count from 1 to 60.", extra_body={"ignore_eos": True, "deadline_seconds": 0.1})
        self.assertEqual(e.exception.code, "deadline_exceeded")

    def test_no_v1(self):
        with openai.OpenAI(base_url=self.server.url, api_key="none") as c:
            r = c.chat.completions.create(model="any", messages=user(CAPITAL), temperature=0)
        self.assertEqual(r.choices[0].message.content, PARIS)

    # ---- many at once ----

    def test_async(self):
        async def ask(client, i):
            r = await client.chat.completions.create(model=MODEL, messages=user(f"What is {i}+1?"),
                                                     temperature=0)
            return r.choices[0].message.content

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none") as c:
                return await asyncio.gather(*(ask(c, i) for i in range(10)))
        alone = [self.chat(f"What is {i}+1?").choices[0].message.content for i in range(10)]
        self.assertEqual(asyncio.run(all_of_them()), alone)

    def test_retries_when_full(self):
        """The package waits as long as retry-after says and asks again."""
        with Server(INGLE, "-c", "2048", "--parallel", "1", "--limit", "waiting=1") as server:
            c = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=8)
            body = dict(model=MODEL, messages=user("Count from 1 to 60."), temperature=0, max_tokens=60)
            done = []
            threads = [threading.Thread(target=lambda: done.append(c.chat.completions.create(**body)))
                       for _ in range(6)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            c.close()
        self.assertEqual(len(done), 6)

    def test_timeout_and_the_same_again(self):
        """A client that gives up and asks again does not start anew."""
        with Server(INGLE, "-c", "32768", "--chunk", "32", "--limit", "retry-grace=60") as server:
            text = " ".join(str(i % 140) for i in range(12000))
            c = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=30, timeout=0.4)
            r = c.chat.completions.create(model=MODEL, messages=user(text), max_tokens=1)
            c.close()
            self.assertTrue(r.timings["ingle"]["attached"] or r.timings["cache_n"] > 1000, r.timings)


if __name__ == "__main__":
    main()
