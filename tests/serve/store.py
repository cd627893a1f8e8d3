#!/usr/bin/env python3
"""store.py INGLE - a server whose prefixes lie on disk: what it looks at before it loads, tells, and survives."""
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

import client
from client import SANITIZED, Server, main
from wait import attempts, until

TEXT = "Tell me: " + " ".join(str(i) for i in range(300))
ASK = {"prompt": TEXT, "n_predict": 12, "temperature": 0}
NANO = "assets/nano-gemma4-Q8_0.gguf"


def start(*options):
    """A start that fails: what it says."""
    r = subprocess.run([sys.argv[1], "serve", "--port", "0", "-q", *options], capture_output=True, text=True, timeout=120)
    assert r.returncode == 1, r
    return r.stderr


class Early(unittest.TestCase):
    """What can be seen without the weights is looked at before them."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_before_the_load(self):
        with open(NANO, "rb") as f:
            data = bytearray(f.read())
        at = len(data) // 2  # in a matrix of blocks of 34 bytes: one's scale is no number
        data[at:at + 68] = b"\xff" * 68
        with open(self.path("bad.gguf"), "wb") as f:
            f.write(data)
        model = "-m", self.path("bad.gguf"), "--no-pack-cache"
        self.assertIn("no number", start(*model))
        with open(self.path("file"), "w"):
            pass
        os.mkdir(self.path("open"))
        os.chmod(self.path("open"), 0o777)
        for folder, word in [("file", "Not a directory"), ("none/none", "cannot make"), ("open", "chmod 700")]:
            self.assertIn(word, start(*model, "--store", self.path(folder)))
        self.assertIn("keys of width", start(*model, "--kv", "fp8"))
        self.assertIn("the least is", start(*model, "--restore-every", "5"))

    def test_force(self):
        self.assertIn("were allowed", start("--memory", "1M"))
        with Server(sys.argv[1], "--memory", "1M", "--force") as s:
            self.assertEqual(s.post("/completion", ASK)[0], 200)
            self.assertTrue(any("tried by force" in line for line in s.log), s.log)
            self.assertTrue(s.get("/props")[2]["options"]["force"])


class Store(unittest.TestCase):
    model = []

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "store")

    def server(self, *more):
        return Server(sys.argv[1], "-c", "4096", "--store", self.folder, "--store-tokens", "64", *self.model, *more)

    def ask(self, s, body=ASK):
        """The text and what came from the disk."""
        status, _, r = s.post("/completion", body)
        self.assertEqual(status, 200, r)
        return r["content"], r["timings"]["ingle"]["reuse"]["from_disk"]

    def until(self, s, good):
        """The store in /props as soon as it is so."""
        found = []

        def look():
            found[:] = [s.get("/props")[2]["prefix_store"]]
            return good(found[0])
        try:
            until(look)
        except AssertionError:
            self.fail(found[0])
        return found[0]

    def files(self):
        """Of a folder that may be gone."""
        if not os.path.isdir(self.folder):
            return []
        return sorted(n for n in os.listdir(self.folder) if n.endswith(".kv"))

    def test_told(self):
        with self.server() as s:
            p = self.until(s, lambda p: p["saving"])
            self.assertEqual((p["files"], p["written"], p["error"], p["retry_seconds"]), (0, 0, None, 0))
            cold, disk = self.ask(s)
            self.assertEqual(disk, 0)
            p = self.until(s, lambda p: p["written"])  # without another request
            self.until(s, lambda p: p["files"] == len(self.files()) == p["written"])
            self.assertGreater(p["written_bytes"], 0)
            self.assertEqual(p["directory"], self.folder)
        with self.server() as s:
            p = self.until(s, lambda p: p["files"])  # before the first request
            self.assertEqual(p["bytes"], sum(os.path.getsize(os.path.join(self.folder, n)) for n in self.files()))
            warm, disk = self.ask(s)
            self.assertEqual(warm, cold)
            self.assertGreater(disk, 100)
            p = self.until(s, lambda p: p["restored"])
            self.assertGreater(p["restored_bytes"], 0)
            self.assertEqual((p["damaged"], p["failed"]), (0, 0))
        with Server(sys.argv[1], *self.model) as s:
            self.assertIsNone(s.get("/props")[2]["prefix_store"])

    def test_full_disk(self):
        """Files may have 8 KiB at most: nothing is saved, the answers are right, and /props tells it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        try:
            s = self.server("--no-pack-cache")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with s:
            first = self.ask(s)[0]
            p = self.until(s, lambda p: not p["saving"])
            self.assertIn("File too large", p["error"])
            self.assertEqual((p["failed"], p["files"]), (1, 0))
            self.assertGreater(p["retry_seconds"], 0)
            self.assertEqual(self.ask(s)[0], first)
            self.assertEqual(os.listdir(self.folder), [])
            self.assertIn("ingle_store_failed_total 1", s.get("/metrics")[2])
            self.assertEqual(sum("for the time being" in line for line in s.log), 1)

    def test_bad_files(self):
        """Cut, flipped, emptied, another model's, and what is no file: the answer is right, and the damage told."""
        with self.server() as s:
            cold = self.ask(s)[0]
            self.until(s, lambda p: p["written"])
        with open(os.path.join(self.folder, self.files()[-1]), "rb") as f:
            good = f.read()
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 1
        for bad in (good[:-1], good[:100], b"", bytes(flipped), b"x" * len(good)):
            for name in self.files():
                with open(os.path.join(self.folder, name), "wb") as f:
                    f.write(bad)
            os.mkdir(os.path.join(self.folder, "%032x.64.kv" % 5))
            os.mkfifo(os.path.join(self.folder, "%032x.64.kv" % 6))
            os.symlink("/etc/passwd", os.path.join(self.folder, "%032x.64.kv" % 7))
            with self.server() as s:
                self.assertEqual(self.ask(s), (cold, 0))
                p = self.until(s, lambda p: p["damaged"] and p["written"])
                self.assertTrue(p["saving"])
                self.assertEqual(self.ask(s)[0], cold)
            os.rmdir(os.path.join(self.folder, "%032x.64.kv" % 5))
            for i in 6, 7:
                if os.path.lexists(path := os.path.join(self.folder, "%032x.64.kv" % i)):
                    os.remove(path)
        self.assertTrue(os.path.getsize("/etc/passwd"))

    OTHER = ("f32", "f32", "f32"), ("q8r:n4r", "q8r", "n4r")

    def test_other_settings(self):
        with self.server() as s:
            self.ask(s)
            self.until(s, lambda p: p["written"])
        for kv, k, v in self.OTHER:
            with self.server("--kv", kv) as s:
                said = s.get("/props")[2]["runtime"]
                self.assertEqual((said["kv_cache_k"], said["kv_cache_v"]), (k, v))
                status, _, r = s.post("/completion", ASK)
                self.assertEqual((status, r["timings"]["ingle"]["reuse"]["from_disk"]), (200, 0))
                self.assertIn("other settings", r["timings"]["ingle"]["reuse"]["why"])

    def clear(self):
        gone = self.folder + ".gone"
        os.rename(self.folder, gone)
        for _ in attempts(f"{gone} is removed"):  # the server may be writing a file
            shutil.rmtree(gone, ignore_errors=True)
            if not os.path.exists(gone):
                break

    def test_removed(self):
        """Somebody clears the store while a server uses it."""
        with self.server() as s:
            cold = self.ask(s)[0]
            self.until(s, lambda p: p["written"])
            self.clear()
            self.assertEqual(self.ask(s)[0], cold)
            other = self.ask(s, {**ASK, "prompt": "And now: " + TEXT})[0]
            self.until(s, lambda p: p["saving"] and p["files"] and p["files"] == len(self.files()))  # without another request
            self.until(s, lambda p: any("created again" in line for line in s.log))
            for _ in attempts("a file in the way"):  # unless the server is faster
                self.clear()
                with contextlib.suppress(FileExistsError):
                    open(self.folder, "x").close()
                if os.path.isfile(self.folder):
                    break
            self.ask(s, {**ASK, "prompt": "Or: " + TEXT})
            self.assertIn("cannot", self.until(s, lambda p: not p["saving"])["error"])
            self.assertEqual(self.ask(s, {**ASK, "prompt": "And now: " + TEXT})[0], other)

    def test_two_servers(self):
        """What one has written the other finds."""
        with self.server() as a, self.server() as b:
            cold = self.ask(a)[0]
            self.until(a, lambda p: p["written"])
            for _ in range(200):
                text, disk = self.ask(b, {**ASK, "cache_prompt": True})
                self.assertEqual(text, cold)
                if disk or b.get("/props")[2]["prefix_store"]["files"]:
                    break
            self.assertTrue(b.get("/props")[2]["prefix_store"]["files"])

    def test_small_budget(self):
        """Less than a file: nothing is written, and answers are right."""
        with self.server("--store-size", "10K") as s:
            first = self.ask(s)[0]
            p = self.until(s, lambda p: p["skipped"])
            self.assertEqual((p["written"], p["files"], p["capacity"]), (0, 0, 10240))
            self.assertEqual(self.ask(s)[0], first)
            self.assertEqual(sum("more than the store may have" in line for line in s.log), 1)
        self.assertEqual(os.listdir(self.folder), [])


