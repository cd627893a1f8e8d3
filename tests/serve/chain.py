#!/usr/bin/env python3
"""chain.py INGLE - from a download to a running house, for a published-form checkpoint of each family: pull from a hub, check, convert,
imatrix, quantise in five codes, each against BF16, two of them served by one router, chat."""
import array, importlib.util, json, os, pathlib, random, re, struct, subprocess, sys, tempfile, unittest

from client import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
INGLE = os.path.abspath(sys.argv[1])


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tests/cli/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


argv, sys.argv = sys.argv, sys.argv[:2]
convert, pull = load("convert"), load("pull")
sys.argv = argv
CAPITALS = ["Norway", "France", "Italy", "Spain", "Japan", "Peru"]


def fp8(shape, raw):
    """BF16 as FP8 (E4M3) with a scale of a power of two for each 128 x 128: codes, and exponents of the scales plus 127."""
    rows, columns = shape
    x = array.array("H", raw)
    codes, scales, tables = bytearray(len(x)), bytearray(), {}
    for r in range(0, rows, 128):
        for c in range(0, columns, 128):
            parts = [x[i * columns + c:i * columns + min(c + 128, columns)] for i in range(r, min(r + 128, rows))]
            top = max(v & 0x7FFF for p in parts for v in p) >> 7  # the largest exponent, plus 127
            shift = top - 8  # to at most 2^9, and 448 is the largest code
            scales.append(shift)
            table = tables.setdefault(shift, {})
            for i, p in enumerate(parts):
                at = (r + i) * columns + c
                for v in set(p) - table.keys():
                    table[v] = nearest(struct.unpack("<f", struct.pack("<I", v << 16))[0] * 2.0 ** (127 - shift))
                codes[at:at + len(p)] = bytes(map(table.__getitem__, p))
    return bytes(codes), bytes(scales)


E4M3 = [(m / 8 * 2.0 ** -6 if not e else (1 + m / 8) * 2.0 ** (e - 7)) for e in range(16) for m in range(8)][:127]


def nearest(v):
    code = min(range(127), key=lambda i: abs(E4M3[i] - abs(v)))
    return code | (0x80 if v < 0 else 0)


