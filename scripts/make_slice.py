#!/usr/bin/env python3
"""make_slice.py SHAPE CODE OUT [--layers N] [--experts N] [--vocab N] [--target-layers N] [--taps N] [--windows N]
[--planted PERCENT] - a GGUF file with some layers of a real model's or drafter's shapes and random weights, to measure
speed without the model.

SHAPE  gemma-31b, gemma-26b-a4b, gemma-e4b, deepseek-v4; their drafters: dflash-31b, dflash-26b-a4b, mtp-31b,
       mtp-26b-a4b, v4-mtp (the block of one token), v4-dspark (stages)
CODE   Q4_0, Q8_0, Q4_K, Q6_K, F16, MXFP4 (DeepSeek V4's experts; its other matrices are Q8_0), or IQ2_XXS (the same; the way back of an
       expert is Q2_K)

Scales are such that each matrix keeps the size of its input, so activations stay finite; the text of such a model
means nothing.  One layer of a window and one of the whole context (Gemma), or one of ratio 4 (DeepSeek V4), unless
told; --windows 5 --layers 6 has five windows for each whole context, as Gemma's models have.  A drafter has all of its layers and taps unless told, and --target-layers and --vocab are those of the file that
it is to draft for.  What drafting costs beside the model is as with the whole files when all of them are cut alike: a
fifth of 31B and of its DFlash drafter are

    make_slice.py gemma-31b Q4_0 31b.gguf --layers 12 --vocab 52480
    make_slice.py dflash-31b Q8_0 31b-dflash.gguf --layers 1 --taps 1 --target-layers 12 --vocab 52480

--planted PERCENT (Gemma, Q4_0 or Q8_0): layers that see everything want the tokens whose number modulo 100 is below PERCENT,
and nearly nothing else, so that what sparse prompts skip is known.  Two numbers of the embedding carry it past all
layers: one is the same in each token and turns queries to a direction, the other is that of wanted tokens and
turns their keys to the same direction.

The standard library is enough, and the same arguments give the same bytes."""
import argparse
import math
import random
import struct

F32, F16, Q4_0, Q8_0, Q2_K, Q4_K, Q6_K, IQ2_XXS, MXFP4 = 0, 1, 2, 8, 10, 12, 14, 16, 39  # as GGUF numbers them
CODES = {"F16": F16, "Q4_0": Q4_0, "Q8_0": Q8_0, "Q4_K": Q4_K, "Q6_K": Q6_K, "MXFP4": MXFP4, "IQ2_XXS": IQ2_XXS}
BLOCK = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210), MXFP4: (32, 17),
         Q2_K: (256, 84), IQ2_XXS: (256, 66)}
OF_EXPERTS = (MXFP4, IQ2_XXS)
#             width  ffn    heads  kv heads (window, whole)  window  experts (n, used, width)  per-layer  V is K
GEMMA = {"gemma-31b": (5376, 21504, 32, (16, 4), 1024, None, 0, True),
         "gemma-26b-a4b": (2816, 2112, 16, (8, 2), 1024, (128, 8, 704), 0, True),
         "gemma-e4b": (2560, 10240, 8, (2, 2), 512, None, 256, False)}
#              width  heads  kv heads  ffn    layers of the target
DFLASH = {"dflash-31b": (5376, 64, 8, 10752, 60), "dflash-26b-a4b": (2816, 32, 8, 5632, 30)}
#           model           heads
ASSISTANT = {"mtp-31b": ("gemma-31b", 32), "mtp-26b-a4b": ("gemma-26b-a4b", 16)}
DRAFTERS = [*DFLASH, *ASSISTANT, "v4-mtp", "v4-dspark"]
POOL = 4096  # blocks drawn for a code and a row length; a tensor repeats them
NUMBERS = 64 * 4096 + 1  # the same where a block is one number: rows are not alike, or a router would choose the same experts always
R = random.Random(20)


