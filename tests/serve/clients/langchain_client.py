#!/usr/bin/env python3
"""langchain_client.py - LangChain's ChatOpenAI, in both of its dialects, and ChatAnthropic against the server.

usage: PYTHON langchain_client.py INGLE      PYTHON has langchain-openai and langchain-anthropic; else exit 77
"""
# packages: langchain-openai==1.7.3 langchain-anthropic==1.7.7
import os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real

try:
    import pydantic
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
except ImportError:
    sys.exit(77)


class Place(pydantic.BaseModel):
    """A place and its country."""
    city: str
    country: str


@tool
def get_weather(city: str) -> str:
    """Weather in a city"""
    return '{"city": "%s", "sky": "sunny", "celsius": 21}' % city


class LangChain(real.Case):
    options = ["--temp", "0"]
    names = "chat", "responses", "anthropic"

    def model(self, name):
        common = {"api_key": "none", "model": "local", "max_retries": 0, "timeout": 120}
        if name == "anthropic":
            return ChatAnthropic(base_url=self.tap.url, max_tokens=300, **common)
        return ChatOpenAI(base_url=self.tap.url + "/v1", stream_usage=True, use_responses_api=name == "responses", **common)

    def each(self):
        for name in self.names:
            with self.subTest(name):
                yield self.model(name)
        self.assertEqual(self.refused(), [])

    def test_invoke(self):
        for model in self.each():
            m = model.invoke("What is the capital of Norway?")
            self.assertIn("Oslo", m.text if isinstance(m.text, str) else m.text())
            self.assertGreater(m.usage_metadata["input_tokens"], 0)

    def test_stream(self):
        for model in self.each():
            whole = None
            for chunk in model.stream([("system", "Answer briefly."), ("human", "What is the capital of Norway?")]):
                whole = chunk if whole is None else whole + chunk
            self.assertIn("Oslo", str(whole.content))
            self.assertGreater(whole.usage_metadata["output_tokens"], 0)

    def test_tools(self):
        """The call, its execution, the answer of the second turn; whole and streamed."""
        for model in self.each():
            for streamed in False, True:
                bound = model.bind_tools([get_weather])
                messages = [HumanMessage("What is the weather in Paris?")]
                if streamed:
                    m = None
                    for chunk in bound.stream(messages):
                        m = chunk if m is None else m + chunk
                else:
                    m = bound.invoke(messages)
                self.assertEqual([(c["name"], c["args"]) for c in m.tool_calls], [("get_weather", {"city": "Paris"})])
                messages += [m, ToolMessage(get_weather.invoke(m.tool_calls[0]["args"]), tool_call_id=m.tool_calls[0]["id"])]
                self.assertIn("sunny", str(bound.invoke(messages).content))

    def test_forced(self):
        for model in self.each():
            m = model.bind_tools([get_weather], tool_choice="any").invoke("Hello")
            self.assertEqual(m.tool_calls[0]["name"], "get_weather")

    def test_structured(self):
        for model in self.each():
            for method in "json_schema", "function_calling":
                found = model.with_structured_output(Place, method=method).invoke("Where is Oslo?")
                self.assertIsInstance(found, Place, (method, found))


if __name__ == "__main__":
    real.main()
