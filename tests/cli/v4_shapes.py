#!/usr/bin/env python3
"""v4_shapes.py INGLE - DeepSeek V4 and its relatives by their published shapes: headers of the
real size over files that are holes.  What is the same network is planned, what is not is refused."""
import json, os, shutil, struct, subprocess, sys, tempfile, unittest

INGLE = sys.argv[1]
F32, F16, Q8_0, I32, MXFP4 = 0, 1, 8, 26, 39  # GGUF: type, elements and bytes of a block
BLOCK = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), I32: (1, 4), MXFP4: (32, 17)}

FLASH = dict(embd=4096, heads=64, q_rank=1024, groups=8, experts=256, ff=2048, top_k=512, scale=1.5,
             ratios=[0, 0] + [4, 128] * 20 + [4], stages=1, hashed=3, vocab=129280)
PRO = dict(FLASH, embd=7168, heads=128, q_rank=1536, groups=16, experts=384, ff=3072, top_k=1024, scale=2.5,
           ratios=[128, 128] + [4, 128] * 29 + [4])
SMALL = dict(FLASH, embd=256, heads=8, q_rank=64, groups=2, experts=8, ff=256, ratios=[0, 4, 128], hashed=1,
             vocab=64)
HEAD, ROT, O_RANK, INDEX_HEADS, INDEX_HEAD, USED, HC = 512, 64, 1024, 64, 128, 6, 4


def tensors(s, expert=MXFP4, dense=Q8_0):
    """(name, type, shape innermost first) of a GGUF."""
    d, n = s["embd"], s["experts"]
    yield "token_embd.weight", dense, (d, s["vocab"])
    yield "output.weight", dense, (d, s["vocab"])
    yield "output_norm.weight", F32, (d,)
    yield from hyper("output_hc", d, HC, 1)
    for i, ratio in enumerate(s["ratios"]):
        b = f"blk.{i}."
        for part in ("attn", "ffn"):
            yield b + f"{part}_norm.weight", F32, (d,)
            yield from hyper(b + f"hc_{part}", d, 2 * HC + HC * HC, 3)
        yield b + "attn_q_a.weight", dense, (d, s["q_rank"])
        yield b + "attn_q_a_norm.weight", F32, (s["q_rank"],)
        yield b + "attn_q_b.weight", dense, (s["q_rank"], s["heads"] * HEAD)
        yield b + "attn_kv.weight", dense, (d, HEAD)
        yield b + "attn_kv_a_norm.weight", F32, (HEAD,)
        yield b + "attn_sinks.weight", F32, (s["heads"],)
        yield b + "attn_output_a.weight", dense, (s["heads"] * HEAD // s["groups"], s["groups"] * O_RANK)
        yield b + "attn_output_b.weight", dense, (s["groups"] * O_RANK, d)
        if ratio:
            yield from compressor(b + "attn_compressor", d, HEAD, ratio)
        if ratio == 4:
            yield from compressor(b + "indexer_compressor", d, INDEX_HEAD, ratio)
            yield b + "indexer.attn_q_b.weight", F16, (s["q_rank"], INDEX_HEADS * INDEX_HEAD)
            yield b + "indexer.proj.weight", F16, (d, INDEX_HEADS)
        yield b + "ffn_gate_inp.weight", F16, (d, n)
        if i < s["hashed"]:
            yield b + "ffn_gate_tid2eid.weight", I32, (USED, s["vocab"])
        else:
            yield b + "exp_probs_b.bias", F32, (n,)
        for part, shape in (("gate", (d, s["ff"])), ("up", (d, s["ff"])), ("down", (s["ff"], d))):
            yield b + f"ffn_{part}_exps.weight", expert, (*shape, n)
            yield b + f"ffn_{part}_shexp.weight", dense, shape


def hyper(name, d, n, scales):
    yield name + "_fn.weight", F16, (HC * d, n)
    yield name + "_base.weight", F32, (n,)
    yield name + "_scale.weight", F32, (scales,)


def compressor(name, d, width, ratio):
    wide = 2 * width if ratio == 4 else width
    yield name + "_kv.weight", F16, (d, wide)
    yield name + "_gate.weight", F16, (d, wide)
    yield name + "_ape.weight", F32, (wide, ratio)
    yield name + "_norm.weight", F32, (width,)


def keys(s, arch):
    layers = len(s["ratios"])
    yield "general.architecture", arch
    for key, value in (("block_count", layers), ("context_length", 1048576), ("embedding_length", s["embd"]),
                       ("attention.head_count", s["heads"]), ("attention.head_count_kv", 1),
                       ("attention.key_length", HEAD), ("attention.q_lora_rank", s["q_rank"]),
                       ("attention.output_lora_rank", O_RANK), ("attention.output_group_count", s["groups"]),
                       ("attention.sliding_window", 128), ("attention.layer_norm_rms_epsilon", 1e-6),
                       ("attention.compress_ratios", s["ratios"] + [0] * s["stages"]),
                       ("attention.compress_rope_freq_base", 160000.0), ("attention.indexer.head_count", INDEX_HEADS),
                       ("attention.indexer.key_length", INDEX_HEAD), ("attention.indexer.top_k", s["top_k"]),
                       ("rope.dimension_count", ROT), ("rope.freq_base", 10000.0), ("rope.scaling.type", "yarn"),
                       ("rope.scaling.factor", 16.0), ("rope.scaling.original_context_length", 65536),
                       ("expert_count", s["experts"]), ("expert_used_count", USED), ("expert_shared_count", 1),
                       ("expert_feed_forward_length", s["ff"]), ("expert_gating_func", 4),
                       ("expert_weights_scale", s["scale"]), ("hash_layer_count", s["hashed"]),
                       ("nextn_predict_layers", 1), ("hyper_connection.count", HC),
                       ("hyper_connection.sinkhorn_iterations", 20), ("hyper_connection.epsilon", 1e-6),
                       ("swiglu_clamp_exp", [10.0] * layers)):
        yield f"{arch}.{key}", value


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def value(v):
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if isinstance(v, list):
        kind, code = (6, "f") if isinstance(v[0], float) else (4, "I")
        return struct.pack("<IIQ", 9, kind, len(v)) + struct.pack(f"<{len(v)}{code}", *v)
    return struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)


