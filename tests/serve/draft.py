#!/usr/bin/env python3
"""draft.py INGLE - drafting in the server: the text is that of plain decoding, whatever drafts, from whatever cache; each network
drafts in every situation, behind a restart as well as before it; timings, usage, props, metrics and requests say what was drafted.
--draft-min has tokens drafted where it would not pay, as with models so small."""
import math, os, subprocess, sys, tempfile, unittest

from client import SANITIZED, Server, WEATHER, main, together

NANO = "tests/data/nano"
GEMMA = f"{NANO}/nano-gemma4-Q4_K_M.gguf"
V4 = "tests/data/nano-v4/nano-v4-MXFP4.gguf"
DRAFTERS = {  # of a network: its model and its file
    "dflash": (GEMMA, f"{NANO}/nano-gemma4-dflash-Q8_0.gguf"),
    "dspark": (GEMMA, f"{NANO}/nano-gemma4-dspark-Q8_0.gguf"),
    "mtp": (GEMMA, f"{NANO}/nano-gemma4-mtp-Q8_0.gguf"),
    "v4 mtp": (V4, "tests/data/nano-v4/nano-v4-mtp0-Q8_0.gguf"),
    "v4 dspark": (V4, "tests/data/nano-v4/nano-v4-dspark-Q8_0.gguf"),
}
SHORT = "Say 1 to 40."
LONG = "red fox lake stone tree " * 30 + "\nSay 1 to 40."  # longer than a step
SAMPLED = {"temperature": 0.8, "top_k": 40, "seed": 11}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather in a city", "parameters": WEATHER}}
AGE = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
       "required": ["name", "age"], "additionalProperties": False}
INGLE = sys.argv[1]
CHAT, TEXT = "/chat/completions", "/completions"
OPTIONS = ("--chunk", "64", "--ctx", "1024")


def body_of(path, prompt, **more):
    if path == TEXT:
        return {"prompt": prompt, "n_predict": 40, "temperature": 0, "ignore_eos": True, **more}
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 40, "temperature": 0, **more}


def finite(x):
    """Whether all numbers of a reply are some."""
    if isinstance(x, dict):
        return all(finite(v) for v in x.values())
    if isinstance(x, list):
        return all(map(finite, x))
    return not isinstance(x, float) or math.isfinite(x)


def said(r):
    """Without numbers that are drawn."""
    if "content" in r:
        return r["content"]
    message = dict(r["choices"][0]["message"])
    message["tool_calls"] = [c["function"] for c in message.get("tool_calls") or []]
    return message


