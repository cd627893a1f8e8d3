#!/usr/bin/env python3
"""histories.py INGLE - conversations as clients send them back: contents that are empty, null, one part or many,
media in places where the model cannot be shown them, thoughts in every vendor's words, calls in every state, and
tools of which some are odd.  /apply-template and verbose show what the model sees."""
import json

from client import WEATHER, Case, main

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
NOTE = "[an image or file that cannot be shown]"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}


def user(content):
    return {"role": "user", "content": content}


def model(content, **more):
    return {"role": "assistant", "content": content, **more}


class Histories(Case):
    options = ["-c", "2048", "--parallel", "2", "--temp", "0", "--mmproj", "off"]

    def post(self, path, status, body):
        got, _, r = self.server.post(path, body)
        self.assertEqual(got, status, r)
        return r

    def prompt(self, *messages, **more):
        """What the model sees of a chat."""
        return self.post("/apply-template", 200, {"messages": list(messages), **more})["prompt"]

    def refused(self, path, body, *words):
        text = json.dumps(self.post(path, 400, {"max_tokens": 1, **body} if path != RESPONSES else body))
        for word in words:
            self.assertIn(word, text)

    def count(self, path, body):
        """Tokens of a prompt in Messages or Responses: equal prompts have equal numbers."""
        return self.post(path, 200, body)["input_tokens"]

    def messages(self, *messages, **more):
        return self.count(MESSAGES + "/count_tokens", {"messages": list(messages), **more})

    def items(self, *items, **more):
        return self.count(RESPONSES + "/input_tokens", {"input": list(items), **more})

    # ---- contents ----

    def test_contents(self):
        plain = self.prompt(user("Hello"), model("Hi"), user("x"))
        for hello in ("Hello", ["Hello"], [{"type": "text", "text": "Hello"}], {"type": "text", "text": "Hello"},
                      [{"type": "input_text", "text": "Hello"}, None, {"type": "text", "text": None}], [{"text": "Hello"}]):
            self.assertEqual(self.prompt(user(hello), model("Hi"), user("x")), plain, hello)
        for hi in ([{"type": "output_text", "text": "Hi"}], ["Hi"], [{"type": "refusal", "refusal": "Hi"}], "Hi"):
            self.assertEqual(self.prompt(user("Hello"), model(hi), user("x")), plain, hi)
        self.assertEqual(self.prompt(user("Hello"), {"role": "assistant", "refusal": "Hi"}, user("x")), plain)
        self.assertEqual(self.prompt({"role": "User", "content": "Hello"}, {"role": "MODEL", "content": "Hi"},
                                     {"role": "human", "content": "x"}), plain)
        empty = self.prompt(user("Hello"), model(""), user("x"))
        for nothing in (None, [], [None], [{"type": "text", "text": ""}], [{"type": "text", "text": None}]):
            self.assertEqual(self.prompt(user("Hello"), model(nothing), user("x")), empty, nothing)
            for role in ("system", "developer", "user"):
                self.prompt({"role": role, "content": nothing}, user("x"))

    def test_contents_of_messages(self):
        plain = self.messages(user("Hello"), model("Hi"), user("x"))
        for hello in ("Hello", ["Hello"], {"type": "text", "text": "Hello"}, [{"type": "text", "text": "Hello"}, None],
                      [{"type": "input_text", "text": "Hello"}]):
            self.assertEqual(self.messages(user(hello), model("Hi"), user("x")), plain, hello)
        for hi in (["Hi"], [{"type": "output_text", "text": "Hi"}], [{"type": "refusal", "refusal": "Hi"}]):
            self.assertEqual(self.messages(user("Hello"), model(hi), user("x")), plain, hi)
        for nothing in (None, [], [None], "", [{"type": "text", "text": None}]):
            self.messages(user("Hello"), model(nothing), user("x"))
            self.messages(user(nothing))
        self.assertEqual(self.messages(user("x"), system=["Be short."]), self.messages(user("x"), system="Be short."))
        self.messages(user("x"), system=[{"type": "cache_point"}, {"type": "text", "text": "Be short."}])

    def test_contents_of_responses(self):
        plain = self.items(user("Hello"), model("Hi"), user("x"))
        for hello in (["Hello"], {"type": "input_text", "text": "Hello"}, [{"type": "text", "text": "Hello"}, None]):
            self.assertEqual(self.items(user(hello), model("Hi"), user("x")), plain, hello)
        for nothing in (None, [], [None], "", [{"type": "input_text", "text": None}]):
            self.items(user("Hello"), model(nothing), user("x"))
            self.items(user(nothing))
        self.assertEqual(self.items({"role": "User", "content": "Hello"}, {"role": "Assistant", "content": "Hi"},
                                    user("x")), plain)

    # ---- media ----

    def test_media_of_tools_and_older_turns(self):
        media = (IMAGE, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                 {"type": "file", "file": {"file_id": "f"}}, {"type": "input_image", "image_url": "x"}, {"type": "image"},
                 {"type": "video_url"})
        for part in media:
            result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}, part]}
            seen = self.prompt(user("x"), model(None, tool_calls=[CALL]), result, tools=[TOOL])
            self.assertIn("seen", seen)
            self.assertIn(NOTE, seen)
            self.assertIn(NOTE, self.prompt(user(["look", part]), model("Nice."), user("x")))
            self.assertIn(NOTE, self.prompt(user("x"), model(["here", part]), user("x")))
            self.refused(CHAT, {"messages": [user(["look", part])]}, part["type"], "messages[0].content[1]", "--media")
            self.refused(MESSAGES, {"messages": [user(["look", part])]}, part["type"])
            self.refused(RESPONSES, {"input": [user(["look", part])]}, part["type"])
            self.messages(user(["look", part]), model("Nice."), user("x"))
            self.items(user(["look", part]), model("Nice."), user("x"))
        self.assertIn(NOTE, self.prompt({**user("look"), "images": ["AAAA"]}, model("Nice."), user("x")))
        self.refused(CHAT, {"messages": [{**user("look"), "images": ["AAAA"]}]}, "images")

    def test_parts_that_nobody_knows(self):
        odd = {"type": "hologram", "data": 5}
        self.refused(CHAT, {"messages": [user([odd])]}, "hologram", "input_text")
        self.refused(MESSAGES, {"messages": [user([odd])]}, "hologram", "document")
        self.refused(RESPONSES, {"input": [user([odd])]}, "hologram", "input_text")
        self.assertIn(NOTE, self.prompt(user(["a", odd]), model(["b", odd]), user("x")))
        self.messages(user(["a", odd]), model(["b", odd]), user("x"))
        self.items(user(["a", odd]), model(["b", odd]), user("x"))

    def test_types_that_are_no_strings(self):
        """Nobody has such a part in a history: a 400 wherever it stands, but in a tool's result, which may be any value."""
        for odd in ({}, [], 5, True):
            for part in ({"type": odd, "text": "x"}, {"type": odd, "text": None}, {"type": odd}):
                for turns in ([user([part])], [user("x"), model([part]), user("y")], [{"role": "system", "content": [part]}, user("x")],
                              [user(part)], [model([part])]):
                    self.refused(CHAT, {"messages": turns}, "type")
                    self.refused("/api/chat", {"messages": turns}, "type")
                    self.refused(MESSAGES, {"messages": turns}, "type")
                    self.refused(RESPONSES, {"input": turns}, "type")
                self.refused(MESSAGES, {"messages": [user("x")], "system": [part]}, "type")
                self.refused(RESPONSES, {"input": "x", "instructions": [part]}, "type")
                self.refused(RESPONSES, {"input": [{"type": "reasoning", "summary": [part]}, user("x")]}, "type")
                self.refused(CHAT, {"messages": [user("x"), model("y", reasoning_details=[part]), user("z")]}, "reasoning_details[0]")
                result = {"role": "tool", "tool_call_id": "c1", "content": [part]}
                self.assertIn('"type"', self.prompt(user("x"), model(None, tool_calls=[CALL]), result).replace("\\", ""))
                self.messages(user("x"), model([{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]),
                              user([{"type": "tool_result", "tool_use_id": "c1", "content": [part]}]))
                self.items(user("x"), {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                           {"type": "function_call_output", "call_id": "c1", "output": [part]})
            if odd != {}:
                for turns in ([user([odd])], [user("x"), model([odd]), user("y")]):
                    for path, name in ((CHAT, "messages"), ("/api/chat", "messages"), (MESSAGES, "messages"), (RESPONSES, "input")):
                        self.refused(path, {name: turns})
            tool = {**TOOL, "type": odd}
            self.refused(CHAT, {"messages": [user("x")], "tools": [tool]}, "tools[0]", "type")
            self.assertNotIn("odd_one", self.prompt(user("x"), tools=[TOOL, {"type": odd, "function": {"name": "odd_one"}}]))
            self.refused(MESSAGES, {"messages": [user("x")], "tools": [{"type": odd, "name": "f"}]}, "tools[0]", "type")
            self.refused(RESPONSES, {"input": "x", "tools": [{"type": odd, "name": "f"}]}, "tools[0]")

    # ---- thoughts ----

    def test_thoughts(self):
        def seen(**more):
            return self.prompt(user("x"), model(**{"content": None, "tool_calls": [CALL], **more}),
                               {"role": "tool", "tool_call_id": "c1", "content": "sunny"}, tools=[TOOL])
        plain = seen(reasoning_content="Hmm.")
        self.assertIn("Hmm.", plain)
        for more in ({"reasoning": "Hmm."}, {"thinking": "Hmm."}, {"content": [{"type": "thinking", "thinking": "Hmm."}]},
                     {"content": [{"type": "reasoning", "text": "Hmm."}]},
                     {"content": [{"type": "reasoning", "reasoning": "Hmm."}, {"type": "redacted_thinking", "data": "x"}]},
                     {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hmm."}], "signature": "s"}]},
                     {"reasoning_details": [{"type": "reasoning.text", "text": "Hmm."}, {"type": "reasoning.encrypted"}]},
                     {"reasoning_content": None, "reasoning": "", "thinking": "Hmm."}):
            self.assertEqual(seen(**more), plain, more)
        self.assertNotIn("secret", seen(content=[{"type": "redacted_thinking", "data": "secret"}]))
        text = self.prompt(user("x"), model([{"type": "thinking", "thinking": "Hmm."}, {"type": "text", "text": "Yes."}]), user("y"))
        self.assertNotIn("Hmm.", text.split("Yes.")[1])
        self.items(user("x"), model([{"type": "reasoning_text", "text": "Hmm."}, {"type": "output_text", "text": "Yes."}]), user("y"))
        self.messages(user("x"), model([{"type": "thinking", "thinking": "Hmm.", "signature": "another's"},
                                        {"type": "redacted_thinking", "data": "x"}, {"type": "reasoning", "text": "Hmm."}]), user("y"))

    # ---- calls ----

    def test_calls(self):
        def seen(call, **result):
            return self.prompt(user("x"), model(None, tool_calls=[call]), {"role": "tool", "content": "sunny", **result},
                               user("y"), tools=[TOOL])
        plain = seen(CALL, tool_call_id="c1")
        self.assertEqual(plain.count("sunny"), 1)
        fn = CALL["function"]
        for call, result in (({"function": fn}, {}), ({"id": None, "function": fn}, {"tool_call_id": None}), (CALL, {}),
                             ({"id": "", "type": "function", "function": {**fn, "arguments": {"city": "Oslo"}}}, {}),
                             ({"id": "c1", **fn}, {"tool_call_id": "c1"}), (CALL, {"tool_name": "get_weather"}),
                             ({"id": "c1", "function": {**fn, "arguments": ' {"city":"Oslo"} '}}, {"tool_call_id": "c1"})):
            self.assertEqual(seen(call, **result).replace('":"', '": "'), plain.replace('":"', '": "'), (call, result))
        for arguments in ("", "Oslo", '{"city": "Os', "[1]", 5, None, [1], "null"):
            self.assertIn("sunny", seen({"id": "c1", "function": {"name": "get_weather", "arguments": arguments}}))
        self.assertIn("unknown", seen({"id": "c1", "function": {"name": "", "arguments": "{}"}}))

    def test_results(self):
        def seen(content):
            return self.prompt(user("x"), model(None, tool_calls=[CALL]),
                               {"role": "tool", "tool_call_id": "c1", "content": content}, user("y"), tools=[TOOL])
        for content in ({"sky": "sunny"}, [{"sky": "sunny"}], [["sunny"]]):
            self.assertIn("sunny", seen(content))
        for content in (5, True, None, "", [], [None], {}):
            seen(content)
        # Of several calls, in another order.
        two = [{"function": {"name": "a", "arguments": {}}}, {"function": {"name": "b", "arguments": {}}}]
        text = self.prompt(user("x"), model("", tool_calls=two), {"role": "tool", "tool_name": "b", "content": "of b"},
                           {"role": "tool", "tool_name": "a", "content": "of a"}, user("y"))
        self.assertRegex(text, r"response:b\W+value\W+of b.*response:a\W+value\W+of a")
        # One that nobody called for is a text.
        self.assertIn("sunny", self.prompt(user("x"), {"role": "tool", "content": "sunny"}))
        self.assertIn("sunny", self.prompt(user("x"), model("Hm."), {"role": "tool", "tool_call_id": "z", "content": "sunny"}))

    def test_calls_of_messages(self):
        use = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
        tools = [{"name": "get_weather", "input_schema": WEATHER}]

        def n(use, result):
            return self.messages(user("x"), model([use]), user([result]), tools=tools)
        plain = n(use, result)
        self.assertEqual(n({**use, "id": None}, {**result, "tool_use_id": None}), plain)
        self.assertEqual(n({**use, "input": '{"city": "Oslo"}'}, result), plain)
        self.assertEqual(n(use, {**result, "content": [{"type": "text", "text": "sunny"}]}), plain)
        for input in (None, "Oslo", '{"city": "Os', 5, []):
            n({**use, "input": input}, result)
        for content in ({"sky": "sunny"}, [{"sky": 1}], 5, None, [], [{"type": "image"}], [{"type": "hologram"}]):
            n(use, {**result, "content": content})
        n({**use, "name": ""}, result)

    def test_calls_of_responses(self):
        call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'}
        output = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
        plain = self.items(user("x"), call, output)
        self.assertEqual(self.items(user("x"), {**call, "arguments": {"city": "Oslo"}}, output), plain)
        self.assertEqual(self.items(user("x"), {**call, "call_id": None}, {**output, "call_id": ""}), plain)
        self.assertEqual(self.items(user("x"), model(None, tool_calls=[CALL]),
                                    {"role": "tool", "tool_call_id": "c1", "content": "sunny"}), plain)
        for arguments in ("", "Oslo", '{"city": "Os', 5, None, [1]):
            self.items(user("x"), {**call, "arguments": arguments}, output)
        for result in ({"sky": "sunny"}, [{"sky": 1}], 5, None, [], [IMAGE], [{"type": "hologram"}]):
            self.items(user("x"), call, {**output, "output": result})
        self.items(user("x"), {**call, "name": ""}, output)

    # ---- tools ----

    def test_odd_tools(self):
        odd = ([None, 5, "x", {}, {"type": "function"}, {"type": "function", "function": {}},
                {"type": "function", "function": {"name": ""}}, {"type": "function", "function": {"name": "x" * 300}},
                {"type": "web_search"}, {"type": "code_interpreter", "container": {}}, {"type": "custom", "custom": {}}])
        plain = self.prompt(user("x"), tools=[TOOL])
        flat = {"type": "function", **TOOL["function"]}
        for tool in odd:
            self.assertEqual(self.prompt(user("x"), tools=[tool, TOOL, tool]), plain, tool)
            self.post(RESPONSES, 200, {"input": "x", "max_output_tokens": 1, "tools": [tool, flat, tool]})
            self.post(MESSAGES, 200, {"messages": [user("x")], "max_tokens": 1,
                                      "tools": [tool, {"name": "get_weather", "input_schema": WEATHER}]})
        self.assertEqual(self.prompt(user("x"), tools=[flat]), plain)
        self.assertEqual(self.prompt(user("x"), tools=[{"name": "get_weather", "description": "Weather", "input_schema": WEATHER}]),
                         plain)
        self.assertEqual(self.prompt(user("x"), tools=[{"type": "function", "function": {
            "name": "get_weather", "description": "Weather", "parameters": json.dumps(WEATHER)}}]), plain)
        for parameters in (None, [], "x", 5, True):
            named = {"name": "f", "description": 5, "parameters": parameters}
            status = 200 if parameters is None else 400
            self.post(CHAT, status, {"messages": [user("x")], "max_tokens": 1,
                                     "tools": [{"type": "function", "function": named}, TOOL]})
            self.post(RESPONSES, status, {"input": "x", "max_output_tokens": 1, "tools": [{"type": "function", **named}]})
            self.post(MESSAGES, status, {"messages": [user("x")], "max_tokens": 1, "tools": [
                {"name": "f", "input_schema": parameters}, TOOL]})
        # Where it is alone it is a fault, and what must be called must be there.
        self.refused(CHAT, {"messages": [user("x")], "tools": [{"type": "function", "function": {}}]}, "tools[0]")
        self.refused(CHAT, {"messages": [user("x")], "tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice")
        self.post(CHAT, 200, {"messages": [user("x")], "tools": [{"type": "web_search"}], "max_tokens": 1})


class Notes(Case):
    options = ["-c", "1024", "--media", "note", "--mmproj", "off"]

    def test_media_of_the_last_turn(self):
        body = {"messages": [user(["look", IMAGE])], "max_tokens": 2}
        status, _, r = self.server.post("/apply-template", body)
        self.assertEqual(status, 200, r)
        self.assertIn(NOTE, r["prompt"])
        for path, more in ((CHAT, body), (MESSAGES, {**body, "messages": [user(["look", {"type": "image"}])]}),
                           (RESPONSES, {"input": [user([{"type": "input_image"}])], "max_output_tokens": 2})):
            status, _, r = self.server.post(path, more)
            self.assertEqual(status, 200, r)


if __name__ == "__main__":
    main()
