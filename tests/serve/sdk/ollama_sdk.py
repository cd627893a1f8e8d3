#!/usr/bin/env python3
"""ollama_sdk.py - Ollama's API with the real ollama package, whose types check every answer.

usage: PYTHON ollama_sdk.py INGLE      PYTHON has the package ollama; else exit 77
"""
import asyncio, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from client import Case, main  # noqa: E402

try:
    import ollama
    import pydantic
except ImportError:
    sys.exit(77)

MODEL = "nano-gemma4"
ASK = "What is the capital of France?"
PARIS = "The capital of France is Paris."
GREEDY = {"temperature": 0}


class Person(pydantic.BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """Weather in a city.

    Args:
      city: its name
    """
    return '{"city": "%s", "sky": "sunny", "celsius": 21}' % city


def user(text):
    return [{"role": "user", "content": text}]


class Sdk(Case):
    options = ["-c", "2048", "--parallel", "4"]

    def setUp(self):
        self.client = ollama.Client(host=self.server.url)

    def chat(self, messages, **more):
        return self.client.chat(**{"model": MODEL, "messages": messages, "options": GREEDY, **more})

    def test_chat(self):
        r = self.chat(user(ASK))
        self.assertEqual((r.message.role, r.message.content, r.done, r.done_reason), ("assistant", PARIS, True, "stop"))
        self.assertGreater(r.prompt_eval_count, 0)
        self.assertGreater(r.eval_count, 0)

    def test_stream(self):
        parts = list(self.chat(user(ASK), stream=True))
        self.assertEqual("".join(p.message.content or "" for p in parts), PARIS)
        self.assertEqual([p.done for p in parts], [False] * (len(parts) - 1) + [True])

    def test_thoughts(self):
        r = self.chat(user("What is 8+9?"), think=True)
        self.assertEqual(r.message.content, "17")
        self.assertIn("8+9", r.message.thinking)
        parts = list(self.chat(user("What is 8+9?"), think="low", stream=True))
        self.assertEqual("".join(p.message.content or "" for p in parts), "17")

    def test_tools(self):
        """A function of the program, described by its own words, and its result."""
        messages = user("What is the weather in Paris?")
        r = self.chat(messages, tools=[get_weather])
        call, = r.message.tool_calls
        self.assertEqual((call.function.name, dict(call.function.arguments)), ("get_weather", {"city": "Paris"}))
        messages += [r.message, {"role": "tool", "tool_name": "get_weather", "content": get_weather(**call.function.arguments)}]
        self.assertIn("sunny", self.chat(messages, tools=[get_weather]).message.content)
        calls = [k for p in self.chat(user("What is the weather in Paris?"), tools=[get_weather], stream=True)
                 for k in p.message.tool_calls or []]
        self.assertEqual([k.function.name for k in calls], ["get_weather"])

    def test_formats(self):
        r = self.chat(user("Give me a JSON object with name Leo and age 42."), format=Person.model_json_schema())
        self.assertEqual(Person.model_validate_json(r.message.content), Person(name="Leo", age=42))

    def test_generate(self):
        r = self.client.generate(model=MODEL, prompt=ASK, options=GREEDY)
        self.assertEqual((r.response, r.done_reason), (PARIS, "stop"))
        parts = self.client.generate(model=MODEL, prompt=ASK, options=GREEDY, stream=True)
        self.assertEqual("".join(p.response for p in parts), PARIS)
        self.assertEqual(self.client.generate(model=MODEL).done_reason, "load")

    def test_model(self):
        self.assertEqual([m.model for m in self.client.list().models], [MODEL])
        self.assertEqual([m.model for m in self.client.ps().models], [MODEL])
        r = self.client.show(MODEL)
        self.assertIn("tools", r.capabilities)
        self.assertEqual(r.modelinfo["gemma4.context_length"], 2048)

    def test_errors(self):
        for ask, status in ((lambda: self.chat(user("x"), options={"top_p": 7}), 400),
                            (lambda: list(self.chat(user("x"), options={"top_p": 7}, stream=True)), 400),
                            (lambda: self.client.embed(model=MODEL, input="x"), 501), (lambda: self.client.pull(MODEL), 501)):
            with self.assertRaises(ollama.ResponseError) as e:
                ask()
            self.assertEqual(e.exception.status_code, status)
            self.assertTrue(e.exception.error)

    def test_async(self):
        async def ask():
            c = ollama.AsyncClient(host=self.server.url)
            r = await asyncio.gather(*(c.chat(model=MODEL, messages=user(ASK), options=GREEDY) for _ in range(4)))
            parts = [p async for p in await c.chat(model=MODEL, messages=user(ASK), options=GREEDY, stream=True)]
            return [x.message.content for x in r], "".join(p.message.content or "" for p in parts)
        self.assertEqual(asyncio.run(ask()), ([PARIS] * 4, PARIS))


if __name__ == "__main__":
    main()
