#!/usr/bin/env python3
"""draft.py INGLE - drafters beside a model: found, paired, planned, chosen by method; what does not fit is named; the text is
the same with and without."""
import array, json, lzma, math, os, pathlib, re, shutil, struct, subprocess, sys, tempfile, unittest
from modelfile import *

INGLE = sys.argv[1]
SANITIZED = "INGLE_TEST_SANITIZED" in os.environ  # many times slower: less of the same
NANO = "tests/data/nano"
TARGET = f"{NANO}/nano-gemma4-Q4_K_M.gguf"
SMALL = "assets/nano-gemma4-Q8_0.gguf"
V4 = "tests/data/nano-v4/nano-v4-MXFP4.gguf"
# Drafters of the nano model by method; those that are not there yet are passed over.
DRAFTERS = {m: f"{NANO}/nano-gemma4-{m}-Q8_0.gguf" for m in ("dflash", "dspark", "mtp")}
DRAFTERS = {m: p for m, p in DRAFTERS.items() if os.path.exists(p)}
GOLDEN = "tests/data/goldens/dflash_gemma4/model-F32.gguf"


def ingle(*a):
    p = subprocess.run([INGLE, *a], capture_output=True, text=True, timeout=250)
    return p.returncode, p.stdout, p.stderr


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.dir.cleanup()

    def folder(self, name, *files):
        path = f"{self.dir.name}/{name}"
        os.makedirs(path, exist_ok=True)
        for f in files:
            shutil.copy(f, path)
        return path

    def plan(self, *a):
        rc, out, err = ingle("inspect", "--plan", "--json", *a)
        self.assertEqual(rc, 0, err)
        return json.loads(out)["items"], err

    def refused(self, *a):
        rc, out, err = ingle("inspect", "--plan", *a)
        self.assertEqual(rc, 1, out + err)
        return err