class Case(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.plain = Server(INGLE, "-m", cls.model, "--draft", "off", *OPTIONS)
        cls.s = Server(INGLE, "-m", cls.model, *cls.options, *OPTIONS)

    @classmethod
    def tearDownClass(cls):
        try:
            assert cls.s.close() == 0, "".join(cls.s.log)
        finally:
            cls.plain.close()

    def ask(self, server, path, body):
        status, _, r = server.post(path, body)
        self.assertEqual(status, 200, r)
        self.assertTrue(finite(r), r)
        return r

    def drafted(self, t):
        self.assertGreater(t["draft_n"], 0, t)
        self.assertGreater(t["draft_n_accepted"], 0, t)
        self.assertLessEqual(t["draft_n_accepted"], t["draft_n"])
        d = t["ingle"]["draft"]
        self.assertGreater(d["drafts"], 0)
        self.assertAlmostEqual(d["mean_length"], 1 + t["draft_n_accepted"] / d["drafts"])

    def same(self, path, body):
        """The reply, which says what a server without a drafter says."""
        plain = {k: v for k, v in body.items() if k not in ("draft_method", "speculative.type", "speculative")}
        want, r = self.ask(self.plain, path, plain), self.ask(self.s, path, body)
        self.assertEqual(said(r), said(want), body)
        self.assertEqual(want["timings"]["draft_n"], 0)
        return r


class Networks:
    """One slot, default caching."""

    def test_several_times(self):
        for path in (TEXT, CHAT):
            for prompt in (SHORT, LONG):
                for how in ({}, SAMPLED):
                    with self.subTest(path=path, prompt=prompt[:9], how=how):
                        body = body_of(path, prompt, **how)
                        want = said(self.ask(self.plain, path, body))
                        for _ in range(5 if prompt == SHORT else 3):  # cold, then from what it keeps
                            r = self.ask(self.s, path, body)
                            self.assertEqual(said(r), want)
                            self.drafted(r["timings"])

    def test_a_deep_context(self):
        """Many windows behind the beginning as much is accepted as at it."""
        found = []
        for n in (30, 90, 120):
            prompt = "red fox lake stone tree " * n + "\nSay 1 to 40."
            t = self.same(CHAT, {**body_of(CHAT, prompt), "ignore_eos": True})["timings"]
            self.drafted(t)
            found.append(t["ingle"]["draft"]["mean_length"])
        self.assertGreater(found[-1], 0.6 * found[0], found)

    def test_a_rewind(self):
        first = [{"role": "user", "content": LONG}]
        more = first + [{"role": "assistant", "content": "1 2"}, {"role": "user", "content": SHORT}]
        for how in ({}, SAMPLED):
            for turns in (first, more, first, [{"role": "user", "content": LONG[:240] + SHORT}], first):
                self.drafted(self.same(CHAT, {"messages": turns, "max_tokens": 40, "temperature": 0, **how})["timings"])

    def test_a_restart(self):
        """What is in the store on disk drafts as well as what was computed: equal drafts, equally many right."""
        body = body_of(CHAT, LONG)
        want = said(self.ask(self.plain, CHAT, body))
        with tempfile.TemporaryDirectory() as d:
            replies = []
            for _ in range(2):
                with Server(INGLE, "-m", self.model, *self.options, *OPTIONS, "--store", d, "--store-tokens", "16") as s:
                    replies.append(self.ask(s, CHAT, body))
        for r in replies:
            self.assertEqual(said(r), want)
            self.drafted(r["timings"])
        cold, warm = (r["timings"] for r in replies)
        self.assertEqual(cold["cache_n"], 0)
        self.assertGreater(warm["ingle"]["reuse"]["from_disk"], 64)
        for name in ("draft_n", "draft_n_accepted"):
            self.assertEqual(warm[name], cold[name], name)


class Dflash(Networks, Case):
    model, options = GEMMA, ("--draft", DRAFTERS["dflash"][1], "--draft-method", "dflash", "--draft-min", "4", "--draft-max", "4", "--parallel", "1")


@unittest.skipIf(SANITIZED, "golden_session_draft has each network; the server is the same")
class Dspark(Networks, Case):
    model, options = GEMMA, ("--draft", DRAFTERS["dspark"][1], "--draft-method", "dspark", "--draft-min", "4", "--draft-max", "4", "--parallel", "1")


@unittest.skipIf(SANITIZED, "golden_session_draft has each network; the server is the same")
class Mtp(Networks, Case):
    model, options = GEMMA, ("--draft", DRAFTERS["mtp"][1], "--draft-method", "mtp", "--draft-min", "4", "--draft-max", "4", "--parallel", "1")


class V4Mtp(Networks, Case):
    model, options = V4, ("--draft", DRAFTERS["v4 mtp"][1], "--draft-method", "mtp", "--draft-min", "3", "--draft-max", "3", "--parallel", "1")


@unittest.skipIf(SANITIZED, "golden_session_draft has each network; the server is the same")
class V4Dspark(Networks, Case):
    model, options = V4, ("--draft", DRAFTERS["v4 dspark"][1], "--draft-method", "dspark", "--draft-min", "4", "--draft-max", "4", "--parallel", "1")


class Text(Case):
    """The text alone: what repeats is drafted, with no file at all."""
    model, options = GEMMA, ("--draft-method", "ngram", "--draft-min", "3", "--parallel", "1")

    def test_what_repeats(self):
        count = " ".join(map(str, range(1, 41)))
        for model in (self.s, None):
            s = model or Server(INGLE, "-m", V4, *self.options, *OPTIONS)
            plain = self.plain if model else Server(INGLE, "-m", V4, "--draft", "off", *OPTIONS)
            try:
                for how in ({}, {"temperature": 0.3, "seed": 5}):
                    body = body_of(TEXT, f"{count}\n{count}\n1 2 3 4 5 6 7", **how)
                    want = said(self.ask(plain, TEXT, body))
                    for _ in range(5):
                        r = self.ask(s, TEXT, body)
                        self.assertEqual(said(r), want)
                        self.drafted(r["timings"])
            finally:
                if not model:
                    s.close()
                    plain.close()

    def test_an_earlier_answer_drafts(self):
        body = body_of(CHAT, SHORT)
        self.same(CHAT, body)
        self.drafted(self.same(CHAT, body)["timings"])


class Doors(Case):
    """What a request says and is told; four clients; both on a server that decides by itself."""
    model, options = GEMMA, ("--draft", DRAFTERS["dflash"][1], "--parallel", "4")
    MUCH = {"draft_min": 4}

    def test_tools_and_grammars(self):
        weather = {"tools": [TOOL], "max_tokens": 60}
        for body in (body_of(CHAT, "What is the weather in Paris?", **weather),
                     body_of(CHAT, "What is the weather in Paris?", **weather, tool_choice="required"),
                     body_of(CHAT, "Give me a JSON object with name Ada and age 42.",
                             response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": AGE}}),
                     body_of(CHAT, "Give me a JSON object with name Ada and age 42.", **SAMPLED,
                             response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": AGE}}),
                     body_of(CHAT, SHORT, grammar='root ::= [0-9]+ (" " [0-9]+)*', **SAMPLED)):
            self.drafted(self.same(CHAT, {**body, **self.MUCH})["timings"])
        body = body_of(TEXT, "1 2 3 4", stop=["18", "x"], repeat_penalty=1.1, presence_penalty=0.2, dry_multiplier=0.5, **self.MUCH)
        self.same(TEXT, body)

    def test_streams(self):
        body = {**body_of(CHAT, SHORT), **self.MUCH, "stream_options": {"include_usage": True}}
        want = said(self.ask(self.plain, CHAT, body_of(CHAT, SHORT)))["content"]
        events = [e for _, e in self.s.stream(CHAT, body) if e != "[DONE]"]
        text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
        self.assertEqual(text, want)
        last = [e for e in events if e.get("usage")][-1]
        self.drafted([e for e in events if "timings" in e][-1]["timings"])
        self.assertGreater(last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 0)

    def test_usage_in_all_dialects(self):
        def right(u):
            self.assertGreater(u["accepted_prediction_tokens"], 0, u)
            self.assertGreaterEqual(u["rejected_prediction_tokens"], 0, u)

        turns = {"messages": [{"role": "user", "content": SHORT}]}
        model = self.s.get("/v1/models")[2]["data"][0]["id"]
        chat = self.ask(self.s, CHAT, body_of(CHAT, SHORT, **self.MUCH))
        right(chat["usage"]["completion_tokens_details"])
        t = self.ask(self.s, "/v1/completions", {"prompt": "1 2 3 4 5", "max_tokens": 30, "temperature": 0, "ignore_eos": True, **self.MUCH})
        right(t["usage"]["completion_tokens_details"])
        m = self.ask(self.s, "/v1/messages", {**turns, "max_tokens": 30, "temperature": 0, **self.MUCH})
        right(m["usage"]["output_tokens_details"])
        r = self.ask(self.s, "/v1/responses", {"input": SHORT, "max_output_tokens": 30, "temperature": 0, **self.MUCH})
        right(r["usage"]["output_tokens_details"])
        o = self.ask(self.s, "/api/chat", {**turns, "model": model, "stream": False, "options": {"num_predict": 30, "temperature": 0, **self.MUCH}})
        right(o)
        off = self.ask(self.plain, CHAT, body_of(CHAT, SHORT))
        self.assertNotIn("accepted_prediction_tokens", off["usage"]["completion_tokens_details"])
        self.assertIn("--draft off", off["timings"]["ingle"]["draft"]["why_off"])

    def test_per_request(self):
        for off in ({"draft": False}, {"speculative.n_max": 0}, {"draft_max": 0}, {"draft": 0}, {"speculative": {"n_max": 0}}, {"speculative": False}):
            r = self.same(CHAT, body_of(CHAT, SHORT, **off, **self.MUCH))
            self.assertEqual(r["timings"]["draft_n"], 0, off)
            self.assertIn("request", r["timings"]["ingle"]["draft"]["why_off"])
        for on, most in (({"draft_max": 1, "draft_min": 1}, 1), ({"speculative.n_max": 2, "speculative.n_min": 2, "speculative.p_min": 0.5}, 2),
                         ({"speculative": {"n_max": 3, "n_min": 9}}, 3), ({"draft": 4, "draft_min": 3}, 4), ({"draft": True, "draft_min": 2}, 32),
                         ({"draft_tree": 1, "draft_min": 2}, 32)):
            t = self.same(CHAT, body_of(CHAT, SHORT, **on))["timings"]
            self.drafted(t)
            self.assertLessEqual(t["draft_n"], most * t["ingle"]["draft"]["drafts"], on)
        for by in ({"draft_method": "dflash"}, {"draft_method": "auto"}, {"speculative.type": "draft-dflash"}, {"speculative": {"type": "draft"}}):
            self.drafted(self.same(CHAT, body_of(CHAT, SHORT, **by, **self.MUCH))["timings"])
        count = " ".join(map(str, range(1, 41)))
        for by in ({"draft_method": "ngram"}, {"speculative.type": "ngram_simple"}):
            self.drafted(self.same(TEXT, body_of(TEXT, f"{count}\n{count}\n1 2 3 4 5 6 7", **by, **self.MUCH))["timings"])
        r = self.same(CHAT, body_of(CHAT, SHORT, draft_method="none", **self.MUCH))
        self.assertEqual(r["timings"]["draft_n"], 0)
        self.assertIn("request", r["timings"]["ingle"]["draft"]["why_off"])
        for method, words in (("mtp", "there is: dflash, ngram"), ("model", "there is: dflash, ngram"), ("eagle", "is none of")):
            status, _, r = self.s.post(CHAT, body_of(CHAT, "x", draft_method=method))
            self.assertEqual((status, words in r["error"]["message"], "draft_method" in r["error"]["message"]), (400, True, True), r)
        self.assertIn("--draft off", self.plain.post(CHAT, body_of(CHAT, "x", draft_method="ngram"))[2]["error"]["message"])
        for wrong in ({"draft_method": 3}, {"draft_method": "x" * 50}, {"speculative": {"type": 1}}, {"draft_max": -2}, {"speculative.n_max": "many"}, {"draft": "yes"}, {"speculative": 3}, {"speculative.p_min": 2},
                      {"draft_min": -1}, {"speculative.n_min": "x"}, {"draft_tree": -1}, {"draft_tree": "x"}):
            self.assertEqual(self.s.post(CHAT, body_of(CHAT, "x", **wrong))[0], 400, wrong)

    def test_several_answers(self):
        r = self.ask(self.s, CHAT, body_of(CHAT, SHORT, n=3, **SAMPLED, **self.MUCH))
        want = self.ask(self.plain, CHAT, body_of(CHAT, SHORT, n=3, **SAMPLED))
        self.assertEqual([c["message"] for c in r["choices"]], [c["message"] for c in want["choices"]])
        self.drafted(r["timings"])

    def test_four_clients(self):
        prompts = (SHORT, LONG, "Write a C function that can add two int values.", "List the months of the year.")
        bodies = [body_of(CHAT, p, **how) for how in ({}, {**SAMPLED}) for p in prompts]
        want = [said(self.ask(self.plain, CHAT, b)) for b in bodies]
        for more in ({}, self.MUCH):
            got = together([lambda b=b: self.ask(self.s, CHAT, {**b, **more}) for b in bodies])
            self.assertEqual([said(r) for r in got], want)
        for r in got:
            self.drafted(r["timings"])
        methods = ("none", "dflash", "ngram", "auto")
        got = together([lambda b=b, m=methods[i % 4]: self.ask(self.s, CHAT, {**b, **self.MUCH, "draft_method": m}) for i, b in enumerate(bodies)])
        self.assertEqual([said(r) for r in got], want)
        self.assertEqual([r["timings"]["draft_n"] for r in got][::4], [0, 0])
        self.drafted(got[1]["timings"])

    def test_props_and_metrics(self):
        self.ask(self.s, CHAT, body_of(CHAT, SHORT, **self.MUCH))
        p = self.s.get("/props")[2]["speculative"]
        self.assertTrue(p["enabled"])
        self.assertEqual(p["proposer"], "dflash")
        self.assertEqual(os.path.basename(p["draft_path"]), os.path.basename(DRAFTERS["dflash"][1]))
        for name in ("drafts", "drafted", "accepted"):
            self.assertGreater(p[name], 0, name)
        self.assertGreater(p["mean_length"], 1)
        metrics = self.s.get("/metrics")[2]
        for name in ("draft_tokens", "accepted_tokens", "drafts"):
            line = [l for l in metrics.splitlines() if l.startswith(f"llamacpp:spec_decode_num_{name}_total ")][0]
            self.assertGreater(float(line.split()[1]), 0, line)
        self.assertTrue('accepted_tokens_per_pos_total{position="0"}' in metrics)
        info = [l for l in metrics.splitlines() if l.startswith("ingle_draft_info")][0]
        self.assertIn('{proposer="dflash",why_off_now="', info)
        self.assertGreater(float(metrics.split("\ningle_draft_mean_length ")[1].split()[0]), 1)
        off = self.plain.get("/props")[2]["speculative"]
        self.assertEqual((off["enabled"], off["proposer"]), (False, "off"))
        self.assertIn("--draft off", off["why_no_network"])


class Smoke(unittest.TestCase):
    def smoke(self, server, *more):
        model = server.get("/v1/models")[2]["data"][0]["id"]
        r = subprocess.run([sys.executable, "scripts/smoke.py", server.url, model, "--runs", "2", *more],
                           capture_output=True, text=True, timeout=250)
        return r.returncode, r.stdout + r.stderr

    def test_smoke(self):
        with Server(INGLE, "-m", GEMMA, "--draft", DRAFTERS["mtp"][1], "--draft-method", "mtp") as s:
            rc, out = self.smoke(s, "--draft", "mtp")
            self.assertEqual(rc, 0, out)
            self.assertEqual(self.smoke(s, "--draft", "dflash")[0], 1)
        with Server(INGLE, "-m", GEMMA, "--draft", "off") as s:
            self.assertEqual(self.smoke(s)[0], 1)
            rc, out = self.smoke(s, "--draft", "off")
            self.assertEqual(rc, 0, out)


if __name__ == "__main__":
    main()
