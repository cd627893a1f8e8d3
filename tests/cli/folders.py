#!/usr/bin/env python3
"""folders.py INGLE - folders, caches, split sets, relatives of models, and downloads that went wrong: one model is found and
loaded; all else is named."""
import json, os, shutil, struct, subprocess, sys, tempfile, unittest
from modelfile import *

INGLE = sys.argv[1]
GOLDENS = "tests/data/goldens"
NANO = "assets/nano-gemma4-Q8_0.gguf"
DENSE = f"{GOLDENS}/gemma4_dense"


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.n = 0

    def tearDown(self):
        self.dir.cleanup()

    def path(self, suffix=""):
        self.n += 1
        return f"{self.dir.name}/{self.n}{suffix}"

    def folder(self, **files):
        """A new folder; a value is bytes, or a path that is copied."""
        path = self.path()
        os.mkdir(path)
        for name, v in files.items():
            self.put(path, name, v)
        return path

    def put(self, path, name, v):
        os.makedirs(os.path.dirname(f"{path}/{name}"), exist_ok=True)
        if isinstance(v, str):
            shutil.copy(v, f"{path}/{name}")
        else:
            with open(f"{path}/{name}", "wb") as file:
                file.write(v)

    def start(self, model):
        return subprocess.run([INGLE, "eval", "-m", model, "--tokens", self.tokens(), "--no-pack-cache", "-c", "64", "-v"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)

    def tokens(self):
        path = f"{self.dir.name}/tokens.json"
        with open(path, "w") as file:
            json.dump([2, 5, 9, 77, 31, 8], file)
        return path

    def loads(self, model, says=()):
        r = self.start(model)
        self.assertEqual(r.returncode, 0, r.stderr)
        for word in says:
            self.assertIn(word, r.stderr)
        return r.stdout

    def refuses(self, model, *says):
        r = self.start(model)
        self.assertNotEqual(r.returncode, 0, r.stdout)
        self.assertEqual(r.stderr.count("ingle: error: "), 1, r.stderr)
        for word in says:
            self.assertIn(word, r.stderr)
        return r.stderr


def gguf(**keys):
    """A GGUF file with these keys (words) and one tensor."""
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(keys))
    for key, v in keys.items():
        head += text(key.replace("__", ".")) + struct.pack("<I", 8) + text(v)
    head += text("blk.0.x.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    return head + bytes(-len(head) % 32) + struct.pack("<32f", *[1.0] * 32)


def split(path, folder, count=3):
    """Writes a GGUF as parts, as llama.cpp's gguf-split does."""
    g = Gguf(path)
    keys, all_tensors, names = g.kv, g.tensors, list(g.tensors)
    for i in range(count):
        g.kv = dict(keys) if i == 0 else {}
        g.kv.update({"split.no": (U16, i), "split.count": (U16, count), "split.tensors.count": (I32, len(names))})
        part = names[i * len(names) // count:(i + 1) * len(names) // count]
        g.write(f"{folder}/m-{i + 1:05d}-of-{count:05d}.gguf", {k: all_tensors[k] for k in part})


class Folders(Case):
    def test_one_gguf(self):
        plain = self.loads(NANO)
        self.assertEqual(self.loads(self.folder(**{"x.gguf": NANO, "README.md": b"text"})), plain)
        projector = gguf(general__architecture="clip", general__type="mmproj")
        imatrix = gguf(general__type="imatrix")
        folder = self.folder(**{"x.gguf": NANO, "mmproj-F16.gguf": projector, "im.gguf": imatrix})
        self.assertEqual(self.loads(folder, ["mmproj-F16.gguf is a projector", "im.gguf is an importance matrix"]), plain)
        self.assertEqual(self.loads(folder + "/"), plain)

    def test_several(self):
        self.refuses(self.folder(**{"a.gguf": NANO, "b.gguf": NANO}), "has 2 models", "a.gguf, b.gguf")
        many = self.folder(**{f"{i:03d}-{'x' * 60}.gguf": gguf(general__architecture="gemma4") for i in range(20)})
        self.refuses(many, "has 20 models", "more")

    def test_split(self):
        folder = self.folder()
        split(NANO, folder)
        self.assertEqual(self.loads(folder), self.loads(NANO))
        self.refuses(f"{folder}/m-00002-of-00003.gguf", "m-00001-of-00003.gguf")
        os.unlink(f"{folder}/m-00003-of-00003.gguf")
        self.refuses(folder, "m-00003-of-00003.gguf")
        os.unlink(f"{folder}/m-00001-of-00003.gguf")
        self.refuses(folder, "m-00002-of-00003.gguf", "not the first part")

    def test_split_of_another_revision(self):
        folder = self.folder()
        split(NANO, folder)
        part = f"{folder}/m-00002-of-00003.gguf"
        g = Gguf(part)
        g.kv["split.tensors.count"] = I32, 7
        g.write(part)
        self.refuses(folder, "m-00002-of-00003.gguf", "split.tensors.count", "another file")
        g.kv["split.tensors.count"] = I32, len(Gguf(NANO).tensors)
        g.kv["general.file_type"] = U32, 15
        g.write(part)
        self.refuses(folder, "m-00002-of-00003.gguf", "general.file_type")

    def test_shards(self):
        c = Checkpoint(DENSE)
        plain = self.loads(DENSE)
        self.assertEqual(self.loads(c.write(self.path(), shards=3)), plain)
        folder = c.write(self.path(), shards=3, index=False)
        self.assertEqual(self.loads(folder, ["no model.safetensors.index.json"]), plain)
        self.assertEqual(self.loads(f"{folder}/model-00002-of-00003.safetensors"), plain)
        indexed = c.write(self.path(), shards=2)
        self.assertEqual(self.loads(f"{indexed}/model.safetensors.index.json"), plain)
        os.unlink(f"{folder}/model-00002-of-00003.safetensors")
        self.refuses(folder, "1 of 3 shards are missing", "model-00002-of-00003.safetensors")
        os.rename(f"{folder}/model-00001-of-00003.safetensors", f"{folder}/other-00001-of-00003.safetensors")
        self.refuses(folder, "more than one model")
        one = c.write(self.path())
        os.rename(f"{one}/model.safetensors", f"{one}/weights.safetensors")
        self.assertEqual(self.loads(one), plain)

    def test_shards_of_another_revision(self):
        c = Checkpoint(DENSE)
        folder = c.write(self.path(), shards=2)
        index = f"{folder}/model.safetensors.index.json"
        with open(index) as file:
            o = json.load(file)
        o["metadata"]["total_size"] += 4096
        with open(index, "w") as file:
            json.dump(o, file)
        self.loads(folder, ["different revisions"])
        name = list(o["weight_map"])[0]
        o["weight_map"][name] = "model-00002-of-00002.safetensors"
        with open(index, "w") as file:
            json.dump(o, file)
        self.refuses(folder, name, "model-00002-of-00002.safetensors")

    def test_caches(self):
        plain = self.loads(NANO)
        hub = self.folder()
        repository = f"{hub}/models--owner--nano"
        self.put(repository, "blobs/0123", NANO)
        for revision in ("aaaa", "bbbb"):
            os.makedirs(f"{repository}/snapshots/{revision}")
            os.symlink("../../blobs/0123", f"{repository}/snapshots/{revision}/nano.gguf")
        self.refuses(repository, "2 snapshots", "aaaa, bbbb")
        self.put(repository, "refs/main", b"bbbb\n")
        for path in (repository, hub, f"{repository}/snapshots/aaaa"):
            self.assertEqual(self.loads(path), plain)
        os.mkdir(f"{hub}/models--owner--other")
        self.refuses(hub, "2 models", "models--owner--nano, models--owner--other")

    def test_what_is_there_is_named(self):
        self.refuses(self.folder(), "is empty")
        self.refuses(self.folder(**{"README.md": b"x", "LICENSE": b"x"}), "no model", "LICENSE, README.md")
        lora = self.folder(**{"adapter_config.json": b'{"base_model_name_or_path": "google/gemma-4-31B-it"}'})
        write_safetensors(f"{lora}/adapter_model.safetensors", {"base_model.model.x.lora_A.weight": ("F32", [2], bytes(8))})
        self.refuses(lora, "adapter_model.safetensors", "LoRA adapter", "google/gemma-4-31B-it")
        self.refuses(f"{lora}/adapter_model.safetensors", "LoRA adapter")
        self.refuses(self.folder(**{"config.json": b"{}", "pytorch_model.bin": b"PK\3\4"}), "pytorch_model.bin", "convert")
        self.refuses(self.folder(**{"a.gguf.incomplete": b"GGUF"}), "not finished", "a.gguf.incomplete")
        self.refuses(self.folder(**{"mmproj.gguf": gguf(general__architecture="clip")}), "mmproj.gguf", "projector")


class Relatives(Case):
    def test_gguf(self):
        for keys, words in (
                ({"general__architecture": "clip"}, ("projector", "give the model")),
                ({"general__architecture": "gemma4", "general__type": "mmproj"}, ("projector",)),
                ({"general__architecture": "gemma4", "general__type": "adapter", "adapter__type": "lora"}, ("LoRA adapter",)),
                ({"general__type": "imatrix"}, ("importance matrix",)),
                ({"general__architecture": "dflash"}, ("drafter", "give that model")),
                ({"general__architecture": "gemma4-assistant"}, ("drafter",)),
                ({"general__architecture": "deepseek4-dflash-draft"}, ("drafter",)),
                ({"general__architecture": "eagle3"}, ("drafter",)),
                ({"general__architecture": "deepseek41"}, ("DeepSeek V4.1", "deepseek4")),
                ({"general__architecture": "deepseek2"}, ("DeepSeek V2, V3 or R1", "deepseek4")),
                ({"general__architecture": "gemma3"}, ("Gemma 3", "gemma4")),
                ({"general__architecture": "gemma3n"}, ("Gemma 3n", "gemma4")),
                ({"general__architecture": "llama"}, ("llama", "gemma4", "deepseek4"))):
            path = self.path(".gguf")
            with open(path, "wb") as file:
                file.write(gguf(**keys))
            self.refuses(path, os.path.basename(path), *words)
        g = Gguf(NANO)
        self.refuses(g.write(self.path(".gguf"), {}), "vocabulary", "give the model")

    def test_checkpoints(self):
        for config, words in (
                ({"model_type": "gemma4_text", "architectures": ["Gemma4DSparkModel"]}, ("drafter",)),
                ({"model_type": "qwen3", "architectures": ["DFlashDraftModel"]}, ("drafter",)),
                ({"model_type": "gemma4_assistant", "architectures": ["Gemma4AssistantForCausalLM"]}, ("drafter",)),
                ({"model_type": "gemma4", "speculators_model_type": "dspark"}, ("drafter",)),
                ({"model_type": "gemma4", "architectures": ["Gemma4ForSequenceClassification"]}, ("classifier",)),
                ({"model_type": "deepseek_v41", "architectures": ["DeepseekV41ForCausalLM"]}, ("V4.1", "deepseek4")),
                ({"model_type": "deepseek_v3"}, ("DeepSeek V3 or R1",)),
                ({"model_type": "gemma3"}, ("Gemma 3",))):
            c = Checkpoint(DENSE)
            c.config = config
            path = c.write(self.path())
            self.refuses(path, path, *words)


class Downloads(Case):
    def test_other_files(self):
        for name, v, words in (
                ("a.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 4711\n", ("git-LFS", "4711", "lfs pull")),
                ("b.gguf", b"<!DOCTYPE html><html><body>404</body></html>", ("web page",)),
                ("c.safetensors", b"<html><head></head></html>", ("web page",)),
                ("d.gguf", b'{"error":"Repository not found"}', ("text", "Repository not found")),
                ("e.gguf", b"Entry not found", ("text", "Entry not found")),
                ("f.gguf", b"", ("empty",)),
                ("g.gguf", bytes(8192), ("zeros", "download")),
                ("h.bin", b"PK\3\4" + bytes(100), ("PyTorch",)),
                ("i.gguf.gz", b"\x1f\x8b\x08" + bytes(100), ("gzip",)),
                ("j.dat", struct.pack("<ii", 2, 20) + b"blk.0.attn_q.weight\0" + bytes(64), ("importance matrix",)),
                ("k.gguf", Gguf(NANO).raw[:-5000], ("not complete",))):
            path = self.folder(**{name: v}) + "/" + name
            self.refuses(path, name, *words)

    def test_pointers_in_a_checkpoint(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 4711\n"
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            path = Checkpoint(DENSE).write(self.path())
            self.put(path, name, pointer)
            self.refuses(path, path, name, "git-LFS")
        path = Checkpoint(DENSE).write(self.path(), shards=2)
        self.put(path, "model-00002-of-00002.safetensors", pointer)
        self.refuses(path, "model-00002-of-00002.safetensors", "git-LFS")
        with open(f"{path}/model-00001-of-00002.safetensors", "r+b") as file:
            file.truncate(os.path.getsize(file.name) - 100)
        self.refuses(path, "model-00001-of-00002.safetensors", "not complete")

    def test_unfinished(self):
        folder = self.folder(**{"m.gguf": NANO, "m.gguf.aria2": b"x"})
        self.refuses(f"{folder}/m.gguf", "m.gguf", "not finished")
        folder = self.folder(**{"m.gguf.part": NANO})
        self.loads(f"{folder}/m.gguf.part", ["not finished"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
