#!/usr/bin/env python3
"""open_webui_app.py - Open WebUI's backend: a user registers, lists the models, and talks with one.

usage: PYTHON open_webui_app.py INGLE      PYTHON has open-webui; else exit 77
"""
# packages: open-webui==0.12.4
import json, os, signal, socket, sys, time, urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real

OPEN_WEBUI = real.program("OPEN_WEBUI", os.path.join(os.path.dirname(sys.executable), "open-webui"))


class OpenWebUI(real.Case):
    options = ["--temp", "0", "--alias", "local"]

    def environment(self):
        return dict(super().environment(), DATA_DIR=str(self.home / "data"), WEBUI_SECRET_KEY="secret", OFFLINE_MODE="True",
                    HF_HUB_OFFLINE="1", ENABLE_OLLAMA_API="False", OPENAI_API_BASE_URL=self.tap.url + "/v1",
                    OPENAI_API_KEY="none", BYPASS_EMBEDDING_AND_RETRIEVAL="True", RAG_EMBEDDING_ENGINE="openai",
                    ANONYMIZED_TELEMETRY="False", DO_NOT_TRACK="True", SCARF_NO_ANALYTICS="True")

    def setUp(self):
        super().setUp()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        (self.home / "data").mkdir()
        log = open(self.work / "log", "w")
        self.addCleanup(log.close)
        self.app = self.start(OPEN_WEBUI, "serve", "--host", "127.0.0.1", "--port", str(self.port), output=log)
        self.addCleanup(self.end)
        stop = time.monotonic() + 600
        while True:
            try:
                return self.ask("/health")
            except OSError:
                text = (self.work / "log").read_text()[-2000:]
                self.assertIsNone(self.app.poll(), text)
                self.assertLess(time.monotonic(), stop, text)
                time.sleep(0.5)

    def end(self):
        os.killpg(self.app.pid, signal.SIGTERM)
        self.app.wait(60)

    def ask(self, path, body=None, token=None):
        headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + token} if token else {})}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}",
                                         None if body is None else json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as r:
            return r.read().decode()

    def test_chat(self):
        token = json.loads(self.ask("/api/v1/auths/signup", {
            "name": "a", "email": "a@example.org", "password": "Secret-0123456789"}))["token"]
        models = json.loads(self.ask("/api/models", token=token))["data"]
        self.assertEqual([m["id"] for m in models if m.get("owned_by") != "arena"], ["local"])
        body = {"model": "local", "messages": [{"role": "user", "content": "What is the capital of Norway?"}]}
        whole = json.loads(self.ask("/api/chat/completions", dict(body, stream=False), token))
        self.assertIn("Oslo", whole["choices"][0]["message"]["content"])
        text = self.ask("/api/chat/completions", dict(body, stream=True), token)
        deltas = [json.loads(line[6:])["choices"][0]["delta"].get("content") for line in text.split("\n")
                  if line.startswith("data: {") and json.loads(line[6:])["choices"]]
        self.assertIn("Oslo", "".join(d or "" for d in deltas), text)
        self.assertEqual(self.refused(), [])


if __name__ == "__main__":
    real.main()
