#!/usr/bin/env python3
"""llm_cli.py - the command line program llm: prompts, a conversation that goes on, a schema, tools.

usage: PYTHON llm_cli.py INGLE      PYTHON has llm; else exit 77
"""
# packages: llm==0.36 openai==3.3.0
import json, os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real

LLM = real.program("LLM", os.path.join(os.path.dirname(sys.executable), "llm"))


class Llm(real.Case):
    options = ["--temp", "0"]

    def setUp(self):
        super().setUp()
        folder = self.home / "llm"
        folder.mkdir()
        (folder / "extra-openai-models.yaml").write_text(
            f"- model_id: local\n  model_name: local\n  api_base: {self.tap.url}/v1\n  api_key_name: ingle\n"
            "  supports_tools: true\n  supports_schema: true\n")
        (folder / "keys.json").write_text('{"ingle": "none"}')

    def environment(self):
        return dict(super().environment(), LLM_USER_PATH=str(self.home / "llm"))

    def ask(self, *arguments):
        status, out, errors = self.wait(self.start(LLM, *arguments))
        self.assertEqual(status, 0, errors[-2000:])
        self.assertEqual(self.refused(), [])
        return out

    def test_conversation(self):
        self.assertIn("Oslo", self.ask("-m", "local", "What is the capital of Norway?"))
        self.ask("-m", "local", "My name is Ada.")
        self.assertIn("Ada", self.ask("-c", "What is my name?"))

    def test_whole(self):
        self.assertIn("Oslo", self.ask("-m", "local", "--no-stream", "What is the capital of Norway?"))

    def test_schema(self):
        out = self.ask("-m", "local", "--schema", "age int", "How old is Ada?")
        self.assertIsInstance(json.loads(out)["age"], int)

    def test_tools(self):
        function = 'def get_weather(city: str) -> str:\n    "Weather in a city"\n    return "sunny, 21 degrees in " + city\n'
        self.ask("-m", "local", "--functions", function, "What is the weather in Paris?")
        sent = [m for m in self.tap.of("/completions")[-1].body["messages"] if m["role"] == "tool"]
        self.assertIn("sunny", sent[0]["content"])


if __name__ == "__main__":
    real.main()
