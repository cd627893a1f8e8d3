#!/usr/bin/env python3
"""keys.py INGLE - nothing in a model file that changes the model is ignored in silence: heads of their own, and every
hyper-parameter that the tables of src/family/*keys.c name."""
import concurrent.futures, hashlib, json, os, re, subprocess, sys, tempfile, unittest
from modelfile import *

INGLE = sys.argv[1]
SOAK = "INGLE_TEST_SOAK" in os.environ  # ./test soak: all of them
GOLDENS = "tests/data/goldens"
NANO = "assets/nano-gemma4-Q8_0.gguf"
PLE, MOE = f"{GOLDENS}/gemma4_ple_e2b/model-F32.gguf", f"{GOLDENS}/gemma4_moe/model-F32.gguf"
V4 = f"{GOLDENS}/deepseek_v4_full/model-MXFP4.gguf"


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.n = 0
        with open(f"{self.dir.name}/tokens.json", "w") as file:
            json.dump([(i * 37 + 5) % 300 for i in range(150)], file)

    def tearDown(self):
        self.dir.cleanup()

    def path(self, suffix=""):
        self.n += 1
        return f"{self.dir.name}/{self.n}{suffix}"

    def run_on(self, model, *args):
        return subprocess.run([INGLE, *args, "-m", model, "--no-pack-cache"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300)

    def logits(self, model):
        """A hash of the logits of some tokens, or what was said instead; and all that was said."""
        out = self.path(".safetensors")
        r = self.run_on(model, "eval", "--tokens", f"{self.dir.name}/tokens.json", "--logits", out, "--threads", "1", "-c", "256")
        if r.returncode:
            self.assertEqual(r.stderr.count("ingle: error: "), 1, r.stderr)
            self.assertIn(os.path.basename(model), r.stderr)
            return None, r.stderr
        with open(out, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        os.unlink(out)
        return digest, r.stderr

    def each(self, jobs):
        """The results of functions that may run beside each other."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return [f.result() for f in [pool.submit(*job) for job in jobs]]


def swapped(ne, kind, raw, i, j):
    block, size = SIZE[kind]
    n = ne[0] // block * size
    rows = [raw[k * n:(k + 1) * n] for k in range(ne[1])]
    rows[i], rows[j] = rows[j], rows[i]
    return b"".join(rows)


class Heads(Case):
    def answer(self, model):
        r = self.run_on(model, "run", "--temp", "0", "-n", "20", "What is the capital of France?")
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout, r.stderr

    def test_gguf(self):
        g = Gguf(NANO)
        ne, kind, raw = g.tensors["token_embd.weight"]
        words = [w.decode() for w in g.kv["tokenizer.ggml.tokens"][1][1]]
        i, j = words.index("▁Paris"), words.index("▁Rome")
        g.tensors["output.weight"] = ne, kind, swapped(ne, kind, raw, i, j)
        out, said = self.answer(g.write(self.path(".gguf")))
        self.assertIn("Rome", out)
        self.assertNotIn("not used", said)
        g.tensors["output.weight"] = ne, kind, raw  # a copy costs nothing
        path = g.write(self.path(".gguf"))
        out, said = self.answer(path)
        self.assertIn("Paris", out)
        plan = lambda m: re.search(r"weights\s+([\d.]+ \w+)", self.run_on(m, "inspect", "--plan").stdout)
        self.assertEqual(plan(path)[1], plan(NANO)[1])
        g.tensors["output.weight"] = (ne[0], ne[1] - 1), kind, raw[:(ne[1] - 1) * len(raw) // ne[1]]
        digest, said = self.logits(g.write(self.path(".gguf")))
        self.assertIsNone(digest)
        for word in ("output.weight", str(ne[1] - 1), str(ne[1])):
            self.assertIn(word, said)

    def test_gguf_says_untied(self):
        g = Gguf(NANO)
        g.kv["gemma4.tie_word_embeddings"] = BOOL, False
        digest, said = self.logits(g.write(self.path(".gguf")))
        self.assertIsNone(digest)
        self.assertIn("'tie_word_embeddings' is false", said)

    def checkpoint(self, name, shape=None, **flags):
        c = Checkpoint(f"{GOLDENS}/gemma4_dense")
        embed = "model.language_model.embed_tokens.weight"
        dtype, s, raw = c.tensors[embed]
        row = len(raw) // s[0]
        if name:
            rows = [raw[k * row:(k + 1) * row] for k in range(s[0])]
            c.tensors[name] = (dtype, s, b"".join(rows[::-1])) if not shape else (dtype, shape, raw[:shape[0] * row])
        for key, v in flags.items():
            (c.config["text_config"] if key == "text" else c.config)["tie_word_embeddings"] = v
        return self.logits(c.write(self.path()))

    def test_checkpoint(self):
        plain, said = self.checkpoint(None)
        self.assertIsNotNone(plain, said)
        with_head = None
        for name in ("lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight", "model.language_model.lm_head.weight"):
            digest, said = self.checkpoint(name, text=False, whole=False)
            self.assertIsNotNone(digest, said)
            self.assertNotEqual(digest, plain, name)
            self.assertEqual(digest, with_head or digest)
            with_head = digest
        digest, said = self.checkpoint("lm_head.weight")
        self.assertEqual(digest, with_head)
        self.assertIn("'tie_word_embeddings' is true", said)
        for flags in ({"text": False}, {"whole": False}):
            digest, said = self.checkpoint(None, **flags)
            self.assertIsNone(digest)
            self.assertIn("'tie_word_embeddings' is false", said)
        digest, said = self.checkpoint("lm_head.weight", shape=[100, 64], text=False)
        self.assertIsNone(digest)
        self.assertIn("lm_head.weight", said)

    def test_deepseek4(self):
        c = Checkpoint(f"{GOLDENS}/deepseek_v4_published")
        plain, said = self.logits(c.write(self.path()))
        self.assertIsNotNone(plain, said)
        head = c.tensors.pop("head.weight")
        digest, said = self.logits(c.write(self.path()))
        self.assertIsNone(digest)
        self.assertIn("'tie_word_embeddings' is false", said)
        c.config["tie_word_embeddings"] = True
        tied, said = self.logits(c.write(self.path()))
        self.assertIsNotNone(tied, said)
        self.assertNotEqual(tied, plain)
        c.tensors["embed.weight"] = head
        self.assertIsNotNone(self.logits(c.write(self.path()))[0])
        g = Gguf(V4)
        del g.tensors["output.weight"]
        digest, said = self.logits(g.write(self.path(".gguf")))
        self.assertIsNone(digest)
        self.assertIn("output.weight", said)


class Tokenizers(Case):
    def test_as_ollama_writes_it(self):
        g = Gguf(NANO)
        g.kv["tokenizer.ggml.model"], g.kv["tokenizer.ggml.pre"] = (STR, b"llama"), (STR, b"gemma4")
        g.kv["gemma4.vision.block_count"] = g.kv["gemma4.audio.block_count"] = U32, 1
        for name in ("v.blk.0.ln1.weight", "v.clamp_data", "a.blk.0.conv_dw.weight", "mm.input_projection.weight"):
            g.tensors[name] = (64,), 0, bytes(256)
        digest, said = self.logits(g.write(self.path(".gguf")))
        self.assertEqual(digest, self.logits(NANO)[0], said)
        self.assertNotIn("WARN", said)

    def test_errors_name_the_file(self):
        for key, v in (("model", b"spm"), ("pre", b"qwen2"), ("bos_token_id", b"x"), ("tokens", b"none")):
            g = Gguf(NANO)
            g.kv[f"tokenizer.ggml.{key}"] = STR, v
            digest, said = self.logits(g.write(self.path(".gguf"))) # asserts that the file is named
            self.assertIsNone(digest)
            self.assertIn(f"tokenizer.ggml.{key}", said)
        c = Checkpoint(f"{GOLDENS}/gemma4_dense")
        path = c.write(self.path())
        with open(f"{path}/tokenizer.json", "w") as file:
            file.write("{}")
        self.assertIn("tokenizer.json", self.logits(path)[1])


def table(name):
    """[(key, rule, arguments)] of one of the tables, as the source has it."""
    for file in ("keys", "gemma4_keys", "deepseek4_keys"):
        with open(f"src/family/{file}.c") as f:
            found = re.search(r"const struct family_key family_%s\[\] = \{(.*?)\n\};" % name, f.read(), re.S)
        if found:
            rows = re.findall(r'\{"([^"]+)",\s*(READ|FREE|NUMBER|FLAG|WORD|SAME)(?:\(([^)]*)\))?\}', found[1])
            return [(k, rule, args) for k, rule, args in rows]
    raise KeyError(name)


def other_than_neutral(rule, args, key):
    """Values that are not supported, as (GGUF type, value); ./test soak takes both kinds of numbers."""
    if rule == "NUMBER":
        both = [(F32, 0.37), (U32, 3)]
        return both if SOAK else [both[len(key) % 2]]
    if rule == "FLAG":
        return [(BOOL, not int(args))]
    if rule == "WORD":
        return [(STR, b"another")]
    return [(U32, 12345)]  # SAME


class GgufKeys(Case):
    def check_table(self, arch, base, names, other=1):
        """Each key that is not supported, in a file of its own; of the table that the families share every second one,
        the other family the others.  Those that may have any value are in one file."""
        seen, jobs = set(), []
        plain, said = self.logits(base)
        self.assertIsNotNone(plain, said)
        self.assertNotIn("keys are not known", said)

        model = Gguf(base)

        def one(*new):
            path = model.with_keys(self.path(".gguf"), *new)
            got = self.logits(path)
            os.unlink(path)
            return new[0][0], new[0][2], got

        free = []
        for own, i, (key, rule, args) in ((n == names[0], i, row) for n in names for i, row in enumerate(table(n))):
            if key in seen:
                continue
            seen.add(key)
            if rule == "FREE":
                free.append((f"{arch}.{key.replace('*', 'some')}", U32, 7))
            elif rule != "READ" and (own or SOAK or i % 2 == other):
                for kind, v in other_than_neutral(rule, args, key):
                    jobs.append((one, (f"{arch}.{key.replace('*', 'some')}", kind, v)))
        for key, v, (digest, said) in self.each(jobs):
            self.assertIsNone(digest, f"{key} = {v} was ignored")
            self.assertIn(f"'{key}' is ", said)
            self.assertIn("supported is", said)

        _, _, (digest, said) = one(*free)
        self.assertEqual(digest, plain, f"{free}: {said}")

    def test_gemma4(self):
        self.check_table("gemma4", MOE, ["gemma4_keys", "common_keys"])

    def test_deepseek4(self):
        self.check_table("deepseek4", V4, ["deepseek4_keys", "common_keys"], other=0)

    def read_keys(self, arch, bases, rules, unchanged):
        """Every key that a family reads: another value, of one model or the other, changes logits or is an error."""
        plain = {b: self.logits(b)[0] for b in bases}
        model = {b: Gguf(b) for b in bases}

        def changes(key, values):
            for base, kind, v in values:
                path = model[base].with_keys(self.path(".gguf"), (key, kind, v))
                digest, _ = self.logits(path)
                os.unlink(path)
                if digest != plain[base]:
                    return key, True
            return key, False

        more = lambda old: old * 2 if isinstance(old, (int, float)) else b"linear" if isinstance(old, bytes) else \
            (old[0], [not v if isinstance(v, bool) else v * 2 + 1 for v in old[1]])
        jobs = []
        for key, rule, _ in table(f"{arch}_keys"):
            if rule != "READ" or key in unchanged:
                continue
            full = f"{arch}.{key}"
            values = [(bases[0], kind, v) for kind, v in rules.get(key, [])]
            for base in bases:
                kind, old = model[base].kv.get(full, (BOOL, False))
                if kind != BOOL:
                    values.append((base, kind, more(old)))
            self.assertTrue(values, f"{full} has no other value here")
            jobs.append((changes, full, values))
        for key, changed in self.each(jobs):
            self.assertTrue(changed, f"no other value of {key} changed logits or was an error")

    def test_gemma4_reads(self):
        self.read_keys("gemma4", [MOE, PLE], {
            "vocab_size": [(U32, 500)], "attention.scale": [(F32, 0.5)], "rope.partial_rotary_factor": [(F32, 0.5)],
            "rope.proportional_factor": [(F32, 8.0)], "rope.linear_factor_swa": [(F32, 8.0)],
            "attention.key_length": [(U32, 30)]}, {"context_length", "attention.vision_unusual"})

    def test_deepseek4_reads(self):
        self.read_keys("deepseek4", [V4], {
            "attention.scale": [(F32, 1.0)], "expert_weights_norm": [(BOOL, False)], "expert_group_count": [(U32, 4)],
            "expert_group_used_count": [(U32, 4)], "vocab_size": [(U32, 300)], "attention.layer_norm_rms_epsilon": [(F32, 0.1)],
            "hash_layer_count": [(U32, 2)], "rope.scaling.original_context_length": [(U32, 64)], "nextn_predict_layers": [(STR, b"x")]}, {"context_length"})

    def test_unknown(self):
        g = Gguf(MOE)
        plain = self.logits(MOE)[0]
        g.kv.update({"gemma4.attention.new_trick": (F32, 0.0), "gemma4.rope.new_switch": (BOOL, False),
                     "gemma4.colour": (STR, b"red"), "gemma4.season": (U32, 4), "gemma4.vision.attention.scale": (F32, 3.0),
                     "general.colour": (STR, b"red")})
        digest, said = self.logits(g.write(self.path(".gguf")))
        self.assertEqual(digest, plain, said)
        self.assertEqual(said.count("are not known"), 1)
        self.assertIn("2 keys are not known and not used: colour, season", said)
        for key, kind, v in (("attention.new_trick", F32, 0.5), ("rope.new_switch", BOOL, True), ("expert_mixing", STR, b"soft"),
                             ("final_scale", F32, 2.0), ("layer_skip", ARRAY, (BOOL, [False, True]))):
            h = Gguf(MOE)
            h.kv[f"gemma4.{key}"] = kind, v
            digest, said = self.logits(h.write(self.path(".gguf")))
            self.assertIsNone(digest, key)
            self.assertIn(f"'gemma4.{key}'", said)


def put(o, path, v):
    *way, last = path.split(".")
    for part in way:
        o = o.setdefault(part, {})
    o[last] = v


class ConfigKeys(Case):
    def logits_of(self, base, *new):
        c = Checkpoint(base)
        for key, v in new:
            put(c.config.get("text_config", c.config), key, v)
        return *new[0], self.logits(c.write(self.path()))

    def check(self, base, names, read, free=(), other=1):
        """As check_table()."""
        plain, said = self.logits(base)
        self.assertIsNotNone(plain, said)
        self.assertNotIn("keys are not known", said)
        jobs, seen = [], set()
        for own, i, (key, rule, args) in ((n == names[0], i, row) for n in names for i, row in enumerate(table(n))):
            if key in seen or rule in ("READ", "FREE"):
                seen.add(key)
                continue
            seen.add(key)
            if not own and not SOAK and i % 2 != other:
                continue
            for _, v in other_than_neutral(rule, args, key):
                jobs.append((self.logits_of, base, (key, v.decode() if isinstance(v, bytes) else v)))
        for key, v, (digest, said) in self.each(jobs):
            self.assertIsNone(digest, f"{key} = {v} was ignored")
            self.assertIn(f"'{key}' is ", said)
            self.assertIn("config.json", said)
        for key, v, (digest, said) in self.each([(self.logits_of, base, kv) for kv in read]):
            self.assertNotEqual(digest, plain, f"{key} = {v} was ignored")
        digest, said = self.logits_of(base, *free)[2]
        self.assertEqual(digest, plain, f"{free}: {said}")
        keys = {k for k, r, _ in table(names[0]) if r == "READ"}
        self.assertEqual(keys - {k for k, _ in read} - {"max_position_embeddings", "use_double_wide_mlp"}, set())

    def test_gemma4(self):
        full, sliding = "rope_parameters.full_attention.", "rope_parameters.sliding_attention."
        self.check(f"{GOLDENS}/gemma4_moe", ["gemma4_config_keys", "common_config_keys"], [
            ("vocab_size", 400), ("hidden_size", 32), ("intermediate_size", 32), ("num_hidden_layers", 2),
            ("num_attention_heads", 2), ("num_key_value_heads", 1), ("num_global_key_value_heads", 2),
            ("num_kv_shared_layers", 1), ("head_dim", 32), ("global_head_dim", 64), ("attention_k_eq_v", False),
            ("layer_types", ["full_attention"] * 3), ("layer_types", ["sliding_attention", "sliding_attention", "chunked"]),
            ("per_layer_config", {"1": {"sliding_window": 3}}), ("rms_norm_eps", 0.1),
            ("final_logit_softcapping", None), ("sliding_window", 9), ("hidden_size_per_layer_input", 16),
            ("enable_moe_block", False), ("num_experts", 8), ("top_k_experts", 2), ("moe_intermediate_size", 8),
            ("use_bidirectional_attention", "all"), ("use_bidirectional_attention", True), ("hidden_activation", "silu"),
            (full + "rope_type", "yarn"), (full + "rope_theta", 1e5), (full + "partial_rotary_factor", 0.5), (full + "factor", 8.0),
            (sliding + "rope_type", "dynamic"), (sliding + "rope_theta", 1e5), (sliding + "factor", 8.0)],
            [("use_bidirectional_attention", "vision"), ("hidden_activation", None), ("unsloth_version", "2026.1"),
             ("attention_dropout", 0.1), ("attn_implementation", "flash_attention_2"), (sliding + "factor", 1.0)])

    def test_wide_layers(self):
        c = Checkpoint(f"{GOLDENS}/gemma4_moe")
        c.config["text_config"].update(use_double_wide_mlp=True, num_kv_shared_layers=1, layer_types=["full_attention"] * 3)
        digest, said = self.logits(c.write(self.path()))
        self.assertIsNone(digest)

    def test_layers_of_their_own(self):
        """What transformers writes since 5.15 instead of global_head_dim and num_global_key_value_heads."""
        base = f"{GOLDENS}/gemma4_moe"
        c = Checkpoint(base)
        text = c.config["text_config"]
        del text["global_head_dim"], text["num_global_key_value_heads"]
        text["per_layer_config"] = {"2": {"head_dim": 32, "num_key_value_heads": 1}}
        self.assertEqual(self.logits(c.write(self.path()))[0], self.logits(base)[0])

    def test_deepseek4(self):
        far = "rope_scaling."
        self.check(f"{GOLDENS}/deepseek_v4_published", ["deepseek4_config_keys", "common_config_keys"], [
            ("vocab_size", 100), ("hidden_size", 64), ("num_hidden_layers", 2), ("num_attention_heads", 2),
            ("num_key_value_heads", 2), ("head_dim", 32), ("qk_nope_head_dim", 32), ("qk_rope_head_dim", 32), ("q_lora_rank", 32),
            ("o_lora_rank", 32), ("o_groups", 4), ("sliding_window", 9), ("index_n_heads", 4), ("index_head_dim", 32),
            ("index_topk", 1), ("n_routed_experts", 4), ("num_experts_per_tok", 2), ("n_shared_experts", 2),
            ("moe_intermediate_size", 32), ("num_hash_layers", 0), ("hc_mult", 2), ("hc_sinkhorn_iters", 1), ("hc_eps", 0.1),
            ("rms_norm_eps", 0.1), ("routed_scaling_factor", 3.0), ("norm_topk_prob", False), ("scoring_func", "sigmoid"),
            ("hidden_act", "gelu"), ("swiglu_limit", 0.1), ("compress_ratios", [0, 4, 4, 0]), ("compress_rope_theta", 1e5),
            ("layer_types", ["sliding_attention"] * 3), ("mlp_layer_types", ["moe"] * 3),
            ("rope_theta", 1e5), ("partial_rotary_factor", 0.5), (far + "type", "linear"), (far + "rope_type", "linear"),
            (far + "factor", 4), (far + "original_max_position_embeddings", 512), (far + "beta_fast", 4), (far + "beta_slow", 9),
        ] + [("rope_parameters." + k, v) for k, v in (
            ("main.rope_theta", 1e5), ("main.partial_rotary_factor", 0.5), ("compress.rope_type", "linear"),
            ("compress.type", "linear"), ("compress.rope_theta", 1e5), ("compress.partial_rotary_factor", 0.5),
            ("compress.factor", 4), ("compress.original_max_position_embeddings", 512), ("compress.beta_fast", 4),
            ("compress.beta_slow", 9))],
            [("dspark_block_size", 5), ("topk_method", "noaux_tc"), ("num_local_experts", 8), (far + "mscale", 1.0),
             ("mlp_layer_types", ["hash_moe", "moe", "moe"]),
             ("layer_types", ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"])], other=0)

    def test_kinds_of_layers(self):
        base = f"{GOLDENS}/deepseek_v4_published"
        c = Checkpoint(base)
        del c.config["compress_ratios"]
        c.config["layer_types"] = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
        self.assertEqual(self.logits(c.write(self.path()))[0], self.logits(base)[0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
