#!/usr/bin/env python3
"""sparse.py INGLE - sparse prompts in the server, the daemon and the commands: every dialect takes the field, the same text comes whatever
else is computed and restored, what was left out is told; scripts/long_context.py runs."""
import json, os, subprocess, sys, tempfile, unittest

from client import SANITIZED, Server, main, together

INGLE = sys.argv[1]
WORDS = " ".join(f"{a} {b}" for a in ("red", "fox", "lake", "stone", "tree", "cloud") for b in ("one", "two", "three", "four", "five"))
PROMPT = " ".join([WORDS] * 12) + "\nSay 1 to 9."
HOW = "on:eps=1/4,from=0"
OPTIONS = ("--ctx", "2048", "--draft", "off", "-t", "2")


def run(*args, code=0):
    p = subprocess.run([INGLE, *args], capture_output=True, text=True)
    assert p.returncode == code, (args, p.returncode, p.stderr)
    return p.stdout, p.stderr


def native(s, sparse, **more):
    status, _, r = s.post("/completion", {"prompt": PROMPT, "n_predict": 12, "temperature": 0, "ignore_eos": True, "cache_prompt": False,
                                          "sparse": sparse, **more})
    assert status == 200, r
    return r


class Sparse(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.slots = tempfile.TemporaryDirectory()
        cls.s = Server(INGLE, *OPTIONS, "--slot-save-path", cls.slots.name)

    @classmethod
    def tearDownClass(cls):
        assert cls.s.close() == 0
        cls.slots.cleanup()

    def test_every_dialect_takes_it(self):
        message = [{"role": "user", "content": PROMPT}]
        r = native(self.s, HOW)
        self.assertEqual(r["generation_settings"]["sparse"], HOW)
        found = [r["timings"]["sparse"]]
        for path, body, where in (
                ("/v1/chat/completions", {"messages": message, "max_tokens": 4}, lambda r: r["timings"]),
                ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}, lambda r: r["timings"]),
                ("/v1/messages", {"messages": message, "max_tokens": 4}, lambda r: r["usage"]),
                ("/api/chat", {"messages": message, "stream": False, "options": {"num_predict": 4, "sparse": HOW}}, lambda r: r)):
            status, _, r = self.s.post(path, {"sparse": HOW, "cache_prompt": False, **body})
            self.assertEqual(status, 200, (path, r))
            found.append(where(r)["sparse"])
        before = self.s.get("/props")[2]["sparse"]["pairs"]
        status, _, r = self.s.post("/v1/responses", {"input": PROMPT, "max_output_tokens": 16, "sparse": HOW, "cache_prompt": False})
        self.assertEqual(status, 200, r)
        self.assertGreater(self.s.get("/props")[2]["sparse"]["pairs"], before + 700)
        found.append(r["usage"]["sparse"])
        for f in found:
            self.assertGreater(f["pairs"], 0, f)
            self.assertTrue(0 <= f["missed_mean"] <= f["missed_most"] <= 0.25001 and 0 < f["values_read"] <= 1, f)
        for how in ("off", False):
            self.assertNotIn("sparse", native(self.s, how)["timings"])
        for path, body in (("/completion", {"prompt": "x"}), ("/v1/messages", {"messages": message, "max_tokens": 1})):
            for bad, word in (("maybe", "maybe"), ("on:eps=1/3", "1/3"), (3, "sparse"), ("on:from=-1", "-1"), ("on\0", "zero")):
                status, _, r = self.s.post(path, {**body, "sparse": bad})
                self.assertEqual(status, 400)
                self.assertIn(word, json.dumps(r))

    def test_the_same_text_whatever_else_is_computed(self):
        want, dense = (native(self.s, how)["content"] for how in (HOW, "off"))
        some = together([lambda how=how: native(self.s, how)["content"] for how in (HOW, "off", HOW, "off")])
        self.assertEqual(some, [want, dense] * 2)
        for how, text in ((HOW, want), ("off", dense), (HOW, want)):
            r = native(self.s, how, cache_prompt=True)
            self.assertEqual(r["content"], text)
        self.assertGreater(native(self.s, HOW, cache_prompt=True)["timings"]["cache_n"], 100)
        other = native(self.s, "on:eps=1/8,from=0", cache_prompt=True)
        self.assertEqual(other["timings"]["cache_n"], 0)  # another way: nothing of it

    def test_saved_slots(self):
        def ask(s, messages, how):
            status, _, r = s.post("/chat/completions", {"messages": messages, "max_tokens": 8, "temperature": 0, "id_slot": 1, "sparse": how})
            self.assertEqual(status, 200, r)
            return r["choices"][0]["message"]["content"], r["timings"]["cache_n"]

        message = [{"role": "user", "content": PROMPT}]
        text, _ = ask(self.s, message, HOW)
        message += [{"role": "assistant", "content": text}, {"role": "user", "content": "Say it again."}]
        status, _, saved = self.s.post("/slots/1?action=save", {"filename": "a"})
        self.assertEqual((status, saved["n_saved"] > 700), (200, True), saved)
        want = ask(self.s, message, HOW)[0]
        with Server(INGLE, *OPTIONS, "--slot-save-path", self.slots.name) as fresh:
            status, _, restored = fresh.post("/slots/1?action=restore", {"filename": "a"})
            self.assertEqual(status, 200, restored)
            again, cached = ask(fresh, message, HOW)
            self.assertEqual((again, cached > 700), (want, True), cached)
            self.assertEqual(ask(fresh, message, "off")[1], 0)

    def test_props_and_metrics(self):
        native(self.s, HOW)
        props = self.s.get("/props")[2]
        self.assertEqual((props["sparse"]["mode"], props["sparse"]["why_never"], props["pflash"]["enabled"]), ("off", None, False))
        self.assertGreater(props["sparse"]["pairs"], 0)
        values = dict(line.rsplit(" ", 1) for line in self.s.get("/metrics")[2].splitlines() if line.startswith("ingle_sparse_"))
        pairs, missed, most = (float(values["ingle_sparse_" + k]) for k in ("pairs_total", "missed_total", "missed_most"))
        self.assertTrue(pairs >= props["sparse"]["pairs"] and 0 <= missed / pairs <= most <= 0.25001, values)
        self.assertLessEqual(float(values["ingle_sparse_values_read_total"]), float(values["ingle_sparse_values_seen_total"]))