class Pairing(Case):
    def test_a_drafter_is_planned(self):
        without, _ = self.plan("-m", TARGET, "--draft", "off")
        self.assertNotIn("drafter", without)
        self.assertNotIn("drafts from text", without)
        texts = [self.plan("-m", TARGET, "--draft-method", "ngram", "--ctx", str(n))[0]["drafts from text"] for n in (1024, 4096)]
        self.assertGreater(texts[0], 100000)
        self.assertGreater(texts[1], texts[0] + 3000 * 20)
        for method, path in DRAFTERS.items():
            items, _ = self.plan("-m", TARGET, "--draft", path)
            self.assertGreater(items["drafter"], 100000, method)
            self.assertEqual(items["weights"], without["weights"])

    def test_it_is_named_in_a_note(self):
        for method, path in DRAFTERS.items():
            _, err = self.plan("-v", "-m", TARGET, "--draft", path)
            self.assertRegex(err, rf"{os.path.basename(path)}.*{method} drafts up to [0-9]+ tokens")

    def test_a_path_that_is_not_there_is_an_error(self):
        d = self.folder("has", DRAFTERS["dflash"])
        err = self.refused("-m", TARGET, "--draft", f"{d}/other.gguf")
        self.assertIn(f"there is no file or folder '{d}/other.gguf'", err)

    def test_another_vocabulary(self):
        err = self.refused("-m", TARGET, "--draft", V4)
        self.assertIn("its vocabulary is not that of the model", err)
        self.assertIn("would fit", err)
        err = self.refused("-m", V4, "--draft", DRAFTERS["dflash"])
        self.assertIn("does not draft for", err)

    def test_another_width(self):
        err = self.refused("-m", TARGET, "--draft", GOLDEN)
        self.assertIn("does not draft for", err)

    def test_no_drafter_at_all(self):
        d = self.folder("empty")
        self.assertIn("no drafter for", self.refused("-m", TARGET, "--draft", d))
        with open(f"{d}/junk.gguf", "wb") as f:
            f.write(b"junk")
        self.assertIn("junk.gguf", self.refused("-m", TARGET, "--draft", f"{d}/junk.gguf"))
        g = Gguf(GOLDEN)
        g.kv["general.architecture"] = STR, b"llama"
        g.write(f"{d}/other.gguf")
        self.assertIn("no drafter of a known kind", self.refused("-m", TARGET, "--draft", f"{d}/other.gguf"))

    def test_taps_that_are_none(self):
        g, d = Gguf(DRAFTERS["dflash"]), self.folder("taps")
        for value in ((ARRAY, (I32, [])), (ARRAY, (I32, [0])), (ARRAY, (I32, [7, 8, 9])), (STR, b"x")):
            g.kv["dflash.target_layers"] = value
            g.write(f"{d}/bad.gguf")
            err = self.refused("-m", TARGET, "--draft", f"{d}/bad.gguf")
            self.assertIn("bad.gguf", err)
            self.assertIn("target_layers", err)
            self.assertEqual(ingle("inspect", f"{d}/bad.gguf")[0], 0)

    def test_a_file_that_is_cut_short(self):
        d = self.folder("cut", *DRAFTERS.values())
        for path in DRAFTERS.values():
            path = f"{d}/{os.path.basename(path)}"
            os.truncate(path, os.path.getsize(path) - 4096)
            err = self.refused("-m", TARGET, "--draft", path)
            self.assertIn(os.path.basename(path), err)

    def test_inspect_says_what_it_drafts_for(self):
        v4 = "tests/data/nano-v4/nano-v4"
        says = {DRAFTERS["dflash"]: r"dflash for Gemma 4, width 256, 2048 tokens, at least 5 layers \(it reads after layers 1, 3, 4\)",
                DRAFTERS["dspark"]: r"dspark for Gemma 4, width 256, 2048 tokens, at least 5 layers",
                DRAFTERS["mtp"]: r"mtp for Gemma 4, width 256, 2048 tokens$",
                f"{v4}-mtp0-Q8_0.gguf": r"mtp for DeepSeek V4",
                f"{v4}-dspark-Q8_0.gguf": r"dspark for DeepSeek V4, width 128, 2048 tokens, at least 6 layers",
                "tests/data/goldens/dflash2_gemma4/model-F32.gguf": "dflash2 for Gemma 4, width",
                "tests/data/goldens/dspark_gemma4": "dspark for Gemma 4, width",
                "tests/data/goldens/gemma4_assistant_ordered": "mtp for Gemma 4, width",
                "tests/data/goldens/deepseek_v4_full": None, V4: None, TARGET: None}
        for path, want in says.items():
            if os.path.isdir(path):  # the checkpoint, not the files beside it
                base = Checkpoint(path)
                path = base.write(f"{self.dir.name}/{os.path.basename(path)}")
            rc, out, err = ingle("inspect", path)
            self.assertEqual(rc, 0, err)
            line = [l for l in out.splitlines() if l.startswith("drafts: ")]
            if want:
                self.assertRegex(line[0], want)
                self.assertEqual(json.loads(ingle("inspect", "--json", path)[1])["drafts"], line[0][8:])
            elif "v4_full" in path:
                self.assertEqual(line, ["drafts: mtp for itself"])
            else:
                self.assertEqual(line, [])

    def test_a_drafter_is_no_model(self):
        rc, out, err = ingle("run", "-m", DRAFTERS["dflash"], "hi")
        self.assertEqual(rc, 1)
        self.assertIn("with --draft", err)

    def test_off_and_a_file_contradict_each_other(self):
        self.assertIn("contradict", self.refused("-m", TARGET, "--draft", "off", "--draft", DRAFTERS["dflash"]))

    def test_a_smaller_model_drafts(self):
        items, err = self.plan("-v", "-m", SMALL, "--draft", TARGET)
        self.assertIn("model drafts up to", err)
        self.assertGreater(items["drafter"], 1000000)

    def test_what_does_not_fit_in_memory_says_so(self):
        rc, out, err = ingle("run", "-m", TARGET, "--ctx", "4096", "--memory", "1M", "--draft", DRAFTERS["dflash"], "hi")
        self.assertEqual(rc, 1)
        self.assertIn("drafter", err)


