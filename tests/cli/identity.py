#!/usr/bin/env python3
"""identity.py INGLE - a model is known by all of its bytes: prefixes and packed weights of another one are never used; holes
of downloads are told at the start."""
import hashlib, json, os, shutil, subprocess, sys, tempfile, unittest
from modelfile import *

INGLE = sys.argv[1]
NANO = "assets/nano-gemma4-Q8_0.gguf"
GOLDENS = "tests/data/goldens"
MOE, PLE = f"{GOLDENS}/gemma4_moe/model-F32.gguf", f"{GOLDENS}/gemma4_ple_e2b/model-F32.gguf"
V4 = f"{GOLDENS}/deepseek_v4_full/model-MXFP4.gguf"
PROMPT = "What is the capital of France? " * 30


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.home = self.dir.name
        self.packed = f"{self.home}/packed"

    def tearDown(self):
        self.dir.cleanup()

    def run_with(self, *args, **more):
        return subprocess.run([INGLE, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **more)

    def ok(self, *args):
        r = self.run_with(*args)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r

    def copy(self, name="copy.gguf", of=NANO):
        return shutil.copyfile(of, f"{self.home}/{name}")

    def place(self, path, tensor):
        """Where a tensor's bytes are, and how many."""
        g = Gguf(path)
        raw = g.tensors[tensor][2]
        at = g.raw.index(raw)
        return at, len(raw)

    def overwrite(self, path, at, v):
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(v)

    def flip(self, path, tensor, first, last):
        """Flips bits of a tensor's bytes [first, last)."""
        at, _ = self.place(path, tensor)
        with open(path, "r+b") as file:
            file.seek(at + first)
            old = file.read(last - first)
            file.seek(at + first)
            file.write(bytes(b ^ 0x80 if i % 34 > 1 else b for i, b in enumerate(old, first)))

    def logits(self, model, *args):
        tokens, out = f"{self.home}/t.json", f"{self.home}/l.safetensors"
        with open(tokens, "w") as file:
            json.dump([2, 5, 9, 77, 31, 8, 40], file)
        self.ok("eval", "-m", model, "--tokens", tokens, "--logits", out, "-c", "64", *args)
        with open(out, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()


class Prefixes(Case):
    def ask(self, model, *args):
        r = self.ok("run", "-m", model, "--store", f"{self.home}/store", "--store-tokens", "32", "--temp", "0", "-n", "8", "--json",
                    *(args or ["--no-pack-cache"]), PROMPT)
        o = json.loads(r.stdout.strip().split("\n")[-1])
        return o["disk_tokens"], o["content"] if "content" in o else r.stdout

    def matching(self, model, *args):
        return json.loads(self.ok("inspect", "-m", model, "--store", f"{self.home}/store", "--json",
                                  *(args or ["--no-pack-cache"])).stdout)["match"]

    def test_of_another_model_are_not_used(self):
        self.assertEqual(self.ask(NANO)[0], 0)
        self.assertGreater(self.ask(NANO)[0], 100)
        other = self.copy()
        n = self.place(other, "blk.2.ffn_up.weight")[1]
        self.flip(other, "blk.2.ffn_up.weight", 34 * 200, n // 2 - 34) # not at its beginning, nor in the middle
        self.assertEqual(self.matching(other), 0)
        self.assertEqual(self.ask(other)[0], 0)
        self.assertGreater(self.ask(other)[0], 100)

    def test_settings_are_shown_whole(self):
        """However long they are; and a sparse prompt's prefix is one for these options."""
        kinds = ["--no-pack-cache", "--kv-layers", "full=q8r:n4r+rot,sliding=q8r:n4r"]
        sparse = [*kinds, "--sparse", "on:eps=1/8,from=64"]
        for options, settings in ((kinds, "q8r:n4r+rot,sliding=q8r:n4r exact"),
                                  (sparse, "q8r:n4r+rot,sliding=q8r:n4r exact+few3-w4-f64")):
            self.assertEqual(self.ask(NANO, *options)[0], 0)
            self.assertGreater(self.ask(NANO, *options)[0], 100)
            self.assertGreater(self.matching(NANO, *options), 0)
            files = json.loads(self.ok("inspect", "--store", f"{self.home}/store", "--json").stdout)["files"]
            self.assertIn(settings, [f["settings"] for f in files])
            self.assertEqual({f["model"] for f in files}, {"nano-gemma4"})
        self.assertEqual(self.matching(NANO), 0)

    def test_survive_a_copy_and_packing(self):
        self.ask(NANO)
        copy = self.copy()
        self.assertGreater(self.matching(copy), 0)
        self.assertGreater(self.ask(copy)[0], 100)
        self.ok("cache", "--add", "-m", copy, "--pack-cache", self.packed)
        self.assertGreater(self.matching(copy, "--pack-cache", self.packed), 0)
        self.assertGreater(self.ask(copy, "--pack-cache", self.packed)[0], 100)


class Packed(Case):
    def test_a_model_changed_in_place(self):
        copy = self.copy()
        self.ok("cache", "--add", "-m", copy, "--pack-cache", self.packed)
        self.assertEqual(self.logits(copy, "--pack-cache", self.packed), self.logits(copy, "--no-pack-cache"))
        before = os.stat(copy)
        self.flip(copy, "blk.1.attn_q.weight", 34 * 150, 34 * 250)
        os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertEqual(self.logits(copy, "--pack-cache", self.packed), self.logits(copy, "--no-pack-cache"))


class Holes(Case):
    def refuses(self, path, *says):
        r = self.run_with("run", "-m", path, "--no-pack-cache", "-n", "1", "x")
        if "no tokenizer" in r.stderr or r.returncode == 0:
            r = self.start(path)
        self.assertNotEqual(r.returncode, 0, "a hole was not seen")
        for word in (os.path.basename(path), "download", *says):
            self.assertIn(word, r.stderr)

    def start(self, path):
        with open(f"{self.home}/t.json", "w") as file:
            json.dump([2, 5, 9, 77], file)
        return self.run_with("eval", "-m", path, "--tokens", f"{self.home}/t.json", "--no-pack-cache", "-c", "64")

    def test_whole_and_part(self):
        for model, tensor in ((NANO, "blk.3.ffn_down.weight"), (MOE, "blk.1.ffn_gate_up_exps.weight"),
                              (V4, "blk.3.ffn_up_exps.weight"), (V4, "blk.0.attn_q_b.weight"), (NANO, "token_embd.weight")):
            for part in (1.0, 0.6):
                path = self.copy(of=model)
                at, n = self.place(path, tensor)
                first = 0 if part == 1 else int(n * 0.2)
                self.overwrite(path, at + first, bytes(int(n * part)))
                self.refuses(path, tensor, "zero")

    def test_many_tensors(self):
        path = self.copy()
        size = os.path.getsize(path)
        with open(path, "r+b") as file: # a sparse end
            file.truncate(size * 2 // 3)
            file.truncate(size)
        self.refuses(path, "zero")

    def test_small_ones(self):
        path = self.copy()
        at, n = self.place(path, "blk.2.attn_norm.weight")
        self.overwrite(path, at, bytes(n))
        self.refuses(path, "blk.2.attn_norm.weight")

    def test_tables(self):
        path = self.copy(of=PLE)
        at, n = self.place(path, "per_layer_token_embd.weight")
        self.overwrite(path, at, bytes(n))
        self.refuses(path, "per_layer_token_embd.weight")

    def test_what_is_meant(self):
        """Rows of unused tokens are zero, and nobody complains."""
        path = self.copy()
        at, n = self.place(path, "token_embd.weight")
        self.overwrite(path, at + n * 3 // 4, bytes(n // 8))
        r = self.start(path)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertNotIn("zero", r.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
