#!/usr/bin/env python3
"""pydantic_ai_client.py - Pydantic AI: agents with tools and typed output in three dialects.

usage: PYTHON pydantic_ai_client.py INGLE      PYTHON has pydantic-ai-slim[openai,anthropic]; else exit 77
"""
# packages: pydantic-ai-slim[openai,anthropic]==2.68.0
import asyncio, os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real

try:
    import pydantic
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider
except ImportError:
    sys.exit(77)


class Place(pydantic.BaseModel):
    city: str
    country: str


def get_weather(city: str) -> str:
    """Weather in a city"""
    return '{"city": "%s", "sky": "sunny", "celsius": 21}' % city


class PydanticAI(real.Case):
    options = ["--temp", "0"]

    def each(self):
        provider = OpenAIProvider(base_url=self.tap.url + "/v1", api_key="none")
        for name, model in (("chat", OpenAIChatModel("local", provider=provider)),
                            ("responses", OpenAIResponsesModel("local", provider=provider)),
                            ("anthropic", AnthropicModel("local", provider=AnthropicProvider(
                                base_url=self.tap.url, api_key="none")))):
            with self.subTest(name):
                yield model
        self.assertEqual(self.refused(), [])

    def run_agent(self, agent, prompt):
        async def go():
            return await agent.run(prompt, model_settings={"max_tokens": 300})
        return asyncio.run(go()).output

    def test_text(self):
        for model in self.each():
            self.assertIn("Oslo", self.run_agent(Agent(model), "What is the capital of Norway?"))

    def test_tools(self):
        for model in self.each():
            self.assertIn("sunny", self.run_agent(Agent(model, tools=[get_weather]), "What is the weather in Paris?"))

    def test_output(self):
        for model in self.each():
            for kind in ToolOutput, NativeOutput:
                if kind is NativeOutput and isinstance(model, AnthropicModel):
                    continue  # the package refuses it for names of models that it does not know
                self.assertIsInstance(self.run_agent(Agent(model, output_type=kind(Place)), "Where is Oslo?"), Place)

    def test_stream(self):
        async def go(model):
            async with Agent(model).run_stream("What is the capital of Norway?") as run:
                return await run.get_output()
        for model in self.each():
            self.assertIn("Oslo", asyncio.run(go(model)))


if __name__ == "__main__":
    real.main()
