#!/usr/bin/env python3
"""slots.py INGLE - conversations that are saved, restored and erased; files that are no such thing."""
import base64
import json
import os
import resource
import struct
import sys
import tempfile
import unittest
import zlib

import client
from client import SANITIZED, Case, Server, main
from wait import NO_END, STAYS, attempts, busy

LONG = " ".join(str(i) for i in range(300))
NAMES = ("../x", "/etc/passwd", ".x", "a/b", "", "x" * 129, "a\0b", 5, None, "ä")


class Slots(Case):
    model = []

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.options = ["--temp", "0", "-c", "2048", "--slot-save-path", cls.folder.name, *cls.model]
        super().setUpClass()

    def slot(self, action, id=0, status=200, **body):
        got, _, r = self.server.post(f"/slots/{id}?action={action}", body)
        self.assertEqual(got, status, r)
        return r

    def complete(self, **more):
        status, _, r = self.server.post("/completion", {"prompt": LONG, "n_predict": 8, **more})
        self.assertEqual(status, 200, r)
        return r

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def size(self, name):
        """With what the next turn begins with, which its own tokens may not."""
        return os.path.getsize(self.path(name)) + os.path.getsize(self.path("." + name))

    def test_full_context(self):
        first = self.complete(id_slot=3, n_predict=-1, ignore_eos=True)
        self.assertEqual(first["tokens_evaluated"] + first["tokens_predicted"], 2048)
        self.assertGreater(self.slot("save", 3, filename="full")["n_saved"], 2000)

    def test_there_and_back(self):
        """Prompt and answer but for its last token, which nothing was computed of."""
        chat = self.server.post("/apply-template", {"messages": [
            {"role": "system", "content": LONG}, {"role": "user", "content": "Count from 1 to 60."}]})[2]
        first = self.complete(prompt=chat["prompt"], id_slot=1, n_predict=50, return_tokens=True)
        self.assertEqual((first["id_slot"], len(first["tokens"])), (1, 50))
        saved = self.slot("save", 1, filename="a-1_b.bin")
        self.assertEqual(saved["n_saved"], first["tokens_evaluated"] + 49)
        self.assertEqual(saved["n_written"], self.size("a-1_b.bin"))
        self.assertGreaterEqual(saved["timings"]["save_ms"], 0)
        with Server(sys.argv[1], *self.options) as other:
            status, _, r = other.post("/v1/slots/2?action=restore", {"filename": "a-1_b.bin"})
            self.assertEqual(status, 200, r)
            self.assertEqual(r["n_restored"], saved["n_saved"])
            self.assertEqual(r["n_read"], saved["n_written"])
            other.post("/slots/2?action=save", {"filename": "again"})
            self.assertEqual(self.size("again"), r["n_read"])
            ids = other.post("/tokenize", {"content": chat["prompt"]})[2]["tokens"]
            more = {"prompt": [*ids, *first["tokens"]], "n_predict": 20, "temperature": 1, "seed": 3,
                    "n_probs": 5}
            again = other.post("/completion", more)[2]
            self.assertEqual(again["timings"]["cache_n"], r["n_restored"])
        with Server(sys.argv[1], *self.options) as cold:  # the same bits as without a file
            r = cold.post("/completion", more)[2]
            self.assertEqual(r["timings"]["cache_n"], 0)
            self.assertEqual(r["content"], again["content"])
            self.assertEqual(r["completion_probabilities"], again["completion_probabilities"])
        self.assertEqual(self.slot("erase", 1)["n_erased"], first["tokens_evaluated"] + 50)
        self.assertEqual(self.slot("erase", 1)["n_erased"], 0)
        self.slot("save", 1, status=404, filename="none")

    def test_conversation(self):
        body = {"messages": [{"role": "system", "content": LONG},
                             {"role": "user", "content": "Who are you?"}]}
        text = self.server.post("/v1/chat/completions", body)[2]["choices"][0]["message"]["content"]
        saved = self.slot("save", filename="chat")
        body["messages"] += [{"role": "assistant", "content": text},
                             {"role": "user", "content": "What is 7+5?"}]
        with Server(sys.argv[1], *self.options) as other:
            r = other.post("/slots/0?action=restore", {"filename": "chat"})[2]
            self.assertEqual((r["n_restored"], r["n_read"]), (saved["n_saved"], saved["n_written"]))
            other.post("/slots/0?action=save", {"filename": "again"})
            r = other.post("/v1/chat/completions", body)[2]
            whole = r["timings"]["cache_n"]
        with Server(sys.argv[1], *self.options) as other:
            other.post("/slots/0?action=restore", {"filename": "again"})
            r = other.post("/v1/chat/completions", body)[2]
            self.assertEqual(r["timings"]["cache_n"], whole)
        # What the server that computed it would have taken up.
        r = self.server.post("/v1/chat/completions", body)[2]
        self.assertEqual(r["timings"]["cache_n"], whole)
        self.assertGreater(whole, 400)

    def test_names(self):
        self.complete()
        for name in NAMES:
            for action in "save", "restore":
                self.slot(action, status=400, filename=name)
        self.assertEqual([n for n in os.listdir(self.folder.name) if n.startswith("..") or n == ".x"], [])
        self.slot("restore", status=404, filename="nowhere")
        os.symlink("/etc/passwd", self.path("link"))
        os.mkdir(self.path("folder"))
        for name in "link", "folder":
            self.slot("restore", status=404, filename=name)
        with open("/etc/passwd") as f:
            before = f.read()
        self.slot("save", status=400, filename="link")  # neither in its place nor behind it
        self.assertTrue(os.path.islink(self.path("link")))
        with open("/etc/passwd") as f:
            self.assertEqual(f.read(), before)

    def test_damage(self):
        self.complete()
        self.slot("save", filename="whole")
        with open(self.path("whole"), "rb") as f:
            whole = f.read()
        n = len(whole)
        pieces = [whole[:k] for k in (0, 1, 64, 4096, n // 2, n - 1)] + [whole + b"x", b"nonsense" * 1000]
        for at in (0, 9, 40, 100, 200, n // 2, n - 5):
            pieces.append(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:])
        for piece in pieces:
            with open(self.path("bad"), "wb") as f:
                f.write(piece)
            r = self.slot("restore", status=400, filename="bad")
            self.assertNotIn(self.folder.name, r["error"]["message"])
        self.slot("restore", filename="whole")

    def test_full_disk(self):
        """The server's fault, not the request's; what was saved before stays."""
        self.complete()
        whole = self.slot("save", filename="kept")["n_saved"]
        before = resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        r = self.slot("save", status=500, filename="kept")["error"]
        resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE, before)
        self.assertTrue(r["message"].startswith("kept: cannot write"), r)
        self.assertEqual([n for n in os.listdir(self.folder.name) if "tmp" in n or "part" in n], [])
        self.assertEqual(self.slot("restore", filename="kept")["n_restored"], whole)

    def test_requests(self):
        for id in (4, 999999999999, -1, "x", "0/1"):
            status = self.server.post(f"/slots/{id}?action=save", {"filename": "a"})[0]
            self.assertIn(status, (400, 404), id)
        for action in ("", "boo"):
            self.slot(action, status=400, filename="a")
        self.assertEqual(self.server.request("POST", "/slots/0", "{}")[0], 400)
        self.assertEqual(self.server.request("POST", "/slots/0?action=save", "{")[0], 400)


@unittest.skipIf(SANITIZED, "unit_engine_restore and golden_one_arithmetic have this model's rows")
class DeepSeek(Slots):
    """The same with windows, compressed rows and their open blocks."""
    model = ["-m", client.nano_v4()]


class Pictures(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        tiny = "tests/data/vision/vision_12b/"
        cls.options = ["-m", tiny + "model-BF16.gguf", "--mmproj", tiny + "mmproj-BF16.gguf", "--temp", "0", "-c", "2048", "--slot-save-path", cls.folder.name]
        super().setUpClass()

    def test_pictures(self):
        """They are in the file by name: with the same picture nothing is encoded again, with another one it is not used."""
        def ask(server, *turns, rows=bytes(2 * (1 + 3 * 2)), **more):
            chunk = lambda t, d: struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))
            png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
            parts = [{"type": "image_url", "image_url": {"url": "data:;base64," + base64.b64encode(png).decode(), "detail": "low"}}, {"type": "text", "text": "What is it?"}]
            got, _, r = server.post("/v1/chat/completions", {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": parts}, *turns], "max_tokens": 8, **more})
            if "this build reads no such files" in str(r):
                self.skipTest(str(r))
            self.assertEqual(got, 200, r)
            return r
        first = ask(self.server, id_slot=2)
        saved = self.server.post("/slots/2?action=save", {"filename": "seen"})[2]
        self.assertEqual(saved["n_saved"], first["usage"]["total_tokens"] - 1)
        more = [{"role": "assistant", "content": first["choices"][0]["message"]["content"]}, {"role": "user", "content": "And?"}]
        whole = ask(self.server, *more)
        with Server(sys.argv[1], *self.options) as other:
            r = other.post("/slots/0?action=restore", {"filename": "seen"})[2]
            self.assertEqual((r["n_restored"], r["n_read"]), (saved["n_saved"], saved["n_written"]))
            other.post("/slots/0?action=save", {"filename": "again"})
            r = ask(other, *more, rows=bytes(13) + b"\1")
            self.assertEqual(r["timings"]["media"]["encoded"], 1, r)
            r = ask(other, *more)
            self.assertEqual((r["timings"]["cache_n"], r["timings"]["media"]["encoded"]), (whole["timings"]["cache_n"], 0), r)
            self.assertEqual(r["choices"], whole["choices"])
        with Server(sys.argv[1], *self.options) as other:
            self.assertEqual(other.post("/slots/0?action=restore", {"filename": "again"})[2]["n_restored"], saved["n_saved"])
            self.assertEqual(ask(other, *more)["choices"], whole["choices"])


class Keys(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        keys = os.path.join(cls.folder.name, "keys")
        with open(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("anna:one\nbert:two\n")
        cls.options = [*STAYS, "--temp", "0", "--api-key-file", keys, "--slot-save-path", cls.folder.name]
        super().setUpClass()

    def test_users_are_apart(self):
        def post(key, path, body):
            return self.server.post(path, body, {"X-Api-Key": key})[0]
        self.assertEqual(post("one", "/completion", {"prompt": LONG, "n_predict": 1}), 200)
        self.assertEqual(post("two", "/slots/0?action=save", {"filename": "a"}), 404)
        self.assertEqual(post("one", "/slots/0?action=save", {"filename": "a"}), 200)
        self.assertEqual(post("two", "/slots/0?action=restore", {"filename": "a"}), 404)
        self.assertEqual(post("one", "/slots/0?action=restore", {"filename": "a"}), 200)
        self.assertEqual(post("none", "/slots/0?action=restore", {"filename": "a"}), 401)
        # What another key asks does not empty the slot.
        self.assertEqual(post("one", "/completion", {"prompt": LONG, "n_predict": 1}), 200)
        self.assertEqual(post("two", "/completion", {"prompt": "Hello", "n_predict": 1}), 200)
        self.assertEqual(post("one", "/slots/0?action=save", {"filename": "b"}), 200)
        self.assertEqual(post("two", "/slots/0?action=erase", {}), 200)
        self.assertEqual(post("one", "/slots/0?action=save", {"filename": "b"}), 200)
        self.assertEqual(post("two", "/slots/0?action=save", {"filename": "b"}), 404)

    def test_lengths_are_of_ones_own(self):
        """Another key sees that a slot is busy, and no length of its prompt or answer."""
        c, r = self.server.open("POST", "/completion", {"prompt": "Hello", "n_predict": 30000, "n_probs": 20, "logit_bias": NO_END, "stream": True},
                                {"X-Api-Key": "one"})
        r.readline()
        shown = {"one": [], "two": []}
        for _ in attempts("a slot at work"):
            if all(shown.values()):
                break
            for key in shown:
                shown[key] += [(s["n_prompt_tokens"], s["next_token"][0]["n_decoded"]) for s in busy(self.server, key)]
        c.close()
        self.assertEqual(set(shown["two"]), {(0, 0)})
        self.assertTrue(all(n > 0 for n, _ in shown["one"]), shown)

    def test_a_key_without_name_keeps_to_itself(self):
        """Its files and prompts are not those of the key that takes its line."""
        keys = os.path.join(self.folder.name, "unnamed")
        def serve(*lines):
            with open(os.open(keys, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
                f.write("\n".join(lines) + "\n")
            return Server(sys.argv[1], "--temp", "0", "--api-key-file", keys, "--slot-save-path", self.folder.name)
        def post(server, key, path, body):
            return server.post(path, body, {"X-Api-Key": key})[0]
        with serve("alpha-key-1", "beta-key-2") as server:
            self.assertEqual(post(server, "alpha-key-1", "/completion", {"prompt": LONG, "n_predict": 1}), 200)
            self.assertEqual(post(server, "alpha-key-1", "/slots/0?action=save", {"filename": "own"}), 200)
        with serve("beta-key-2") as server:
            self.assertEqual(post(server, "beta-key-2", "/slots/0?action=restore", {"filename": "own"}), 404)
        with serve("beta-key-2", "alpha-key-1") as server:
            self.assertEqual(post(server, "alpha-key-1", "/slots/0?action=restore", {"filename": "own"}), 200)


class Without(Case):
    def test_not_asked_for(self):
        self.assertEqual(self.server.post("/slots/0?action=save", {"filename": "a"})[0], 501)

    def test_nowhere(self):
        with self.assertRaisesRegex(RuntimeError, "slot-save-path"):
            Server(sys.argv[1], "--slot-save-path", f"{__file__}/none")

    def test_methods(self):
        for path, want in (("/v1/models", "GET, HEAD, OPTIONS"), ("/completion", "POST, OPTIONS"),
                           ("/responses/x", "GET, HEAD, DELETE, OPTIONS"), ("/responses/input_tokens", "POST, OPTIONS")):
            status, headers, _ = self.server.request("PATCH", path)
            self.assertEqual((status, headers["Allow"]), (405, want))
            self.assertEqual(self.server.request("OPTIONS", path)[1]["Allow"], want)

    def test_description(self):
        status, headers, r = self.server.get("/openapi.json")
        self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
        with open("share/openapi.json") as f:
            self.assertEqual(r, json.load(f))


if __name__ == "__main__":
    main()