def write_gguf(path, s, arch="deepseek4", more=()):
    meta, out, at, tables = list(keys(s, arch)), b"", 0, []
    all_tensors = list(tensors(s)) + list(more)
    for name, kind, shape in all_tensors:
        n = BLOCK[kind][1]
        for e in shape:
            n *= e
        n //= BLOCK[kind][0]
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, at)
        if kind == I32:
            tables.append((at, n))
        at += (n + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(meta))
    head += b"".join(text(k) + value(v) for k, v in meta) + out
    head += bytes(-len(head) % 32)
    with open(path, "wb") as f:
        f.write(head)
        for where, n in tables:  # six different experts a token
            f.seek(len(head) + where)
            f.write(struct.pack(f"<{USED}i", *range(USED)) * (n // 4 // USED))
        f.truncate(len(head) + at)


def published(s, expert="F8_E4M3", scale="F32", stages=0):
    """(name, dtype, shape) of a checkpoint."""
    d, n, ff = s["embd"], s["experts"], s["ff"]

    def fp8(name, rows, columns, kind="F8_E4M3", unit="F8_E8M0"):
        yield name + ".weight", kind, (rows, columns)
        yield name + ".scale", unit, (-(-rows // 128), -(-columns // 128))

    def hc(name, n_base, n_scale):
        for part, shape in (("fn", (n_base, HC * d)), ("base", (n_base,)), ("scale", (n_scale,))):
            yield f"{name}_{part}", "F32", shape

    def pool(name, width, ratio):
        wide = 2 * width if ratio == 4 else width
        for part in ("wkv", "wgate"):
            yield f"{name}.{part}.weight", "BF16", (wide, d)
        yield f"{name}.ape", "F32", (ratio, wide)
        yield f"{name}.norm.weight", "BF16", (width,)

    yield "embed.weight", "BF16", (s["vocab"], d)
    yield "head.weight", "BF16", (s["vocab"], d)
    yield "norm.weight", "BF16", (d,)
    yield from hc("hc_head", HC, 1)
    for i, ratio in enumerate(s["ratios"]):
        b = f"layers.{i}."
        for part in ("attn", "ffn"):
            yield b + f"{part}_norm.weight", "BF16", (d,)
            yield from hc(b + f"hc_{part}", 2 * HC + HC * HC, 3)
        yield from fp8(b + "attn.wq_a", s["q_rank"], d)
        yield b + "attn.q_norm.weight", "BF16", (s["q_rank"],)
        yield from fp8(b + "attn.wq_b", s["heads"] * HEAD, s["q_rank"])
        yield from fp8(b + "attn.wkv", HEAD, d)
        yield b + "attn.kv_norm.weight", "BF16", (HEAD,)
        yield b + "attn.attn_sink", "F32", (s["heads"],)
        yield from fp8(b + "attn.wo_a", s["groups"] * O_RANK, s["heads"] * HEAD // s["groups"])
        yield from fp8(b + "attn.wo_b", d, s["groups"] * O_RANK)
        if ratio:
            yield from pool(b + "attn.compressor", HEAD, ratio)
        if ratio == 4:
            yield from pool(b + "attn.indexer.compressor", INDEX_HEAD, ratio)
            yield from fp8(b + "attn.indexer.wq_b", INDEX_HEADS * INDEX_HEAD, s["q_rank"])
            yield b + "attn.indexer.weights_proj.weight", "BF16", (INDEX_HEADS, d)
        yield b + "ffn.gate.weight", "BF16", (n, d)
        if i < s["hashed"]:
            yield b + "ffn.gate.tid2eid", "I64", (s["vocab"], USED)
        else:
            yield b + "ffn.gate.bias", "F32", (n,)
        for w, rows, columns in ((1, ff, d), (2, d, ff), (3, ff, d)):
            yield from fp8(b + f"ffn.shared_experts.w{w}", rows, columns)
            for e in range(n):
                yield from fp8(b + f"ffn.experts.{e}.w{w}", rows, columns, expert, scale)
    for i in range(stages):
        for name in ("main_proj", "markov.w1", "confidence"):
            yield f"mtp.{i}.{name}.weight", "BF16", (d, d)


WIDTH = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I64": 8}


def write_checkpoint(folder, s, stages=1, model_type="deepseek_v4", **more):
    config = {"model_type": model_type, "num_hidden_layers": len(s["ratios"]), "hidden_size": s["embd"],
              "vocab_size": s["vocab"], "num_attention_heads": s["heads"], "num_key_value_heads": 1, "head_dim": HEAD,
              "qk_rope_head_dim": ROT, "q_lora_rank": s["q_rank"], "o_lora_rank": O_RANK, "o_groups": s["groups"],
              "sliding_window": 128, "index_n_heads": INDEX_HEADS, "index_head_dim": INDEX_HEAD,
              "index_topk": s["top_k"], "n_routed_experts": s["experts"], "num_experts_per_tok": USED,
              "n_shared_experts": 1, "moe_intermediate_size": s["ff"], "num_hash_layers": s["hashed"],
              "hc_mult": HC, "hc_sinkhorn_iters": 20, "compress_ratios": s["ratios"] + [0] * stages,
              "max_position_embeddings": 4096, "swiglu_limit": 10.0}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    head, at, fill = {}, 0, []
    for name, kind, shape in published(s, stages=stages if stages > 1 else 0, **more):
        count = 1
        for e in shape:
            count *= e
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + count * WIDTH[kind]]}
        if kind == "I64":
            fill.append((at, struct.pack(f"<{USED}q", *range(USED)) * (count // USED)))
        elif name.endswith(".scale"):
            fill.append((at, (struct.pack("<f", 0.25) if kind == "F32" else b"\x7f") * count))
        elif s["embd"] < 1000:  # it is run: holes would be a broken download
            fill.append((at, b"\x38" * (count * WIDTH[kind])))
        at += count * WIDTH[kind]
    raw = json.dumps(head).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw)
        for where, data in fill:
            f.seek(8 + len(raw) + where)
            f.write(data)
        f.truncate(8 + len(raw) + at)


def run(*args):
    return subprocess.run([INGLE, *args], capture_output=True, text=True, timeout=300)


class Shapes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def gguf(self, s, **more):
        path = os.path.join(self.folder.name, "model.gguf")
        try:
            write_gguf(path, s, **more)
        except OSError as error:
            self.skipTest(f"this file system has no files of that size: {error}")
        return path

    def plan(self, path, *args):
        r = run("inspect", "--plan", "--json", "--memory", "4T", "--cache", "1", *args, path)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout), r.stderr

    @unittest.skipIf("INGLE_TEST_SANITIZED" in os.environ, "numbers; unit_family_deepseek4_bad has the shapes")
    def test_flash(self):
        path, million = self.gguf(FLASH), 1 << 20
        for kv, low, high in (("f16", 6880, 6980), ("fp8", 3514, 3560)):  # bytes a token
            plan, _ = self.plan(path, "--kv", kv, "--ctx", str(million))
            items = plan["items"]
            print({k: round(v / 1e9, 3) for k, v in items.items()}, kv, "%.3f GB without weights" %
                  ((plan["total_bytes"] - items["weights"]) / 1e9))
            self.assertTrue(low * million < items["keys and values"] < high * million, items)
            self.assertLess(items["windows"], 400e6)
            self.assertEqual(plan["chunk"], 2048)
            self.assertLess(items["activations"], 1000e6)
            short, _ = self.plan(path, "--kv", kv, "--ctx", str(million // 2))
            self.assertLess(items["keys and values"] - short["items"]["keys and values"], (low + 50) * million // 2)
        # Where the memory for long steps is wanted for the context, they are shorter; so much is said.
        whole, said = self.plan(path, "--ctx", "131072", "--verbose")
        self.assertNotIn("steps of", said)
        for less, chunk in ((50e6, 1024), (500e6, 512)):
            r = run("inspect", "--plan", "--json", "--memory", str(int(whole["total_bytes"] - less)), "--cache", "1",
                    "--ctx", "131072", "--verbose", path)
            less_plan = json.loads(r.stdout)
            self.assertTrue(less_plan["fits"])
            self.assertEqual(less_plan["chunk"], chunk)
            self.assertIn(f"steps of {chunk} tokens, not 2048", r.stderr)
        cut = json.loads(run("inspect", "--plan", "--json", "--memory", str(whole["total_bytes"]), "--cache", "1", path).stdout)
        self.assertEqual(cut["chunk"], 512)  # of 131,072 tokens, more than a sixteenth
        self.assertGreater(cut["ctx"], 131072)
        for wanted, chunk in (("300", 512), ("600", 1024), ("2000", 2048)):  # steps that are never full
            self.assertEqual(self.plan(path, "--ctx", wanted)[0]["chunk"], chunk)
        # Where half-precision rows do not fit, FP8 ones are proposed.
        tight = plan["total_bytes"] + (1 << 30)
        ask = ("inspect", "--plan", "--json", "--memory", str(tight), "--cache", "1", "--ctx", str(million), path)
        self.assertTrue(json.loads(run(*ask).stdout)["fits"])  # with some experts on disk
        plan = json.loads(run(*ask, "--expert-budget", "1T").stdout)
        self.assertFalse(plan["fits"])
        self.assertIn("--kv fp8", plan["advice"])

    def test_table_of_models(self):
        """`ingle models` says of MXFP4 what a plan of its shape says."""
        r = run("inspect", "--plan", "--json", "--memory", "4T", "--ctx", "8192", self.gguf(FLASH))
        plan, models = json.loads(r.stdout), json.loads(run("models", "--json", "--memory", "4T", "--rate", "60").stdout)["models"]
        m = next(m for m in models if m["code"] == "MXFP4")
        self.assertAlmostEqual(m["need_bytes"] / plan["total_bytes"], 1, 2)
        token = plan["items"]["weights"] - plan["expert_bytes"] * (1 - USED / FLASH["experts"]) - FLASH["embd"] * FLASH["vocab"] * 34 / 32
        self.assertAlmostEqual(m["token_bytes"] / token, 1, 2)

    @unittest.skipIf("INGLE_TEST_SANITIZED" in os.environ, "numbers; unit_family_deepseek4_bad has the shapes")
    def test_pro_is_the_same_network(self):
        plan, said = self.plan(self.gguf(PRO), "--kv", "fp8", "--ctx", "131072")
        self.assertGreater(plan["items"]["weights"], 700e9)

    def test_draft_stages_of_0731_are_skipped(self):
        stages = [(f"mtp.{i}.{name}.weight", F16, (256, 256)) for i in range(3)
                  for name in ("main_proj", "attn_q_a", "markov.w1", "confidence")]
        path = self.gguf(dict(SMALL, stages=3), more=stages)
        r = run("inspect", "--plan", "-v", "--ctx", "4096", path)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("3 draft stages", r.stderr)
        self.assertIn("12 tensors are skipped", r.stderr)

    def test_other_architectures(self):
        for arch in ("deepseek2", "deepseek-v4", "deepseek32"):
            r = run("inspect", "--plan", self.gguf(SMALL, arch=arch))
            self.assertEqual(r.returncode, 1)
            self.assertIn(f"'{arch}'", r.stderr)
            self.assertIn("(gemma4)", r.stderr)
            self.assertIn("(deepseek4)", r.stderr)
            self.assertEqual(r.stderr.count("\n"), 1, r.stderr)

    def test_experts_of_flash_base_are_fp8(self):
        shutil.copy("tests/data/nano/nano-v4-tokenizer.json", os.path.join(self.folder.name, "tokenizer.json"))
        write_checkpoint(self.folder.name, dict(SMALL, vocab=2048))
        r = run("run", "--raw", "-n", "4", "--temp", "0", "--json", "-m", self.folder.name, "one two three")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(json.loads(r.stdout)["completion_tokens"], range(1, 5))

    def test_counts_of_experts(self):
        shutil.copy("tests/data/nano/nano-v4-tokenizer.json", os.path.join(self.folder.name, "tokenizer.json"))
        write_checkpoint(self.folder.name, dict(SMALL, vocab=2048))
        counts = os.path.join(self.folder.name, "counts.json")
        args = ("run", "--raw", "-n", "4", "--temp", "0", "-m", self.folder.name, "one two three", "--experts")
        for times in (1, 2):  # the second run adds to the first
            r = run(*args, counts)
            self.assertEqual(r.returncode, 0, r.stderr)
            with open(counts) as f:
                rows = json.load(f)["layers"]
            self.assertEqual([len(row) for row in rows], [8, 8, 8])
            sums = {sum(row) for row in rows}
            self.assertEqual(len(sums), 1)
            if times == 1:
                first = rows
        self.assertEqual(rows, [[2 * hits for hits in row] for row in first])
        self.assertEqual(rows[0][6:], [0, 0])  # the table of the first layer names six experts
        r = run("inspect", "--experts", counts, "-m", self.folder.name)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("    0     6 ", r.stdout)
        self.assertRegex(r.stdout, r"the most chosen of all experts serve, 5 %: [0-9.]+ %, 10 %: ")
        out = json.loads(run("inspect", "--experts", counts, "--json").stdout)
        self.assertEqual([layer["used"] for layer in out["layers"]][0], 6)
        self.assertEqual(out["layers"][0]["choices"], sums.pop())
        self.assertIn("layer  used", run(*args, "-").stderr)
        # Other models and other files.
        r = run("run", "--experts", counts, "-n", "1", "hello")
        self.assertEqual(r.returncode, 1)
        self.assertIn("no experts", r.stderr)
        r = run("inspect", "--experts", counts, "-m", "assets/nano-gemma4-Q8_0.gguf")
        self.assertIn("3 layers", r.stderr)
        for text in ("[]", "{}", '{"model": "x", "identity": "0", "layers": [[1, 2], [1]]}', "nothing",
                     '{"model": "x", "identity": "0", "layers": [[1, -2]]}'):
            with open(counts, "w") as f:
                f.write(text)
            r = run("inspect", "--experts", counts)
            self.assertEqual(r.returncode, 1, text)
            self.assertIn(counts, r.stderr)

    def test_checkpoint_of_0731(self):
        write_checkpoint(self.folder.name, SMALL, stages=3)
        r = run("inspect", "--plan", "-v", self.folder.name)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("3 draft stages", r.stderr)
        self.assertIn("9 tensors are skipped", r.stderr)
        # Numbers that this config.json lacks are named with what is used for them.
        for key, number in (("rms_norm_eps", "1e-06"), ("hc_eps", "1e-06"), ("rope_theta", "10000"),
                            ("compress_rope_theta", "160000"), ("routed_scaling_factor", "1")):
            self.assertIn(f"'{key}' is missing: {number} is used", r.stderr)

    def test_rotations_as_transformers_writes_them(self):
        both = {"main": {"rope_type": "default", "rope_theta": 10000.0},
                "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "factor": 16.0,
                             "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}}
        write_checkpoint(self.folder.name, SMALL)
        path = os.path.join(self.folder.name, "config.json")
        with open(path) as f:
            config = json.load(f)
        for change, says in (({}, None), ({"rope_type": "longrope"}, "is 'longrope', expected 'yarn'")):
            both["compress"].update(change)
            with open(path, "w") as f:
                json.dump(dict(config, rope_parameters=both), f)
            r = run("inspect", "--plan", self.folder.name)
            self.assertEqual(r.returncode, 1 if says else 0, r.stderr)
            self.assertNotIn("rope_theta", r.stderr)
            self.assertIn(says or "", r.stderr)

    def test_checkpoint_of_v3(self):
        write_checkpoint(self.folder.name, SMALL, model_type="deepseek_v3")
        r = run("inspect", "--plan", self.folder.name)
        self.assertEqual(r.returncode, 1)
        self.assertIn("'deepseek_v3' (DeepSeek V3 or R1) is none of the known ones", r.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