class Choosing(Case):
    def kind(self, *a):
        """The drafter that is taken, by the note."""
        items, err = self.plan("-v", *a)
        for line in err.splitlines():
            if " drafts up to " in line:
                return line.split(" drafts up to ")[0].split()[-1], line
        self.assertNotIn("drafter", items)
        return None, err

    def test_beside_the_model(self):
        d = self.folder("models", TARGET)
        model = f"{d}/{os.path.basename(TARGET)}"
        self.assertIsNone(self.kind("-m", model)[0])
        shutil.copy(DRAFTERS["dflash"], d)
        self.assertEqual(self.kind("-m", model)[0], "dflash")
        self.assertEqual(self.kind("-m", model, "--draft", "auto")[0], "dflash")
        self.assertIsNone(self.kind("-m", model, "--draft", "off")[0])

    def test_in_a_folder_beside_it_by_name(self):
        d = self.folder("nano-gemma4-GGUF", TARGET)
        model = f"{d}/{os.path.basename(TARGET)}"
        self.folder("other-DFlash", DRAFTERS["dflash"])
        self.assertIsNone(self.kind("-m", model)[0])
        self.folder("Nano-Gemma4-DFlash", DRAFTERS["dflash"])
        self.assertEqual(self.kind("-m", model)[0], "dflash")

    def test_in_a_cache_of_a_hub(self):
        d = self.folder("models--a--nano-gemma4/snapshots/1", TARGET)
        self.folder("models--b--nano-gemma4-dflash/snapshots/2", DRAFTERS["dflash"])
        self.assertEqual(self.kind("-m", f"{d}/{os.path.basename(TARGET)}")[0], "dflash")
        self.assertEqual(self.kind("-m", TARGET, "--draft", f"{self.dir.name}/models--b--nano-gemma4-dflash")[0], "dflash")

    def test_a_wrong_one_beside_it_is_a_warning(self):
        d = self.folder("models", TARGET)
        shutil.copy(GOLDEN, f"{d}/draft.gguf")
        rc, out, err = ingle("inspect", "--plan", "-m", f"{d}/{os.path.basename(TARGET)}")
        self.assertEqual(rc, 0)
        self.assertRegex(err, "warning.*no network drafts")

    def test_the_method_chooses(self):
        d = self.folder("drafters", *DRAFTERS.values())
        for method in DRAFTERS:
            self.assertEqual(self.kind("-m", TARGET, "--draft", d, "--draft-method", method)[0], method)
        for method in ("none", "ngram"):
            self.assertIsNone(self.kind("-m", TARGET, "--draft", d, "--draft-method", method)[0])
        self.assertIn("not used", self.kind("-m", TARGET, "--draft", d)[1])
        only = self.folder("only", DRAFTERS["dflash"])
        err = self.refused("-m", TARGET, "--draft", only, "--draft-method", "dspark")
        self.assertIn("no drafter of the method 'dspark' is at hand; there is: dflash", err)

    def test_of_several_forms_the_one_that_fits(self):
        d = self.folder("forms", DRAFTERS["dflash"], TARGET)
        shutil.copy(DRAFTERS["dflash"], f"{d}/nano-gemma4-dflash-b.gguf")
        kind, line = self.kind("-m", TARGET, "--draft", d)
        self.assertEqual(kind, "dflash")  # the whole model in the folder is larger than a drafter
        self.assertIn("not used: nano-gemma4-dflash-b.gguf", line)

    def test_of_wider_forms_that_with_8_bits(self):
        g, d = Gguf(DRAFTERS["mtp"]), self.folder("wide", DRAFTERS["mtp"])
        for name, (ne, kind, raw) in g.tensors.items():
            if kind == 8:  # Q8_0 to F32
                out = array.array("f")
                for i in range(0, len(raw), 34):
                    scale, = struct.unpack_from("<e", raw, i)
                    out.extend([scale * q for q in array.array("b", raw[i + 2:i + 34])])
                g.tensors[name] = ne, 0, out.tobytes()
        g.write(f"{d}/a-mtp-F32.gguf")
        kind, line = self.kind("-m", TARGET, "--draft", d)
        self.assertRegex(line, "Q8_0.gguf'.*: mtp drafts up to .* not used: a-mtp-F32.gguf")

    def test_several_options(self):
        if len(DRAFTERS) < 2:
            self.skipTest("one drafter")
        _, line = self.kind("-m", TARGET, "--draft", DRAFTERS["dflash"], "--draft", DRAFTERS["dspark"])
        self.assertIn("not used", line)
        self.refused("-m", TARGET, "--draft", DRAFTERS["dflash"], "--draft", GOLDEN)

    def test_branches_of_a_tree_are_planned(self):
        sizes = [self.plan("-m", TARGET, *more)[0].get("branches of drafts", 0)
                 for more in ([], ["--draft-tree", "1"], ["--draft-tree", "2"], ["--draft-tree", "5"], ["--draft-tree", "5", "--draft", "off"])]
        self.assertEqual(sizes[:2] + sizes[4:], [0, 0, 0])
        self.assertGreater(sizes[2], 0)
        self.assertEqual(sizes[3], 4 * sizes[2])

    def test_a_tree_changes_no_text(self):
        texts = [ingle("run", "-m", TARGET, "--draft", DRAFTERS["dflash"], "--draft-method", "dflash", "--draft-min", "6", "--temp", temp, "--seed", "3",
                       "--ctx", "1024", "--predict", "60", "--draft-tree", tree, "Count to 45.")[:2]
                 for temp in ("0", "1") for tree in ("1", "12")]
        self.assertTrue(texts[0][1] and not texts[0][0] and not texts[2][0])
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[2], texts[3])


