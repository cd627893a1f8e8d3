#!/usr/bin/env python3
"""skip.py INGLE - prompts that a prompt drafter shortens, in the server, the daemon and the commands: every dialect takes the
field and tells both counts; the same text whatever else is computed; tools and grammars have the whole prompt."""
import json, os, subprocess, sys, tempfile, unittest

from client import SANITIZED, Server, main, together

INGLE = sys.argv[1]
DRAFTER = os.path.join(os.path.dirname(__file__), "..", "..", "assets", "nano-gemma4-Q8_0.gguf")
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
WORDS = " ".join(SYLLABLES[i % 60] + SYLLABLES[i * 7 // 60 % 60] + SYLLABLES[i * 13 % 59] for i in range(700))
PROMPT = WORDS + "\nSay 1 to 9."
SKIP = ("--prompt-drafter", DRAFTER, "--prompt-keep", "0.6", "--prompt-keep-from", "1100", "--draft", "off", "-t", "2")
MESSAGES = [{"role": "user", "content": PROMPT}]


def native(s, **more):
    status, _, r = s.post("/completion", {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "ignore_eos": True, **more})
    assert status == 200, r
    return r


def computed(r):
    return r["timings"].get("computed_tokens")


class Skip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server(INGLE, *SKIP, "--ctx", "1900", "--prompt-ctx", "4000")

    @classmethod
    def tearDownClass(cls):
        assert cls.s.close() == 0

    def test_every_dialect_tells_both_counts(self):
        found = []
        for path, body, whole, kept in (
                ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4}, lambda r: r["usage"]["prompt_tokens"],
                 lambda r: r["usage"]["prompt_tokens_details"]["computed_tokens"]),
                ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}, lambda r: r["usage"]["input_tokens"] + r["usage"]["cache_read_input_tokens"],
                 lambda r: r["usage"]["computed_tokens"]),
                ("/api/chat", {"messages": MESSAGES, "stream": False, "options": {"num_predict": 4}}, lambda r: r["prompt_eval_count"],
                 lambda r: r["computed_tokens"]),
                ("/v1/responses", {"input": PROMPT, "max_output_tokens": 16}, lambda r: r["usage"]["input_tokens"],
                 lambda r: r["usage"]["input_tokens_details"]["computed_tokens"])):
            status, _, r = self.s.post(path, body)
            self.assertEqual(status, 200, (path, r))
            found.append((whole(r), kept(r)))
        self.assertEqual(len(set(found)), 1, found)  # the same prompt
        whole, kept = found[0]
        self.assertGreater(whole, 1900)  # more than the context: what is kept counts
        self.assertTrue(1024 <= kept <= 0.6 * whole + 32, found)
        r = native(self.s)
        self.assertEqual(r["timings"]["prompt_n"] + r["timings"]["cache_n"], computed(r))
        skip = self.s.get("/props")[2]["prompt_drafter"]
        self.assertTrue(skip["keep"] == 0.6 and skip["from"] == 1100 and skip["n_ctx"] == 4000 and skip["bytes"] > 0, skip)

    def test_what_a_request_says(self):
        r = native(self.s, prompt_keep=0.64)
        self.assertGreater(computed(r), computed(native(self.s)))
        self.assertEqual(r["generation_settings"]["prompt_keep"], 0.64)
        for off in (False, 1):  # the whole prompt does not fit
            status, _, r = self.s.post("/completion", {"prompt": PROMPT, "prompt_keep": off})
            self.assertEqual(status, 400)
            self.assertIn("context size of 1900", json.dumps(r))
            self.assertNotIn("shortened", json.dumps(r))
        for text, said in ((WORDS + " " + WORDS, "it is not shortened: "), (WORDS + " " + WORDS[:1500], "is shortened to ")):
            status, _, r = self.s.post("/completion", {"prompt": text, "prompt_keep": 0.99})
            self.assertEqual(status, 400)
            self.assertIn(said, r["error"]["message"])
            self.assertIn("context size of 1900", r["error"]["message"])
        for bad in (0, -1, 1.5, "half", []):
            status, _, r = self.s.post("/v1/chat/completions", {"messages": MESSAGES, "prompt_keep": bad})
            self.assertEqual(status, 400, bad)
            self.assertIn("prompt_keep", json.dumps(r))
        self.assertNotIn("computed_tokens", native(self.s, prompt="short")["timings"])

    def test_grammars_have_the_whole_prompt(self):
        short = " ".join(WORDS.split()[:430])
        ask = {"prompt": short, "n_predict": 4, "temperature": 0}
        status, _, r = self.s.post("/completion", {**ask, "grammar": 'root ::= "a" "b"*'})
        self.assertEqual(status, 200, r)
        self.assertNotIn("computed_tokens", r["timings"])
        self.assertGreater(r["timings"]["prompt_n"] + r["timings"]["cache_n"], 1100)
        status, _, r = self.s.post("/completion", {**ask, "grammar": 'root ::= "a" "b"*', "prompt_keep": 0.5})
        self.assertIn("computed_tokens", r["timings"])

    def test_the_same_text_whatever_else_is_computed(self):
        want = native(self.s, cache_prompt=False)["content"]
        some = together([lambda k=k: native(self.s, cache_prompt=k, prompt_keep=keep)["content"] for k in (True, False) for keep in (0.6, 0.64)])
        self.assertEqual([some[0], some[2]], [want, want])

    @unittest.skipIf(SANITIZED, "golden_shorten shares prefixes, too")
    def test_what_stands_before_the_first_gap_is_shared(self):
        """A system prompt that others have sent, shortened or not, is not computed again."""
        system = " ".join(WORDS.split()[:200])
        asked = []
        for start, keep in ((0, False), (20, 0.7), (120, 0.7), (120, 0.7)):
            words = WORDS.split()[start : start + (60 if keep is False else 380)]
            status, _, r = self.s.post("/v1/chat/completions", {"max_tokens": 2, "prompt_keep": keep, "messages": [
                {"role": "system", "content": system}, {"role": "user", "content": " ".join(words)}]})
            self.assertEqual(status, 200, r)
            asked.append(r["usage"]["prompt_tokens_details"])
        self.assertNotIn("computed_tokens", asked[0])
        same = asked[1]["cached_tokens"]
        self.assertTrue(300 <= same < 900, asked)
        self.assertTrue(same <= asked[2]["cached_tokens"] < 900, asked)  # another document
        self.assertGreater(asked[3]["cached_tokens"], 1000)  # the same again
        self.assertTrue(all(a["computed_tokens"] > 1024 for a in asked[1:]), asked)
        system = " ".join(WORDS.split()[100:400])  # nobody has sent it
        ask = lambda start, n, **more: native(self.s, prompt=system + " " + " ".join(WORDS.split()[start : start + n]), **more)["content"]
        kinds = [dict(start=5, n=60, prompt_keep=False), dict(start=20, n=300, prompt_keep=0.7), dict(start=90, n=300, prompt_keep=0.7)]
        some = together([lambda k=k: ask(**k) for k in kinds + kinds])
        self.assertEqual(some, 2 * [ask(**k, cache_prompt=False) for k in kinds])

    def test_slots(self):
        """A slot of a shortened prompt is saved with its positions, and restored by another server."""
        with tempfile.TemporaryDirectory() as slots:
            more = (*SKIP, "--ctx", "1900", "--prompt-ctx", "4000", "--slot-save-path", slots)
            with Server(INGLE, *more) as s:
                text = native(s, id_slot=1)["content"]
                status, _, saved = s.post("/slots/1?action=save", {"filename": "a"})
                self.assertEqual(status, 200, saved)
                self.assertTrue(1024 <= saved["n_saved"] < 1900, saved)
                self.assertEqual(s.post("/slots/0?action=save", {"filename": "b"})[0], 404)
            for options in (more, (*more, "--kv-select", "1/1")):
                with Server(INGLE, *options) as s:
                    status, _, r = s.post("/slots/1?action=restore", {"filename": "a"})
                    if "--kv-select" in options:  # pages of another form
                        self.assertEqual(status, 400, r)
                        self.assertIn("of other settings: 'f16 exact+skip", json.dumps(r))
                        continue
                    self.assertEqual((status, r["n_restored"]), (200, saved["n_saved"]), r)
                    status, _, again = s.post("/slots/1?action=save", {"filename": "b"})  # it has them still
                    self.assertEqual((status, again["n_saved"]), (200, saved["n_saved"]), again)
                    r = native(s, id_slot=1)
                    self.assertEqual(r["content"], text)
                    self.assertGreater(r["timings"]["cache_n"], 1000)
                    other = native(s, prompt=" ".join(WORDS.split()[:430]), prompt_keep=False)  # whole: nothing of it behind the first gap
                    self.assertLess(other["timings"]["cache_n"], 400)
            lines = {"do": "load", "id": "f", "session": "s", "file": os.path.join(slots, "a")}
            p = subprocess.run([INGLE, "daemon", *SKIP, "--ctx", "1900"], input=json.dumps(lines) + "\n", capture_output=True, text=True)
            self.assertIn("was shortened; a session of the daemon has the whole text", p.stdout)

    def test_off_is_plain(self):
        short = " ".join(WORDS.split()[:430])
        plain = Server(INGLE, "--draft", "off", "-t", "2", "--ctx", "1900")
        try:
            self.assertEqual(native(self.s, prompt=short, prompt_keep=False)["content"], native(plain, prompt=short)["content"])
            r = native(plain, prompt=short, prompt_keep=0.5)  # said in a report
            self.assertNotIn("computed_tokens", r["timings"])
        finally:
            self.assertEqual(plain.close(), 0)


