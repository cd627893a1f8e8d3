#!/usr/bin/env python3
"""draft.py INGLE - drafting in the server: the text is that of plain decoding, whatever drafts, from whatever cache; timings, props,
metrics and requests say what was drafted."""
import os, subprocess, sys, tempfile, unittest

from client import Server, main

NANO = "tests/data/nano"
TARGET = f"{NANO}/nano-gemma4-Q4_K_M.gguf"
DRAFTERS = {m: f"{NANO}/nano-gemma4-{m}-Q8_0.gguf" for m in ("dflash", "dspark", "mtp")}
DRAFTERS = {m: p for m, p in DRAFTERS.items() if os.path.exists(p)}
V4_FILE = "tests/data/nano-v4/nano-v4-MXFP4.gguf"
SHORT = "Say 1 to 40."
LONG = "red fox lake stone tree " * 30 + "\nSay 1 to 40."
SAMPLED = {"temperature": 0.8, "top_k": 40, "seed": 11}
INGLE = sys.argv[1]


def chat(s, prompt, **more):
    r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": 60, "temperature": 0, **more})[2]
    return r["choices"][0]["message"]["content"], r["timings"]


def complete(s, prompt, **more):
    r = s.post("/completion", {"prompt": prompt, "n_predict": 60, "temperature": 0, "ignore_eos": True, **more})[2]
    return r["content"], r["timings"]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain = Server(INGLE, "-m", cls.model, "--draft", "off", "--chunk", "64")
        cls.s = Server(INGLE, "-m", cls.model, *cls.options, "--parallel", "1", "--chunk", "64")

    @classmethod
    def tearDownClass(cls):
        cls.s.close()
        cls.plain.close()

    def drafted(self, t):
        self.assertGreater(t["draft_n"], 0)
        self.assertGreater(t["draft_n_accepted"], 0)
        self.assertLessEqual(t["draft_n_accepted"], t["draft_n"])


class Same:
    def test_five_times(self):
        """One slot, default caching: each run drafts, none says another text."""
        for ask in (chat, complete):
            for prompt in (SHORT, LONG):
                for how in ({}, SAMPLED):
                    want = ask(self.plain, prompt, **how)[0]
                    n_drafted = n_accepted = 0
                    for _ in range(5):
                        text, t = ask(self.s, prompt, **how)
                        self.assertEqual(text, want)
                        n_drafted += t["draft_n"]
                        n_accepted += t["draft_n_accepted"]
                    self.assertGreater(n_drafted, 0, (ask.__name__, prompt[:10], how))
                    self.assertGreater(n_accepted, 0, (ask.__name__, prompt[:10], how))

    def test_a_rewind(self):
        first = [{"role": "user", "content": LONG}]
        for turns in (first, first + [{"role": "assistant", "content": "1 2"}, {"role": "user", "content": SHORT}], first):
            body = {"messages": turns, "max_tokens": 60, "temperature": 0}
            want = self.plain.post("/v1/chat/completions", body)[2]["choices"][0]["message"]
            got = self.s.post("/v1/chat/completions", body)[2]
            self.assertEqual(got["choices"][0]["message"], want)
            self.drafted(got["timings"])

    def test_per_request(self):
        want, t = chat(self.s, SHORT, draft=False)
        self.assertEqual(t["draft_n"], 0)
        for off in ({"speculative.n_max": 0}, {"draft_max": 0}, {"draft": 0}, {"speculative": {"n_max": 0}}, {"speculative": False}):
            text, t = chat(self.s, SHORT, **off)
            self.assertEqual((text, t["draft_n"]), (want, 0), off)
        for on in ({"speculative.n_max": 2, "speculative.n_min": 1, "speculative.p_min": 0.5}, {"draft_max": 3}, {"draft": True}, {"draft": 4}):
            text, t = chat(self.s, SHORT, **on)
            self.assertEqual(text, want)
            self.drafted(t)
        for wrong in ({"draft_max": -2}, {"speculative.n_max": "many"}, {"draft": "yes"}, {"speculative": 3}, {"speculative.p_min": 2}):
            self.assertEqual(self.s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **wrong})[0], 400, wrong)

    def test_props_and_metrics(self):
        chat(self.s, SHORT)
        p = self.s.get("/props")[2]["speculative"]
        self.assertTrue(p["enabled"])
        self.assertEqual(p["proposer"], self.proposer)
        self.assertGreater(p["drafted"], 0)
        self.assertGreater(p["accepted"], 0)
        self.assertGreater(p["mean_length"], 1)
        metrics = self.s.get("/metrics")[2]
        for name in ("draft_tokens", "accepted_tokens", "drafts"):
            line = [l for l in metrics.splitlines() if l.startswith(f"llamacpp:spec_decode_num_{name}_total ")][0]
            self.assertGreater(float(line.split()[1]), 0, line)
        self.assertIn('accepted_tokens_per_pos_total{position="0"}', metrics)
        off = self.plain.get("/props")[2]["speculative"]
        self.assertEqual((off["enabled"], off["proposer"]), (False, "off"))
        self.assertIn("--draft off", off["why_no_network"])

    def test_smoke(self):
        model = self.s.get("/v1/models")[2]["data"][0]["id"]
        r = subprocess.run([sys.executable, "scripts/smoke.py", self.s.url, model, "--draft", self.proposer, "--runs", "2"],
                           capture_output=True, text=True, timeout=250)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        r = subprocess.run([sys.executable, "scripts/smoke.py", self.plain.url, model, "--runs", "1"], capture_output=True, text=True,
                           timeout=250)
        self.assertEqual(r.returncode, 1, r.stdout)


def network(kind):
    return type(kind, (Same, Case), {"model": TARGET, "options": ("--draft", DRAFTERS[kind]), "proposer": kind})


for kind in DRAFTERS:
    globals()[kind.title()] = network(kind)


class V4(Same, Case):
    model, options, proposer = V4_FILE, ("--draft-method", "mtp"), "mtp"


class Text(Same, Case):
    model, options, proposer = TARGET, ("--draft-method", "ngram"), "ngram"


class Restored(unittest.TestCase):
    """Behind a restart, from the store on disk."""

    def test_a_restore(self):
        with Server(INGLE, "-m", TARGET, "--draft", "off") as s:
            want = chat(s, LONG)[0]
        for kind, path in DRAFTERS.items():
            with tempfile.TemporaryDirectory() as d:
                options = ("-m", TARGET, "--draft", path, "--store", d, "--store-tokens", "16")
                with Server(INGLE, *options) as s:
                    cold = chat(s, LONG)
                self.assertEqual(cold[0], want)
                with Server(INGLE, *options) as s:
                    warm = chat(s, LONG)
                self.assertEqual(warm[0], want)
                self.assertGreater(warm[1]["cache_n"], 100)
                for t in (cold[1], warm[1]):
                    self.assertGreater(t["draft_n_accepted"], 0, kind)


if __name__ == "__main__":
    main()
