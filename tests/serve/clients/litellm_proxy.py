#!/usr/bin/env python3
"""litellm_proxy.py - LiteLLM's proxy in front of the server: OpenAI's and Anthropic's words go through it.

usage: PYTHON litellm_proxy.py INGLE      PYTHON has litellm[proxy]; else exit 77
"""
# packages: litellm[proxy]==1.106.2
import json, os, signal, socket, sys, time, urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real
from client import WEATHER

LITELLM = real.program("LITELLM", os.path.join(os.path.dirname(sys.executable), "litellm"))


class LiteLLM(real.Case):
    options = ["--temp", "0"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.proxy = None

    def setUp(self):
        super().setUp()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        config = {"model_list": [
            {"model_name": "by-openai", "litellm_params": {
                "model": "openai/local", "api_base": self.tap.url + "/v1", "api_key": "none"}},
            {"model_name": "by-anthropic", "litellm_params": {
                "model": "anthropic/local", "api_base": self.tap.url, "api_key": "none"}}],
            "litellm_settings": {"telemetry": False, "num_retries": 0}}
        path = self.work / "config.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        self.log = open(self.work / "log", "w")
        self.addCleanup(self.log.close)
        self.proxy = self.start(LITELLM, "--config", str(path), "--port", str(self.port), "--host", "127.0.0.1",
                                output=self.log)
        self.addCleanup(self.end)
        stop = time.monotonic() + 120
        while True:
            try:
                return self.get("/health/liveliness")
            except OSError:
                self.assertIsNone(self.proxy.poll())
                self.assertLess(time.monotonic(), stop, (self.work / "log").read_text()[-2000:])
                time.sleep(0.2)

    def end(self):
        os.killpg(self.proxy.pid, signal.SIGTERM)
        self.proxy.wait(30)

    def environment(self):
        return dict(super().environment(), LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_TELEMETRY="False",
                    LITELLM_MASTER_KEY="sk-none")

    def get(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", None if body is None else
                                         json.dumps(body).encode(), {"Content-Type": "application/json",
                                                                     "Authorization": "Bearer sk-none"})
        with urllib.request.urlopen(request, timeout=120) as r:
            return r.read().decode()

    def test_chat_and_messages(self):
        """Each dialect in front, each behind; whole and streamed; a tool."""
        question = [{"role": "user", "content": "What is the capital of Norway?"}]
        weather = [{"role": "user", "content": "What is the weather in Paris?"}]
        chat_tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather in a city",
                                                      "parameters": WEATHER}}
        tool = {"name": "get_weather", "description": "Weather in a city", "input_schema": WEATHER}
        for model in "by-openai", "by-anthropic":
            for path, words, more in (("/v1/chat/completions", weather, {"tools": [chat_tool]}),
                                      ("/v1/messages", weather, {"tools": [tool]})):
                for stream in False, True:
                    with self.subTest(model=model, path=path, stream=stream):
                        common = {"model": model, "max_tokens": 200, "stream": stream}
                        text = self.get(path, dict(common, messages=question))
                        self.assertTrue("Oslo" in text or ("Os" in text and "lo" in text), text)
                        text = self.get(path, dict(common, messages=words, **more))
                        self.assertIn("get_weather", text)
                        self.assertTrue("tool_calls" in text or "tool_use" in text, text)
        self.assertEqual(self.refused(), [])

    def test_responses(self):
        text = self.get("/v1/responses", {"model": "by-openai", "input": "What is the capital of Norway?"})
        self.assertIn("Oslo", text)
        self.assertEqual(self.refused(), [])


if __name__ == "__main__":
    real.main()
