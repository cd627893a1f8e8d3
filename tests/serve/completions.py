#!/usr/bin/env python3
"""completions.py INGLE - /v1/completions and llama-server's /completion on the built-in model."""
import math, os, sys, unittest

from client import Case, Server, main, together

INGLE = sys.argv[1]
PROMPT = "Once upon a time there was a"
MIXED = {"temperature": 1.4, "top_k": 0, "top_p": 1}


class Both(Case):
    options = ["-c", "4096", "--parallel", "4"]

    path = "/v1/completions"

    def ask(self, status=200, path=None, **body):
        got, _, r = self.server.post(path or self.path, {"temperature": 0, **body})
        self.assertEqual(got, status, r)
        return r

    def refused(self, param, **body):
        r = self.ask(400, **body)["error"]
        self.assertEqual(r["param"], param, r)
        return r

    def stream(self, **body):
        return self.server.events(self.path, {"temperature": 0, "stream": True, **body})


class OpenAI(Both):
    def test_whole(self):
        r = self.ask(prompt=PROMPT, max_tokens=6)
        self.assertTrue(r["id"].startswith("cmpl-"))
        self.assertEqual(r["object"], "text_completion")
        c = r["choices"][0]
        self.assertEqual(c["finish_reason"], "length")
        self.assertIsNone(c["logprobs"])
        self.assertTrue(c["text"])
        self.assertEqual(r["usage"]["completion_tokens"], 6)

    def test_prompts(self):
        one = self.ask(prompt=PROMPT, max_tokens=8)["choices"][0]["text"]
        r = self.ask(prompt=[PROMPT, "Hello", PROMPT], max_tokens=8)
        self.assertEqual([c["index"] for c in r["choices"]], [0, 1, 2])
        self.assertEqual([r["choices"][i]["text"] for i in (0, 2)], [one, one])
        r = self.ask(prompt=[[2, 1182, 1194], [2, 1182]], max_tokens=4)
        self.assertEqual(len(r["choices"]), 2)
        r = self.ask(prompt=[2, 1182, " upon", 794], max_tokens=4)
        self.assertEqual(len(r["choices"]), 1)
        for bad in ([], None, 5, [[]], [None], [-1], [99999], [1.5], {"a": 1}, "", ["x"] * 65):
            self.ask(400, prompt=bad) if bad != "" else self.ask(prompt=bad, max_tokens=1)
        self.refused("suffix", prompt="x", suffix="y")
        self.refused("prompt")

    def test_n_and_best(self):
        body = dict(prompt=PROMPT, max_tokens=12, seed=4, **MIXED)
        r = self.ask(n=3, **body)
        texts = [c["text"] for c in r["choices"]]
        self.assertEqual(texts, [self.ask(**{**body, "seed": 4 + i})["choices"][0]["text"]
                                 for i in range(3)])
        every = self.ask(n=5, logprobs=0, **body)["choices"]

        def mean(c):
            return sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
        best = self.ask(n=2, best_of=5, **body)["choices"]
        want = [c["text"] for c in sorted(every, key=mean, reverse=True)[:2]]
        self.assertEqual([c["text"] for c in best], want)
        self.assertEqual([c["index"] for c in best], [0, 1])
        self.refused("best_of", prompt="x", n=3, best_of=2)
        self.refused("best_of", prompt="x", best_of=2, stream=True)

    def test_echo_and_logprobs(self):
        """What lm-evaluation-harness asks: the probabilities of a prompt's tokens."""
        prompt = [2, 1182, 1194, 794, 963, 1160, 944]
        r = self.ask(prompt=prompt, max_tokens=1, echo=True, logprobs=1)
        c = r["choices"][0]
        p = c["logprobs"]
        self.assertEqual(len(p["tokens"]), len(prompt) + 1)
        self.assertEqual([len(p[k]) for k in ("token_logprobs", "top_logprobs", "text_offset")],
                         [len(prompt) + 1] * 3)
        self.assertEqual("".join(p["tokens"]), c["text"])
        self.assertIsNone(p["token_logprobs"][0])
        self.assertIsNone(p["top_logprobs"][0])
        for x, top in zip(p["token_logprobs"][1:], p["top_logprobs"][1:]):
            self.assertLessEqual(x, 0)
            self.assertEqual(len(top), 1)
            self.assertGreaterEqual(max(top.values()), x)
        for token, at in zip(p["tokens"], p["text_offset"]):
            self.assertEqual(c["text"][at:at + len(token)], token)
        # The same probabilities as when each token is generated.
        for i in range(2, len(prompt)):
            step = self.ask(prompt=prompt[:i], max_tokens=1, logprobs=20)["choices"][0]["logprobs"]
            top = step["top_logprobs"][0]
            if p["tokens"][i] in top:
                self.assertAlmostEqual(top[p["tokens"][i]], p["token_logprobs"][i], places=4)
        # With text alone: the prompt stands in front, and 0 tokens may be asked for.
        r = self.ask(prompt=PROMPT, max_tokens=0, echo=True)
        self.assertEqual(r["choices"][0]["text"], PROMPT)
        r = self.ask(prompt=PROMPT, max_tokens=0, echo=True, logprobs=2)
        self.assertEqual("".join(r["choices"][0]["logprobs"]["tokens"]), PROMPT)

    def test_choices_share_the_prompt(self):
        """Each of several choices, more than run at once, tells the prompt's tokens as one alone does."""
        for prompts in (PROMPT, [PROMPT, "Zo\u00eb \u20ac 12: " + PROMPT]):
            body = dict(prompt=prompts, max_tokens=3, echo=True, logprobs=3, seed=5, **MIXED)
            alone = self.ask(**body)["choices"]
            many = self.ask(n=6, **body)["choices"]
            self.assertEqual(len(many), 6 * len(alone))
            for c in many:
                one = alone[c["index"] // 6]
                n = len(one["logprobs"]["tokens"]) - 3
                self.assertEqual("".join(c["logprobs"]["tokens"]), c["text"])
                for key, values in c["logprobs"].items():
                    self.assertEqual(values[:n], one["logprobs"][key][:n], key)

    def test_logprobs(self):
        c = self.ask(prompt=PROMPT, max_tokens=10, logprobs=2, seed=2, **MIXED)["choices"][0]
        p = c["logprobs"]
        self.assertEqual("".join(p["tokens"]), c["text"])
        self.assertTrue(all(len(t) <= 2 for t in p["top_logprobs"]))
        self.refused("logprobs", prompt="x", logprobs=21)

    def test_stream_is_the_whole(self):
        for body in (dict(prompt=PROMPT, max_tokens=20, n=3, seed=6, logprobs=1, **MIXED),
                     dict(prompt=[PROMPT, "Hello"], max_tokens=10, echo=True),
                     dict(prompt="Count: 1 2 3", max_tokens=20, stop=" 9"),
                     dict(prompt=PROMPT, max_tokens=4, echo=True, logprobs=2)):
            whole = self.ask(**body)["choices"]
            events = [d for _, d in self.stream(**body, stream_options={"include_usage": True})]
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual(events[-2]["choices"], [])
            self.assertIn("usage", events[-2])
            for c in whole:
                mine = [e["choices"][0] for e in events[:-2] if e["choices"][0]["index"] == c["index"]]
                self.assertEqual("".join(m["text"] for m in mine), c["text"])
                self.assertEqual(mine[-1]["finish_reason"], c["finish_reason"])
                self.assertTrue(all(m["finish_reason"] is None for m in mine[:-1]))
                if c["logprobs"]:
                    for key, want in c["logprobs"].items():
                        self.assertEqual([x for m in mine if m["logprobs"] for x in m["logprobs"][key]],
                                         want, key)

    def test_many_at_once(self):
        bodies = [dict(prompt=f"{PROMPT} {w}", max_tokens=30, seed=i, **MIXED)
                  for i, w in enumerate(("fox", "cat", "dog", "toad", "king", "girl", "boy", "owl") * 2)]
        alone = [self.ask(**b)["choices"][0]["text"] for b in bodies]
        self.assertEqual(together([lambda b=b: self.ask(**b)["choices"][0]["text"] for b in bodies]), alone)

    def test_too_long(self):
        r = self.ask(400, prompt=[5] * 4097)["error"]
        self.assertEqual(r["code"], "context_length_exceeded")
        self.assertEqual((r["n_prompt_tokens"], r["n_ctx"]), (4097, 4096))
        r = self.ask(prompt=[5] * 4090, ignore_eos=True)
        self.assertEqual(r["choices"][0]["finish_reason"], "length")
        self.assertEqual(r["choices"][0]["finish_details"], {"type": "context_full"})
        self.assertEqual(r["usage"]["total_tokens"], 4096)


class Native(Both):
    path = "/completion"

    def test_whole(self):
        r = self.ask(prompt=PROMPT, n_predict=6, seed=42)
        self.assertEqual(self.ask(path="/completions", prompt=PROMPT, n_predict=6)["content"], r["content"])
        self.assertTrue(r["stop"])
        self.assertEqual((r["stop_type"], r["stopping_word"]), ("limit", ""))
        self.assertEqual(r["prompt"], PROMPT)
        self.assertEqual(r["tokens_predicted"], 6)
        self.assertEqual(r["tokens_evaluated"], 8)
        self.assertEqual(r["tokens_cached"], 14)
        self.assertEqual(r["generation_settings"]["seed"], 42)
        self.assertEqual(r["generation_settings"]["n_predict"], 6)
        self.assertEqual(r["tokens"], [])
        self.assertFalse(r["truncated"] or r["has_new_line"])
        self.assertIn("predicted_per_second", r["timings"])

    def test_stops(self):
        r = self.ask(prompt="<|turn>user\nCount from 1 to 20.<turn|>\n<|turn>model\n", stop=[" 9"])
        self.assertEqual((r["stop_type"], r["stopping_word"]), ("word", " 9"))
        self.assertNotIn(" 9", r["content"])
        r = self.ask(prompt="<|turn>user\nWho are you?<turn|>\n<|turn>model\n", n_predict=100)
        self.assertEqual(r["stop_type"], "eos")

    def test_tokens_and_probabilities(self):
        r = self.ask(prompt=PROMPT, n_predict=8, n_probs=3, return_tokens=True)
        self.assertEqual(len(r["tokens"]), 8)
        p = r["completion_probabilities"]
        self.assertEqual([t["id"] for t in p], r["tokens"])
        self.assertEqual(bytes(b for t in p for b in t["bytes"]).decode(), r["content"])
        for t in p:
            self.assertEqual(len(t["top_logprobs"]), 3)
            self.assertAlmostEqual(t["top_logprobs"][0]["logprob"], t["logprob"], places=5)
            self.assertLessEqual(sum(math.exp(x["logprob"]) for x in t["top_logprobs"]), 1.0001)

    def test_many_probabilities(self):
        few = self.ask(prompt=PROMPT, n_predict=2, n_probs=5)["completion_probabilities"]
        for n, want in ((100, 100), (1000, 1000), (4096, 2048)):  # the vocabulary has 2,048 tokens
            for t, short in zip(self.ask(prompt=PROMPT, n_predict=2, n_probs=n)["completion_probabilities"], few):
                top = [p["logprob"] for p in t["top_logprobs"]]
                self.assertEqual((len(top), top), (want, sorted(top, reverse=True)))
                self.assertEqual(len({p["id"] for p in t["top_logprobs"]}), want)
                self.assertEqual(t["top_logprobs"][:5], short["top_logprobs"])
        r = self.ask(prompt=PROMPT, n_predict=1, n_probs=1000, post_sampling_probs=True, **MIXED)
        self.assertAlmostEqual(sum(p["prob"] for p in r["completion_probabilities"][0]["top_probs"]), 1, places=1)
        self.refused("n_probs", prompt="a", n_probs=4097)

    def test_stream(self):
        body = dict(prompt=PROMPT, n_predict=8, return_tokens=True, n_probs=1)
        whole = self.ask(**body)
        e = [d for _, d in self.stream(**body)]
        self.assertEqual("".join(d["content"] for d in e), whole["content"])
        self.assertEqual([t for d in e for t in d["tokens"]], whole["tokens"])
        self.assertEqual([d["stop"] for d in e], [False] * (len(e) - 1) + [True])
        self.assertIn("timings", e[-1])
        self.assertEqual([p for d in e for p in d["completion_probabilities"]],
                         whole["completion_probabilities"])

    def test_tokens_without_text(self):
        """All that were generated: the end, and those of a stop string."""
        end = dict(prompt="<|turn>user\nWho are you?<turn|>\n<|turn>model\n", n_predict=100, return_tokens=True)
        stop = dict(prompt="<|turn>user\nCount from 1 to 20.<turn|>\n<|turn>model\n", stop=[" 9"], return_tokens=True)
        for body, why in ((end, "eos"), (stop, "word")):
            whole = self.ask(**body)
            self.assertEqual(whole["stop_type"], why)
            self.assertEqual(len(whole["tokens"]), whole["tokens_predicted"])
            e = [d for _, d in self.stream(**body)]
            self.assertEqual([t for d in e[:-1] for t in d["tokens"]], whole["tokens"])
            self.assertEqual((e[-1]["tokens"], "".join(d["content"] for d in e)), ([], whole["content"]))

    def test_lists(self):
        r = self.ask(prompt=[PROMPT, [2, 1182, 1194], "Hello"], n_predict=4)
        self.assertEqual([x["index"] for x in r], [0, 1, 2])
        self.assertEqual(r[0]["content"], self.ask(prompt=PROMPT, n_predict=4)["content"])
        self.assertEqual(r[1]["tokens_evaluated"], 3)
        self.assertIsInstance(self.ask(prompt=[2, 1182], n_predict=1), dict)
        self.assertEqual(self.ask(prompt={"prompt_string": PROMPT}, n_predict=4)["content"],
                         r[0]["content"])
        self.refused("prompt.multimodal_data", prompt={"prompt_string": "x", "multimodal_data": ["aGk="]})  # no marker
        self.refused("prompt.multimodal_data[0]", prompt={"prompt_string": "x<__media__>", "multimodal_data": ["aGk="]})  # no picture

    def test_time_for_an_answer(self):
        """t_max_predict_ms ends answers of several lines, and no others; a millisecond is no time for 1,500 tokens."""
        lines = {"prompt": PROMPT, "n_predict": 1500, "grammar": "root ::= [a\n] [\n] [a\n]{3000}", "t_max_predict_ms": 1}
        r = self.ask(**lines)
        self.assertEqual((r["stop_type"], r["has_new_line"]), ("limit", True))
        self.assertLess(r["tokens_predicted"], 1500)
        for unbounded in (0, -1):
            self.assertEqual(self.ask(**{**lines, "n_predict": 20, "t_max_predict_ms": unbounded})["tokens_predicted"], 20)
        self.assertEqual(self.ask(prompt=PROMPT, n_predict=50, grammar="root ::= [a]{3000}", t_max_predict_ms=1)["tokens_predicted"], 50)

    def test_response_fields(self):
        r = self.ask(prompt=PROMPT, n_predict=4, seed=9,
                     response_fields=["content", "generation_settings/seed", "timings/ingle/reuse", "nothing"])
        self.assertEqual(set(r), {"content", "generation_settings/seed", "timings/ingle/reuse"})
        self.assertEqual(r["generation_settings/seed"], 9)
        c, r = self.server.open("POST", "/completion", {"prompt": PROMPT, "n_predict": 1, "response_fields": ["content", "tokens", "content"]})
        self.assertEqual(r.read().count(b'"content"'), 1)
        c.close()
        self.refused("response_fields", prompt="x", response_fields=[1])

    def test_nothing_to_generate(self):
        r = self.ask(prompt=PROMPT, n_predict=0)
        self.assertEqual((r["content"], r["tokens_predicted"], r["stop_type"]), ("", 0, "limit"))


class Bounded(Case):
    """What is kept of a request's tokens has a limit, in every dialect."""
    options = ["--temp", "0", "--limit", "logprobs=600", "-c", "4096"]
    LONG = {"ignore_eos": True, "temperature": 0}
    ASKED = [{"role": "user", "content": "Count."}]

    def ask(self, path, status=200, **body):
        got, _, r = self.server.post(path, body)
        self.assertEqual(got, status, r)
        return r

    def refused(self, path, param, **body):
        e = self.ask(path, 400, **body)["error"]
        self.assertIn("--limit logprobs", e["message"])
        self.assertEqual(e.get("param"), param)

    def test_too_much_is_refused(self):
        text = "/v1/completions"
        self.refused(text, "logprobs", prompt=["a b c d e f g h"] * 16, n=4, logprobs=5, echo=True, max_tokens=1)
        self.refused(text, "logprobs", prompt=[[50] * 1000], logprobs=0, echo=True, max_tokens=0)
        self.refused(text, "echo", prompt=[[50] * 1000] * 3, n=2, echo=True, max_tokens=0)
        self.refused(text, "logprobs", prompt="a", n=4, logprobs=9, max_tokens=16)
        self.refused("/v1/chat/completions", "logprobs", messages=self.ASKED, n=4, logprobs=True, top_logprobs=9,
                     max_tokens=16)
        self.refused("/v1/responses", "logprobs", input="Count.", top_logprobs=19, max_output_tokens=40)
        self.refused("/completion", "logprobs", prompt="a", n_probs=9, n_predict=64)

    def test_what_fits_is_computed(self):
        text = "/v1/completions"
        self.ask(text, prompt="a", n=4, logprobs=9, max_tokens=15, **self.LONG)
        self.ask(text, prompt=[[50] * 500] * 4, n=2, echo=True, max_tokens=0)
        self.ask("/completion", prompt="a", n_probs=9, n_predict=60, **self.LONG)

    def test_answers_without_a_length_are_as_long_as_fits(self):
        r = self.ask("/v1/completions", prompt="a", n=4, logprobs=9, **self.LONG)
        self.assertEqual(r["usage"]["completion_tokens"], 4 * 15)
        self.assertEqual([c["finish_reason"] for c in r["choices"]], ["length"] * 4)
        r = self.ask("/completion", prompt="a", n_probs=9, **self.LONG)
        self.assertEqual(r["tokens_predicted"], 60)
        r = self.ask("/v1/chat/completions", messages=self.ASKED, logprobs=True, top_logprobs=19, **self.LONG)
        self.assertEqual(r["usage"]["completion_tokens"], 30)


if __name__ == "__main__":
    main()
