#!/usr/bin/env python3
"""report.py INGLE - a model against a reference, by layer and by token: the numbers by a plain computation, as text, JSON and a page."""
import html.parser, json, math, re, struct, sys, unittest

sys.argv = sys.argv[:2]
import importlib.util
spec = importlib.util.spec_from_file_location("convert", "tests/cli/convert.py")
convert = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert)

NANO, SMALL = "assets/nano-gemma4-Q8_0.gguf", "tests/data/nano/nano-gemma4-Q4_K_M.gguf"
V4 = "tests/data/nano-v4/nano-v4-MXFP4.gguf"


class Page(html.parser.HTMLParser):
    """Tags are closed in their order, and nothing comes from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.titles, self.count, self.text = [], [], {}, ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        assert tag not in ("script", "link", "img", "iframe", "object"), tag
        assert not [a for a, _ in attrs if a in ("src", "href") or a.startswith("on")], attrs
        for _, v in attrs:
            assert "nan" not in v and "inf" not in v, v
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.titles.append(data)
        self.text += data + "\n"


class Case(convert.Base):
    def setUp(self):
        super().setUp()
        self.ids, self.taps, self.page = f"{self.dir}/ids.json", f"{self.dir}/taps.safetensors", f"{self.dir}/page.html"

    def eval(self, model, *args, code=0):
        return self.run_it("eval", "-q", "-m", model, "--no-pack-cache", "--threads", "2", "--tokens", self.ids, *args, code=code).stdout.decode()

    def prepare(self, model, text):
        words = json.loads(self.run_it("tokenize", "-m", model, "--add-special", "--parse-special", "--json", text).stdout)
        with open(self.ids, "w") as f:
            json.dump(words, f)
        return words

    def rows(self, path, name):
        shape, raw = convert.safetensors(path)[name][1:]
        x = struct.unpack(f"<{shape[0] * shape[1]}f", raw)
        return [x[r * shape[1]:(r + 1) * shape[1]] for r in range(shape[0])]

    def test_numbers(self):
        ids = self.prepare(NANO, "What is 2+3? Say 1 to 5.")
        self.eval(NANO, "--taps", self.taps)
        mine = f"{self.dir}/mine.safetensors"
        r = json.loads(self.eval(SMALL, "--json", "--taps", mine, "--against", self.taps))
        self.assertEqual(list(r["layers"]), ["embed", *map(str, range(6)), "norm"])
        for name, rms in r["layers"].items():
            a, b = (sum(self.rows(p, f"hidden.{name}"), ()) for p in (mine, self.taps))
            want = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))
            self.assertAlmostEqual(rms, want, delta=1e-4 * want, msg=name)
        self.assertEqual([t["id"] for t in r["by_token"]], ids)
        for i, (a, b) in enumerate(zip(self.rows(mine, "logits"), self.rows(self.taps, "logits"))):
            za, zb = (max(x) + math.log(sum(math.exp(v - max(x)) for v in x)) for x in (a, b))
            t = r["by_token"][i]
            kl = sum(math.exp(y - zb) * ((y - zb) - (x - za)) for x, y in zip(a, b))
            self.assertAlmostEqual(t["kl"], kl, delta=1e-4 * kl + 1e-6)
            self.assertEqual((a[t["top"]], b[t["reference_top"]]), (max(a), max(b)))
            if i + 1 < len(ids):
                self.assertAlmostEqual(t["nll"], za - a[ids[i + 1]], places=4)
                self.assertAlmostEqual(t["reference_nll"], zb - b[ids[i + 1]], places=4)
        self.assertAlmostEqual(r["kl"], sum(t["kl"] for t in r["by_token"]) / len(ids), places=5)
        text = self.eval(SMALL, "--against", self.taps)
        for name, rms in r["layers"].items():
            self.assertRegex(text, rf"(?m)^{name} +{re.escape(f'{rms:.4g}')}$")
        worst = max(range(len(ids)), key=lambda i: r["by_token"][i]["kl"])
        self.assertRegex(text, rf"\n *{worst}  '")

    def test_same_model(self):
        self.prepare(V4, "<｜User｜>Say 1 to 30<｜Assistant｜></think>1 2 3 4 5")
        self.eval(V4, "--taps", self.taps)
        r = json.loads(self.eval(V4, "--json", "--against", self.taps))
        self.assertEqual((set(r["layers"].values()), r["kl"], r["same_top"]), ({0}, 0, 1))
        self.eval(V4, "--logits", self.taps)
        self.assertNotIn("layers", json.loads(self.eval(V4, "--json", "--against", self.taps)))

    def test_pages(self):
        talk = "<|turn>user\nSay 1 to 40<turn|>\n<|turn>model\n<|channel>thought\n<channel|>" + ", ".join(map(str, range(1, 41)))
        self.prepare(NANO, talk + " <b>&\"</b>")
        self.eval(NANO, "--taps", self.taps)
        self.eval(SMALL, "--against", self.taps, "--html", self.page, "--draft", "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf")
        page = Page(open(self.page, encoding="utf-8").read())
        self.assertEqual(page.titles, [SMALL, "Error by layer", "KL by token", "Acceptance", "Tokens farthest from the reference"])
        self.assertEqual(page.count["svg"], 3)
        self.assertNotIn("http", open(self.page).read())
        self.prepare(V4, "<｜User｜>Say 1 to 30<｜Assistant｜></think>1 2 3 4 5")
        self.eval(V4, "--html", self.page, "--draft", "off")
        page = Page(open(self.page, encoding="utf-8").read())
        self.assertEqual(page.titles[1:], ["Surprise by token", "Expert use", "Tokens of most surprise"])
        self.assertRegex(page.text, r"\d+ of 48 were never chosen")
        hits = [int(n) for n in re.findall(r"layer \d+, expert \d+: (\d+)", page.text)]
        self.assertEqual(sum(hits), 6 * 2 * len(json.load(open(self.ids))))

    def test_errors(self):
        self.prepare(NANO, "Hello there")
        self.eval(NANO, "--taps", self.taps)
        self.prepare(NANO, "Hello there, this is longer")
        self.eval(NANO, "--against", self.taps, code=1)
        self.prepare(V4, "Hello")
        self.eval(V4, "--against", self.taps, code=1)
        self.eval(V4, "--html", f"{self.dir}/no/page.html", code=1)
        self.run_it("eval", "--text", "README.md", "--html", self.page, code=2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], warnings="ignore")
