#!/usr/bin/env python3
"""instructor_client.py - instructor: validated answers through tools, JSON and schemas of both dialects.

usage: PYTHON instructor_client.py INGLE      PYTHON has instructor, openai and anthropic; else exit 77
"""
# packages: instructor==1.17.0 openai==3.3.0 anthropic==2.12.0
import os, sys, typing

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real

try:
    import anthropic, instructor, openai, pydantic
except ImportError:
    sys.exit(77)


class Place(pydantic.BaseModel):
    city: typing.Literal["Oslo", "Bergen"]  # no text that a small model might not end
    inhabitants: int


QUESTION = [{"role": "user", "content": "Which city is in Norway?"}]


class Instructor(real.Case):
    options = ["--temp", "0"]

    def openai(self, mode):
        return instructor.from_openai(openai.OpenAI(base_url=self.tap.url + "/v1", api_key="none", max_retries=0), mode=mode)

    def test_openai(self):
        for mode in instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT:
            with self.subTest(mode):
                found = self.openai(mode).chat.completions.create(model="local", messages=QUESTION, max_retries=0,
                                                                  response_model=Place, max_tokens=300)
                self.assertIsInstance(found, Place)
        self.assertEqual(self.refused(), [])

    def test_responses(self):
        found = self.openai(instructor.Mode.RESPONSES_TOOLS).responses.create(
            model="local", input=QUESTION, response_model=Place, max_retries=0, max_output_tokens=300)
        self.assertIsInstance(found, Place)
        self.assertEqual(self.refused(), [])

    def test_partial(self):
        last = None
        for last in self.openai(instructor.Mode.TOOLS).chat.completions.create_partial(
                model="local", messages=QUESTION, response_model=Place, max_retries=0, max_tokens=300):
            pass
        self.assertIsInstance(last.city, str)
        self.assertEqual(self.refused(), [])

    def test_anthropic(self):
        client = instructor.from_anthropic(anthropic.Anthropic(base_url=self.tap.url, api_key="none", max_retries=0),
                                           mode=instructor.Mode.ANTHROPIC_TOOLS)
        found = client.messages.create(model="local", max_tokens=300, messages=QUESTION, response_model=Place, max_retries=0)
        self.assertIsInstance(found, Place)
        self.assertEqual(self.refused(), [])


if __name__ == "__main__":
    real.main()