class Select(unittest.TestCase):
    """--kv-select: answers that choose pages."""

    HOW = ("--kv-select", "1/4,least=5")

    def look(self, u):
        self.assertTrue(u["pairs"] > 0 and 0 < u["missed_mean"] <= u["missed_most"] < 1 and 0.4 < u["pages_read"] < 1 and u["bytes_read"] > 0, u)
        self.assertTrue(0 <= u["missed_true_mean"] <= u["missed_true_most"] < 1 and u["checked"] >= 0, u)

    def test_server(self):
        message = [{"role": "user", "content": PROMPT}]
        with Server(INGLE, *OPTIONS, *self.HOW) as s:
            found = []
            for path, body, where in (
                    ("/completion", {"prompt": PROMPT, "n_predict": 70, "ignore_eos": True}, lambda r: r["timings"]),
                    ("/v1/chat/completions", {"messages": message, "max_tokens": 4}, lambda r: r["timings"]),
                    ("/v1/messages", {"messages": message, "max_tokens": 4}, lambda r: r["usage"]),
                    ("/v1/responses", {"input": PROMPT, "max_output_tokens": 16}, lambda r: r["usage"]),
                    ("/api/chat", {"messages": message, "stream": False}, lambda r: r)):
                status, _, r = s.post(path, body)
                self.assertEqual(status, 200, (path, r))
                found.append(where(r)["kv_select"])
            for u in found:
                self.look(u)
            self.assertGreater(found[0]["checked"], 0)
            now = s.get("/props")[2]["kv_select"]
            self.look(now)
            self.assertEqual((now["mode"], now["why_never"]), ("1/4,least=5", None))
            values = dict(line.rsplit(" ", 1) for line in s.get("/metrics")[2].splitlines() if line.startswith("ingle_kv_select_"))
            self.assertEqual(float(values["ingle_kv_select_pairs_total"]), sum(u["pairs"] for u in found))
            self.assertLess(float(values["ingle_kv_select_pages_read_total"]), float(values["ingle_kv_select_pages_seen_total"]))

    def test_requests(self):
        """A request says how, whatever the server's option says."""
        how = self.HOW[1]
        message = [{"role": "user", "content": PROMPT}]
        more = {"n_predict": 40, "n_probs": 3, "grammar": "root ::= [a-z ]{30}"}

        def ask(s, **say):
            status, _, r = s.post("/completion", {"prompt": PROMPT, "temperature": 1, "seed": 7, "cache_prompt": False, **more, **say})
            self.assertEqual(status, 200, r)
            return r

        def bits(r):
            return [(t["token"], t["top_logprobs"]) for t in r["completion_probabilities"]]

        with Server(INGLE, *OPTIONS, *self.HOW) as s:
            chosen, plain = bits(ask(s)), ask(s, kv_select="off")
            self.assertNotIn("kv_select", plain["timings"])
            plain = bits(plain)
            self.look(ask(s, kv_select=True)["timings"]["kv_select"])
            self.assertEqual(bits(ask(s, kv_select=True)), chosen)
            self.assertEqual(bits(ask(s, kv_select=False)), plain)
            other = bits(ask(s, kv_select="1/8,least=6"))
            self.assertEqual([chosen == plain, chosen == other, other == plain], [False] * 3)
        with Server(INGLE, *OPTIONS) as s:
            self.assertEqual(bits(ask(s)), plain)
            self.assertEqual(bits(ask(s, kv_select="off")), plain)
            for path, body in (("/completion", {"prompt": "x"}), ("/v1/messages", {"messages": message, "max_tokens": 1}),
                               ("/v1/chat/completions", {"messages": message, "stream": True})):
                for bad, word in (("1/16", "without --kv-select"), (True, "without --kv-select"), ("1/0", "1/N with N from 1 to 256"),
                                  ("1/4,least=4", "5 to 65536 pages"), (3, "neither a boolean nor a text"), ("off\0", "zero character")):
                    status, _, r = s.post(path, {**body, "kv_select": bad})
                    self.assertEqual(status, 400, (path, bad, r))
                    self.assertIn("kv_select", json.dumps(r))
                    self.assertIn(word, json.dumps(r))
        with tempfile.TemporaryDirectory() as slots, Server(INGLE, *OPTIONS, "--kv-select", "1/1", "--slot-save-path", slots) as s:
            self.assertEqual(s.get("/props")[2]["kv_select"]["mode"], "1/1")
            self.assertEqual(ask(s, kv_select=how)["generation_settings"]["kv_select"], how)
            for path, body, where in (
                    ("/v1/chat/completions", {"messages": message, "max_tokens": 4}, lambda r: r["timings"]),
                    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}, lambda r: r["timings"]),
                    ("/v1/messages", {"messages": message, "max_tokens": 4}, lambda r: r["usage"]),
                    ("/v1/responses", {"input": PROMPT, "max_output_tokens": 16}, lambda r: r["usage"]),
                    ("/api/chat", {"messages": message, "stream": False, "options": {"num_predict": 4, "min_tokens": 3, "kv_select": how}}, lambda r: r)):
                status, _, r = s.post(path, body if "options" in body else {"kv_select": how, "min_tokens": 3, **body})
                self.assertEqual(status, 200, (path, r))
                self.assertIn("kv_select", where(r), path)
                self.look(where(r)["kv_select"])
            some = together([lambda k=k: bits(ask(s, **({"kv_select": k} if k else {}))) for k in (how, None, "1/8,least=6", "off", how)])
            self.assertEqual(some, [chosen, plain, other, plain, chosen])
            self.saved_slots(s, slots, how)

    @unittest.skipIf(SANITIZED, "unit_engine_select_requests has a store")
    def test_a_store_says_what_chose(self):
        """Its files have the rule in their names, and the plan with that rule finds its own."""
        with tempfile.TemporaryDirectory() as store:
            with Server(INGLE, *OPTIONS, "--kv-select", "1/1", "--store", store, "--store-tokens", "64") as s:
                for how in (None, self.HOW[1]):
                    status, _, r = s.post("/completion", {"prompt": PROMPT, "n_predict": 4, **({"kv_select": how} if how else {})})
                    self.assertEqual(status, 200, r)
            for options, name in (((), "f16 exact"), (self.HOW, "f16 exact+sel4-p5")):
                files = json.loads(run("inspect", *OPTIONS, *options, "--store", store, "--json")[0])["files"]
                self.assertTrue(any(f["settings"] == name for f in files), files)
                self.assertEqual({f["settings"] for f in files if f["match"]}, {name}, files)

    def saved_slots(self, s, slots, how):
        def ask(s, behind, k):
            status, _, r = s.post("/completion", {"prompt": PROMPT + " And" + behind, "n_predict": 8, "grammar": "root ::= [a-z ]+", "seed": 7, "id_slot": 1, "kv_select": k})
            self.assertEqual(status, 200, r)
            return r["content"], r["timings"]["cache_n"]

        more = ask(s, "", how)[0] + " And so on"
        status, _, saved = s.post("/slots/1?action=save", {"filename": "a"})
        self.assertEqual((status, saved["n_saved"] > 700), (200, True), saved)
        want = ask(s, more, how)[0]
        with Server(INGLE, *OPTIONS, *self.HOW, "--slot-save-path", slots) as fresh:
            self.assertEqual(fresh.post("/slots/1?action=restore", {"filename": "a"})[0], 200)
            self.assertEqual(ask(fresh, more, "off")[1], 0)
            again, cached = ask(fresh, more, how)
            self.assertEqual((again, cached > 700), (want, True), cached)
            self.assertEqual(fresh.post("/slots/1?action=save", {"filename": "b"})[0], 200)
        with Server(INGLE, *OPTIONS, "--slot-save-path", slots) as plain:
            status, _, r = plain.post("/slots/1?action=restore", {"filename": "a"})
            self.assertEqual(status, 400)
            self.assertIn("of other settings: 'f16 exact+sel4-p5'", json.dumps(r))

    def test_daemon(self):
        lines = [{"do": "generate", "id": str(i), "prompt": PROMPT, "max_tokens": 4, "grammar": "root ::= [a-z ]+", "session": f"s{i}", **({"kv_select": how} if how is not None else {})}
                 for i, how in enumerate((self.HOW[1], "off", "maybe", False, True, 3, None))]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a")
            for option, saved in (("1/1", True), ("off", False)):
                p = subprocess.Popen([INGLE, "daemon", *OPTIONS, "--kv-select", option], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                p.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
                p.stdin.flush()
                last = {}
                while len(last) < len(lines):
                    e = json.loads(p.stdout.readline())
                    if e["event"] in ("end", "error"):
                        last[e["id"]] = e
                out, _ = p.communicate(json.dumps({"do": "save" if saved else "load", "id": "f", "session": "s0", "file": path}) + "\n")
                done = [e for e in map(json.loads, out.splitlines()) if e["id"] == "f"][-1]
                self.assertIn("maybe", last["2"]["error"])
                self.assertIn("expected a string, true or false", last["5"]["error"])
                for i in "136":
                    self.assertNotIn("kv_select", last[i])
                    self.assertEqual(last[i]["event"], "end")
                if saved:
                    self.look(last["0"]["kv_select"])
                    self.assertEqual((last["4"]["event"], done["event"]), ("end", "saved"), done)
                else:
                    for i in "04":
                        self.assertIn("without --kv-select", last[i]["error"])
                    self.assertIn("exact+sel4-p5", done["error"])

    def test_commands(self):
        base = ["run", "--json", "-n", "8", "--temp", "0", "--prompt", PROMPT]
        out, err = run(*base, *self.HOW, "--verbose")
        self.look(json.loads(out)["kv_select"])
        self.assertRegex(err, r"kv-select: missed [\d.e-]+ % on average, [\d.e-]+ % at most \(estimated\).*; [\d.]+ % of pages read, [\d.]+ [KM]iB")
        self.assertEqual(err.count("pages of small weights were replaced by their means"), 1, err)
        plain, all_pages = (json.loads(run(*base, *more)[0]) for more in ((), ("--kv-select", "1/1")))
        self.assertNotIn("kv_select", plain)
        self.assertEqual(plain["content"], all_pages["content"])
        rows = [json.loads(line) for line in run("bench", "--json", "--depth", "1000", "-r", "1", "--prompt-tokens", "16", "--answer-tokens", "8", *self.HOW)[0].splitlines()]
        self.look([r for r in rows if r["test"] == "decode"][0]["kv_select"])
        self.assertIn("1/N", run("run", "--kv-select", "some", "x", code=2)[1])


class Commands(unittest.TestCase):
    def test_run(self):
        base = ["run", "--json", "-n", "8", "--temp", "0", "--prompt", PROMPT]
        out, err = run(*base, "--sparse", HOW)
        r = json.loads(out)
        self.assertGreater(r["sparse"]["pairs"], 700)
        self.assertRegex(err, r"sparse: missed [\d.e-]+ % on average, [\d.e-]+ % at most; \d+ % of values read")
        err = run(*base, "--sparse", HOW, "--verbose")[1]
        self.assertEqual(err.count("values of weights below 1/4 of the sum were replaced by page means"), 1, err)
        self.assertNotIn("sparse", json.loads(run(*base)[0]))
        self.assertIn("1/3", run("run", "--sparse", "on:eps=1/3", "x", code=2)[1])
        out, err = run("run", "--json", "-n", "1", "--prompt", "Hi", "--sparse", HOW, "--numerics", "reference")
        self.assertNotIn("sparse", json.loads(out))
        self.assertEqual(err.count("prompts read all values"), 1, err)
        err = run("run", "-n", "1", "--pflash", "--pflash-alpha", "0.12", "x")[1]
        self.assertIn("it is --sparse on here", err)
        self.assertIn("--pflash is on or off", run("run", "--pflash=3", "x", code=2)[1])

    def test_beside(self):
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "text")
            with open(text, "w") as f:
                f.write(PROMPT)
            rows = [json.loads(line) for line in run("bench", "--json", "--sparse", HOW, "--depth", "600", "--depth", "1400")[0].splitlines()]
            self.assertEqual([r["depth"] for r in rows], [600, 1400])
            rows += [json.loads(line) for line in run("eval", "--json", "--text", text, "--sparse", HOW, "--against-sparse", "on:from=0",
                                                      "--depth", "700")[0].splitlines()]
            for r in rows:
                self.assertTrue(0 < r["kl"] <= r["kl_max"] < 1 and r["kl"] <= r["kl_99"] and r["same_top"] > 0.9, r)
                self.assertTrue(r["rows"] >= 300 and r["tokens_per_s"] > 0, r)
            same = run("eval", "--json", "--text", text, "--against-sparse", "off", "--depth", "600")[0]
            self.assertEqual(json.loads(same)["kl_max"], 0)
            self.assertIn("no row up to depth 600 is sparse with on:eps=1/8,from=4096", run("eval", "--text", text, "--against-sparse", "on", "--depth", "600")[1])
            self.assertIn("900000", run("eval", "--text", text, "--against-sparse", "off", "--depth", "900000", code=2)[1])

    def test_daemon(self):
        lines = [{"do": "generate", "id": str(i), "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "sparse": how}
                 for i, how in enumerate((HOW, "off", "maybe", False, True, 3))]
        out = subprocess.run([INGLE, "daemon", *OPTIONS], input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True,
                             check=True).stdout
        last = {e["id"]: e for e in map(json.loads, out.splitlines()) if e["event"] in ("end", "error")}
        self.assertGreater(last["0"]["sparse"]["pairs"], 700)
        self.assertNotIn("sparse", last["1"])
        self.assertIn("maybe", last["2"]["error"])
        self.assertEqual([last[i]["event"] for i in "34"], ["end", "end"], last)
        self.assertIn("expected a string, true or false", last["5"]["error"])

    def test_long_context(self):
        out = subprocess.run([sys.executable, "scripts/long_context.py", INGLE, "-m", "tests/data/nano/nano-gemma4-Q4_K_M.gguf", "--length", "800",
                              "--times", "1", "--tokens", "8", "--task", "needle4", "--task", "variables", "--task", "words", "--json",
                              "--sparse", HOW, "--", "--ctx", "2048"], capture_output=True, text=True)
        self.assertEqual(out.returncode, 0, out.stderr)
        for r in map(json.loads, out.stdout.splitlines()):
            self.assertTrue(600 < r["tokens"] < 1000 and 0 <= r["sparse"] <= 1 and 0 < r["values_read"] <= 1, r)


if __name__ == "__main__":
    main()
