#!/usr/bin/env python3
"""claude_code.py - Claude Code against the server: turns, tools that it runs itself, cancels, a full context.

usage: PYTHON claude_code.py INGLE      the program is $CLAUDE_CODE or the one that the package claude-agent-sdk brings
"""
# packages: claude-agent-sdk==0.2.187
import asyncio, json, os, sys, unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real
from real import only

try:
    import claude_agent_sdk
    BUNDLED = os.path.join(os.path.dirname(claude_agent_sdk.__file__), "_bundled/claude")
except ImportError:
    claude_agent_sdk = BUNDLED = None

CLAUDE = real.program("CLAUDE_CODE", BUNDLED)


def result_blocks(body):
    return [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"]
            if b["type"] == "tool_result"]


class Claude(real.Case):
    force = ()  # the calls of the first turns: (tool, {argument: value})

    def change(self, x):
        """Caps the answers of a model that does not know when to end, and forces the next call."""
        b = x.body
        if not x.path.startswith("/v1/messages?") or "messages" not in b:
            return None
        b = dict(b, max_tokens=min(b["max_tokens"], 64))
        forced, done = dict(self.force), len(result_blocks(b))
        if forced and "tools" in b:  # in all requests alike: else the prompts would not begin alike
            b["tools"] = [dict(t, input_schema=only(t["input_schema"], **forced[t["name"]])) if t.get("name") in forced
                          else t for t in b["tools"]]
        if done < len(self.force):
            b["tool_choice"] = {"type": "tool", "name": self.force[done][0], "disable_parallel_tool_use": True}
            b.update(thinking={"type": "disabled"}, max_tokens=500)
        return b

    def environment(self):
        return dict(super().environment(), ANTHROPIC_BASE_URL=self.tap.url, ANTHROPIC_AUTH_TOKEN="none",
                    ANTHROPIC_MODEL="local", ANTHROPIC_DEFAULT_OPUS_MODEL="local",
                    ANTHROPIC_DEFAULT_SONNET_MODEL="local", ANTHROPIC_DEFAULT_HAIKU_MODEL="local",
                    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", CLAUDE_CODE_MAX_CONTEXT_TOKENS="131072",
                    CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK="1")

    def begin(self, prompt, *more):
        return self.start(CLAUDE, "-p", prompt, "--output-format", "stream-json", "--verbose", *more)

    def ask(self, prompt, *more):
        status, out, errors = self.wait(self.begin(prompt, *more))
        lines = self.lines(out)
        result = [l for l in lines if l["type"] == "result"]
        self.assertTrue(result, (status, out[-1000:], errors[-1000:]))
        return result[0], lines

    def goes_on(self, i):
        """Request i + 1 found in the cache nearly all of what request i computed."""
        before, after = (x.events[-2][1]["usage"] for x in self.tap.of("/messages")[i:i + 2])
        known = before["input_tokens"] + before["cache_read_input_tokens"]
        self.assertGreater(after["cache_read_input_tokens"], 0.9 * known, (before, after))

    def test_turns(self):
        first, _ = self.ask("What is the capital of Norway?")
        self.assertFalse(first["is_error"], first)
        n = len(self.tap.of("/messages"))
        second, _ = self.ask("And of France?", "--resume", first["session_id"])
        self.assertFalse(second["is_error"], second)
        self.assertEqual(self.refused(), [])
        self.goes_on(n - 1)

    def test_read(self):
        """The model calls Read, Claude Code reads the file and sends what is in it."""
        self.force = (("Read", {"file_path": str(self.work / "note.txt")}),)
        result, lines = self.ask("Read the note.")
        self.assertFalse(result["is_error"], result)
        self.assertEqual(self.refused(), [])
        sent = [b for x in self.tap.of("/messages") for b in result_blocks(x.body)]
        self.assertIn("heliotrope", json.dumps(sent[0]), lines)

    def test_deferred(self):
        """ToolSearch brings a tool that the first request does not have; the model calls it."""
        self.force = (("ToolSearch", {"query": "select:CronList", "max_results": 1}), ("CronList", {}))
        result, lines = self.ask("What is planned?")
        self.assertFalse(result["is_error"], result)
        self.assertEqual(self.refused(), [])
        called = [b["name"] for l in lines if l["type"] == "assistant" for b in l["message"]["content"]
                  if b["type"] == "tool_use"]
        self.assertEqual(called[:2], ["ToolSearch", "CronList"])
        self.goes_on(0)  # the new tool is told in the result of the search, not at the start of the prompt

    def test_commands(self):
        """/context counts, /compact asks for a summary of the conversation."""
        first, _ = self.ask("What is the capital of Norway?")
        for command in ("/context", "/compact", "And now?"):
            result, _ = self.ask(command, "--resume", first["session_id"])
            self.assertFalse(result["is_error"], result)
        self.assertEqual(self.refused(), [])

    @unittest.skipUnless(claude_agent_sdk, "needs the package")
    def test_package(self):
        """The package's query(), with a tool that runs in this process."""
        @claude_agent_sdk.tool("lookup", "Looks a word up", {"word": str})
        async def lookup(arguments):
            return {"content": [{"type": "text", "text": "known: " + arguments["word"]}]}

        async def go():
            options = claude_agent_sdk.ClaudeAgentOptions(
                env=self.environment(), cwd=str(self.work), cli_path=CLAUDE, allowed_tools=["mcp__words__lookup"],
                mcp_servers={"words": claude_agent_sdk.create_sdk_mcp_server("words", tools=[lookup])})
            return [m async for m in claude_agent_sdk.query(prompt="Look it up.", options=options)]
        self.force = (("ToolSearch", {"query": "select:mcp__words__lookup", "max_results": 1}),
                      ("mcp__words__lookup", {"word": "heliotrope"}))
        messages = asyncio.run(go())
        self.assertFalse(messages[-1].is_error, messages[-1])
        self.assertEqual(self.refused(), [])
        sent = [b for x in self.tap.of("/messages") for b in result_blocks(x.body)]
        self.assertIn("known: heliotrope", json.dumps(sent))

    def test_cancel(self):
        """Interrupted while its prompt is read: the server stops, and goes on where it was for the next one."""
        self.interrupt(self.begin("What is the capital of Sweden? " * 50))

    def test_schema(self):
        self.force = (("StructuredOutput", {"city": "Oslo"}),)
        result, lines = self.ask("What is the capital of Norway?", "--json-schema", json.dumps(
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}))
        self.assertEqual(result.get("structured_output"), {"city": "Oslo"}, result)
        self.assertEqual(self.refused(), [])


class Small(Claude):
    """A context that the first prompt does not fit in."""
    options = [*real.Case.options, "-c", "8192"]
    test_turns = test_read = test_deferred = test_cancel = test_schema = test_commands = test_package = None

    def test_too_long(self):
        result, lines = self.ask("What is the capital of Norway?")
        self.assertTrue(result["is_error"])
        self.assertRegex(result["result"].lower(), "prompt is too long|context")


if __name__ == "__main__":
    real.main()
