"""modelfile - GGUF and safetensors files as Python values, to be changed and written again.  Standard library alone."""
import json, os, shutil, struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
SIZE = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 13: (256, 176), 14: (256, 210), 26: (1, 4), 30: (1, 2),
        39: (32, 17)}  # elements and bytes of a block


class Gguf:
    """kv: {key: (type, value)}, a string is bytes, an array (type of elements, list); tensors: {name: (ne, type, bytes)}"""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.raw = file.read()
        self.at, self.kv, self.tensors = 8, {}, {}
        n_tensors, n_kv = self.take("QQ")
        for _ in range(n_kv):
            key = self.string().decode()
            kind, = self.take("I")
            self.kv[key] = kind, self.value(kind)
        entries = []
        for _ in range(n_tensors):
            name = self.string().decode()
            n, = self.take("I")
            entries.append((name, self.take("Q" * n), *self.take("IQ")))
        base = (self.at + 31) // 32 * 32
        for name, ne, kind, at in entries:
            count = 1
            for n in ne:
                count *= n
            block, size = SIZE[kind]
            self.tensors[name] = ne, kind, self.raw[base + at:base + at + count // block * size]

    def take(self, form):
        out = struct.unpack_from("<" + form, self.raw, self.at)
        self.at += struct.calcsize("<" + form)
        return out

    def string(self):
        n, = self.take("Q")
        self.at += n
        return self.raw[self.at - n:self.at]

    def value(self, kind):
        if kind == STR:
            return self.string()
        if kind != ARRAY:
            return self.take(PACK[kind])[0]
        inner, n = self.take("IQ")
        return inner, [self.string() for _ in range(n)] if inner == STR else list(self.take(PACK[inner] * n))

    def with_keys(self, path, *new):
        """Writes a file that has these keys, too, each as (key, type, value)."""
        other = object.__new__(Gguf)
        other.kv, other.tensors = {**self.kv, **{key: (kind, v) for key, kind, v in new}}, self.tensors
        return other.write(path)

    def write(self, path, tensors=None):
        tensors = self.tensors if tensors is None else tensors
        out = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(self.kv)))
        text = lambda s: struct.pack("<Q", len(s)) + s

        def put(kind, v):
            if kind == STR:
                return text(v)
            if kind == ARRAY:
                return struct.pack("<IQ", v[0], len(v[1])) + b"".join(put(v[0], e) for e in v[1])
            return struct.pack("<" + PACK[kind], v)

        for key, (kind, v) in self.kv.items():
            out += text(key.encode()) + struct.pack("<I", kind) + put(kind, v)
        at = 0
        for name, (ne, kind, raw) in tensors.items():
            out += text(name.encode()) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, at)
            at += (len(raw) + 31) // 32 * 32
        with open(path, "wb") as file:
            file.write(bytes(out) + bytes(-len(out) % 32))
            for _, _, raw in tensors.values():
                file.write(raw + bytes(-len(raw) % 32))
        return path


class Checkpoint:
    """A directory with config.json and model.safetensors; tensors: {name: (dtype, shape, bytes)}"""

    def __init__(self, path):
        self.source = path
        with open(f"{path}/config.json") as file:
            self.config = json.load(file)
        with open(f"{path}/model.safetensors", "rb") as file:
            raw = file.read()
        n = struct.unpack_from("<Q", raw)[0]
        self.tensors = {k: (v["dtype"], v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
                        for k, v in json.loads(raw[8:8 + n]).items() if k != "__metadata__"}

    def write(self, path, shards=1, index=True, weights=True):
        os.makedirs(path, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if os.path.exists(f"{self.source}/{name}"):
                shutil.copy(f"{self.source}/{name}", path)
        with open(f"{path}/config.json", "w") as file:
            json.dump(self.config, file)
        if not weights:
            return path
        names, where, total = list(self.tensors), {}, 0
        for i in range(shards):
            part = names[i * len(names) // shards:(i + 1) * len(names) // shards]
            name = "model.safetensors" if shards == 1 else f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
            write_safetensors(f"{path}/{name}", {k: self.tensors[k] for k in part})
            where.update({k: name for k in part})
            total += sum(len(self.tensors[k][2]) for k in part)
        if shards > 1 and index:
            with open(f"{path}/model.safetensors.index.json", "w") as file:
                json.dump({"metadata": {"total_size": total}, "weight_map": where}, file)
        return path


def write_safetensors(path, tensors):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