class Shared(unittest.TestCase):
    setUp, ask, until = Store.setUp, Store.ask, Store.until

    def server(self, *more):
        return Server(sys.argv[1], "-c", "4096", "--store", self.folder, "--store-tokens", "64", *more)

    def test_two_models(self):
        """Servers of different models in one directory: each finds what is its own."""
        models = ["-m", NANO], ["-m", client.nano_v4()]
        with self.server(*models[0]) as a, self.server(*models[1]) as b:
            cold = [self.ask(s)[0] for s in (a, b)]
            for s in (a, b):
                self.until(s, lambda p: p["written"])
        for model, text in zip(models, cold):
            with self.server(*model) as s:
                self.until(s, lambda p: p["files"])
                again, disk = self.ask(s)
                self.assertEqual(again, text)
                self.assertGreater(disk, 100)
                self.assertEqual(s.get("/props")[2]["prefix_store"]["damaged"], 0)


class Decisions(unittest.TestCase):
    def test_props(self):
        """What was found of each prompt, for its user alone, in every dialect."""
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
                f.write("ann:ann-key\nbob:bob-key\n")
            ann, bob = {"X-Api-Key": "ann-key"}, {"X-Api-Key": "bob-key"}
            with Server(sys.argv[1], "--api-key-file", keys) as s:
                def told(who):
                    return s.get("/props", who)[2]["prefix_cache"]["decisions"]
                self.assertEqual(told(ann), [])
                s.post("/completion", ASK, ann)
                s.post("/completion", {**ASK, "prompt": TEXT[:500] + " zebra " + TEXT[500:]}, ann)
                s.post("/completion", {**ASK, "prompt": "mine"}, bob)
                m = s.post("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": TEXT}]}, ann)[2]
                s.post("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": TEXT}]}, ann)
                s.post("/v1/chat/completions", {"messages": []}, ann)  # refused: nothing was looked for
                last, third, second, first = told(ann)
                self.assertEqual((first["tokens"], first["why"]), (0, ""))
                self.assertIn("the first token that differs is", second["why"])
                self.assertTrue(m["id"].endswith(third["id"]), (m["id"], third))
                self.assertEqual(last["dialect"], third["dialect"])
                self.assertEqual(last["tokens"], last["from_cache"])
                self.assertGreater(last["tokens"], last["prompt"] - 64)
                self.assertEqual([d["prompt"] < 10 for d in told(bob)], [True])
                for _ in range(20):
                    s.post("/completion", {**ASK, "prompt": "mine"}, bob)
                self.assertEqual((len(told(bob)), len(told(ann))), (16, 4))


@unittest.skipIf(SANITIZED, "unit_engine_restore and golden_one_arithmetic have this model's rows")
class StoreV4(Store):
    model = ["-m", client.nano_v4()]
    OTHER = ("f32", "f32", "f32"), ("fp8", "fp8", "fp8")


if __name__ == "__main__":
    main()