class Commands(unittest.TestCase):
    def test_run_and_plan(self):
        p = subprocess.run([INGLE, "run", *SKIP, "-n", "4", "--json", PROMPT], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        r = json.loads(p.stdout)
        self.assertTrue(1024 <= r["computed_tokens"] < r["prompt_tokens"], r)
        p = subprocess.run([INGLE, "inspect", "--plan", *SKIP], capture_output=True, text=True)
        self.assertIn("prompt drafter", p.stdout)
        p = subprocess.run([INGLE, "run", "--prompt-drafter", f"{__file__}/none.gguf", "x"], capture_output=True, text=True)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn(f"{__file__}/none.gguf", p.stderr)

    def test_what_is_not_shortened_is_told(self):
        for options, prompt, said in ((["--prompt-keep", "0.5"], "x", "'--prompt-keep' does nothing without --prompt-drafter"),
                                      ([*SKIP, "--prompt-ctx", "9000", "-v"], "a " * 1200, "what is always kept are all of its 1,2"),
                                      ([*SKIP, "--prompt-ctx", "9000"], "x", "reads prompts of up to 4096 tokens, not 9000 (prompt-ctx)")):
            p = subprocess.run([INGLE, "run", *options, "-n", "1", prompt], capture_output=True, text=True)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertIn(said, p.stderr)

    @unittest.skipIf(SANITIZED, "run reads the same prompts")
    def test_bench(self):
        bench = [INGLE, "bench", *SKIP, "-r", "2"]
        p = subprocess.run([*bench, "--json", "-d", "300", "-d", "1500", "-d", "2200"], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        rows = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual([r["depth"] for r in rows], [300, 1500, 2200])
        self.assertEqual((rows[0]["kept"], "small_s" in rows[0]), (300, False))
        for r in rows[1:]:
            self.assertTrue(1024 <= r["kept"] <= max(0.62 * r["depth"], 1200), r)
            self.assertTrue(min(r["small_s"], r["large_s"], r["whole_s"]) > 0 and r["rounds"] == 2 and r["keep"] == 0.6, r)
            self.assertGreater(r["first_token_s"], max(r["small_s"], r["large_s"]))
            self.assertAlmostEqual(r["times"], r["whole_s"] / r["first_token_s"], delta=0.01 * r["times"])
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "text")
            with open(text, "w") as f:
                f.write(PROMPT)
            p = subprocess.run([*bench, "-r", "1", "--text", text, "-d", "300", "-d", "1500"], capture_output=True, text=True)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertRegex(p.stdout, r" 300 +300 +not shortened: shorter than 1100 tokens \(--prompt-keep-from\)\n +1500 +1\d\d\d +\d\d\.\d % +[\d.]+ s +[\d.]+ s +[\d.]+ s +[\d.]+ s +[\d.]+\n")
            for options, said in ((["--text", text, "-d", "90000"], "fewer than the 90000 of --depth"), (["-d", "1"], "a number of 2 to 16777216 here, not '1'"),
                                  (["-d", "1500", "--kv", "f16v"], "can be shortened here")):
                p = subprocess.run([*bench, *options], capture_output=True, text=True)
                self.assertNotEqual(p.returncode, 0, options)
                self.assertIn(said, p.stderr)

    def test_daemon(self):
        lines = [{"do": "generate", "id": "a", "prompt": PROMPT, "max_tokens": 4, "session": "s"},
                 {"do": "generate", "id": "b", "prompt": PROMPT, "max_tokens": 4, "prompt_keep": False},
                 {"do": "generate", "id": "c", "prompt": PROMPT, "max_tokens": 4, "prompt_keep": 7},
                 {"do": "generate", "id": "d", "prompt": PROMPT, "max_tokens": 2000},
                 {"do": "cancel", "id": "d"}]
        p = subprocess.run([INGLE, "daemon", *SKIP], input="".join(json.dumps(x) + "\n" for x in lines), capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        last = {e.get("id"): e for e in map(json.loads, p.stdout.splitlines()) if e["event"] in ("end", "error")}
        self.assertTrue(1024 <= last["a"]["computed_tokens"] < last["a"]["prompt_tokens"], last)
        self.assertEqual(last["b"]["computed_tokens"], last["b"]["prompt_tokens"])
        self.assertIn("prompt_keep", json.dumps(last["c"]))
        self.assertEqual(last["d"]["finish"], "cancelled")


if __name__ == "__main__":
    main()
