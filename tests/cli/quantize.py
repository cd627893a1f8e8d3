#!/usr/bin/env python3
"""quantize.py INGLE - a model in five codes answers, tensors get the codes that were asked for, and what goes wrong
leaves no file."""
import fcntl, json, os, re, resource, shutil, signal, struct, subprocess, sys, tempfile, time, unittest

INGLE = sys.argv[1]
NANO = "assets/nano-gemma4-Q8_0.gguf"
V4 = "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf"


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.out = f"{self.dir.name}/out.gguf"

    def tearDown(self):
        self.dir.cleanup()

    def quantize(self, *args, code=0, **more):
        r = subprocess.run([INGLE, "quantize", "--threads", "2", *args], stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=300, **more)
        self.assertEqual(r.returncode, code, r.stderr)
        if code:
            self.assertEqual(r.stderr.count("ingle: error: "), 1, r.stderr)
            self.assertEqual(sorted(os.listdir(self.dir.name)), sorted(self.kept), "something was left")
        return r

    kept = []

    def codes(self, path):
        r = subprocess.run([INGLE, "inspect", "--tensors", "--json", path], capture_output=True, text=True, timeout=300)
        self.assertEqual(r.returncode, 0, r.stderr)
        return {t["name"]: t["type"] for t in json.loads(r.stdout)["list"]}

    def experts(self, path):
        """The bytes of all experts: the tensors of the nano models are stored in the file's order without gaps of other sizes."""
        r = subprocess.run([INGLE, "inspect", "--tensors", "--json", path], capture_output=True, text=True, timeout=300)
        tensors, data = json.loads(r.stdout)["list"], open(path, "rb").read()
        at = len(data) - sum((t["bytes"] + 31) // 32 * 32 for t in tensors)
        out = {}
        for t in tensors:
            if "_exps" in t["name"]:
                out[t["name"]] = data[at:at + t["bytes"]]
            at += (t["bytes"] + 31) // 32 * 32
        return out

    def answer(self, path):
        r = subprocess.run([INGLE, "run", "-q", "-m", path, "--no-pack-cache", "-n", "8", "--temp", "0", "hello"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def test_five_codes_answer(self):
        before = self.codes(NANO)
        for code, base in (("Q4_0", "Q4_0"), ("q4_k_m", "Q4_K"), ("Q6_K", "Q6_K"), ("IQ4_XS", "IQ4_XS"), ("IQ3_M", "IQ3_S")):
            with self.subTest(code=code):
                self.quantize(NANO, self.out, code)
                after = self.codes(self.out)
                self.assertEqual(before.keys(), after.keys())
                self.assertIn(base, after.values())
                for name, was in before.items():
                    self.assertTrue((was == "F32") == (after[name] == "F32"), name)
                self.assertTrue(self.answer(self.out))

    def test_the_same_code_is_the_same_bytes(self):
        self.quantize(NANO, self.out, "Q8_0")
        self.assertEqual(self.answer(self.out), self.answer(NANO))

    def test_rules_like_and_fallbacks(self):
        r = self.quantize(NANO, self.out, "Q4_K_S", "--tensor", "*.ffn_down.weight=q8_0", "--tensor", "blk.0.attn_q.=Q6_K")
        codes = self.codes(self.out)
        self.assertEqual({c for n, c in codes.items() if n.endswith("ffn_down.weight")}, {"Q8_0"})
        self.assertEqual(codes["blk.0.attn_q.weight"], "Q6_K")
        self.assertNotEqual(codes["blk.1.attn_q.weight"], "Q6_K")
        other = f"{self.dir.name}/like.gguf"
        self.quantize(NANO, other, "--like", self.out)
        self.assertEqual(self.codes(other), codes)
        r = self.quantize(NANO, self.out, "Q4_K_S")
        self.assertIn("no whole blocks of Q4_K: Q5_0 instead", r.stderr)

    def test_experts_and_what_stays(self):
        before = self.codes(V4)
        self.quantize(V4, self.out, "Q8_0")
        after = self.codes(self.out)
        stays = [n for n in before if any(p in n for p in ("_norm", "hc_", "sinks", "tid2eid", "ffn_gate_inp", "_ape", "exp_probs_b"))]
        self.assertTrue(any("tid2eid" in n for n in stays) and any("hc_" in n for n in stays))
        for name in stays:
            self.assertEqual(before[name], after[name], name)
        self.assertEqual({c for n, c in after.items() if "_exps" in n}, {"Q8_0"})
        self.quantize(V4, self.out, "MXFP4_MOE")
        self.assertEqual({c for n, c in self.codes(self.out).items() if "_exps" in n}, {"MXFP4"})

    def test_importance(self):
        """A GGUF of importance: two columns count, so their errors shrink; a wrong one is an error."""
        def imatrix(path, name, sums, counts, kind=b"imatrix"):
            def text(b):
                return struct.pack("<Q", len(b)) + b
            with open(path, "wb") as f:
                head = b"GGUF" + struct.pack("<IQQ", 3, 2, 1) + text(b"general.type") + struct.pack("<I", 8) + text(kind)
                head += text(name + b".in_sum2") + struct.pack("<IQQIQ", 2, len(sums), 1, 0, 0)
                size = (len(sums) * 4 + 31) // 32 * 32
                head += text(name + b".counts") + struct.pack("<IQQIQ", 2, 1, 1, 0, size)
                head += bytes(-len(head) % 32)
                body = struct.pack(f"<{len(sums)}f", *sums)
                f.write(head + body.ljust(size, b"\0") + struct.pack("<f", counts).ljust(32, b"\0"))
        name = b"blk.0.attn_q.weight"
        side = f"{self.dir.name}/i.gguf"
        r = subprocess.run([INGLE, "inspect", "--tensors", "--json", NANO], capture_output=True, text=True)
        tensor = next(t for t in json.loads(r.stdout)["list"] if t["name"] == name.decode())
        width = tensor["shape"][-1]
        imatrix(side, name, [1e4 if i < 2 else 1e-4 for i in range(width)], 10)
        plain = f"{self.dir.name}/plain.gguf"
        self.quantize(NANO, plain, "Q4_0")
        self.quantize(NANO, self.out, "Q4_0", "--imatrix", side)
        with open(plain, "rb") as a, open(self.out, "rb") as b:
            self.assertNotEqual(a.read()[-1 << 20:], b.read()[-1 << 20:])
        self.assertTrue(self.answer(self.out))
        os.remove(plain)
        os.remove(self.out)
        self.kept = ["i.gguf"]
        for sums, counts, kind, word in (([1.0] * 32, 1, b"imatrix", "importance of tensor"),
                                         ([-1.0] * width, 1, b"imatrix", "has importance -1"),
                                         ([float("nan")] * width, 1, b"imatrix", "no finite number|has importance"),
                                         ([1.0] * width, 1, b"model", "general.type")):
            imatrix(side, name, sums, counts, kind)
            r = self.quantize(NANO, self.out, "Q4_0", "--imatrix", side, code=1)
            self.assertRegex(r.stderr, word)
            self.assertIn("i.gguf", r.stderr)
        imatrix(side, b"blk.0.other", [1.0] * width, 1)
        self.assertIn("for none of the tensors", self.quantize(NANO, self.out, "Q4_0", "--imatrix", side, code=1).stderr)

    def test_errors_leave_nothing(self):
        for args, code, words in (
                ((NANO, self.out, "Q9_K"), 1, ["no code or recipe 'Q9_K'", "Q4_K_M"]),
                ((NANO, self.out), 2, ["quantize needs IN, OUT and CODE"]),
                ((NANO, self.out, "Q4_0", "--tensor", "attn_q"), 2, ["PATTERN=CODE"]),
                ((NANO, self.out, "Q4_0", "--tensor", "attn_q=Q7"), 1, ["no code 'Q7'"]),
                ((NANO, self.out, "Q4_0", "--tensor", "nobody=Q8_0"), 1, ["no tensor fits", "nobody"]),
                ((NANO, self.out, "Q4_0", "--tensor", "attn_norm=Q8_0"), 1, ["attn_norm", "stays F32"]),
                ((NANO, f"{self.dir.name}/no/out.gguf", "Q4_0"), 1, ["no such directory"]),
                ((f"{self.dir.name}/none.gguf", self.out, "Q4_0"), 1, ["none.gguf"])):
            with self.subTest(args=args[1:]):
                r = self.quantize(*args, code=code)
                for word in words:
                    self.assertIn(word, r.stderr)

    def test_a_full_disk_and_the_same_file(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))
        r = self.quantize(NANO, self.out, "Q4_0", code=1, preexec_fn=limit)
        self.assertIn("cannot write", r.stderr)
        with open(NANO, "rb") as f, open(self.out, "wb") as to:
            to.write(f.read())
        self.kept = ["out.gguf"]
        r = self.quantize(self.out, self.out, "Q4_0", code=1)
        self.assertIn("is a file that is read (IN)", r.stderr)

    def test_killed_and_continued(self):
        """What a killed call has written is checked and kept; what is wrong, or of another source or code, is written again."""
        source, part, state = f"{self.dir.name}/in.gguf", f"{self.out}.part", f"{self.out}.part.state"
        shutil.copy(NANO, source)
        self.quantize(source, self.out, "IQ2_S")
        with open(self.out, "rb") as f:
            whole = f.read()
        os.remove(self.out)
        for _ in range(100):  # a call that ends before it is killed is made again
            if os.path.exists(part):
                break
            with subprocess.Popen([INGLE, "quantize", "-q", "--threads", "1", source, self.out, "IQ2_S"]) as p:
                while p.poll() is None and not (os.path.exists(state) and self.lines(state) > 8):
                    time.sleep(0.001)
                p.kill()
        self.assertFalse(os.path.exists(self.out))
        with open(part, "rb") as f, open(state, "rb") as g:
            written, note = f.read(), g.read()
        n = note.count(b"\n") - 1
        self.assertGreater(n, 6)

        def half():  # a line that was not written to its end
            with open(state, "ab") as f:
                f.write(b"3 12")

        def wrong():  # the bytes of a tensor that was noted
            at = next(i for i in range(len(written) // 2, len(written)) if written[i])
            with open(part, "r+b") as f:
                f.seek(at)
                f.write(bytes([written[at] ^ 1]))

        for change, least, most in ((lambda: None, n, n), (wrong, n - 1, n), (half, n, n),
                                    (lambda: os.utime(source, (1, 1)), 0, 0), (lambda: os.remove(part), 0, 0)):
            with self.subTest(least=least):
                with open(part, "wb") as f, open(state, "wb") as g:
                    f.write(written)
                    g.write(note)
                change()
                r = self.quantize(source, self.out, "IQ2_S")
                found = re.search(r"(\d+) of \d+ tensors were written by an earlier call", r.stdout)
                kept = int(found[1]) if found else 0
                self.assertTrue(least <= kept <= most, (kept, n))
                with open(self.out, "rb") as f:
                    self.assertEqual(f.read(), whole)
                self.assertEqual(sorted(os.listdir(self.dir.name)), ["in.gguf", "out.gguf"])
                os.remove(self.out)
        with open(part, "wb") as f, open(state, "wb") as g:
            f.write(written)
            g.write(note)
        self.assertNotIn("earlier call", self.quantize(source, self.out, "Q8_0").stdout)
        self.assertEqual(self.answer(self.out), self.answer(NANO))

    @staticmethod
    def lines(path):
        with open(path, "rb") as f:
            return f.read().count(b"\n")

    def test_two_at_once(self):
        with open(f"{self.out}.part", "wb") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            self.kept = ["out.gguf.part"]
            self.assertIn("another process writes it", self.quantize(NANO, self.out, "Q8_0", code=1).stderr)

    def test_values_that_are_no_numbers(self):
        path = f"{self.dir.name}/bad.gguf"
        with open(NANO, "rb") as f:
            data = bytearray(f.read())
        for back in range(34, 34 * 64):  # somewhere a scale becomes infinite
            data[-back:len(data) - back + 2] = b"\xff\x7f"
        with open(path, "wb") as f:
            f.write(data)
        self.kept = ["bad.gguf"]
        r = self.quantize(path, self.out, "Q4_0", code=1)
        self.assertRegex(r.stderr, "bad.gguf: tensor '.*': element \\d+ is no finite number")

    def test_fit_has_the_size(self):
        sizes = []
        for size in (1000000, 1400000, 2000000) if "INGLE_TEST_SOAK" in os.environ else (1000000, 2000000):
            r = self.quantize(NANO, self.out, "--fit", str(size), "--tensor", "blk.0.attn_q.=Q8_0")
            tensors = json.loads(subprocess.run([INGLE, "inspect", "--tensors", "--json", self.out], capture_output=True).stdout)["list"]
            sizes.append(sum(t["bytes"] for t in tensors))
            self.assertLessEqual(sizes[-1], size)
            self.assertGreater(sizes[-1], size - 20000)
            self.assertEqual(self.codes(self.out)["blk.0.attn_q.weight"], "Q8_0")
            self.assertRegex(r.stdout, r"blk\.1\.ffn_up\.weight +\S+ +error \d")
            self.assertTrue(self.answer(self.out))
        os.remove(self.out)
        r = self.quantize(NANO, self.out, "--fit", "500000", code=1)
        self.assertRegex(r.stderr, "at least \\d+ bytes, more than the 500000")
        self.quantize(NANO, self.out, "Q4_0", "--fit", "1M", code=2)

    def test_experts_stay_bit_by_bit(self):
        """The *_DENSE recipes leave experts, router, indexer and compressors, also with --fit."""
        v4 = "tests/data/nano-v4/nano-v4-MXFP4.gguf"
        was = self.codes(v4)
        for more in ((), ("--fit", "2600K")):
            self.quantize(v4, self.out, "Q4_K_DENSE", *more)
            got, changed = self.codes(self.out), 0
            for name, code in got.items():
                if re.search("_exps|ffn_gate_inp|indexer|compressor|token_embd|hc_|_norm|sinks", name):
                    self.assertEqual(code, was[name], name)
                else:
                    changed += code != was[name]
            self.assertGreater(changed, 10)
            self.assertTrue(self.answer(self.out))
            self.assertEqual(self.experts(self.out), self.experts(v4))
        os.remove(self.out)
        self.quantize(v4, self.out, "MXFP4_MOE", "--fit", "1M", code=2)

    def test_warnings(self):
        """Few bits without importance or with gaps in it, a source that is quantised, a larger result, surplus bytes."""
        golden, plain, side = "tests/data/goldens/gemma4_dense/model-F32.gguf", f"{self.dir.name}/plain.gguf", f"{self.dir.name}/i.gguf"
        self.assertRegex(self.quantize(NANO, self.out, "IQ2_XXS", "--dry-run").stderr, r"\d+ tensors get codes of 1 and 2 bits without importance")
        self.assertNotIn("importance", self.quantize(NANO, self.out, "Q4_K_M", "--dry-run").stderr)
        r = subprocess.run([INGLE, "imatrix", "-q", "-m", NANO, "-f", "-", "-o", side, "--chunk-size", "32", "--chunks", "1"],
                           input="Oslo is the capital of Norway. The river is cold and the winter is long. " * 4, capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertNotIn("importance", self.quantize(NANO, self.out, "IQ2_XXS", "--imatrix", side, "--dry-run").stderr)
        with open(side, "rb") as f:
            d = f.read()
        for name, gap in ((b"blk.0.ffn_down.weight", True), (b"blk.0.ffn_gate.weight", False)):  # up stands for gate
            with open(side, "wb") as f:
                f.write(d.replace(name, b"x" + name[1:]))
            r = self.quantize(NANO, self.out, "IQ2_XXS", "--imatrix", side, "--dry-run")
            self.assertEqual(bool(re.search(r"has no importance for 1 of \d+ tensors", r.stderr)), gap, r.stderr)
        self.assertIn("is Q8_0 already", self.quantize(NANO, self.out, "Q4_0", "--dry-run").stderr)
        for args in ((NANO, self.out, "Q4_0", "--allow-requantize"), (golden, self.out, "Q8_0"), (NANO, self.out, "COPY")):
            self.assertNotIn("already", self.quantize(*args, "--dry-run").stderr)
        self.assertIn("becomes larger", self.quantize(NANO, self.out, "F16", "--dry-run").stderr)
        self.kept = ["i.gguf"]
        self.assertIn("i.gguf", self.quantize(side, self.out, "Q8_0", code=1).stderr)  # importance is no model
        with open(NANO, "rb") as f, open(plain, "wb") as to:
            to.write(f.read() + bytes(4096))
        self.kept = ["i.gguf", "plain.gguf"]
        self.assertRegex(self.quantize(plain, self.out, "Q4_0", code=1).stderr, "plain.gguf.*4096")

    def test_options_of_llama_quantize(self):
        self.quantize(NANO, self.out, "15", "3", "--allow-requantize")  # Q4_K_M, three threads
        codes = self.codes(self.out)
        named = f"{self.dir.name}/named.gguf"
        self.quantize(NANO, named, "Q4_K_M")
        self.assertEqual(codes, self.codes(named))
        self.quantize(NANO, self.out, "copy")
        self.assertEqual(self.codes(self.out), self.codes(NANO))
        self.assertEqual(self.answer(self.out), self.answer(NANO))
        self.quantize(NANO, self.out, "Q6_K", "--pure")
        self.assertEqual({c for n, c in self.codes(self.out).items() if "norm" not in n and c != "F32"} - {"Q6_K", "Q8_0"}, set())
        self.quantize(V4, self.out, "Q4_0", "--output-tensor-type", "q5_0", "--token-embedding-type", "Q5_1")
        codes = self.codes(self.out)
        self.assertEqual((codes["output.weight"], codes["token_embd.weight"]), ("Q5_0", "Q5_1"))
        self.quantize(V4, self.out, "Q4_0", "--leave-output-tensor")
        self.assertEqual(self.codes(self.out)["output.weight"], self.codes(V4)["output.weight"])
        os.remove(self.out)
        os.remove(named)
        self.quantize(NANO, self.out, "4711", code=1)

    def test_keep_split(self):
        """The parts of the source with the same tensors; of a checkpoint, or with other sizes of parts, it is refused."""
        at = lambda name, i: f"{self.dir.name}/{name}-0000{i}-of-00003.gguf"

        def names(path):
            with open(path, "rb") as f:
                return re.findall(rb"[\x05-\x40]\0{7}((?:blk|output|token)[\w.]+weight)", f.read())

        self.quantize(NANO, f"{self.dir.name}/a.gguf", "COPY", "--split-max-tensors", "30")
        self.quantize(at("a", 1), f"{self.dir.name}/b.gguf", "Q4_0", "--keep-split")
        self.assertEqual(len(os.listdir(self.dir.name)), 6)
        for i in (1, 2, 3):
            self.assertGreater(len(names(at("a", i))), 20)
            self.assertEqual(names(at("a", i)), names(at("b", i)))
        self.assertTrue(self.answer(at("b", 1)))
        self.kept = [f"{n}-0000{i}-of-00003.gguf" for n in "ab" for i in (1, 2, 3)]
        self.quantize(at("a", 1), f"{self.dir.name}/a.gguf", "Q4_0", "--keep-split", code=1)
        self.quantize("tests/data/goldens/gemma4_dense", self.out, "Q4_0", "--keep-split", code=1)
        self.quantize(at("a", 1), self.out, "Q4_0", "--keep-split", "--split-max-size", "1M", code=2)

    def test_interrupted(self):
        """SIGINT says that the same command continues, and it does."""
        args, state = [INGLE, "quantize", "--threads", "1", NANO, self.out, "IQ2_S"], f"{self.out}.part.state"
        told = ""
        for _ in range(100):  # a call that ends before it is interrupted is made again
            if told:
                break
            with subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
                while p.poll() is None and not (os.path.exists(state) and self.lines(state) > 4):
                    time.sleep(0.001)
                p.send_signal(signal.SIGINT)
                told = p.communicate()[1] if p.wait() == -signal.SIGINT else ""
        self.assertIn("interrupted: the same command continues", told)
        self.assertFalse(os.path.exists(self.out))
        self.assertRegex(self.quantize(NANO, self.out, "IQ2_S").stdout, r"\d+ of \d+ tensors were written by an earlier call")
        self.assertEqual(os.listdir(self.dir.name), ["out.gguf"])

    def test_a_plan_writes_nothing(self):
        r = self.quantize(NANO, self.out, "Q4_K_M", "--dry-run")
        self.assertIn("bits a weight", r.stdout)
        self.assertEqual(os.listdir(self.dir.name), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
