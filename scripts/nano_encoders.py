#!/usr/bin/env python3
"""nano_encoders.py - writes the encoders of the built-in model, assets/mmproj-nano-gemma4.gguf.

usage: nano_encoders.py [MODEL.gguf] [OUT.gguf]

The encoders are not trained.  Their weights are fixed numbers, and the last matrix maps a picture's
features to a mixture of words of the model, so that soft tokens look like words to it and another
picture gives another answer.  The file is the same on every run."""
import math, pathlib, struct, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
H, D, FF, LAYERS, HEADS, PATCH, PLACES = 256, 32, 64, 1, 2, 16, 3360
A_D, A_FF, A_LAYERS, A_HEADS, A_OUT, CHANNELS = 32, 128, 2, 4, 32, (16, 4)
F32, F16 = 0, 1
WORDS = ("red green blue black white dark light small large round long water tree house sea sky sun "
         "moon night day king stone bird fire snow green road wood boat cat dog horse").split()


class Random:
    """A fixed sequence (splitmix64)."""

    def __init__(self, seed):
        self.s = seed

    def bits(self):
        self.s = (self.s + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = self.s
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & (2**64 - 1)
        return z ^ z >> 31

    def uniform(self, most):
        return (self.bits() / 2**63 - 1) * most

    def list(self, n, most):
        return [self.uniform(most) for _ in range(n)]


def read_model(path):
    """Vocabulary and the rows of the embedding, decoded from Q8_0."""
    b = path.read_bytes()
    at = 8

    def take(fmt):
        nonlocal at
        v = struct.unpack_from("<" + fmt, b, at)[0]
        at += struct.calcsize(fmt)
        return v

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return b[at - n:at].decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            of, n = take("I"), take("Q")
            return [value(of) for _ in range(n)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    n_tensors, n_keys = take("Q"), take("Q")
    keys, tensors = {}, {}
    for _ in range(n_keys):
        key = text()
        keys[key] = value(take("I"))
    for _ in range(n_tensors):
        name = text()
        ne = [take("Q") for _ in range(take("I"))]
        tensors[name] = (ne, take("I"), take("Q"))
    data = (at + 31) // 32 * 32
    ne, kind, offset = tensors["token_embd.weight"]
    assert ne[0] == H and kind == 8, "the embedding is Q8_0 rows of 256"

    def row(i):
        out, p = [], data + offset + i * (H // 32) * 34
        for _ in range(H // 32):
            scale = struct.unpack_from("<e", b, p)[0]
            out += [scale * q for q in struct.unpack_from("<32b", b, p + 2)]
            p += 34
        return out
    return keys["tokenizer.ggml.tokens"], row


class Gguf:
    def __init__(self):
        self.keys, self.tensors = [], []

    def key(self, name, kind, v):
        def text(s):
            return struct.pack("<Q", len(s.encode())) + s.encode()
        b = text(name) + struct.pack("<I", kind)
        if kind == 8:
            b += text(v)
        elif kind == 9:
            b += struct.pack("<IQ", 6, len(v)) + struct.pack(f"<{len(v)}f", *v)
        else:
            b += struct.pack({4: "<I", 6: "<f", 7: "<?"}[kind], v)
        self.keys.append(b)

    def tensor(self, name, ne, kind, v):
        assert math.prod(ne) == len(v), name
        self.tensors.append((name, ne, kind, struct.pack(f"<{len(v)}{'f' if kind == F32 else 'e'}", *v)))

    def write(self, path):
        head, at = b"", 0
        for name, ne, kind, data in self.tensors:
            head += struct.pack("<Q", len(name)) + name.encode() + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, at)
            at += (len(data) + 31) // 32 * 32
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)) + b"".join(self.keys) + head
        out = head + bytes(-len(head) % 32)
        for _, _, _, data in self.tensors:
            out += data + bytes(-len(data) % 32)
        path.write_bytes(out)


def words_matrix(r, tokens, row, n):
    """[n columns]: each a word as the model sees it, times the root of its width."""
    index = {t: i for i, t in enumerate(tokens)}
    ids = []
    for w in WORDS:
        i = index.get("\u2581" + w, index.get(w))
        if i is not None and i not in ids:
            ids.append(i)
    while len(ids) < n:
        i = 600 + r.bits() % 1400
        if i not in ids:
            ids.append(i)
    columns = [row(i) for i in ids[:n]]
    return [math.sqrt(H) * 0.5 * columns[c][o] for o in range(H) for c in range(n)]


def main():
    model = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "assets/nano-gemma4-Q8_0.gguf"
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "assets/mmproj-nano-gemma4.gguf"
    tokens, row = read_model(model)
    r, g = Random(4), Gguf()
    for name, kind, v in (
            ("general.architecture", 8, "clip"), ("general.type", 8, "mmproj"),
            ("general.name", 8, "nano-gemma4 encoders"), ("general.file_type", 4, 1),
            ("clip.has_vision_encoder", 7, True), ("clip.vision.projector_type", 8, "gemma4v"),
            ("clip.vision.projection_dim", 4, H), ("clip.vision.image_size", 4, 224),
            ("clip.vision.patch_size", 4, PATCH), ("clip.vision.embedding_length", 4, D),
            ("clip.vision.feed_forward_length", 4, FF), ("clip.vision.block_count", 4, LAYERS),
            ("clip.vision.attention.head_count", 4, HEADS), ("clip.vision.attention.layer_norm_epsilon", 6, 1e-6),
            ("clip.vision.image_mean", 9, [0.0] * 3), ("clip.vision.image_std", 9, [1.0] * 3),
            ("clip.has_audio_encoder", 7, True), ("clip.audio.projector_type", 8, "gemma4a"),
            ("clip.audio.projection_dim", 4, H), ("clip.audio.embedding_length", 4, A_D),
            ("clip.audio.feed_forward_length", 4, A_FF), ("clip.audio.block_count", 4, A_LAYERS),
            ("clip.audio.attention.head_count", 4, A_HEADS), ("clip.audio.num_mel_bins", 4, 128),
            ("clip.audio.attention.layer_norm_epsilon", 6, 1e-6)):
        g.key(name, kind, v)

    def matrix(name, rows, width, kind=F16):
        g.tensor(name, [width, rows], kind, r.list(rows * width, 1.7 / math.sqrt(width)))

    def ones(name, n, about=1.0):
        g.tensor(name, [n], F32, [about * (1 + r.uniform(0.2)) for _ in range(n)])

    n = 3 * PATCH * PATCH
    g.tensor("v.patch_embd.weight", [PATCH, PATCH, 3, D], F32, r.list(n * D, 3 / math.sqrt(n)))
    g.tensor("v.position_embd.weight", [D, PLACES, 2], F16, r.list(D * PLACES * 2, 0.15))
    for i in range(LAYERS):
        p = f"v.blk.{i}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            matrix(p + name + ".weight", D, D)
        for name in ("attn_q_norm", "attn_k_norm"):
            ones(p + name + ".weight", D // HEADS)
        for name in ("ln1", "ln2"):
            ones(p + name + ".weight", D)
        for name in ("attn_post_norm", "ffn_post_norm"):
            ones(p + name + ".weight", D, 0.5)
        matrix(p + "ffn_gate.weight", FF, D)
        matrix(p + "ffn_up.weight", FF, D)
        matrix(p + "ffn_down.weight", D, FF)
    g.tensor("mm.input_projection.weight", [D, H], F16, words_matrix(r, tokens, row, D))

    g.tensor("a.conv1d.0.weight", [3, 3, 1, CHANNELS[0]], F32, r.list(9 * CHANNELS[0], 0.6))
    ones("a.conv1d.0.norm.weight", CHANNELS[0])
    g.tensor("a.conv1d.1.weight", [3, 3, *CHANNELS], F32,
             r.list(9 * CHANNELS[0] * CHANNELS[1], 1.7 / math.sqrt(9 * CHANNELS[0])))
    ones("a.conv1d.1.norm.weight", CHANNELS[1])
    matrix("a.input_projection.weight", A_D, 32 * CHANNELS[1], F32)
    for i in range(A_LAYERS):
        p = f"a.blk.{i}."
        for end in ("", "_1"):
            matrix(p + f"ffn_up{end}.weight", A_FF, A_D)
            matrix(p + f"ffn_down{end}.weight", A_D, A_FF)
            ones(p + f"ffn_norm{end}.weight", A_D)
            ones(p + f"ffn_post_norm{end}.weight", A_D, 0.5)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out", "attn_k_rel", "conv_pw2"):
            matrix(p + name + ".weight", A_D, A_D)
        matrix(p + "conv_pw1.weight", 2 * A_D, A_D)
        g.tensor(p + "conv_dw.weight", [5, A_D], F32, r.list(5 * A_D, 0.7))
        ones(p + "per_dim_scale.weight", A_D // A_HEADS)
        for name in ("attn_pre_norm", "conv_norm", "norm_conv", "ln2"):
            ones(p + name + ".weight", A_D)
        ones(p + "attn_post_norm.weight", A_D, 0.5)
    matrix("a.pre_encode.out.weight", A_OUT, A_D)
    g.tensor("a.pre_encode.out.bias", [A_OUT], F32, r.list(A_OUT, 0.1))
    g.tensor("mm.a.input_projection.weight", [A_OUT, H], F16, words_matrix(r, tokens, row, A_OUT))
    g.write(out)


main()
