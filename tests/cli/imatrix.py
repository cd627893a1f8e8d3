#!/usr/bin/env python3
"""imatrix.py INGLE - importance of columns: the sums of a layer by a plain computation, experts and their counts, resumed, merged,
and a lower error of what is quantised with it."""
import json, os, random, struct, subprocess, sys, tempfile, unittest

sys.argv, ARGV = sys.argv[:2], sys.argv
import importlib.util
spec = importlib.util.spec_from_file_location("convert", "tests/cli/convert.py")
convert = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert)

NANO, V4 = "assets/nano-gemma4-Q8_0.gguf", "tests/data/nano-v4/nano-v4-MXFP4.gguf"
TEXT = " ".join(f"What is {a}+{b}? {a + b}. Say 1 to {a}: " + " ".join(map(str, range(1, a))) for a in range(3, 12) for b in (2, 5, 9))


class Case(convert.Base):
    def setUp(self):
        super().setUp()
        self.text = f"{self.dir}/text"
        open(self.text, "w").write(TEXT)

    def imatrix(self, model, *args, out=None, code=0):
        return self.run_it("imatrix", "--threads", "2", "-m", model, "-f", self.text, "-o", out or self.out, *args, code=code)

    def sums(self, path):
        keys, t = convert.gguf(path)
        return keys, {n: (s, struct.unpack(f"<{s[0] * s[1]}f", r.ljust(4 * s[0] * s[1], b"\0"))) for n, (s, _, r) in t.items()}

    def test_sums(self):
        self.imatrix(NANO, "--chunk-size", "32", "--chunks", "1")
        keys, t = self.sums(self.out)
        self.assertEqual((keys["general.type"], keys["imatrix.chunk_count"], keys["imatrix.chunk_size"]), ("imatrix", 1, 32))
        ids = json.loads(self.run_it("tokenize", "-m", NANO, "--add-special", "--json", "-f", self.text).stdout)
        ids = (ids["ids"] if isinstance(ids, dict) else ids)[:32]
        open(f"{self.dir}/ids.json", "w").write(json.dumps(ids))
        taps = f"{self.dir}/taps.safetensors"
        self.run_it("eval", "-q", "-m", NANO, "--no-pack-cache", "--tokens", f"{self.dir}/ids.json", "--taps", taps)
        shape, raw = convert.safetensors(taps)["hidden.embed"][1:]
        x = struct.unpack(f"<{shape[0] * shape[1]}f", raw)
        w = struct.unpack(f"<{shape[1]}f", convert.gguf(NANO)[1]["blk.0.attn_norm.weight"][2])
        want = [0.0] * shape[1]
        for r in range(shape[0]):
            row = x[r * shape[1]:(r + 1) * shape[1]]
            scale = (sum(v * v for v in row) / shape[1] + 1e-6) ** -0.5
            for k, v in enumerate(row):
                want[k] += (v * scale * w[k]) ** 2
        for name in ("attn_q", "attn_k", "attn_v"):
            got = t[f"blk.0.{name}.weight.in_sum2"][1]
            self.assertLess(max(abs(a - b) for a, b in zip(got, want)), 1e-4 * max(want), name)
            self.assertEqual(t[f"blk.0.{name}.weight.counts"][1], (32,))
        self.assertEqual(len(t["blk.0.ffn_down.weight.in_sum2"][1]), 256)
        self.assertGreater(max(t["blk.0.ffn_down.weight.in_sum2"][1]), 0)

    def test_experts_resume_and_merge(self):
        r = self.imatrix(V4, "--chunk-size", "64", "--chunks", "3", "--save-every", "1")
        keys, whole = self.sums(self.out)
        for layer in range(6):
            for part in ("gate", "up", "down"):
                shape, counts = whole[f"blk.{layer}.ffn_{part}_exps.weight.counts"]
                self.assertEqual((shape, sum(counts)), ((1, 8), 2 * 3 * 64), (layer, part))
        unseen = [c for n, (_, cs) in whole.items() if n.endswith("down_exps.weight.counts") for c in cs if not c]
        self.assertEqual(bool(unseen), b"never chosen" in r.stdout)
        part = f"{self.dir}/part.gguf"
        self.imatrix(V4, "--chunk-size", "64", "--chunks", "2", out=part)
        r = self.imatrix(V4, "--chunk-size", "64", "--chunks", "3", out=part)
        self.assertIn(b"goes on after its 2 chunks", r.stderr)
        self.assertEqual(self.sums(part)[1], whole)
        both = f"{self.dir}/both.gguf"
        self.run_it("imatrix", "--in-file", part, "--in-file", self.out, "-o", both)
        keys, t = self.sums(both)
        self.assertEqual(keys["imatrix.chunk_count"], 6)
        for name, (shape, v) in t.items():
            self.assertEqual(v, tuple(2 * x for x in whole[name][1]), name)
        name, n = b"blk.0.attn_q_a.weight", 128
        dat = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 4, n) + struct.pack(f"<{n}f", *range(n)) + struct.pack("<i", 7)
        open(f"{self.dir}/old.dat", "wb").write(dat)
        self.run_it("imatrix", "--in-file", f"{self.dir}/old.dat", "-o", both)
        self.assertEqual(self.sums(both)[1]["blk.0.attn_q_a.weight.in_sum2"][1], tuple(float(i) for i in range(n)))
        for cut in (3, 20, 60):
            open(f"{self.dir}/old.dat", "wb").write(dat[:cut])
            self.run_it("imatrix", "--in-file", f"{self.dir}/old.dat", "-o", both, code=1)
        self.run_it("imatrix", "--in-file", NANO, "-o", both, code=1)
        note = f"{self.dir}/note"
        open(note, "w").write("mine")
        for path, content in ((note, b"mine"), (part, open(part, "rb").read())):  # of another kind, of another model
            self.assertIn(b"and stays", self.imatrix(NANO, "--chunk-size", "64", out=path, code=1).stderr)
            self.assertEqual(open(path, "rb").read(), content)
        foreign = f"{self.dir}/foreign.gguf"
        self.imatrix(NANO, "--chunk-size", "64", "--chunks", "1", out=foreign)
        self.assertIn(b"another model", self.run_it("imatrix", "--in-file", part, "-o", foreign, code=1).stderr)
        again = self.imatrix(NANO, "--chunk-size", "32", "--chunks", "1", out=foreign, code=1)  # another measurement of the same
        self.assertIn(b"--force", again.stderr)
        self.imatrix(NANO, "--chunk-size", "32", "--chunks", "1", "--force", out=foreign)
        two = self.run_it("imatrix", "--in-file", part, "--in-file", foreign, "-o", f"{self.dir}/two.gguf", code=1)
        self.assertIn(b"another model than the files before it", two.stderr)
        three = self.imatrix(NANO, "--chunk-size", "32", "--in-file", part, out=f"{self.dir}/three.gguf", code=1)
        self.assertIn(b"another model", three.stderr)
        self.run_it("imatrix", "-o", both, code=2)

    def test_quantised_with_it(self):
        """The error falls: mean KL to the model before, over conversations that were not measured."""
        random.seed(3)
        asked = []
        for _ in range(160):
            a, b = random.randrange(1, 99), random.randrange(1, 99)
            town = random.choice(["Norway", "France", "Italy", "Spain", "Japan", "Peru"])
            asked.append(random.choice([f"What is {a}+{b}?", f"Say 1 to {3 + a % 27}", "Who are you?", f"What is the capital of {town}?",
                                        f"What is {a} plus {b}?", f"Repeat: blue {a}"]))
        open(self.text, "w").write("\n".join(asked) + "\n")
        r = self.run_it("run", "-q", "-m", NANO, "--no-pack-cache", "--threads", "2", "--temp", "0", "-n", "60", "-f", self.text, "--lines")
        talk = [f"<|turn>user\n{q}<turn|>\n<|turn>model\n<|channel>thought\n<channel|>{a}<turn|>\n"
                for q, a in zip(asked, r.stdout.decode().split("\n"))]
        open(self.text, "w").write("".join(talk[120:]))
        ids, logits = f"{self.dir}/ids.json", f"{self.dir}/logits.safetensors"
        all_ids = json.loads(self.run_it("tokenize", "-m", NANO, "--add-special", "--parse-special", "--json", "-f", self.text).stdout)
        open(ids, "w").write(json.dumps(all_ids[:1000]))
        self.run_it("eval", "-q", "-m", NANO, "--no-pack-cache", "--tokens", ids, "--logits", logits)
        open(self.text, "w").write("".join(talk[:120]))
        self.imatrix(NANO, "--chunk-size", "128", "--parse-special")
        kl = {}
        for code in ("Q3_K_S", "IQ3_XXS", "IQ2_S"):
            for more in ((), ("--imatrix", self.out)):
                self.run_it("quantize", "--threads", "2", NANO, f"{self.dir}/small.gguf", code, *more)
                r = self.run_it("eval", "-q", "--json", "-m", f"{self.dir}/small.gguf", "--no-pack-cache", "--tokens", ids, "--against", logits)
                kl[code, bool(more)] = json.loads(r.stdout)["kl"]
        self.assertLess(sum(v for (_, with_it), v in kl.items() if with_it), sum(v for (_, with_it), v in kl.items() if not with_it), kl)


if __name__ == "__main__":
    unittest.main(argv=ARGV[:1] + ARGV[2:], warnings="ignore")