def half(value):
    return struct.pack("<e", value * R.uniform(0.8, 1.2))


def block(code, k):
    """One block of weights with a standard deviation of k ** -0.5."""
    s = k ** -0.5
    if code == F32:
        return struct.pack("<f", R.gauss(0, s))
    if code == F16:
        return struct.pack("<e", R.gauss(0, s))
    if code == Q4_0:
        return half(s / 4.6) + R.randbytes(16)
    if code == Q8_0:
        return half(s / 74) + R.randbytes(32)
    if code == Q4_K:  # scale and minimum are of six bits each, 32 in the mean
        return half(s / 258) + half(7.5 * s / 258) + R.randbytes(140)
    if code == Q6_K:
        return R.randbytes(208) + half(s / 1365)
    if code == Q2_K:  # scale and minimum are of four bits each, codes of two
        return R.randbytes(80) + half(s / 13.9) + half(1.5 * s / 13.9)
    if code == IQ2_XXS:
        return half(s / 51) + R.randbytes(64)
    return bytes([127 + round(math.log2(s / 2.9)) + R.randrange(-1, 2)]) + R.randbytes(16)


class File:
    def __init__(self, arch):
        self.arch, self.keys, self.tensors, self.pools, self.first = arch, [], [], {}, {}
        self.key("general.architecture", arch, whole=True)

    def key(self, name, value, whole=False):
        self.keys.append((name if whole else f"{self.arch}.{name}", value))

    def vector(self, name, n, value=1.0):
        self.tensors.append((name, F32, (n,), struct.pack("<f", value) * n))

    def matrix(self, name, k, rows, code, experts=0, first=None):
        """first(row): the first two weights of a row as parts of the largest one, or None: random as the others."""
        code = Q8_0 if k % BLOCK[code][0] else code
        self.tensors.append((name, code, (k, rows, experts) if experts else (k, rows), None))
        if first:
            self.first[name] = first

    def content(self, code, k, n_bytes):
        """n_bytes of random blocks: the pool of this code, over and over."""
        pool = self.pools.get((code, k))
        if not pool:
            pool = self.pools[code, k] = b"".join(block(code, k) for _ in range(NUMBERS if BLOCK[code][0] == 1 else POOL))
        while n_bytes:
            n = min(n_bytes, len(pool))
            yield pool[:n]
            n_bytes -= n

    def planted(self, code, k, rows, first):
        """The rows of a matrix of Q4_0 or Q8_0 whose first two weights are told."""
        n_row = k // BLOCK[code][0] * BLOCK[code][1]
        pool = bytearray(b"".join(self.content(code, k, n_row * min(rows, 256))))
        for r in range(rows):
            at = r % 256 * n_row
            for i, part in enumerate(first(r)):  # a byte of Q4_0 also has number i + 16, which stays
                pool[at + 2 + i] = (round(127 * part) & 255 if code == Q8_0 else pool[at + 2 + i] & 240 | 8 + round(7 * part))
            yield pool[at:at + n_row]

    def write(self, path):
        def text(s):
            return struct.pack("<Q", len(s.encode())) + s.encode()

        def typed(v):
            kinds = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}
            if isinstance(v, str):
                return 8, text(v)
            if isinstance(v, list):
                parts = [typed(x) for x in v]
                return 9, struct.pack("<IQ", parts[0][0], len(v)) + b"".join(p[1] for p in parts)
            return kinds[type(v)][0], struct.pack(kinds[type(v)][1], v)

        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        for name, value in self.keys:
            kind, data = typed(value)
            if name.endswith("token_type"):  # signed, as llama.cpp wants them
                data = struct.pack("<I", 5) + data[4:]
            head += text(name) + struct.pack("<I", kind) + data
        at, sizes = 0, []
        for name, code, shape, data in self.tensors:
            n = shape[0] // BLOCK[code][0] * BLOCK[code][1] * math.prod(shape[1:])
            head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, at)
            sizes.append(n)
            at += n + -n % 32
        with open(path, "wb") as f:
            f.write(head + b"\0" * (-len(head) % 32))
            for (name, code, shape, data), n in zip(self.tensors, sizes):
                first = self.first.get(name)
                for piece in ([data] if data is not None else self.planted(code, *shape, first) if first
                              else self.content(code, shape[0], n)):
                    f.write(piece)
                f.write(b"\0" * (-n % 32))