class Words(Case):
    """Names of other engines for the same."""

    def test_files(self):
        for name in ("--model-draft", "-md", "--dflash", "--mtp", "--spec-draft-model", "--draft-model", "--speculative-model",
                     "--speculative-draft-model-path"):
            rc, out, err = ingle("inspect", "--plan", "-m", TARGET, name, "nofile")
            self.assertIn("there is no file or folder 'nofile'", err, name)

    def test_numbers(self):
        for name in ("--draft-n", "--draft-max", "--spec-draft-n-max", "--ddtree-budget", "--draft-min", "--draft-n-min", "--spec-draft-n-min",
                     "--num-speculative-tokens", "--speculative-num-draft-tokens"):
            rc, out, err = ingle("inspect", "--plan", "-m", TARGET, name, "4")
            self.assertEqual(rc, 0, name + err)

    def test_types(self):
        for name, method in (("draft-dflash", "dflash"), ("none", "none"), ("ngram-simple", "ngram"), ("draft-simple", "model")):
            rc, out, err = ingle("inspect", "--plan", "-m", TARGET, "--draft", SMALL if method == "model" else NANO,
                                 "--spec-type", name)
            self.assertEqual(rc, 0, name + err)
        for words in (("--spec-type", "eagle9"), ("--speculative-algorithm", "EAGLE3")):
            rc, out, err = ingle("inspect", "--plan", "-m", TARGET, *words)
            self.assertEqual(rc, 2)
        rc, out, err = ingle("inspect", "--plan", "-m", TARGET, "--speculative-algorithm", "NGRAM")
        self.assertEqual(rc, 0, err)

    def test_a_config_of_vllm(self):
        def said(config, *more):
            config = config if isinstance(config, str) else json.dumps(config)
            return ingle("inspect", "--plan", "-m", TARGET, "--speculative-config", config, *more)

        rc, out, err = said({"method": "dflash", "model": DRAFTERS["dflash"], "num_speculative_tokens": 5, "revision": None})
        self.assertEqual((rc, bool(re.search("^drafter +[1-9]", out, re.M))), (0, True), err)
        rc, out, err = said({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2})
        self.assertEqual(rc, 0, err)
        path = pathlib.Path(self.dir.name, "options")
        for config, words in (('{"method": "draft_model", "model": "nofile"}', "file or folder 'nofile'"), ('{"method": "medusa"}', "--draft-method")):
            path.write_text(f"speculative-config = {config}\n")
            rc, out, err = ingle("serve", "-m", TARGET, "--config", str(path))
            self.assertEqual((rc > 0, words in err), (True, True), err)
        for config, words in (({"method": "medusa"}, ("'medusa'", "--draft-method", "ngram")), ({"foo": 1}, ("'foo'", "num_speculative_tokens (--draft-max)")),
                              ({"num_speculative_tokens": "many"}, ("num_speculative_tokens", "--draft-max")), ({"num_speculative_tokens": [1]}, ("--draft-max", )),
                              ({"quantization": "fp8"}, ("quantization", "as they are in the file")), ({"method": "mtp", "model": "nofile"}, ("nofile", )),
                              ({"speculative_token_tree": "[(0,)]"}, ("--draft-tree", )), ("[]", ("JSON object", )), ("{", ()), ('{"model": "a\\u0000b"}', ("--draft", ))):
            rc, out, err = said(config)
            self.assertNotEqual(rc, 0, config)
            for w in ("speculative-config", *words) if config != {"method": "mtp", "model": "nofile"} else words:
                self.assertIn(w, err, config)


