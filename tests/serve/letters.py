#!/usr/bin/env python3
"""letters.py INGLE - letters of one to four bytes: the tokens of an answer, their texts, bytes and offsets, stop
strings and byte-order marks, in every dialect, whole and streamed.  The nano vocabulary has no letters of three
and four bytes: such a letter is three or four tokens."""
import json

from client import Case, main

TEXTS = ["a 漢字 😀 b é", "😀", "é漢😀é漢😀", "plain", "Ω≈ç √∫", "ab😀"]
CHAT, TEXT, NATIVE, RESPONSES = "/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses"


def rule(text):
    return "root ::= " + json.dumps(text, ensure_ascii=False)


class Letters(Case):
    options = ["-c", "1024", "--parallel", "2"]

    def ask(self, path, status=200, **body):
        got, _, r = self.server.post(path, {"temperature": 0, **body})
        self.assertEqual(got, status, r)
        return r

    def check(self, text, tokens, want=None):
        """tokens: (text, bytes) each."""
        self.assertEqual("".join(t for t, _ in tokens), want or text, tokens)
        self.assertEqual(b"".join(bytes(b) for _, b in tokens).decode(), want or text, tokens)

    def chat(self, text, **more):
        """(content, tokens) of a whole answer, which is the same streamed."""
        body = {"messages": [{"role": "user", "content": "x"}], "grammar": rule(text), "logprobs": True,
                "top_logprobs": 1, "max_tokens": 60, "temperature": 0, **more}
        c = self.ask(CHAT, **body)["choices"][0]
        whole = c["message"]["content"], [(t["token"], t["bytes"]) for t in c["logprobs"]["content"]]
        deltas = [e["choices"][0] for _, e in self.server.stream(CHAT, body) if e != "[DONE]"]
        logprobs = [t for d in deltas if d.get("logprobs") for t in d["logprobs"]["content"]]
        self.assertEqual(whole, ("".join(d["delta"].get("content") or "" for d in deltas),
                                 [(t["token"], t["bytes"]) for t in logprobs]))
        return whole

    def test_chat(self):
        for text in TEXTS:
            content, tokens = self.chat(text)
            self.assertEqual(content, text)
            self.check(text, tokens)

    def test_stop_strings(self):
        """The answer ends before the string, wherever it begins: in the middle of tokens, too."""
        for text in TEXTS:
            for i in range(len(text)):
                for stop in {text[i:i + 1], text[i:i + 2], text[i:]}:
                    content, tokens = self.chat(text, stop=[stop])
                    self.assertEqual(content, text[:text.index(stop)], (text, stop))
                    self.check(content, tokens)

    def test_completions(self):
        for text in TEXTS:
            body = {"prompt": "x", "grammar": rule(text), "logprobs": 1, "max_tokens": 60}
            whole = self.ask(TEXT, **body)["choices"][0]
            self.offsets(whole["text"], whole["logprobs"], text)
            chunks = [e["choices"][0] for _, e in self.server.stream(TEXT, {**body, "temperature": 0}) if e != "[DONE]"]
            for key, want in whole["logprobs"].items():
                self.assertEqual([x for c in chunks if c["logprobs"] for x in c["logprobs"][key]], want, key)

    def offsets(self, text, logprobs, want):
        self.assertEqual(text, want)
        self.assertEqual("".join(logprobs["tokens"]), text)
        for token, at in zip(logprobs["tokens"], logprobs["text_offset"]):
            self.assertEqual(text[at:at + len(token)], token)

    def test_echo(self):
        for text in TEXTS:
            c = self.ask(TEXT, prompt=text, echo=True, logprobs=0, max_tokens=0)["choices"][0]
            self.offsets(c["text"], c["logprobs"], text)
            c = self.ask(TEXT, prompt=text, echo=True, logprobs=0, max_tokens=9, grammar=rule("é😀"))["choices"][0]
            self.offsets(c["text"], c["logprobs"], text + "é😀")

    def test_native(self):
        for text in TEXTS:
            body = {"prompt": "x", "grammar": rule(text), "n_probs": 1, "n_predict": 60, "temperature": 0}
            whole = self.ask(NATIVE, **body)
            self.assertEqual(whole["content"], text)
            tokens = [(t["token"], t["bytes"]) for t in whole["completion_probabilities"]]
            self.check(text, tokens)
            events = [e for _, e in self.server.stream(NATIVE, body)]
            self.assertEqual([(t["token"], t["bytes"]) for e in events for t in e["completion_probabilities"]], tokens)

    def test_responses(self):
        for text in TEXTS:
            body = {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"const": text}}},
                    "include": ["message.output_text.logprobs"], "max_output_tokens": 60}
            part = self.ask(RESPONSES, **body)["output"][0]["content"][0]
            self.assertEqual(json.loads(part["text"]), text)
            tokens = [(t["token"], t["bytes"]) for t in part["logprobs"]]
            self.check(part["text"], tokens)
            events = self.server.stream(RESPONSES, {**body, "temperature": 0})
            self.assertEqual([(t["token"], t["bytes"]) for name, e in events if name == "response.output_text.delta"
                              for t in e["logprobs"]], tokens)

    def test_tokens_that_are_no_text(self):
        """Bytes that make no letter are shown as U+FFFD, which belongs to one of them."""
        ids = [t["id"] for t in self.ask("/tokenize", content="漢", with_pieces=True)["tokens"]]
        self.assertEqual(len(ids), 3)
        for given in ([ids[0]], ids[:2], [ids[1], ids[2]], [ids[0], *ids], [*ids, ids[0], 438]):
            # `given` alone may be drawn, in its order.
            grammar = "root ::= " + " ".join(f"<[{i}]>" for i in given)
            r = self.ask(NATIVE, prompt="x", n_probs=1, n_predict=len(given), grammar=grammar)
            tokens = r["completion_probabilities"]
            self.assertEqual([t["id"] for t in tokens], given)
            self.assertEqual("".join(t["token"] for t in tokens), r["content"])
            self.assertEqual(b"".join(bytes(t["bytes"]) for t in tokens).decode(errors="replace"), r["content"])

    def test_byte_order_marks(self):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "input": "x", "content": "x"}
        for path in (CHAT, TEXT, NATIVE, RESPONSES, "/v1/messages", "/tokenize", "/apply-template",
                     "/v1/messages/count_tokens", "/v1/chat/completions/input_tokens"):
            text = json.dumps(body if "responses" in path else {**body, "prompt": "x"})
            status, _, r = self.server.post(path, text.encode("utf-8-sig"))
            self.assertEqual(status, 200, (path, r))
            for coding in ("utf-16", "utf-16-be", "utf-16-le", "utf-32"):
                status, _, r = self.server.post(path, text.encode(coding))
                self.assertEqual(status, 400, (path, coding, r))
                self.assertIn("UTF-8", json.dumps(r), (path, coding))


if __name__ == "__main__":
    main()