def vocabulary(f, n, kind="gemma4"):
    """Of Gemma, or ("gpt2") DeepSeek: the bytes, and tokens that no text has."""
    if kind == "gpt2":
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        other = [b for b in range(256) if b not in plain]
        first = ["<|bos|>", "<|eos|>", "<|pad|>"] + [chr(b if b in plain else 256 + other.index(b)) for b in range(256)]
        types, more = [3] * 3 + [1] * 256, {"pre": "deepseek-v3", "bos_token_id": 0, "eos_token_id": 1, "padding_token_id": 2}
    else:
        first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"] + [f"<0x{b:02X}>" for b in range(256)]
        types, more = [3, 3, 3, 2, 3] + [6] * 256, {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3,
                                                    "padding_token_id": 0, "mask_token_id": 4}
    tokens = first + ["tt"] + [f"t{i}" for i in range(len(first) + 1, n)]
    if kind == "gemma4":
        tokens[len(first) + 1] = "t"
    for name, value in {"model": kind, "tokens": tokens, "scores": [0.0] * n, "merges": ["t t"],
                        "token_type": types + [1] * (n - len(types)), "add_bos_token": True, **more}.items():
        f.key(f"tokenizer.ggml.{name}", value, whole=True)


def taps(n, layers):
    """Layers that a drafter taps, counted from 1 on, as DFlash spreads them."""
    if n == 1:
        return [layers // 2 + 1]
    return [min(layers, 2 + round(max(0, i * (layers - 4) / (n - 1)))) for i in range(n)]


def gemma(shape, code, layers, experts, vocab, windows=1, planted=0):
    width, ffn, heads, kv_heads, window, moe, per_layer, v_is_k = GEMMA[shape]
    f = File("gemma4")
    sliding = [i % (windows + 1) < windows for i in range(layers)]
    for name, value in {
            "context_length": 131072 if per_layer else 262144, "embedding_length": width, "block_count": layers, "feed_forward_length": ffn,
            "attention.head_count": heads, "attention.head_count_kv": [kv_heads[0 if s else 1] for s in sliding],
            "attention.layer_norm_rms_epsilon": 1e-6, "attention.key_length": 512, "attention.value_length": 512,
            "attention.key_length_swa": 256, "attention.value_length_swa": 256, "attention.sliding_window": window,
            "attention.sliding_window_pattern": sliding, "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": per_layer, "final_logit_softcapping": 30.0, "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4, "rope.dimension_count": 512, "rope.dimension_count_swa": 256}.items():
        f.key(name, value)
    if moe:
        moe = (experts or moe[0], moe[1], moe[2])
        for name, value in zip(("expert_count", "expert_used_count", "expert_feed_forward_length"), moe):
            f.key(name, value)
    vocabulary(f, vocab)
    f.matrix("token_embd.weight", width, vocab, Q8_0 if width % 256 or planted else Q6_K,
             first=planted and (lambda r: (r % 100 < planted, 1)))
    way = [0 if d % 256 < 64 else 1 - 2 * (d * d % 7 & 1) for d in range(512)]  # position turns no part of it
    f.vector("output_norm.weight", width)
    f.tensors.append(("rope_freqs.weight", F32, (256,), struct.pack("<256f", *[1.0] * 64, *[1e30] * 192)))
    if per_layer:
        f.matrix("per_layer_token_embd.weight", per_layer * layers, vocab, Q8_0)
        f.matrix("per_layer_model_proj.weight", width, per_layer * layers, F16)
        f.vector("per_layer_proj_norm.weight", per_layer)
    for i, s in enumerate(sliding):
        b, head, kv = f"blk.{i}.", 256 if s else 512, kv_heads[0 if s else 1]
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            f.vector(f"{b}{name}.weight", width)
            if planted and name != "ffn_norm":  # each layer before added two vectors of the embedding's size
                mark = 0 if name != "attn_norm" else 1 if s else 0.21 * (width * (2 * i + 1)) ** 0.5
                f.tensors[-1] = (*f.tensors[-1][:3], struct.pack("<2f", mark, mark) + f.tensors[-1][3][8:])
        f.vector(b + "attn_q_norm.weight", head)
        f.vector(b + "attn_k_norm.weight", head, 0.12)
        f.vector(b + "layer_output_scale.weight", 1, 0.5)
        f.matrix(b + "attn_q.weight", width, heads * head, code, first=planted and not s and (lambda r: (0, way[r % 512])))
        f.matrix(b + "attn_k.weight", width, kv * head, code, first=planted and not s and (lambda r: (way[r % 512], 0)))
        if s or not v_is_k:
            f.matrix(b + "attn_v.weight", width, kv * head, code)
        f.matrix(b + "attn_output.weight", heads * head, width, code)
        f.matrix(b + "ffn_gate.weight", width, ffn, code)
        f.matrix(b + "ffn_up.weight", width, ffn, code)
        f.matrix(b + "ffn_down.weight", ffn, width, code)
        if moe:
            f.matrix(b + "ffn_gate_inp.weight", width, moe[0], F32)
            f.vector(b + "ffn_gate_inp.scale", width, width ** 0.5)
            f.matrix(b + "ffn_gate_up_exps.weight", width, 2 * moe[2], code, moe[0])
            f.matrix(b + "ffn_down_exps.weight", moe[2], width, code, moe[0])
            f.vector(b + "ffn_down_exps.scale", moe[0])
            for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
                f.vector(f"{b}{name}.weight", width)
        if per_layer:
            f.matrix(b + "inp_gate.weight", width, per_layer, code)
            f.matrix(b + "proj.weight", per_layer, width, code)
            f.vector(b + "post_norm.weight", width)
            if planted:
                f.tensors[-1] = (*f.tensors[-1][:3], bytes(8) + f.tensors[-1][3][8:])
    return f


V4 = {"width": 4096, "heads": 64, "head": 512, "rank": 1024, "inner": 2048, "groups": 8, "o_rank": 1024, "hc": 4, "used": 6}


def deepseek_keys(f, layers, n, ratio):
    w = V4
    for name, value in {
            "context_length": 1048576, "embedding_length": w["width"], "embedding_length_out": w["width"] * w["hc"],
            "block_count": layers, "attention.head_count": w["heads"],
            "attention.head_count_kv": 1, "attention.key_length": w["head"], "attention.value_length": w["head"],
            "attention.layer_norm_rms_epsilon": 1e-6, "attention.q_lora_rank": w["rank"], "attention.sliding_window": 128,
            "attention.indexer.head_count": 64, "attention.indexer.key_length": 128, "attention.indexer.top_k": 512,
            "attention.output_group_count": w["groups"], "attention.output_lora_rank": w["o_rank"],
            "attention.compress_ratios": [ratio] * layers, "attention.compress_rope_freq_base": 160000.0,
            "hyper_connection.count": w["hc"], "hyper_connection.sinkhorn_iterations": 20, "hyper_connection.epsilon": 1e-6,
            "hash_layer_count": 0, "expert_count": n, "expert_used_count": w["used"], "expert_shared_count": 1,
            "expert_feed_forward_length": w["inner"], "expert_weights_scale": 1.5, "expert_weights_norm": True,
            "expert_gating_func": 4, "swiglu_clamp_exp": [10.0] * layers, "swiglu_clamp_shexp": [10.0] * layers,
            "rope.dimension_count": 64, "rope.freq_base": 10000.0, "rope.scaling.type": "yarn",
            "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 65536,
            "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}.items():
        if f.arch == "deepseek4" or name not in ("embedding_length_out", ):
            f.key(name, value)


def collapse(f, name):
    f.matrix(f"{name}_fn.weight", V4["hc"] * V4["width"], V4["hc"], F32)
    f.vector(f"{name}_base.weight", V4["hc"], 0.0)
    f.vector(f"{name}_scale.weight", 1)


def deepseek_layer(f, b, code, n, whole):
    """whole: with a compressor and an indexer, beside the window."""
    width, heads, head, rank, inner, groups, o_rank, hc, _ = V4.values()
    dense = Q8_0 if code in OF_EXPERTS else code
    for name, size, value in (("attn_norm", width, 1), ("attn_sinks", heads, 0), ("attn_q_a_norm", rank, 1),
                              ("attn_kv_a_norm", head, 1), ("ffn_norm", width, 1)):
        f.vector(f"{b}{name}.weight", size, value)
    f.vector(b + "exp_probs_b.bias", n, 0.0)
    for part in ("attn", "ffn"):
        f.matrix(f"{b}hc_{part}_fn.weight", hc * width, (2 + hc) * hc, F32)
        f.vector(f"{b}hc_{part}_base.weight", (2 + hc) * hc, 0.0)
        f.vector(f"{b}hc_{part}_scale.weight", 3)
    for name, k, rows in (("attn_q_a", width, rank), ("attn_q_b", rank, heads * head), ("attn_kv", width, head),
                          ("attn_output_a", heads * head // groups, o_rank * groups),
                          ("attn_output_b", o_rank * groups, width), ("ffn_gate_shexp", width, inner),
                          ("ffn_up_shexp", width, inner), ("ffn_down_shexp", inner, width)):
        f.matrix(f"{b}{name}.weight", k, rows, dense)
    if whole:
        f.vector(b + "attn_compressor_norm.weight", head)
        f.vector(b + "indexer_compressor_norm.weight", 128)
        for name, k, rows in (("attn_compressor_kv", width, 2 * head), ("attn_compressor_gate", width, 2 * head),
                              ("indexer.attn_q_b", rank, 64 * 128), ("indexer_compressor_kv", width, 256),
                              ("indexer_compressor_gate", width, 256)):
            f.matrix(f"{b}{name}.weight", k, rows, dense)
        f.matrix(b + "attn_compressor_ape.weight", 2 * head, 4, F32)
        f.matrix(b + "indexer_compressor_ape.weight", 256, 4, F32)
        f.matrix(b + "indexer.proj.weight", width, 64, F16)
    f.matrix(b + "ffn_gate_inp.weight", width, n, F32)
    f.matrix(b + "ffn_gate_exps.weight", width, inner, code, n)
    f.matrix(b + "ffn_up_exps.weight", width, inner, code, n)
    f.matrix(b + "ffn_down_exps.weight", inner, width, Q2_K if code == IQ2_XXS else code, n)


def deepseek(code, layers, experts, vocab):
    width, f, dense = V4["width"], File("deepseek4"), Q8_0 if code in OF_EXPERTS else code
    f.key("feed_forward_length", V4["inner"])
    deepseek_keys(f, layers, experts or 256, 4)
    vocabulary(f, vocab, "gpt2")
    f.matrix("token_embd.weight", width, vocab, dense)
    f.matrix("output.weight", width, vocab, dense)
    f.vector("output_norm.weight", width)
    collapse(f, "output_hc")
    for i in range(layers):
        deepseek_layer(f, f"blk.{i}.", code, experts or 256, True)
    return f


def deepseek_mtp(code, experts, vocab, target_layers):
    width, n, f, dense = V4["width"], experts or 256, File("deepseek4"), Q8_0 if code in OF_EXPERTS else code
    deepseek_keys(f, target_layers, n, 0)
    f.key("nextn_predict_layers", 1)
    vocabulary(f, vocab, "gpt2")
    deepseek_layer(f, "mtp.0.", code, n, False)
    for name in ("enorm", "hnorm", "norm"):
        f.vector(f"mtp.0.{name}.weight", width)
    f.matrix("mtp.0.e_proj.weight", width, width, dense)
    f.matrix("mtp.0.h_proj.weight", width, width, dense)
    collapse(f, "mtp.0.hc_head")
    return f


def dspark(code, layers, experts, vocab, target_layers, n_taps):
    width, n, rank, f, dense = V4["width"], experts or 256, 256, File("dflash"), Q8_0 if code in OF_EXPERTS else code
    deepseek_keys(f, layers, n, 0)
    f.key("block_size", 5)
    f.key("target_layers", [target_layers + 1 - n_taps + i for i in range(n_taps)])
    f.key("mask_token_id", 4)
    vocabulary(f, vocab, "gpt2")
    for i in range(layers):
        deepseek_layer(f, f"blk.{i}.", code, n, False)
    f.matrix("fc.weight", n_taps * width, width, dense)
    f.vector("enc.output_norm.weight", width)
    f.vector("output_norm.weight", width)
    collapse(f, "output_hc")
    f.matrix("markov_w1.weight", rank, vocab, dense)
    f.matrix("markov_w2.weight", rank, vocab, dense)
    f.matrix("conf_proj.weight", width + rank, 1, F16)
    return f


def dflash(shape, code, layers, vocab, target_layers, n_taps):
    width, heads, kv_heads, ffn, _ = DFLASH[shape]
    f, head = File("dflash"), 128
    for name, value in {
            "context_length": 262144, "block_count": layers, "embedding_length": width, "feed_forward_length": ffn,
            "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
            "attention.value_length": head, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
            "block_size": 16, "final_logit_softcapping": 30.0, "embedding_scale": width ** 0.5,
            "target_layers": taps(n_taps, target_layers), "attention.sliding_window": 2048,
            "attention.sliding_window_pattern": [i < 4 for i in range(layers)]}.items():
        f.key(name, value)
    vocabulary(f, vocab)
    f.matrix("fc.weight", n_taps * width, width, code)
    f.vector("enc.output_norm.weight", width)
    f.vector("output_norm.weight", width)
    for i in range(layers):
        b = f"blk.{i}."
        for name, n in (("attn_norm", width), ("ffn_norm", width), ("attn_q_norm", head), ("attn_k_norm", head)):
            f.vector(f"{b}{name}.weight", n)
        for name, k, rows in (("attn_q", width, heads * head), ("attn_k", width, kv_heads * head),
                              ("attn_v", width, kv_heads * head), ("attn_output", heads * head, width),
                              ("ffn_gate", width, ffn), ("ffn_up", width, ffn), ("ffn_down", ffn, width)):
            f.matrix(f"{b}{name}.weight", k, rows, code)
    return f


def assistant(shape, code, layers, vocab):
    model, heads = ASSISTANT[shape]
    back, (kv_window, kv_whole), window = GEMMA[model][0], GEMMA[model][3], GEMMA[model][4]
    f, width, ffn = File("gemma4-assistant"), 1024, 8192
    sliding = [i + 1 < layers for i in range(layers)]
    for name, value in {
            "context_length": 262144, "block_count": layers, "embedding_length": width, "embedding_length_out": back,
            "feed_forward_length": ffn, "attention.head_count": heads,
            "attention.head_count_kv": [kv_window if s else kv_whole for s in sliding],
            "attention.layer_norm_rms_epsilon": 1e-6, "attention.key_length": 512, "attention.value_length": 512,
            "attention.key_length_swa": 256, "attention.value_length_swa": 256, "attention.sliding_window": window,
            "attention.sliding_window_pattern": sliding, "attention.shared_kv_layers": layers,
            "embedding_length_per_layer_input": 0, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
            "rope.dimension_count": 512, "rope.dimension_count_swa": 256, "nextn_predict_layers": layers}.items():
        f.key(name, value)
    vocabulary(f, vocab)
    f.matrix("token_embd.weight", width, vocab, code)
    f.vector("output_norm.weight", width)
    f.tensors.append(("rope_freqs.weight", F32, (256,), struct.pack("<256f", *[1.0] * 64, *[1e30] * 192)))
    f.matrix("nextn.pre_projection.weight", 2 * back, width, code)
    f.matrix("nextn.post_projection.weight", width, back, code)
    for i, s in enumerate(sliding):
        b, head = f"blk.{i}.", 256 if s else 512
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            f.vector(f"{b}{name}.weight", width)
            if planted and name != "ffn_norm":  # each layer before added two vectors of the embedding's size
                mark = 0 if name != "attn_norm" else 1 if s else 0.21 * (width * (2 * i + 1)) ** 0.5
                f.tensors[-1] = (*f.tensors[-1][:3], struct.pack("<2f", mark, mark) + f.tensors[-1][3][8:])
        f.vector(b + "attn_q_norm.weight", head)
        f.vector(b + "layer_output_scale.weight", 1, 0.5)
        for name, k, rows in (("attn_q", width, heads * head), ("attn_output", heads * head, width),
                              ("ffn_gate", width, ffn), ("ffn_up", width, ffn), ("ffn_down", ffn, width)):
            f.matrix(f"{b}{name}.weight", k, rows, code)
    return f


def drafter(a):
    if a.shape in DFLASH:
        return dflash(a.shape, CODES[a.code], a.layers or 5, a.vocab, a.target_layers or DFLASH[a.shape][-1], a.taps or 6)
    if a.shape in ASSISTANT:
        return assistant(a.shape, CODES[a.code], a.layers or 4, a.vocab)
    if a.shape == "v4-mtp":
        return deepseek_mtp(CODES[a.code], a.experts, a.vocab, a.target_layers or 43)
    return dspark(CODES[a.code], a.layers or 3, a.experts, a.vocab, a.target_layers or 43, a.taps or 3)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=[*GEMMA, "deepseek-v4", *DRAFTERS])
    p.add_argument("code", choices=list(CODES))
    p.add_argument("out")
    p.add_argument("--layers", type=int)
    p.add_argument("--experts", type=int, default=0)
    p.add_argument("--vocab", type=int, default=65536)
    p.add_argument("--target-layers", type=int, default=0)
    p.add_argument("--taps", type=int, default=0)
    p.add_argument("--windows", type=int, default=1, metavar="N")
    p.add_argument("--planted", type=int, default=0, metavar="PERCENT")
    a = p.parse_args()
    if a.planted and (a.shape not in GEMMA or a.code not in ("Q4_0", "Q8_0") or not 0 < a.planted <= 100):
        p.error(f"--planted is {a.planted}, of {a.shape} in {a.code}: it takes 1 to 100, Gemma, and Q4_0 or Q8_0")
    if a.vocab < 512:
        p.error(f"--vocab is {a.vocab}, at least 512 are needed")
    if a.shape in DRAFTERS:
        f = drafter(a)
    elif a.shape == "deepseek-v4":
        f = deepseek(CODES[a.code], a.layers or 1, a.experts, a.vocab)
    else:
        f = gemma(a.shape, CODES[a.code], a.layers or 2, a.experts, a.vocab, a.windows, a.planted)
    f.key("general.name", f"slice of {a.shape}, {a.code}", whole=True)
    f.write(a.out)


if __name__ == "__main__":
    main()