class Chain(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.addCleanup(self.tmp.cleanup)
        self.dir = pathlib.Path(self.tmp.name)

    def ingle(self, *words, code=0, text=None):
        r = subprocess.run([INGLE, *map(str, words)], capture_output=True, input=text, text=True, timeout=120, check=False,
                           env={**os.environ, "no_proxy": "*"}, **({} if text else {"stdin": subprocess.DEVNULL}))
        self.assertEqual(r.returncode, code, (words, r.stderr))
        return r.stdout

    def talk(self, family, n):
        """Conversations that a nano model could have had."""
        out = []
        for _ in range(n):
            a, b = random.randrange(1, 11), random.randrange(1, 11)
            q, answer = random.choice([(f"What is {a}+{b}?", str(a + b)), (f"Say 1 to {a + 8}", ", ".join(map(str, range(1, a + 9)))),
                                       (f"What is the capital of {random.choice(CAPITALS)}?", "Oslo"), (f"Repeat: blue {a}", f"blue {a}")])
            out.append(f"<|turn>user\n{q}<turn|>\n<|turn>model\n<|channel>thought\n<channel|>{answer}<turn|>\n" if family == "gemma4" else
                       f"<｜User｜>{q}<｜Assistant｜></think>{answer}<｜end▁of▁sentence｜>")
        return "".join(out)

    def published(self, family):
        """The files of a checkpoint as a hub has them."""
        folder = self.dir / "published"
        if family == "gemma4":
            self.ingle("convert", "-q", ROOT / "assets/nano-gemma4-Q8_0.gguf", "-o", folder, "--outtype", "bf16", "--split-max-size", "2M")
            return folder
        self.ingle("convert", "-q", ROOT / "tests/data/nano-v4/nano-v4-MXFP4.gguf", "-o", folder)
        tensors = convert.safetensors(folder / "model.safetensors")
        for name in list(tensors):
            dtype, shape, raw = tensors[name]
            if dtype == "BF16" and re.search(r"attn\.w|indexer\.wq_b|shared_experts", name):
                codes, scales = fp8(shape, raw)
                tensors[name] = ["F8_E4M3", shape, codes]
                tensors[name.removesuffix("weight") + "scale"] = ["F8_E8M0", [-(-shape[0] // 128), -(-shape[1] // 128)], scales]
        self.assertEqual({v[0] for v in tensors.values()} >= {"F8_E4M3", "F8_E8M0", "I8", "I64", "F32", "BF16"}, True)
        convert.save(folder / "model.safetensors", tensors)
        return folder

    def pulled(self, folder):
        files = {p.name: p.read_bytes() for p in folder.iterdir()}
        with pull.Hub(files) as hub:
            hub.faults["cut"] = 1
            path = self.ingle("pull", "-q", "o/r", "--hub", hub.url, "--hub-dir", self.dir / "hub", "--hub-piece", "256K").strip()
            hub.shutdown()
        for name, data in files.items():
            self.assertEqual((pathlib.Path(path) / name).read_bytes(), data)
        return path

    def chain(self, family, codes, most):
        random.seed(7)
        checkpoint = self.pulled(self.published(family))
        self.ingle("check", "-q", checkpoint)
        house = self.dir / "house"
        house.mkdir()
        bf16 = house / "bf16.gguf"
        self.ingle("convert", "-q", "--threads", 2, checkpoint, "-o", bf16)
        self.ingle("check", "-q", bf16)
        self.assertEqual({v["relative_rms"] for v in json.loads(self.ingle("compare", "-q", "--json", checkpoint, bf16)).values()}, {0})
        text, held, ids = self.dir / "text", self.dir / "held", self.dir / "ids.json"
        text.write_text(self.talk(family, 40))
        held.write_text(self.talk(family, 16))
        importance, reference = self.dir / "importance.gguf", self.dir / "reference.safetensors"
        self.ingle("imatrix", "-q", "--threads", 2, "-m", bf16, "-f", text, "--parse-special", "--chunk-size", 128, "-o", importance)
        ids.write_text(json.dumps(json.loads(self.ingle("tokenize", "-m", bf16, "--add-special", "--parse-special", "--json", "-f", held))[:400]))
        measure = ("--no-pack-cache", "--threads", 2, "--draft", "off", "--tokens", ids)
        self.ingle("eval", "-q", "-m", bf16, *measure, "--taps", reference)
        found = {}
        for code in codes:
            self.ingle("quantize", "-q", "--threads", 2, bf16, house / f"{code}.gguf", code, "--imatrix", importance)
            self.ingle("check", "-q", house / f"{code}.gguf")
            r = json.loads(self.ingle("eval", "-q", "--json", "-m", house / f"{code}.gguf", *measure, "--against", reference))
            found[code] = r["kl"]
            self.assertLess(r["layers"]["embed"], 0.5)
            size = os.path.getsize(house / f"{code}.gguf")
            print(f"{family:10} {code:14} {size / 1e6:6.2f} MB  KL {r['kl']:.4f}  same best {100 * r['same_top']:.1f} %", file=sys.stderr)
        for code, limit in zip(codes, most):
            self.assertLess(found[code], limit, code)
        self.assertLess(found[codes[0]], found[codes[-1]])
        self.chat(house, codes[0], codes[1])

    def chat(self, house, *names):
        """Two of the files behind one address say what they say alone."""
        os.environ["XDG_RUNTIME_DIR"] = str(self.dir)
        question = {"messages": [{"role": "user", "content": "What is 2+3?"}], "max_tokens": 12, "temperature": 0}
        with Server(INGLE, "--models", str(house), "--threads", "1", "--ctx", "1024", "--models-max", "2") as s:
            for name in names:
                status, _, body = s.post("/v1/chat/completions", dict(question, model=name))
                self.assertEqual((status, body["model"]), (200, name), body)
                said = body["choices"][0]["message"]["content"]
                alone = self.ingle("run", "-q", "-m", house / f"{name}.gguf", "--no-pack-cache", "-n", 12, "--temp", 0, "What is 2+3?")
                self.assertEqual(said.strip(), alone.strip())
                self.assertTrue(said.strip())
            self.assertEqual(s.post("/v1/chat/completions", dict(question, model="any"))[2]["model"], names[-1])
            states = {m["id"]: m["status"]["value"] for m in s.get("/v1/models")[2]["data"]}
            self.assertEqual([states[n] for n in names], ["loaded"] * 2)
            self.assertEqual(sum(v == "loaded" for v in states.values()), 2)

    def test_gemma4(self):
        self.chain("gemma4", ("Q8_0", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ2_S"), (0.01, 0.1, 0.2, 0.3, 2))

    def test_deepseek4(self):
        self.chain("deepseek4", ("Q8_0", "MXFP4_MOE", "Q4_K_M", "IQ3_XXS", "IQ2_XXS"), (0.05, 0.2, 0.3, 1, 4))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], warnings="ignore")
