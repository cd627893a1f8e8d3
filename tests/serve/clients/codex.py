#!/usr/bin/env python3
"""codex.py - Codex against the server: turns, tools that it runs itself, cancels, a full context.

usage: PYTHON codex.py INGLE      the program is $CODEX or the one that the package openai-codex-cli-bin brings
"""
# packages: openai-codex==0.163.0 openai-codex-cli-bin==0.163.0
import base64, json, os, sys, unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real
from real import only

try:
    import codex_cli_bin
    BUNDLED = os.path.join(os.path.dirname(codex_cli_bin.__file__), "bin/codex")
except ImportError:
    BUNDLED = None

# A PNG of one pixel.
DOT = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
try:
    import openai_codex
except ImportError:
    openai_codex = None

CODEX = real.program("CODEX", BUNDLED)


def outputs(body):
    return [i for i in body["input"] if i.get("type", "").endswith("_call_output")]


class Codex(real.Case):
    options = [*real.Case.options, "--alias", "local", "--codex-model", str(real.ROOT / "share/codex-model.json")]
    force = ()  # the calls of the first turns: ((namespace or None, tool), {argument: value})

    def setUp(self):
        super().setUp()
        folder = self.home / ".codex"
        folder.mkdir()
        # As docs/use/server-agents.md says: the catalogue is what the server lists.
        (folder / "ingle.json").write_text(json.dumps(self.server.get("/v1/models")[2]))
        (folder / "config.toml").write_text(f'''
model = "local"
model_provider = "ingle"
model_catalog_json = "ingle.json"
check_for_update_on_startup = false
approval_policy = "never"
sandbox_mode = "read-only"
[analytics]
enabled = false
[model_providers.ingle]
name = "ingle"
base_url = "{self.tap.url}/v1"
wire_api = "responses"
''')

    def change(self, x):
        """Caps the answers of a model that does not know when to end, and forces the next call."""
        b = x.body
        if not x.path.startswith("/v1/responses") or "input" not in b:
            return None
        b = dict(b, max_output_tokens=64)
        done = len(outputs(b))
        if done < len(self.force):
            (space, name), values = self.force[done]

            def constant(tools):
                return [dict(t, parameters=only(t["parameters"], **values)) if t.get("name") == name and "parameters" in t
                        else t for t in tools]
            b["tools"] = [dict(t, tools=constant(t["tools"])) if t.get("type") == "namespace" and t["name"] == space
                          else t for t in (b["tools"] if space else constant(b["tools"]))]
            b["tool_choice"] = {"type": "function", "name": name, **({"namespace": space} if space else {})}
            b.update(max_output_tokens=500, reasoning={"effort": "none"}, parallel_tool_calls=False)
        return b

    def begin(self, *arguments):
        return self.start(CODEX, "exec", "--json", "--skip-git-repo-check", *arguments)

    def ask(self, *arguments):
        status, out, errors = self.wait(self.begin(*arguments))
        lines = self.lines(out)
        self.assertEqual([l for l in lines if l["type"] in ("error", "turn.failed")], [], errors[-1000:])
        self.assertEqual(status, 0, errors[-1000:])
        return lines

    def usage(self, i):
        return self.tap.of("/responses")[i].events[-1][1]["response"]["usage"]

    def test_turns(self):
        lines = self.ask("What is the capital of Norway?")
        self.assertEqual([l for l in lines if l.get("item", {}).get("type") == "error"], [])  # it knows the model
        n = len(self.tap.of("/responses"))
        self.ask("resume", lines[0]["thread_id"], "And of France?")
        self.assertEqual(self.refused(), [])
        self.assertGreater(self.usage(n)["input_tokens_details"]["cached_tokens"], 0.9 * self.usage(n - 1)["input_tokens"])

    def test_tools(self):
        """Functions and one of a namespace, none of which changes anything: Codex runs each and sends what came of it."""
        picture = self.work / "dot.png"
        picture.write_bytes(base64.b64decode(DOT))
        self.force = (((None, "get_goal"), {}), ((None, "view_image"), {"path": str(picture)}),
                      (("multi_agent_v1", "close_agent"), {"target": "nobody"}))
        self.ask("Look at the picture.")
        self.assertEqual(self.refused(), [])
        sent = outputs(self.tap.of("/responses")[-1].body)
        self.assertEqual(len(sent), 3, sent)
        self.assertIn("nobody", json.dumps(sent[2]))
        called = [i for i in self.tap.of("/responses")[-1].body["input"] if i.get("type") == "function_call"]
        self.assertEqual([(c.get("namespace"), c["name"]) for c in called], [t for t, _ in self.force])

    @unittest.skipUnless(openai_codex, "needs the package openai-codex")
    def test_package(self):
        """The package's threads: `codex app-server` behind them."""
        config = openai_codex.CodexConfig(codex_bin=CODEX, env=self.environment(), cwd=str(self.work))
        with openai_codex.Codex(config) as codex:
            thread = codex.thread_start(sandbox=openai_codex.Sandbox.read_only, cwd=str(self.work))
            for prompt in "What is the capital of Norway?", "And of France?":
                self.assertIn("completed", str(thread.run(prompt).status))
        self.assertEqual(self.refused(), [])

    def test_cancel(self):
        self.interrupt(self.begin("What is the capital of Sweden? " * 50))

    def test_schema(self):
        schema = self.work / "schema.json"
        schema.write_text(json.dumps({"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
                                      "required": ["city"], "additionalProperties": False}))
        lines = self.ask("--output-schema", str(schema), "What is the capital of Norway?")
        texts = [l["item"]["text"] for l in lines if l.get("item", {}).get("type") == "agent_message"]
        self.assertEqual(self.refused(), [])
        self.assertEqual(json.loads(texts[-1]), {"city": "Oslo"}, lines)


class Small(Codex):
    """A context that the first prompt does not fit in."""
    options = [*Codex.options, "-c", "8192"]
    test_turns = test_tools = test_cancel = test_schema = test_package = None

    def test_too_long(self):
        status, out, errors = self.wait(self.begin("What is the capital of Norway?"))
        self.assertNotEqual(status, 0)
        self.assertIn("context window", out)


if __name__ == "__main__":
    real.main()
