#!/usr/bin/env python3
"""official.py INGLE - a vendor's answers against a model: log-probabilities by a plain computation, best tokens, and what is wrong.

INGLE_TEST_V4_FLASH=FILE is a model of DeepSeek V4 Flash, whose best tokens must be those of the vendor's own service."""
import json, lzma, math, os, struct, sys, unittest

sys.argv = sys.argv[:2]
import importlib.util
spec = importlib.util.spec_from_file_location("convert", "tests/cli/convert.py")
convert = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert)

NANO = "assets/nano-gemma4-Q8_0.gguf"
VENDOR = "tests/data/official/deepseek-v4-flash.json"
sys.path.insert(0, "scripts")
import official_answers


class Case(convert.Base):
    def official(self, *lines, code=0):
        path = f"{self.dir}/official.jsonl"
        with open(path, "w") as f:
            f.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        return self.run_it("eval", "-q", "--json", "-m", NANO, "--no-pack-cache", "--official", path, code=code)

    def test_scores(self):
        prompt = "What is 2+3? "
        ids = json.loads(self.run_it("tokenize", "-m", NANO, "--add-special", "--json", prompt).stdout)
        answer = [300, 412, 500]
        open(f"{self.dir}/ids", "w").write(json.dumps(ids + answer))
        self.run_it("eval", "-q", "-m", NANO, "--no-pack-cache", "--tokens", f"{self.dir}/ids", "--logits", f"{self.dir}/l.safetensors")
        shape, raw = convert.safetensors(f"{self.dir}/l.safetensors")["logits"][1:]
        tokens, other = [], 0
        for i, t in enumerate(answer):
            at = (len(ids) - 1 + i) * shape[1] * 4
            row = struct.unpack(f"<{shape[1]}f", raw[at:at + 4 * shape[1]])
            top = max(row)
            other += row[t] < top
            tokens.append({"id": t, "logprob": row[t] - top - math.log(sum(math.exp(v - top) for v in row))})
        line = {"name": "one", "prompt": prompt, "tokens": tokens}
        r = json.loads(self.official(line, code=3 if other else 0).stdout)
        self.assertEqual((r["name"], r["tokens"], r["other_best"]), ("one", 3, other))
        self.assertLess(r["largest_difference"], 1e-3)
        tokens[1]["logprob"] -= 0.75
        two = self.official(line, line, code=3 if other else 0).stdout.splitlines()
        self.assertEqual(len(two), 2)
        for text in two:
            self.assertAlmostEqual(json.loads(text)["largest_difference"], 0.75, places=2)

    def test_best_tokens_of_a_chat(self):
        """The model's own answer, as an API would tell it, has no other best token; with one token changed it has."""
        talk = [{"role": "user", "content": "Say 1 to 5"}]
        text = self.run_it("run", "-q", "-m", NANO, "--no-pack-cache", "--temp", "0", "-n", "8", "Say 1 to 5").stdout.decode().rstrip("\n")
        pieces = json.loads(self.run_it("tokenize", "-m", NANO, "--json", text).stdout)
        spelt = [json.loads(self.run_it("tokenize", "--jsonl", "-m", NANO, stdin=None, input=json.dumps({"ids": [i], "special": True}).encode())
                            .stdout)["text"] for i in pieces]
        line = {"messages": talk, "logprobs": {"content": [{"token": s, "bytes": list(s.encode()), "logprob": 0} for s in spelt]}}
        self.assertEqual(json.loads(self.official(line).stdout)["other_best"], 0)
        line["logprobs"]["content"][2] = {"token": "7", "logprob": -1}
        r = json.loads(self.official(line, code=3).stdout)
        self.assertEqual(r["first"], 2)

    @unittest.skipIf("INGLE_TEST_SANITIZED" in os.environ, "unit_text_chat renders, and the release compares")
    def test_prompts_of_the_vendor(self):
        """Each prompt has as many tokens as the vendor counted, and each piece of an answer is one token."""
        vocab = f"{self.dir}/vocab.gguf"
        with lzma.open("tests/data/vocab/deepseek-v4-vocab.gguf.xz") as packed, open(vocab, "wb") as f:
            f.write(packed.read())
        for name, text, n_tokens, answer in official_answers.read(VENDOR):
            with self.subTest(name):
                chat = json.dumps({"messages": [{"role": "user", "content": text}], "enable_thinking": False}) + "\n"
                r = self.run_it("render", "-m", vocab, "--jsonl", stdin=None, input=chat.encode())
                self.assertEqual(len(json.loads(r.stdout)["ids"]), n_tokens)
                for piece in answer:
                    self.assertEqual(len(json.loads(self.run_it("tokenize", "-m", vocab, "--json", piece).stdout)), 1, piece)

    @unittest.skipUnless(os.environ.get("INGLE_TEST_V4_FLASH"), "INGLE_TEST_V4_FLASH names no model of DeepSeek V4 Flash")
    def test_answers_of_the_vendor(self):
        path = f"{self.dir}/vendor.jsonl"
        with open(path, "w") as f:
            f.writelines(official_answers.line_of(name, text, answer) + "\n"
                         for name, text, _, answer in official_answers.read(VENDOR))
        r = self.run_it("eval", "-q", "--json", "--ctx", "4096", "-m", os.environ["INGLE_TEST_V4_FLASH"], "--official", path)
        for line in r.stdout.splitlines():
            self.assertEqual(json.loads(line)["other_best"], 0, line)

    def test_errors(self):
        good = {"prompt": "a", "tokens": [{"id": 300, "logprob": -1}]}
        for bad in ("x", "[]", {"prompt": "a"}, {"tokens": good["tokens"]}, {**good, "tokens": [{"logprob": 1}]}, {**good, "tokens": []},
                    {**good, "tokens": [{"id": 99999999, "logprob": 0}]}, {**good, "tokens": [{"token": "two words more", "logprob": 0}]}):
            with self.subTest(bad=bad):
                self.official(bad, code=1)
        self.run_it("eval", "--official", f"{self.dir}/none", code=1)
        open(f"{self.dir}/empty", "w").close()
        self.assertIn(b"empty: there are no prompts", self.run_it("eval", "-m", NANO, "--official", f"{self.dir}/empty", code=1).stderr)
        self.run_it("eval", "--official", "x", "--text", "y", code=2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], warnings="ignore", verbosity=2)
