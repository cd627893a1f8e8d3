#!/usr/bin/env python3
"""convert.py INGLE - a checkpoint and the file made of it are the same model: names and bytes of tensors as llama.cpp's
converter writes them, equal logits, equal prompts; parts, drafters, and what goes wrong."""
import json, lzma, os, random, re, resource, shutil, signal, struct, subprocess, sys, tempfile, unittest
try:
    import jinja2
except ImportError:
    jinja2 = None

INGLE = sys.argv[1]
GOLDENS = "tests/data/goldens"
SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def gguf(path):
    """Keys, and {name: (shape, type, bytes)}."""
    d = open(path, "rb").read()
    n_tensors, n_keys = struct.unpack_from("<QQ", d, 8)
    at = 24

    def text():
        nonlocal at
        n, = struct.unpack_from("<Q", d, at)
        at += 8 + n
        return d[at - n:at].decode("utf-8", "surrogateescape")

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind == 9:
            kind, n = struct.unpack_from("<IQ", d, at)
            at += 12
            if kind not in SCALAR:
                return [value(kind) for _ in range(n)]
            many = f"<{n}{SCALAR[kind]}"
            at += struct.calcsize(many)
            return list(struct.unpack_from(many, d, at - struct.calcsize(many)))
        at += struct.calcsize("<" + SCALAR[kind])
        return struct.unpack_from("<" + SCALAR[kind], d, at - struct.calcsize("<" + SCALAR[kind]))[0]

    keys, tensors = {}, {}
    for _ in range(n_keys):
        name = text()
        kind, = struct.unpack_from("<I", d, at)
        at += 4
        keys[name] = value(kind)
    for _ in range(n_tensors):
        name = text()
        n, = struct.unpack_from("<I", d, at)
        shape = struct.unpack_from(f"<{n}Q", d, at + 4)
        kind, offset = struct.unpack_from("<IQ", d, at + 4 + 8 * n)
        at += 16 + 8 * n
        tensors[name] = [shape, kind, offset]
    data = (at + 31) // 32 * 32
    ends = sorted(t[2] for t in tensors.values()) + [len(d) - data]
    for t in tensors.values():
        t[2] = d[data + t[2]:data + next(e for e in ends if e > t[2])].rstrip(b"\0")
    return keys, tensors


def safetensors(path):
    d = open(path, "rb").read()
    n, = struct.unpack_from("<Q", d)
    head = json.loads(d[8:8 + n])
    head.pop("__metadata__", None)
    return {k: [v["dtype"], v["shape"], d[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]] for k, v in head.items()}


