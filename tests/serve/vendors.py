#!/usr/bin/env python3
"""vendors.py INGLE - what clients of other servers (vLLM, SGLang, Ollama, llama-server, text-generation-inference)
ask for beside OpenAI's fields: it is done, in every dialect, or refused by name; tests/serve/fields.py has the
fields and their values."""
import json

from client import Case, main

ASK = "What is the capital of France?"
PARIS = "The capital of France is Paris."
BOOL = {"type": "boolean"}
CHOICE = ["positive", 'neg"a\\ti\nve', "中立"]


class Vendors(Case):
    options = ["-c", "1024", "--parallel", "4", "--temp", "0"]

    def post(self, path, status=200, **body):
        got, _, r = self.server.post(path, body)
        self.assertEqual(got, status, r)
        return r

    def choice(self, **body):
        messages = [{"role": "user", "content": ASK}]
        return self.post("/v1/chat/completions", **{"messages": messages, "max_tokens": 40, **body})["choices"][0]

    def texts(self, **body):
        """The answer in each dialect."""
        said = {"max_tokens": 40, **body}
        yield self.choice(**body)["message"]["content"]
        yield self.post("/v1/completions", prompt=ASK, **said)["choices"][0]["text"]
        yield self.post("/completion", prompt=ASK, **said)["content"]
        r = self.post("/v1/messages", messages=[{"role": "user", "content": ASK}], **said)
        yield "".join(b["text"] for b in r["content"])
        r = self.post("/v1/responses", input=ASK, max_output_tokens=40, **body)
        yield r["output"][0]["content"][0]["text"]
        events = self.server.stream("/v1/chat/completions",
                                    {"messages": [{"role": "user", "content": ASK}], "max_tokens": 40, **body})
        yield "".join(e["choices"][0]["delta"].get("content") or "" for _, e in events if e != "[DONE]" and e["choices"])

    def test_choices(self):
        for body in ({"guided_choice": CHOICE}, {"structured_outputs": {"choice": CHOICE}}):
            for text in self.texts(**body):
                self.assertIn(text, CHOICE, body)
        self.assertEqual(self.choice(guided_choice=[CHOICE[1]])["message"]["content"], CHOICE[1])

    def test_forms(self):
        rule = 'root ::= "yes" | "no"'
        for body in ({"guided_grammar": rule}, {"ebnf": rule}, {"grammar": rule}, {"regex": "yes|no"},
                     {"structured_outputs": {"grammar": rule}}, {"guided_regex": "yes|no"},
                     {"structured_outputs": {"regex": "yes|no", "json": None, "structural_tag": None}},
                     {"grammar": {"type": "regex", "value": "yes|no"}},
                     {"response_format": {"type": "regex", "pattern": "yes|no"}},
                     {"response_format": {"type": "grammar", "grammar": rule}}):
            for text in self.texts(**body):
                self.assertIn(text, ("yes", "no"), body)

    def test_schemas(self):
        for body in ({"guided_json": BOOL}, {"guided_json": json.dumps(BOOL)}, {"json_schema": json.dumps(BOOL)},
                     {"json_schema": BOOL}, {"format": BOOL}, {"structured_outputs": {"json": BOOL}},
                     {"structured_outputs": {"json": json.dumps(BOOL), "disable_fallback": True}},
                     {"grammar": {"type": "json", "value": BOOL}}, {"response_format": {"type": "json_object", "schema": BOOL}},
                     {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": BOOL}}}):
            for text in self.texts(**body):
                self.assertIn(json.loads(text), (True, False), body)
        for body in ({"format": "json"}, {"guided_json_object": True}, {"structured_outputs": {"json_object": True}},
                     {"response_format": {"type": "json_object"}}):
            self.assertTrue(self.choice(**body)["message"]["content"].startswith("{"), body)

    def test_one_form_alone(self):
        r = self.post("/v1/chat/completions", 400, messages=[{"role": "user", "content": "x"}], regex="a", guided_json=BOOL)
        self.assertIn("regex", r["error"]["message"])
        self.assertIn("guided_json", r["error"]["message"])
        self.post("/v1/responses", 400, input="x", text={"format": {"type": "json_object"}}, regex="a")
        self.post("/v1/messages", 400, messages=[{"role": "user", "content": "x"}], regex="a",
                  output_config={"format": {"type": "json_schema", "schema": BOOL}})

    def tokens(self, text):
        return self.post("/tokenize", content=text)["tokens"]

    def test_least_tokens(self):
        plain = self.choice(ignore_eos=False)
        self.assertEqual(plain["message"]["content"], PARIS)
        for n in (1, 30):
            r = self.post("/v1/chat/completions", messages=[{"role": "user", "content": ASK}], max_tokens=40, min_tokens=n)
            self.assertGreaterEqual(r["usage"]["completion_tokens"], n)
            self.assertTrue(r["choices"][0]["message"]["content"].startswith(PARIS))
        # Where a grammar ends the answer ends.
        self.assertEqual(self.choice(min_tokens=30, regex="yes")["message"]["content"], "yes")

    def test_tokens_that_stop(self):
        stop = self.tokens(" Paris")
        self.assertEqual(len(stop), 1)
        c = self.choice(stop_token_ids=stop)
        self.assertEqual((c["message"]["content"], c["finish_reason"]), ("The capital of France is", "stop"))
        self.assertEqual(c["finish_details"], {"type": "stop_token", "stop": stop[0]})
        c = self.choice(stop_token_ids=stop, include_stop_str_in_output=True)
        self.assertEqual(c["message"]["content"], "The capital of France is Paris")
        self.assertTrue(self.choice(stop_token_ids=stop, min_tokens=12)["message"]["content"].startswith("The capital of France is"))
        for word in ("include_stop_str_in_output", "no_stop_trim"):
            for text in self.texts(stop="ance", guided_choice=["The capital of France is Paris."], **{word: True}):
                self.assertIn(text, ("The capital of France", "The capital of France is Paris."))  # Messages, too
            c = self.choice(stop="ance", logprobs=True, **{word: True})
            self.assertEqual(c["message"]["content"], "The capital of France")
            self.assertEqual("".join(t["token"] for t in c["logprobs"]["content"]), "The capital of France")

    def test_words_that_do_not_come(self):
        for words in (["Paris"], ["is Paris"], ["France is Paris"], ["Rome", "Paris"]):
            self.assertNotIn(words[-1], self.choice(bad_words=words)["message"]["content"])
        self.assertEqual(self.choice(bad_words=["Paris is"])["message"]["content"], PARIS)

    def test_tokens_alone(self):
        only = self.tokens(" is")
        c = self.choice(allowed_token_ids=only, max_tokens=5)
        self.assertEqual((c["message"]["content"], c["finish_reason"]), (" is" * 5, "length"))

    def test_samplers(self):
        hot = {"temperature": 1.5, "top_k": 1, "seed": 3}
        self.assertEqual(self.choice(**hot)["message"]["content"], PARIS)
        self.assertEqual(self.choice(**hot, samplers=["top_k", "temperature"])["message"]["content"], PARIS)
        self.assertEqual(self.choice(**hot, samplers="kt")["message"]["content"], PARIS)
        free = [self.choice(**{**hot, "temperature": 2, "seed": i}, samplers=["temperature"])["message"]["content"]
                for i in range(8)]
        self.assertNotEqual(set(free), {PARIS})
        self.assertEqual(self.choice(temperature=2, top_k=0, do_sample=False)["message"]["content"], PARIS)

    def test_what_says_off(self):
        off = {"stop": "", "top_k": -1, "min_p": 0, "repeat_penalty": 0, "repetition_penalty": 0, "typical_p": 0,
               "seed": -1, "top_n_sigma": -1, "adaptive_target": -1, "mirostat": 0, "dynatemp_range": 0, "lora": [],
               "max_tokens": -1, "logit_bias": {}, "grammar": "", "json_schema": "", "chat_template": "", "tools": None,
               "reasoning_effort": "", "guided_regex": "", "structured_outputs": {}, "format": "", "n": None,
               "prompt_logprobs": None, "length_penalty": 1, "best_of": None, "samplers": []}
        self.assertEqual(len(list(self.texts(**off))), 6)
        self.assertEqual(self.choice(**off)["message"]["content"], PARIS)
        self.assertEqual(self.choice(**{**off, "top_k": 0, "stop": [""]})["message"]["content"], PARIS)

    def test_thoughts_that_are_not_told(self):
        for body in ({"include_reasoning": False}, {"reasoning": {"exclude": True, "effort": "high"}}):
            c = self.choice(reasoning_effort="high", max_tokens=60, **body)
            self.assertNotIn("reasoning_content", c["message"])

    def test_computed_anew(self):
        for path, body in (("/completion", {"prompt": "Once upon a time there was a king. " * 8}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": ASK * 3}]})):
            for cached in (False, True, False):
                r = self.post(path, max_tokens=4, cache_prompt=cached, **body)
                n = r["timings"]["cache_n"]
                self.assertTrue(n > 0 if cached else n == 0, (path, cached, n))


if __name__ == "__main__":
    main()
