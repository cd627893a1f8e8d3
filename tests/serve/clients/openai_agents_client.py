#!/usr/bin/env python3
"""openai_agents_client.py - OpenAI's Agents SDK: tools, hand-offs, typed output, sessions, in both dialects.

usage: PYTHON openai_agents_client.py INGLE      PYTHON has openai-agents; else exit 77
"""
# packages: openai-agents==0.24.0 openai==3.3.0
import asyncio, os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real

try:
    import agents, openai, pydantic
except ImportError:
    sys.exit(77)

agents.set_tracing_disabled(True)


class Place(pydantic.BaseModel):
    city: str
    country: str


@agents.function_tool
def get_weather(city: str) -> str:
    """Weather in a city"""
    return '{"city": "%s", "sky": "sunny", "celsius": 21}' % city


class Agents(real.Case):
    options = ["--temp", "0"]

    def each(self, run):
        """run(model) of both dialects; a client belongs to one event loop."""
        async def go(kind):
            async with openai.AsyncOpenAI(base_url=self.tap.url + "/v1", api_key="none", max_retries=0) as client:
                return await run(kind(model="local", openai_client=client))
        for kind in agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel:
            with self.subTest(kind.__name__):
                yield asyncio.run(go(kind))
        self.assertEqual(self.refused(), [])

    def test_tools(self):
        async def run(model):
            agent = agents.Agent(name="a", model=model, tools=[get_weather])
            return (await agents.Runner.run(agent, "What is the weather in Paris?")).final_output
        for text in self.each(run):
            self.assertIn("sunny", text)

    def test_stream(self):
        async def run(model):
            result = agents.Runner.run_streamed(agents.Agent(name="a", model=model, tools=[get_weather]),
                                                "What is the weather in Paris?")
            kinds = [e.name async for e in result.stream_events() if e.type == "run_item_stream_event"]
            return kinds, result.final_output
        for kinds, text in self.each(run):
            self.assertIn("sunny", text)
            self.assertIn("tool_called", kinds)

    def test_output(self):
        async def run(model):
            agent = agents.Agent(name="a", model=model, output_type=Place,
                                 model_settings=agents.ModelSettings(max_tokens=300))
            return (await agents.Runner.run(agent, "Where is Oslo?")).final_output
        for place in self.each(run):
            self.assertIsInstance(place, Place)

    def test_session(self):
        async def run(model):
            agent, session = agents.Agent(name="a", model=model), agents.SQLiteSession("s")
            await agents.Runner.run(agent, "My name is Ada.", session=session)
            return (await agents.Runner.run(agent, "What is my name?", session=session)).final_output
        for text in self.each(run):
            self.assertIn("Ada", text)

    def test_hand_off(self):
        async def run(model):
            last = agents.Agent(name="last", model=model)
            first = agents.Agent(name="first", model=model, handoffs=[last],
                                 model_settings=agents.ModelSettings(tool_choice="required"))
            return (await agents.Runner.run(first, "What is the capital of Norway?")).last_agent.name
        for name in self.each(run):
            self.assertEqual(name, "last")


if __name__ == "__main__":
    real.main()