def save(path, tensors):
    head, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def small_disk():
    """For a child: no file grows beyond 1 MB, as if the disk were full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, 1000000))


class Base(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.dir = self.tmp.name
        self.out = f"{self.dir}/out.gguf"

    def tearDown(self):
        self.tmp.cleanup()

    def run_it(self, *args, code=0, **more):
        r = subprocess.run([INGLE, *args], capture_output=True, timeout=300, **{"stdin": subprocess.DEVNULL, **more})
        if code is not None:
            self.assertEqual(r.returncode, code, (args, r.stderr.decode()))
        return r

    def convert(self, source, *args, code=0):
        return self.run_it("convert", "--threads", "2", source, "-o", self.out, *args, code=code)

    def logits(self, model, n_vocab, *args):
        ids, out = f"{self.dir}/ids.json", f"{self.dir}/logits.safetensors"
        random.seed(5)
        open(ids, "w").write(json.dumps([random.randrange(5, n_vocab) for _ in range(40)]))
        self.run_it("eval", "-q", "-m", model, "--no-pack-cache", "--threads", "2", "--tokens", ids, "--logits", out, *args)
        return safetensors(out)["logits"][2]

    def with_words(self, golden, tokenizer, n):
        """A golden with n rows in its embedding, to which a tokenizer of n tokens fits."""
        to = f"{self.dir}/{golden}"
        os.mkdir(to)
        config = json.load(open(f"{GOLDENS}/{golden}/config.json"))
        t = safetensors(f"{GOLDENS}/{golden}/model.safetensors")
        was = config.get("text_config", config)["vocab_size"]
        for v in t.values():
            if v[1] and v[1][0] == was:
                v[2] = (v[2] * (n // was + 1))[:len(v[2]) // was * n]
                v[1] = [n] + v[1][1:]
        config.get("text_config", config)["vocab_size"] = n
        json.dump(config, open(f"{to}/config.json", "w"))
        save(f"{to}/model.safetensors", t)
        shutil.copy(tokenizer, f"{to}/tokenizer.json")
        return to

    def same_tensors(self, reference, *, besides=()):
        ours, theirs = gguf(self.out)[1], gguf(reference)[1]
        self.assertEqual(ours.keys(), theirs.keys())
        for name, t in theirs.items():
            if name not in besides:
                self.assertEqual(ours[name][:2], list(t[:2]), name)
                self.assertEqual(ours[name][2], t[2], name)


class Case(Base):
    def test_tensors_are_those_of_the_other_converter(self):
        for golden in ("gemma4_dense", "gemma4_moe", "gemma4_assistant_dense", "gemma4_assistant_ordered"):
            with self.subTest(golden=golden):
                self.convert(f"{GOLDENS}/{golden}", "--outtype", "f32")
                reference = f"{GOLDENS}/{golden}/model-F32.gguf"
                self.same_tensors(reference)
                ours, theirs = gguf(self.out)[0], gguf(reference)[0]
                for key, v in theirs.items():
                    if not key.startswith(("tokenizer.", "general.")):
                        self.assertEqual(ours.get(key), v, key)
        for golden in ("dflash_gemma4", "dflash2_gemma4", "dspark_gemma4", "dspark_v4"):
            with self.subTest(golden=golden):
                self.convert(f"{GOLDENS}/{golden}", "--outtype", "f32", "--tensor", "*=F32")
                reference = f"{GOLDENS}/{golden}/model-F32.gguf"
                self.same_tensors(reference)
                ours, theirs = gguf(self.out)[0], gguf(reference)[0]
                for key, v in theirs.items():
                    if not key.startswith(("tokenizer.", "general.")) and key != "dflash.embedding_scale":
                        self.assertEqual(ours.get(key), v, key)

    def test_equal_logits(self):
        for golden, n_vocab in (("gemma4_dense", 512), ("gemma4_moe", 512), ("deepseek_v4_full", 320)):
            with self.subTest(golden=golden):
                self.convert(f"{GOLDENS}/{golden}")
                self.assertEqual(self.logits(f"{GOLDENS}/{golden}", n_vocab), self.logits(self.out, n_vocab))

    def test_codes_of_deepseek(self):
        """FP8 is BF16, FP4 is MXFP4 of the same values, the rest as its part of the network wants it."""
        source = f"{GOLDENS}/deepseek_v4_published"
        self.convert(source)
        keys, t = gguf(self.out)
        self.assertEqual(t["blk.0.ffn_gate_tid2eid.weight"][1], 26)
        for name, (shape, kind, raw) in t.items():
            if any(p in name for p in ("hc_", "sinks", "_ape", "exp_probs_b", "_norm", "ffn_gate_inp")):
                self.assertEqual(kind, 0, name)
            elif "_exps" in name:
                self.assertEqual((kind, len(shape)), (39, 3), name)
        self.assertIn("output_hc_fn.weight", t)
        self.assertEqual(t["blk.0.attn_output_a.weight"][1], 30)
        self.assertEqual(keys["general.file_type"], 38)
        was = safetensors(f"{source}/model.safetensors")
        code, scale = was["layers.0.ffn.experts.3.w1.weight"], was["layers.0.ffn.experts.3.w1.scale"]
        shape, _, raw = t["blk.0.ffn_gate_exps.weight"]
        row = shape[0] // 32 * 17
        raw = raw[3 * shape[1] * row:]
        for r in (0, 7):
            for g in range(shape[0] // 32):
                block = raw[r * row + g * 17:][:17]
                nibbles = [b >> s & 15 for b in code[2][r * shape[0] // 2 + g * 16:][:16] for s in (0, 4)]
                self.assertEqual(block[0], scale[2][r * shape[0] // 32 + g])
                self.assertEqual([b & 15 for b in block[1:]] + [b >> 4 for b in block[1:]], nibbles)
        for outtype in ("f16", "q8_0"):
            self.convert(source, "--outtype", outtype)
            self.assertEqual(gguf(self.out)[1]["blk.0.ffn_gate_exps.weight"][1], 39)
            self.assertEqual(gguf(self.out)[1]["blk.0.attn_sinks.weight"][1], 0)
        self.assertEqual(gguf(self.out)[1]["blk.0.attn_q_a.weight"][1], 8)

    def test_partial_tiles(self):
        """An FP8 matrix whose sides are no multiples of a tile has the values of code times scale."""
        to = self.with_words("deepseek_v4_published", "tests/data/nano/nano-v4-tokenizer.json", 2048)
        t = safetensors(f"{to}/model.safetensors")
        weight, scale = t["layers.0.attn.wq_a.weight"], t["layers.0.attn.wq_a.scale"]
        rows, columns = weight[1]
        self.assertTrue(rows % 128 and columns % 128, weight[1])
        t["layers.0.attn.wq_a.scale"] = [scale[0], scale[1], bytes(120 + i for i in range(len(scale[2])))]
        save(f"{to}/model.safetensors", dict(sorted(t.items(), reverse=True)))  # and in another order
        self.convert(to)
        raw = gguf(self.out)[1]["blk.0.attn_q_a.weight"][2]
        for r, c in ((0, 0), (rows - 1, columns - 1), (5, 127), (5, 128), (rows - 1, 3)):
            b = weight[2][r * columns + c]
            e, m = b >> 3 & 15, b & 7
            v = (m / 8 * 2 ** -6 if not e else (1 + m / 8) * 2.0 ** (e - 7)) * (-1 if b >> 7 else 1)
            v *= 2.0 ** (120 + r // 128 * scale[1][1] + c // 128 - 127)
            got = struct.unpack("<f", b"\0\0" + raw[2 * (r * columns + c):][:2])[0]
            self.assertEqual(got, v, (r, c))

    def test_draft_block(self):
        """A DeepSeek V4 checkpoint with its block: left out, in llama.cpp's form, and alone."""
        source = f"{GOLDENS}/deepseek_v4_full"
        block = {k: v for k, v in safetensors(f"{source}/model.safetensors").items() if k.startswith("mtp.")}
        self.assertIn(b"--mtp", self.convert(source).stderr)
        self.assertFalse([n for n in gguf(self.out)[1] if n.startswith(("mtp.", "blk.5."))])
        self.convert(source, "--mtp")
        keys, mtp = gguf(self.out)
        self.assertEqual((keys["deepseek4.block_count"], keys["deepseek4.nextn_predict_layers"]), (6, 1))
        self.assertEqual(mtp["blk.5.nextn.eh_proj.weight"][0], (128, 64))
        e, h = block["mtp.0.e_proj.weight"][2], block["mtp.0.h_proj.weight"][2]
        self.assertEqual(mtp["blk.5.nextn.eh_proj.weight"][2][:512], e[:256] + h[:256])
        for name in ("blk.5.nextn.enorm.weight", "blk.5.nextn.hnorm.weight", "blk.5.nextn.shared_head_norm.weight", "output_hc_fn.weight",
                     "token_embd.weight", "output.weight", "blk.5.ffn_gate_exps.weight"):
            self.assertTrue(name in mtp, name)
        self.assertNotIn("blk.0.attn_norm.weight", mtp)
        alone = f"{self.dir}/alone"
        os.mkdir(alone)
        shutil.copy(f"{source}/config.json", alone)
        save(f"{alone}/model.safetensors", block)
        self.convert(alone)
        self.assertIn("mtp.0.e_proj.weight", gguf(self.out)[1])

    @unittest.skipUnless(jinja2, "jinja2 is not installed: templates are not compared with their own language")
    def test_prompts_of_jinja(self):
        """What the vendor's template writes is what ingle renders."""
        for golden, tokenizer, vectors in (("gemma4_dense", "tests/data/nano/tokenizer.json", "gemma4-template-vectors"),
                                           ("deepseek_v4_published", "tests/data/nano/nano-v4-tokenizer.json",
                                            "deepseek-v4-template-vectors")):
            with self.subTest(golden=golden):
                self.convert(self.with_words(golden, tokenizer, 2048))
                self.same_prompts(gguf(self.out)[0]["tokenizer.chat_template"], vectors, golden.startswith("gemma4"))

    def test_words_and_templates(self):
        for golden, tokenizer, bos in (("gemma4_dense", "tests/data/nano/tokenizer.json", 2),
                                       ("deepseek_v4_published", "tests/data/nano/nano-v4-tokenizer.json", 0)):
            with self.subTest(golden=golden):
                to = self.with_words(golden, tokenizer, 2048)
                self.convert(to)
                keys = gguf(self.out)[0]
                self.assertEqual((len(keys["tokenizer.ggml.tokens"]), keys["tokenizer.ggml.bos_token_id"]), (2048, bos))
                words = "Hello, World! 123\n\n  <|turn>x é 漢字"
                a, b = (self.run_it("tokenize", "--parse-special", "-m", m, words).stdout for m in (to, self.out))
                self.assertEqual(a, b)
                self.assertEqual(self.logits(to, 2048), self.logits(self.out, 2048))

    SEVEN = [[("user", "Say hello.")], [("system", "Be brief."), ("user", "What is 1+1?")],
             [("user", "Hi"), ("assistant", "Hello."), ("user", "And now?")],
             [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4"), ("user", "5")],
             [("developer", "Answer in French."), ("user", "Hi")], [("user", "Say 1 to 100")], [("user", "Say 1 to 1000")]]

    def same_prompts(self, template, vectors, gemma):
        env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        env.filters["tojson"] = lambda v: json.dumps(v, ensure_ascii=False)
        env.filters["from_json"] = json.loads
        render = env.from_string(template).render
        cases = json.load(lzma.open(f"tests/data/text/{vectors}.json.xz"))
        cases = [c for c in cases if c["large"] and c["add_generation_prompt"]] if gemma else [c for c in cases if c["template"] == "V4"]
        plain = {"tools": None, "enable_thinking": False, "preserve_thinking": False, "large": True, "thinking": False,
                 "add_generation_prompt": True}
        cases = [{"messages": [{"role": r, "content": c} for r, c in talk], **plain} for talk in self.SEVEN] + cases
        lines = "".join(json.dumps({k: v for k, v in c.items() if k not in ("expected", "encoder", "why", "agree", "category")}) + "\n"
                        for c in cases)
        r = self.run_it("render", "--jsonl", "--family", "gemma4" if gemma else "deepseek4", stdin=None, input=lines.encode())
        ours = [json.loads(line)["prompt"] for line in r.stdout.decode().strip("\n").split("\n")]
        self.assertEqual(len(ours), len(cases))
        n_vendor = 0
        for c, prompt in zip(cases, ours):
            values = {k: c[k] for k in ("enable_thinking", "preserve_thinking", "thinking", "drop_thinking", "reasoning_effort",
                                        "response_format") if c.get(k) is not None}
            got = render(messages=c["messages"], tools=c.get("tools"), add_generation_prompt=c["add_generation_prompt"], **values)
            self.assertEqual(got, prompt, c["messages"])
            n_vendor += got == c.get("expected")
        self.assertGreater(n_vendor, 100)

    def test_parts_and_errors(self):
        source = f"{GOLDENS}/gemma4_dense"
        self.convert(source)
        whole = self.logits(self.out, 512)
        os.unlink(self.out)
        self.convert(source, "--split-max-size", "400K")
        parts = sorted(p for p in os.listdir(self.dir) if p.endswith(".gguf"))
        self.assertGreater(len(parts), 2)
        self.assertEqual(parts[0], f"out-00001-of-{len(parts):05}.gguf")
        self.assertEqual(self.logits(f"{self.dir}/{parts[0]}", 512), whole)
        for p in parts:
            os.unlink(f"{self.dir}/{p}")
        bad = f"{self.dir}/bad"
        os.mkdir(bad)
        t = safetensors(f"{source}/model.safetensors")
        name = next(k for k in t if k.endswith("q_proj.weight"))
        t[name][2] = t[name][2][:40] + b"\xff\xff\xff\x7f" + t[name][2][44:]
        save(f"{bad}/model.safetensors", t)
        for config, word in ((None, "config.json"), ({"model_type": "llama"}, "llama")):
            if config:
                json.dump(config, open(f"{bad}/config.json", "w"))
            self.assertIn(word, self.convert(bad, code=1).stderr.decode())
        shutil.copy(f"{source}/config.json", bad)
        self.assertIn("no finite number", self.convert(bad, code=1).stderr.decode())
        self.convert(f"{GOLDENS}/gemma4_dense", "--mtp", code=1)
        self.convert(f"{self.dir}/none", code=1)
        self.assertFalse([p for p in os.listdir(self.dir) if ".gguf" in p])
        self.run_it("convert", source, code=2)
        r = self.run_it("convert", source, "--dry-run")
        self.assertIn(b"F32", r.stdout)
        self.run_it("convert", source, "--outfile", self.out, "--outtype", "bf16", "--no-mtp")

    def values(self, path):
        """{name: floats of all its tensors} of safetensors, codes of 4 bits with their scales as they are."""
        out = {}
        for name, (dtype, shape, raw) in safetensors(path).items():
            if dtype == "BF16":
                raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
            if dtype in ("BF16", "F32"):
                dtype, raw = "F", raw
            out[name] = (dtype, shape, raw)
        return out

    CODED = {  # scheme: members of quantization_config, the type in the file
        "int4": ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}, 2),
        "int8": ({"num_bits": 8, "type": "int", "strategy": "channel"}, 8),
        "nvfp4": ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, 40),
        "mxfp4": ({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}, 39),
        "fp8": ({"num_bits": 8, "type": "float", "strategy": "channel"}, 30)}

    @staticmethod
    def coded(scheme, rows, columns):
        """Tensors of a matrix of random codes, behind its name without '.weight'."""
        n = rows * columns
        scales = lambda k: b"".join(struct.pack("<f", random.choice((1, 1.25, 1.5, 1.75)) * 2.0 ** random.randrange(-7, -4))[2:] for _ in range(k))
        codes = bytes(random.randrange(256) for _ in range(n // 2))
        if scheme == "int4":
            return {".weight_packed": ["I32", [rows, columns // 8], codes], ".weight_scale": ["BF16", [rows, columns // 32], scales(n // 32)],
                    ".weight_shape": ["I64", [2], struct.pack("<qq", rows, columns)]}
        if scheme == "int8":
            return {".weight": ["I8", [rows, columns], bytes(random.randrange(-127, 128) & 255 for _ in range(n))],
                    ".weight_scale": ["BF16", [rows, 1], scales(rows)]}
        if scheme == "fp8":
            return {".weight": ["F8_E4M3", [rows, columns], bytes(random.choice((random.randrange(0, 100), random.randrange(128, 228))) for _ in range(n))],
                    ".weight_scale": ["BF16", [rows, 1], b"".join(struct.pack("<f", 2.0 ** random.randrange(-9, -5))[2:] for _ in range(rows))]}
        if scheme == "nvfp4":
            return {".weight_packed": ["U8", [rows, columns // 2], codes],
                    ".weight_scale": ["F8_E4M3", [rows, columns // 16], bytes(random.randrange(40, 90) for _ in range(n // 16))],
                    ".weight_global_scale": ["F32", [1], struct.pack("<f", 24.0)]}
        return {".weight_packed": ["U8", [rows, columns // 2], codes],
                ".weight_scale": ["U8", [rows, columns // 32], bytes(random.randrange(118, 124) for _ in range(n // 32))]}

    def test_coded_checkpoints(self):
        """Codes of 4 and 8 bits of compressed-tensors: their type in the file, and the same values and logits from it."""
        plain = safetensors(f"{GOLDENS}/gemma4_dense/model.safetensors")
        config = json.load(open(f"{GOLDENS}/gemma4_dense/config.json"))
        for scheme, (weights, kind) in self.CODED.items():
            with self.subTest(scheme=scheme):
                random.seed(3)
                to = f"{self.dir}/{scheme}"
                os.mkdir(to)
                tensors = {}
                for name, t in plain.items():
                    if re.search(r"layers\.\d+\..*_proj\.weight$", name):
                        stem = name.removesuffix(".weight")
                        tensors.update({stem + k: v for k, v in self.coded(scheme, *t[1]).items()})
                    else:
                        tensors[name] = t
                config["quantization_config"] = {"quant_method": "compressed-tensors", "ignore": ["lm_head"],
                                                 "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
                json.dump(config, open(f"{to}/config.json", "w"))
                save(f"{to}/model.safetensors", tensors)
                self.convert(to)
                types = {t[1] for n, t in gguf(self.out)[1].items() if re.search(r"(attn_[qkv]|attn_output|ffn_(gate|up|down))\.weight", n)}
                self.assertEqual(types, {kind})
                r = json.loads(self.run_it("compare", "-q", "--json", to, self.out).stdout)
                self.assertEqual({v["relative_rms"] for v in r.values()}, {0})
                self.assertEqual(self.logits(to, 512), self.logits(self.out, 512))
                self.assertEqual(self.run_it("check", "-q", self.out, code=3).stdout.count(b"problem"), 1)  # "0 problems"

    def test_back(self):
        """A checkpoint, its GGUF file, and the checkpoint made of that: the same tensors and the same logits."""
        back = f"{self.dir}/back"
        for golden, n_vocab in (("gemma4_dense", 512), ("gemma4_moe", 512), ("deepseek_v4_full", 320), ("deepseek_v4_published", 320)):
            with self.subTest(golden=golden):
                source = f"{GOLDENS}/{golden}"
                self.convert(source)
                shutil.rmtree(back, ignore_errors=True)
                self.run_it("convert", "--threads", "2", self.out, "-o", back)
                was, now = self.values(f"{source}/model.safetensors"), self.values(f"{back}/model.safetensors")
                if golden == "deepseek_v4_full":
                    was = {k: v for k, v in was.items() if not k.startswith("mtp.")}
                if golden != "deepseek_v4_published":
                    names = {k.replace("model.language_model.", "model."): v for k, v in was.items()}
                    self.assertEqual(names, now)
                else:  # FP8 became BF16, so its scales are gone; experts are as they were
                    self.assertEqual({k for k in was if k not in now and not k.endswith(".scale")}, set())
                    for name, v in was.items():
                        if ".experts." in name or name.endswith("tid2eid") or v[0] == "F":
                            self.assertEqual(now[name], v, name)
                self.assertEqual(self.logits(back, n_vocab), self.logits(source, n_vocab))

    def test_back_of_nvfp4(self):
        """Codes, scales and the factor of each matrix, with one and without; experts as a stack. Another form, the same bits."""
        source, back = f"{self.dir}/source", f"{self.dir}/back"
        random.seed(4)
        plain, tensors = safetensors(f"{GOLDENS}/gemma4_dense/model.safetensors"), {}
        os.mkdir(source)
        for name, t in plain.items():
            stem = name.removesuffix(".weight")
            tensors.update({stem + k: v for k, v in self.coded("nvfp4", *t[1]).items()} if re.search(r"_proj\.weight$", name) else {name: t})
        config = json.load(open(f"{GOLDENS}/gemma4_dense/config.json"))
        config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": self.CODED["nvfp4"][0]}}}
        json.dump(config, open(f"{source}/config.json", "w"))
        save(f"{source}/model.safetensors", tensors)
        self.convert(source)
        self.run_it("convert", self.out, "-o", back)
        now, n = safetensors(f"{back}/model.safetensors"), 0
        for name, t in tensors.items():
            if name.endswith(".weight_packed"):
                stem = name.removesuffix("_packed").replace("model.language_model.", "model.")
                self.assertEqual((now[stem], now[stem + "_scale"]), (t, tensors[name.replace("_packed", "_scale")]), name)
                self.assertEqual(now[stem + "_scale_2"][2], struct.pack("<f", 1 / 24))
                n += 1
        self.assertGreater(n, 10)
        self.assertEqual(self.logits(back, 512), self.logits(self.out, 512))
        self.assertIn(b"without --outtype", self.run_it("convert", self.out, "-o", f"{self.dir}/x", "--outtype", "f32", code=1).stderr)
        shutil.rmtree(back)
        self.run_it("quantize", "--threads", "2", f"{GOLDENS}/deepseek_v4_full", self.out, "BF16", "--tensor", "gate_exps=NVFP4")
        self.run_it("convert", self.out, "-o", back)
        self.assertEqual({t[0] for k, t in safetensors(f"{back}/model.safetensors").items() if re.search(r"experts\.\d+\.w1\.weight$", k)}, {"U8"})
        self.assertEqual(self.logits(back, 320), self.logits(self.out, 320))

    def test_back_of_what_has_no_checkpoint_here(self):
        """E-models and codes: the file, its checkpoint, and the file made of that."""
        for source, n_tensors in ((f"{GOLDENS}/gemma4_ple_e2b/model-F32.gguf", 99), (f"{GOLDENS}/gemma4_ple_e4b/model-F32.gguf", 99),
                                  (f"{GOLDENS}/gemma4_realhd/model-F32.gguf", 44), ("assets/nano-gemma4-Q8_0.gguf", 86)):
            with self.subTest(source=source):
                back = f"{self.dir}/back"
                shutil.rmtree(back, ignore_errors=True)
                self.run_it("convert", source, "-o", back, "--outtype", "f32", "--split-max-tensors", "40")
                self.convert(back)
                r = json.loads(self.run_it("compare", "-q", "--json", source, self.out).stdout)
                self.assertEqual((len(r), {v["relative_rms"] for v in r.values()}), (n_tensors, {0}))
                was, now = gguf(source)[0], gguf(self.out)[0]
                for key, v in was.items():
                    if key.startswith(("gemma4.", "tokenizer.ggml.tokens", "tokenizer.ggml.merges")) and key != "gemma4.vocab_size":
                        self.assertEqual(now.get(key), v, key)
        self.run_it("convert", "assets/nano-gemma4-Q8_0.gguf", "-o", f"{self.dir}/back", code=1)  # there is one
        r = self.run_it("convert", "assets/nano-gemma4-Q8_0.gguf", "-o", f"{self.dir}/rounded")
        self.assertIn(b"--outtype f32", r.stderr)
        self.run_it("convert", "assets/nano-gemma4-Q8_0.gguf", "-o", f"{self.dir}/full", code=1, preexec_fn=small_disk)
        self.assertFalse(os.path.exists(f"{self.dir}/full"))
        words = "Hello, World! 123\n  <|turn>x \xc3\xa9"
        a, b = (self.run_it("tokenize", "--parse-special", "-m", m, words).stdout for m in ("assets/nano-gemma4-Q8_0.gguf", f"{self.dir}/rounded"))
        self.assertEqual(a, b)
        self.run_it("convert", "assets/nano-gemma4-Q8_0.gguf", "-o", f"{self.dir}/x", "--outtype", "q8_0", code=2)

    def back_and_again(self, source, *args):
        """The checkpoint of the file self.out, and the file made of that, which has the same tensors and keys."""
        back, again = f"{self.dir}/back", f"{self.dir}/again.gguf"
        shutil.rmtree(back, ignore_errors=True)
        self.run_it("convert", "--threads", "2", source, "-o", back, *args)
        self.run_it("convert", "--threads", "2", back, "-o", again)
        (was, a), (now, b) = gguf(source), gguf(again)
        if not args:
            self.assertEqual(a, b)
        for key, v in was.items():
            if key.startswith(("dflash.", "gemma4", "deepseek4.")):
                self.assertEqual(now.get(key), v if v != 0 else now.get(key), key)
        return again, self.values(f"{back}/model.safetensors")

    def test_back_of_drafters(self):
        """Their checkpoints come back with every tensor, also of codes; experts one by one, the block's projections apart."""
        for golden in ("dflash_gemma4", "dflash2_gemma4", "dspark_gemma4", "dspark_v4", "gemma4_assistant_ordered"):
            with self.subTest(golden=golden):
                self.convert(f"{GOLDENS}/{golden}")
                self.assertEqual(self.back_and_again(self.out)[1], self.values(f"{GOLDENS}/{golden}/model.safetensors"))
        source, alone = f"{GOLDENS}/deepseek_v4_full", f"{self.dir}/alone"
        all_of_it = self.values(f"{source}/model.safetensors")
        block = {k: v for k, v in all_of_it.items() if k.startswith("mtp.")}
        self.convert(source, "--mtp")
        now = self.back_and_again(self.out)[1]
        self.assertEqual({k: v for k, v in now.items() if k.startswith("mtp.")}, block)
        self.assertEqual({k: v for k, v in now.items() if k not in block}, {k: all_of_it[k] for k in ("embed.weight", "head.weight", "norm.weight")})
        os.mkdir(alone)
        shutil.copy(f"{source}/config.json", alone)
        save(f"{alone}/model.safetensors", {k: v for k, v in safetensors(f"{source}/model.safetensors").items() if k in block})
        self.convert(alone)
        self.assertEqual(self.back_and_again(self.out)[1], block)
        for name in ("nano/nano-gemma4-dflash", "nano/nano-gemma4-dspark", "nano/nano-gemma4-mtp", "nano-v4/nano-v4-dspark", "nano-v4/nano-v4-mtp0"):
            with self.subTest(name=name):
                file = f"tests/data/{name}-Q8_0.gguf"
                again, _ = self.back_and_again(file, "--outtype", "f32")
                r = json.loads(self.run_it("compare", "-q", "--json", file, again).stdout)
                self.assertEqual((len(r), {v["relative_rms"] for v in r.values()}), (len(gguf(file)[1]), {0}))

    def changed(self, golden, change):
        """A copy of a checkpoint after change(tensors, config, folder)."""
        to = f"{self.dir}/changed"
        shutil.rmtree(to, ignore_errors=True)
        os.mkdir(to)
        t, config = safetensors(f"{GOLDENS}/{golden}/model.safetensors"), json.load(open(f"{GOLDENS}/{golden}/config.json"))
        change(t, config, to)
        json.dump(config, open(f"{to}/config.json", "w"))
        save(f"{to}/model.safetensors", t)
        return to

    def test_what_would_not_load_is_not_written(self):
        """Checkpoints that are no whole model: an error that names what is wrong, and no file; --force writes those that it can."""
        drop = lambda part: lambda t, c, to: [t.pop(k) for k in list(t) if part in k]
        embed = "model.language_model.embed_tokens.weight"

        def resized(t, c, to):  # the embedding grew, the configuration did not
            t[embed] = [t[embed][0], [t[embed][1][0] + 64, t[embed][1][1]], t[embed][2] + bytes(64 * len(t[embed][2]) // t[embed][1][0])]

        def narrow(t, c, to):  # an expert of half the rows
            name = next(k for k in t if "layers.1.ffn.experts.3.w1.weight" in k)
            dtype, shape, raw = t[name]
            t[name] = [dtype, [shape[0] // 2, shape[1]], raw[:len(raw) // 2]]

        def untied(t, c, to):
            c["tie_word_embeddings"] = c["text_config"]["tie_word_embeddings"] = False

        def wrapped(t, c, to):  # names of a wrapper, of an adapter's tool
            for k in list(t):
                t["base_model.model." + k] = t.pop(k)

        for golden, change, word in (
                ("gemma4_dense", drop("layers.3.mlp.up_proj"), "blk.3.ffn_up.weight"), ("gemma4_dense", drop(".layers.11."), "blk.11."),
                ("gemma4_dense", drop("language_model.norm.weight"), "output_norm.weight"), ("gemma4_dense", resized, "vocab"),
                ("gemma4_dense", untied, "tie_word_embeddings"),
                ("deepseek_v4_published", drop("layers.2."), "blk.2."), ("deepseek_v4_published", drop("layers.1.attn_norm"), "attn_norm"),
                ("deepseek_v4_full", drop("head.weight"), "output.weight"), ("deepseek_v4_published", drop("tid2eid"), "tid2eid"),
                ("deepseek_v4_published", drop("layers.1.ffn.experts.3."), "_exps.3.weight"), ("deepseek_v4_published", narrow, "experts.3.w1")):
            with self.subTest(golden=golden, word=word):
                r = self.convert(self.changed(golden, change), code=1).stderr.decode()
                self.assertIn(word, r)
                self.assertFalse([f for f in os.listdir(self.dir) if f.startswith("out.gguf")])
        self.assertIn("would not load", self.convert(self.changed("gemma4_dense", resized), "--force").stderr.decode())
        os.unlink(self.out)
        self.convert(self.changed("gemma4_dense", wrapped), code=1)
        index = lambda t, c, to: json.dump({"weight_map": {k: "model-00001-of-00002.safetensors" for k in t}},
                                           open(f"{to}/model.safetensors.index.json", "w"))
        r = self.run_it("inspect", "-q", self.changed("gemma4_dense", index), code=None)  # a stale index: as all readers do
        self.assertEqual(r.returncode, self.convert(f"{self.dir}/changed", code=None).returncode)

    def test_names_and_folders(self):
        """{ftype}, upper case, --outfile; a file in the checkpoint's folder is written again; what is no checkpoint is named."""
        source = self.changed("gemma4_dense", lambda t, c, to: None)
        for args, name in ((("-o", "m-{ftype}.gguf", "--outtype", "Q8_0"), "m-q8_0.gguf"), (("--outfile", "n-{FTYPE}.gguf", "--outtype", "f16"), "n-F16.gguf"),
                           (("-o", "changed/in.gguf"), "changed/in.gguf"), (("-o", "changed/in.gguf"), "changed/in.gguf")):
            self.run_it("convert", "-q", source, args[0], f"{self.dir}/{args[1]}", *args[2:])
            self.assertTrue(os.path.exists(f"{self.dir}/{name}"), name)
        shutil.copy("assets/nano-gemma4-Q8_0.gguf", f"{source}/own.gguf")
        for name in ("own.gguf", "model.safetensors", "config.json"):  # not of a conversion
            self.run_it("convert", "-q", source, "-o", f"{source}/{name}", code=1)
        self.assertEqual(len(gguf(f"{source}/own.gguf")[1]), 86)
        os.rename(f"{source}/model.safetensors", f"{source}/pytorch_model.bin")
        self.assertIn("pytorch_model.bin", self.convert(source, code=1).stderr.decode())

    def test_keys_of_shapes_are_named(self):
        """Without a key, or with another number, the error names it."""
        d = open("assets/nano-gemma4-Q8_0.gguf", "rb").read()
        for source, key, value in (("assets/nano-gemma4-Q8_0.gguf", "gemma4.attention.key_length_swa", None),
                                   ("assets/nano-gemma4-Q8_0.gguf", "gemma4.block_count", 5), ("assets/nano-gemma4-Q8_0.gguf", "gemma4.embedding_length", 260),
                                   ("assets/nano-gemma4-Q8_0.gguf", "gemma4.attention.head_count", 8), (f"{GOLDENS}/gemma4_moe/model-F32.gguf", "gemma4.expert_count", None),
                                   (f"{GOLDENS}/gemma4_ple_e2b/model-F32.gguf", "gemma4.embedding_length_per_layer_input", None),
                                   (f"{GOLDENS}/gemma4_ple_e2b/model-F32.gguf", "gemma4.attention.shared_kv_layers", None),
                                   (f"{GOLDENS}/deepseek_v4_full/model-Q8_0.gguf", "deepseek4.hash_layer_count", 2),
                                   (f"{GOLDENS}/deepseek_v4_full/model-Q8_0.gguf", "deepseek4.attention.indexer.top_k", None),
                                   (f"{GOLDENS}/deepseek_v4_full/model-Q8_0.gguf", "deepseek4.attention.q_lora_rank", 31)):
            with self.subTest(key=key, value=value):
                d, name = open(source, "rb").read(), struct.pack("<Q", len(key)) + key.encode()
                at = d.index(name + struct.pack("<I", 4))
                if value is None:  # the same length: a key that nobody reads
                    d = d[:at + 8] + b"x" + d[at + 9:]
                else:
                    d = d[:at + len(name) + 4] + struct.pack("<I", value) + d[at + len(name) + 8:]
                open(self.out, "wb").write(d)
                self.assertIn(f"'{key}'", self.run_it("check", "-q", self.out, code=1).stdout.decode())

    def test_leftovers_of_dead_processes(self):
        """A temporary file of a process that is gone is removed; that of a living one stays."""
        self.convert(f"{GOLDENS}/gemma4_dense")
        back = f"{self.dir}/back"
        os.mkdir(back)
        dead = subprocess.Popen(["true"])
        dead.wait()
        for pid in (dead.pid, os.getpid()):
            open(f"{back}/config.json.{pid}-0.tmp", "w").write("{")
        self.run_it("convert", "-q", self.out, "-o", back)
        self.assertEqual([f for f in os.listdir(back) if f.endswith(".tmp")], [f"config.json.{os.getpid()}-0.tmp"])

    def test_quantize_takes_checkpoints(self):
        self.run_it("quantize", "--threads", "2", f"{GOLDENS}/gemma4_dense", self.out, "Q8_0")
        self.same_tensors(f"{GOLDENS}/gemma4_dense/model-Q8_0.gguf", besides=[n for n in gguf(self.out)[1]])


    def damaged(self, name, change, source="assets/nano-gemma4-Q8_0.gguf"):
        """A copy of a file with the bytes of one tensor changed."""
        raw = gguf(source)[1][name][2]
        d = open(source, "rb").read()
        at = d.index(raw)
        to = f"{self.dir}/damaged.gguf"
        open(to, "wb").write(d[:at] + change(raw) + d[at + len(raw):])
        return to

    def test_check(self):
        def check(path, code):
            text = self.run_it("check", "-q", "--threads", "2", path, code=code).stdout.decode()
            found = json.loads(self.run_it("check", "-q", "--json", "--threads", "2", path, code=code).stdout)
            self.assertEqual(found.get("problems", 1) > 0, code == 1)
            return text, found

        text, found = check("assets/nano-gemma4-Q8_0.gguf", 0)
        self.assertEqual((found["architecture"], found["supported"], found["instruction"]), ("gemma4", True, False))
        found = check("tests/data/nano-v4/nano-v4-MXFP4.gguf", 0)[1]
        self.assertEqual((found["architecture"], found["instruction"], found["chat"]), ("deepseek4", True, "deepseek4 nano"))
        check(f"{GOLDENS}/gemma4_moe", 0)
        self.convert(f"{GOLDENS}/gemma4_moe")
        check(self.out, 3)  # it has no vocabulary
        name = "blk.3.ffn_up.weight"
        text, found = check(self.damaged(name, lambda raw: raw[:340] + b"\0\x7e" + raw[342:]), 1)
        self.assertIn(f"'{name}' of Q8_0 has 32 elements", text)
        self.assertIn("is zero everywhere", check(self.damaged(name, lambda raw: bytes(len(raw))), 1)[0])
        big = lambda raw: b"".join(struct.pack("<e", struct.unpack("<e", raw[i:i + 2])[0] * 500) + raw[i + 2:i + 34] for i in range(0, len(raw), 34))
        self.assertIn("scales may be wrong", check(self.damaged(name, big), 3)[0])
        d = open("assets/nano-gemma4-Q8_0.gguf", "rb").read()
        for cut in (40, 5000, len(d) - 4000):
            open(self.out, "wb").write(d[:cut])
            self.assertIn("problem: ", check(self.out, 1)[0])
        a = d.replace(b"gemma4.attention.key_length_swa\4\0\0\0\x20", b"gemma4.attention.key_length_swa\4\0\0\0\x30")
        open(self.out, "wb").write(a)
        self.assertNotEqual(a, d)
        self.assertIn("supported is 48", check(self.out, 1)[0])
        for path, what in (("tests/data/nano/nano-gemma4-dflash-Q8_0.gguf", "dflash for Gemma 4"),
                           ("tests/data/nano/nano-gemma4-mtp-Q8_0.gguf", "mtp for Gemma 4"),
                           ("tests/data/nano-v4/nano-v4-dspark-Q8_0.gguf", "dspark for DeepSeek V4"),
                           (f"{GOLDENS}/dflash2_gemma4", "dflash2 for Gemma 4")):
            self.assertIn(what, json.loads(self.run_it("check", "-q", "--json", path).stdout)["drafts"])
            self.assertIn(f"a drafter: {what}".encode(), self.run_it("check", "-q", path).stdout)
        self.run_it("check", f"{self.dir}/none", code=1)
        self.run_it("check", code=2)

    def test_encoders(self):
        """Encoders of pictures and sound as llama.cpp's converter writes them, bit for bit; inspect, check and
        quantize know them."""
        vision = "tests/data/vision/vision_"
        for name, layers in (("31b", "3 layers"), ("e4b", "2 layers"), ("12b", "gemma4ua")):
            for code, golden in (("auto", f"{vision}{name}/mmproj-BF16.gguf"),
                                 ("q8_0", f"{vision}{name}_q8/mmproj-Q8_0.gguf")):
                if not os.path.exists(golden):
                    continue
                self.convert(vision + name, "--encoders", "--outtype", code, "--force")
                (keys, tensors), (wanted, same) = gguf(self.out), gguf(golden)
                self.assertEqual(tensors, same)
                for k in ("general.name", "general.quantization_version", "ingle.converted_from"):
                    keys.pop(k, None), wanted.pop(k, None)
                self.assertEqual(keys, wanted)
                self.assertIn(layers, json.loads(self.run_it("inspect", "--json", self.out).stdout)["encoders"])
                self.assertIn(b"0 problems", self.run_it("check", self.out).stdout)
        self.assertIn("pictures (gemma4v, 2 layers",
                      json.loads(self.run_it("check", "--json", f"{vision}e4b").stdout)["encoders"])
        small = f"{self.dir}/small.gguf"
        self.run_it("quantize", f"{vision}e4b/mmproj-BF16.gguf", small, "Q8_0")
        self.assertEqual(gguf(small)[1], gguf(f"{vision}e4b_q8/mmproj-Q8_0.gguf")[1])
        for code in ("Q4_K_M", "Q4_0", "IQ4_NL"):
            text = self.run_it("quantize", f"{vision}31b/mmproj-BF16.gguf", small, code, "--force", code=1).stderr
            self.assertIn(b"F32, F16, BF16 or Q8_0", text)
        text = self.run_it("convert", "--encoders", f"{GOLDENS}/gemma4_dense", "-o", small, "--force", code=1).stderr
        self.assertIn(b"no encoders", text)
        d = open(f"{vision}31b/mmproj-BF16.gguf", "rb").read()
        open(small, "wb").write(d.replace(b"v.blk.1.ln2", b"v.blk.1.ln9"))
        self.assertIn(b"v.blk.1.ln2", self.run_it("check", small, code=1).stdout)

    def test_compare(self):
        """Files of any two kinds: equal where one was made of the other, with the error of a code where it was encoded."""
        source = f"{GOLDENS}/deepseek_v4_published"
        self.convert(source)
        r = json.loads(self.run_it("compare", "-q", "--json", source, self.out).stdout)
        self.assertEqual({v["relative_rms"] for v in r.values()}, {0})
        self.assertEqual(r["blk.0.ffn_up_exps.weight"]["types"], ["MXFP4", "MXFP4"])
        self.run_it("quantize", "--threads", "2", self.out, f"{self.dir}/small.gguf", "Q4_0")
        r = json.loads(self.run_it("compare", "-q", "--json", f"{self.dir}/small.gguf", source).stdout)
        self.assertTrue(0.02 < r["blk.0.attn_q_a.weight"]["relative_rms"] < 0.15, r["blk.0.attn_q_a.weight"])
        self.assertEqual(r["blk.0.attn_norm.weight"]["relative_rms"], 0)
        text = self.run_it("compare", f"{self.dir}/small.gguf", self.out).stdout.decode()
        self.assertIn("all matrices: relative RMS 0.", text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], warnings="ignore")