def tensors(path):
    """{name: (type, shape, values)} of a safetensors file."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = t["dtype"], t["shape"], struct.unpack("<" + "fi"[t["dtype"] == "I32"] * ((b - a) // 4), data[a:b])
    return out


class Eval(Case):
    """ingle eval --draft-at: what is drafted is what was recorded with the reference, logits and tokens agree."""

    def recorded(self, method):
        with lzma.open(f"{NANO}/nano-gemma4-{method}-golden.json.xz") as f:
            passes = json.load(f)["weights"]["q8_0"]
        with open(f"{NANO}/golden.json") as f:
            answers = {a["name"]: a for a in json.load(f)["weights"]["q8_0"]}
        for p in passes:
            a = answers[p["name"]]
            yield a["prompt_ids"] + a["completion_ids"], p["passes"]

    def test_recorded_passes(self):
        for method in DRAFTERS:
            if not os.path.exists(f"{NANO}/nano-gemma4-{method}-golden.json.xz"):
                continue
            n_equal = n_all = 0
            for ids, passes in list(self.recorded(method))[:4]:
                at = [p["position"] for p in passes if p["position"] < len(ids)]
                out = self.draft(SMALL, DRAFTERS[method], ids, at)
                for p in passes:
                    n = p["position"]
                    if n not in at:
                        continue
                    rows = out[f"n{n}.tokens"][1][0]
                    self.assertGreaterEqual(rows, len(p["drafts"]))
                    n_all += 1
                    n_equal += list(out[f"n{n}.tokens"][2][:len(p["drafts"])]) == p["drafts"]
                    v = out[f"n{n}.logits"][1][1]
                    for i, t in enumerate(out[f"n{n}.tokens"][2]):
                        row = out[f"n{n}.logits"][2][i * v:(i + 1) * v]
                        self.assertEqual(max(row), row[t])
                    if "confidence" in p:
                        for a, b in zip(out[f"n{n}.confidence"][2], p["confidence"]):
                            self.assertAlmostEqual(a, b, delta=0.05)
            # keys and values are halves here, floats in the reference: a near tie may fall the other way
            self.assertGreaterEqual(n_equal, n_all - 2, method)
            self.assertGreater(n_all, 10)

    def test_recorded_passes_of_deepseek_v4(self):
        """Of the model with Q8_0 weights; those here are its MXFP4, whose experts are the same."""
        with lzma.open("tests/data/nano-v4/nano-v4-dspark-golden.json.xz") as f:
            answers = json.load(f)["weights"]["q8_0"]
        n_equal = n_all = 0
        for a in answers[:4]:
            ids = a["prompt_ids"] + a["completion_ids"]
            passes = [p for p in a["passes"] if p["position"] < len(ids)]
            out = self.draft(V4, "tests/data/nano-v4/nano-v4-dspark-Q8_0.gguf", ids, [p["position"] for p in passes])
            for p in passes:
                n_all += 1
                n_equal += list(out[f"n{p['position']}.tokens"][2]) == p["drafts"]
        self.assertGreater(n_all, 15)
        self.assertGreaterEqual(n_equal, n_all - 1)

    @unittest.skipIf(SANITIZED, "golden_dflash and golden_deepseek4_dspark compare the same numbers")
    def test_references(self):
        """All logits, drafts and confidences of the small random networks, as GGUF and as checkpoints."""
        goldens = "tests/data/goldens"
        cases = (("gemma4_dense", "dflash_gemma4", "n33.b16.window.", ["window", 16], "draft"),
                 ("gemma4_dense", "dflash_gemma4", "n100.b16.causal.", ["causal", 16], "draft"),
                 ("gemma4_dense", "dflash2_gemma4", "n60.b8.block.", ["block", 8], "path"),
                 ("gemma4_dense", "dspark_gemma4", "n40.b7.cap.", ["cap", 7], "tokens"),
                 ("deepseek_v4_full", "dspark_v4", "n90.b5.ref.", ["ref", 5], "tokens"),
                 ("gemma4_dense", "gemma4_assistant_dense", "n100.rec.", None, "tokens"),
                 ("gemma4_dense", "gemma4_assistant_ordered", "n40.rec.", None, "tokens"))
        for target, drafter, at, rule, tokens in cases:
            want = tensors(f"{goldens}/{drafter}/golden.safetensors")
            n = at.split(".")[0]
            anchor = want[".".join(at.split(".")[:2]) + ".block"] if rule else want[f"{n}.token"]
            ids = list((want["input_ids"] if rule else want[f"{n}.input_ids"])[2][:int(n[1:])]) + [anchor[2][0]]
            for form in ("model-F32.gguf", ""):
                paths = [f"{goldens}/{d}/{form}" for d in (target, drafter)]
                for i, p in enumerate(paths):
                    if not os.path.isfile(p):
                        name = os.path.basename(os.path.dirname(p))
                        paths[i] = Checkpoint(os.path.dirname(p)).write(f"{self.dir.name}/{name}")
                more = ["--draft-rule", rule[0], "--draft-block", str(rule[1])] if rule else []
                out = self.draft(*paths, ids, [int(n[1:])], "--numerics", "reference", "--kv", "f32", *more)
                drafts = list(want[f"{at}{tokens}"][2])
                self.assertEqual(list(out[f"{n}.tokens"][2])[:len(drafts)], drafts, (drafter, form))
                _, (rows, v), x = want[f"{at}logits"]
                x = x[(rows - len(drafts)) * v:]  # DFlash's first row is the anchor's
                got = out[f"{n}.logits"][2][:len(x)]
                if drafter != "dflash2_gemma4":  # whose logits are those of its candidates
                    error = sum((a - b) ** 2 for a, b in zip(got, x)) / sum(b * b for b in x)
                    self.assertLess(math.sqrt(error), 8e-6, (drafter, form))
                for a, b in zip(out.get(f"{n}.confidence", ("", [], []))[2], want.get(f"{at}confidence", ("", [], []))[2]):
                    self.assertAlmostEqual(a, b, delta=1e-5)

    def draft(self, model, drafter, ids, at, *more):
        path = f"{self.dir.name}/ids.json"
        with open(path, "w") as f:
            json.dump(ids, f)
        out = f"{self.dir.name}/out.safetensors"
        rc, stdout, err = ingle("eval", "-m", model, "--draft", drafter, "--tokens", path, "--draft-at", ",".join(map(str, at)),
                                "--draft-out", out, *more)
        self.assertEqual(rc, 0, err)
        self.said = json.loads(stdout)
        return tensors(out)

    def test_behind_the_end_the_anchor_is_the_most_probable_token(self):
        ids, _ = next(self.recorded("dflash"))
        out = self.draft(SMALL, DRAFTERS["dflash"], ids, [len(ids) - 3])
        cut = self.draft(SMALL, DRAFTERS["dflash"], ids[:-3], [len(ids) - 3])
        self.assertEqual(self.said["drafts"][0]["seed"], ids[-3])
        self.assertEqual(out[f"n{len(ids) - 3}.tokens"], cut[f"n{len(ids) - 3}.tokens"])

    def test_settings(self):
        ids, passes = next(self.recorded("dflash"))
        plain = self.draft(SMALL, DRAFTERS["dflash"], ids, [len(ids) - 5])
        for more in (["--experiment", "rule=bidir"], ["--experiment", "tap=early"], ["--draft-tap", "upstream"], ["--draft-ctx", "4"]):
            other = self.draft(SMALL, DRAFTERS["dflash"], ids, [len(ids) - 5], *more)
            self.assertNotEqual(list(plain.values())[0][2], list(other.values())[0][2], more)
        out = self.draft(SMALL, DRAFTERS["dflash"], ids, [len(ids) - 5], "--draft-block", "4")
        self.assertEqual(out[f"n{len(ids) - 5}.tokens"][1], [3])
        model = self.draft(SMALL, TARGET, ids, [5, len(ids) - 5])  # a model that drafts
        self.assertEqual(model["n5.logits"][1][1], 2048)

    def test_wrong_use(self):
        path = f"{self.dir.name}/ids.json"
        with open(path, "w") as f:
            f.write("[2, 3, 4]")
        for args, says in ((["--experiment", "at=4"], "1 to the 3 tokens"), (["--draft-at", "1,x"], "no list"), (["--draft-at", "0"], "no list"),
                           (["--draft-out", "x"], "goes with"), (["--draft-at", "1", "--greedy", "3"], "goes with"),
                           (["--draft-at", "1", "--draft", "off"], "no network drafts")):
            rc, out, err = ingle("eval", "-m", SMALL, *(["--draft", DRAFTERS["dflash"]] if "off" not in args else []), "--tokens", path, *args)
            self.assertNotEqual(rc, 0, args)
            self.assertIn(says, err)
        rc, out, err = ingle("eval", "-m", SMALL, "--draft", DRAFTERS["dflash"], "--tokens", path, "--draft-at", "1", "--draft-rule", "other")
        self.assertIn("causal", err)


def stages_of(config, stages):
    """Stages of DSpark for a model with twice the experts, each twice as wide: made of those that there are."""
    n = config["n_routed_experts"]
    half, out = n // 2, {}
    for name, (dtype, shape, raw) in stages.tensors.items():
        size = {"F32": 4, "BF16": 2}[dtype]
        if re.search(r"ffn\.gate\.", name):
            out[name] = dtype, [n, *shape[1:]], raw * 2
        elif m := re.search(r"(experts(?:\.(\d+))?\.w)([123])\.weight", name):
            wide = (dtype, [2 * shape[0], shape[1]], raw * 2)
            if m[3] == "2":
                row = shape[1] * size
                wide = dtype, [shape[0], 2 * shape[1]], b"".join(raw[i:i + row] * 2 for i in range(0, len(raw), row))
            out[name] = wide
            if m[2]:
                out[name.replace(f"experts.{m[2]}.", f"experts.{int(m[2]) + half}.")] = wide
        else:
            out[name] = dtype, shape, raw
    return out


class Whole(Case):
    """A checkpoint of DeepSeek V4 with what drafts for it inside."""
    IDS = [(7 * i * i + 3 * i) % 311 + 4 for i in range(90)]

    def eval(self, model, *more):
        path, out = f"{self.dir.name}/ids.json", f"{self.dir.name}/out.safetensors"
        with open(path, "w") as f:
            json.dump(self.IDS, f)
        rc, stdout, err = ingle("eval", "-v", "-m", model, "--tokens", path, "--draft-at", "3,40,88", "--draft-out", out, *more)
        self.assertEqual(rc, 0, err)
        return json.loads(stdout)["draft"], tensors(out), err

    def test_stages_of_dspark(self):
        base, stages = Checkpoint("tests/data/goldens/deepseek_v4_full"), Checkpoint("tests/data/goldens/dspark_v4")
        more = {k: v for k, v in stages.config.items() if k.startswith("dspark_") or k == "n_mtp_layers"}
        base.config.update(more, compress_ratios=base.config["compress_ratios"] + [0, 0])
        del base.config["num_nextn_predict_layers"]
        base.tensors = {k: v for k, v in base.tensors.items() if not k.startswith("mtp.")}
        own = stages_of(base.config, stages)
        alone = base.write(f"{self.dir.name}/a/alone")
        base.tensors.update(own)
        whole = base.write(f"{self.dir.name}/b/whole", shards=2)
        base.tensors = own
        drafter = base.write(f"{self.dir.name}/c/stages")
        kind, inside, said = self.eval(whole)
        self.assertEqual(kind, "dspark")
        self.assertNotIn("skipped", said)
        kind, beside, _ = self.eval(alone, "--draft", drafter)
        self.assertEqual(kind, "dspark")
        self.assertEqual(inside, beside)
        self.assertTrue(all(math.isfinite(x) for x in inside["n40.logits"][2]))
        self.assertIn("n40.confidence", inside)
        items, err = self.plan("-v", "-m", whole)
        self.assertGreater(items["drafter"], 50000)
        without, err = self.plan("-v", "-m", whole, "--draft", "off")
        self.assertRegex(err, "109 tensors are skipped|tensors are skipped: they draft")
        self.assertEqual(items["weights"], without["weights"])

    def test_its_own_block(self):
        base = Checkpoint("tests/data/goldens/deepseek_v4_full")
        whole = base.write(f"{self.dir.name}/a/whole")
        kind, inside, said = self.eval(whole)
        self.assertEqual(kind, "mtp")
        self.assertNotIn("skipped", said)
        base.tensors = {k: v for k, v in base.tensors.items() if k.startswith("mtp.")}
        block = base.write(f"{self.dir.name}/b/block")
        kind, beside, _ = self.eval(whole, "--draft", block)
        self.assertEqual((kind, inside), ("mtp", beside))

    def test_a_gguf_with_its_block(self):
        g, block = Gguf(V4), Gguf("tests/data/nano-v4/nano-v4-mtp0-Q8_0.gguf")
        g.tensors.update({k: v for k, v in block.tensors.items() if k.startswith("mtp.")})
        whole = g.write(f"{self.folder('g')}/nano.gguf")
        items, err = self.plan("-v", "-m", whole)
        self.assertIn("mtp drafts up to", err)
        self.assertNotIn("skipped", err)
        self.assertGreater(items["drafter"], 100000)
        for how in (("--temp", "0"), ("--seed", "4")):
            plain, own = (ingle("run", "-q", "-m", whole, *d, *how, "-n", "60", "Say 1 to 30.") for d in (("--draft", "off"), ("--draft-min", "2")))
            self.assertEqual(own[:2], plain[:2])


class Text(Case):
    """Drafting changes no text."""
    PROMPTS = ("Say 1 to 20.", "What is the capital of Italy?", "Write a C function that can add two int values.")

    def same(self, model, *drafts):
        for how in (("--temp", "0"), ("--temp", "1", "--seed", "7"), ("--temp", "1.4", "--top-k", "20", "--seed", "3"))[2 * SANITIZED:]:
            for prompt in self.PROMPTS[SANITIZED:]:
                plain = ingle("run", "-q", "-m", model, "--draft", "off", "-n", "60", *how, prompt)
                self.assertEqual(plain[0], 0, plain[2])
                for d in drafts:
                    got = ingle("run", "-q", "-m", model, *d, "-n", "60", *how, prompt)
                    self.assertEqual(got[:2], plain[:2], (d, how, prompt, got[2]))

    def test_networks(self):
        self.same(TARGET, *(("--draft", p) for p in DRAFTERS.values()), ("--draft-method", "ngram"))

    def test_keys_and_values_on_disk(self):
        prompt = "".join(f"Line {i} of a text that is longer than memory for it. " for i in range(90 if SANITIZED else 140)) + "Count from 1 to 30."
        base = ["run", "-m", TARGET, "-n", "50", "--temp", "0", "--ctx", "4096", "--ignore-eos", "-v"]
        rc, plain, err = ingle(*base, "--draft", "off", prompt)
        self.assertEqual(rc, 0, err)
        for method, path in list(DRAFTERS.items())[SANITIZED:]:
            for tree in ([], ["--draft-tree", "8"])[SANITIZED:]:
                rc, out, err = ingle(*base, "--draft", path, "--draft-min", "4", *tree, "--kv-disk", f"{self.dir.name}/kv", "--kv-pool", "1024",
                                     "--chunk", "128", prompt)
                self.assertEqual((rc, out), (0, plain), f"{method} {tree}: {err}")
                self.assertRegex(err, r"up to [0-9.]+ MiB of keys and values are on disk")
                self.assertRegex(err, r"drafts: [1-9][0-9]* of [0-9]+ tokens right")

    def test_a_smaller_model(self):
        self.same(SMALL, ("--draft", TARGET))

    def test_the_block_of_a_model_itself(self):
        self.same(V4, ("--draft", "auto"))


class Bench(Case):
    """ingle bench --draft: its counts, and drafts that are right as often as they are to be."""
    def bench(self, *a, n=24):
        rc, out, err = ingle("bench", "--json", "-g", str(n), "-r", "1", *a)
        self.assertEqual(rc, 0, err)
        found = [json.loads(line) for line in out.splitlines()]
        for e in found:
            self.assertTrue(e["same_text"])
            self.assertEqual(e["tokens"], (n - 1) * e["clients"])
            self.assertEqual((sum(e["drafted_at"]), sum(e["accepted_at"])), (e["drafted"], e["accepted"]))
            self.assertLessEqual(e["accepted"], e["drafted"])
        return found

    def test_kinds_and_clients(self):
        for d in (DRAFTERS["dflash"], "ngram"):
            found = self.bench("-m", TARGET, "--draft", d, "--clients", "1", "--clients", "4", "--kind", "repeat", "--kind", "list")
            self.assertEqual([(e["kind"], e["clients"]) for e in found], [("repeat", 1), ("list", 1), ("mixed", 4)])
        self.bench("-m", TARGET, "--draft", DRAFTERS["dflash"], "--draft-rule", "bidir", "--draft-ctx", "64", "--kind", "code",
                   "--depth", "300", "--temp", "1", "--seed", "3")

    def test_profile(self):
        rc, out, err = ingle("bench", "-m", TARGET, "--draft", DRAFTERS["dflash"], "--draft-min", "2", "--kind", "code", "-g", "80", "-r", "1", "--json", "--profile")
        self.assertEqual(rc, 0, err)
        found = [json.loads(line) for line in out.splitlines()]
        ops = {e["op"]: e for e in found if e["test"] == "draft_profile"}
        self.assertGreater(ops["draft matmul"]["ms"], 0)
        self.assertGreater(ops["observe matmul"]["calls"], 0)
        self.assertEqual(ops["draft: draws, the rest"]["calls"], found[0]["rounds"])

    def test_acceptance_as_asked_for(self):
        drafters = [("-m", TARGET, "--draft", p, "--draft-method", m) for m, p in DRAFTERS.items()]
        drafted, n = 0, 40 if SANITIZED else 150
        for a in (*drafters, ("-m", V4, "--draft-method", "mtp"), ("-m", TARGET, "--draft", "ngram"))[4 * SANITIZED:]:
            wrong, right = self.bench(*a, "--draft-accept", "0", "--draft-accept", "1", n=n)
            self.assertEqual(wrong["accepted"], 0, a)
            self.assertEqual(right["accepted"], right["drafted"], a)
            drafted += right["drafted"]
        self.assertTrue(drafted or SANITIZED)  # each drafts when it finds that it pays

    def test_wrong_use(self):
        for a, word in ((("--draft-accept", "1.5"), "1.5"), (("--clients", "0"), "--clients"), (("--kind", "poem"), "poem")):
            rc, _, err = ingle("bench", "-m", TARGET, "--draft", "ngram", *a)
            self.assertEqual(rc, 2)
            self.assertIn(word, err)
        self.assertEqual(ingle("bench", "-m", TARGET, "--draft", "off")[0], 2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
