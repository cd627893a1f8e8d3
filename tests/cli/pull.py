#!/usr/bin/env python3
"""pull.py INGLE - a hub of its own on this machine: list, choose, resume, hashes, and a hub that lies, cuts, redirects."""
import contextlib, hashlib, http.server, json, os, pathlib, re, subprocess, sys, tempfile, threading, unittest, urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = (ROOT / "tests/data/nano/nano-gemma4-Q4_K_M.gguf").read_bytes()
TOKEN = "hf_0123456789secret"


class Hub(http.server.ThreadingHTTPServer):
    """Files of one repository, o/r; what it does wrong is in `faults`."""
    daemon_threads = True

    def __init__(self, files, cdn=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cdn, self.faults, self.log, self.lock = files, cdn, {}, [], threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *error):
        self.shutdown()  # else its thread goes on, without a socket and without rest
        super().__exit__(*error)

    def handle_error(self, request, client_address):
        pass  # who was told a lie hangs up

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def entry(self, path):
        data = self.files[path]
        e = {"type": "file", "path": path, "size": len(data), "oid": "0" * 40}
        if path.endswith((".gguf", ".safetensors")):
            e["lfs"] = {"oid": self.faults.get("sha", hashlib.sha256(data).hexdigest()), "size": self.faults.get("size", len(data)), "pointerSize": 1}
        return e


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def send(self, status, data, **headers):
        self.send_response(status)
        for k, v in {"Content-Length": len(data), **headers}.items():
            self.send_header(k.replace("_", "-"), str(v))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)

    def do_GET(self):
        hub = self.server
        with hub.lock:
            hub.log.append((self.path, self.headers.get("Authorization"), self.headers.get("Range")))
        path, _, query = self.path.partition("?")
        path = urllib.parse.unquote(path)
        if hub.faults.get("private") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send(401, b"no")
        if path == "/api/models/o/r/tree/main":
            return self.listing(query)
        if not path.startswith("/o/r/resolve/main/"):
            return self.send(404, b"{}")
        if hub.cdn:
            return self.send(302, b"", Location=hub.cdn.url + self.path)
        self.file(path.removeprefix("/o/r/resolve/main/"))

    def listing(self, query):
        hub = self.server
        if "listing" in hub.faults:
            return self.send(200, hub.faults["listing"])
        entries = [{"type": "directory", "path": "x"}] + [hub.entry(p) for p in hub.files]
        if hub.faults.get("pages") and "cursor" not in query:
            link = f'<{hub.faults["pages"] or hub.url}/api/models/o/r/tree/main?recursive=true&cursor=2>; rel="next"'
            return self.send(200, json.dumps(entries[:2]).encode(), Link=link)
        return self.send(200, json.dumps(entries[2:] if "cursor" in query else entries).encode())

    def file(self, name):
        hub = self.server
        data = hub.files[name]
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if not found or hub.faults.get("no_ranges"):
            return self.send(200, data)
        a, b = int(found[1]), int(found[2]) + 1
        part, told = data[a:b], f"bytes {a}-{b - 1}/{len(data)}"
        if hub.faults.get("wrong_range"):
            told = f"bytes {a + 1}-{b}/{len(data)}"
        with hub.lock:
            cut = hub.faults.get("cut", 0)
            hub.faults["cut"] = max(0, cut - 1)
        if cut or hub.faults.get("always_cut"):  # half of it, and the connection ends
            self.send_response(206)
            self.send_header("Content-Range", told)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part[:len(part) // 2] if cut else b"")
            self.close_connection = True
            return None
        if hub.faults.get("short"):  # says nothing of it
            part = part[:len(part) // 2] if a == 0 else b""
        if hub.faults.get("long"):
            part += b"more"
        if hub.faults.get("busy"):
            return self.send(503, b"busy")
        return self.send(206, part, Content_Range=told)


class Pull(unittest.TestCase):
    FILES = {"README.md": b"# r", "a-Q4_K_M.gguf": MODEL, "a-Q8_0.gguf": b"x" * 300000, "mmproj-F16.gguf": b"y",
             "split/b-IQ2_XXS-00001-of-00002.gguf": b"1" * 70000, "split/b-IQ2_XXS-00002-of-00002.gguf": b"2" * 50}

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.hub = stack.enter_context(Hub(dict(self.FILES)))
        self.stack = stack

    def ingle(self, *words, hub=None):
        # Progress is told after a second, on a busy machine also here.
        return subprocess.run([INGLE, *words, *([] if "-v" in words else ["-q"]), "--hub", hub or self.hub.url + "/", "--hub-dir", str(self.dir), "--hub-piece", "64K"],
                              capture_output=True, text=True, check=False, env={**os.environ, "no_proxy": "*"})

    def pull(self, name, *more):
        return self.ingle("pull", name, *more)

    def fails(self, name, *words, more=()):
        r = self.pull(name, *more)
        self.assertEqual((r.returncode, r.stdout), (1, ""), r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        for w in words:
            self.assertIn(w, r.stderr)
        self.assertFalse([p for p in self.dir.rglob("*.gguf")], "nothing may look whole")
        return r

    def test_choice(self):
        r = self.pull("o/r:q4_k_m")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertEqual(r.stdout, f"{self.dir}/o/r/a-Q4_K_M.gguf\n")
        self.assertEqual(pathlib.Path(r.stdout.strip()).read_bytes(), MODEL)
        self.assertFalse(list(self.dir.rglob("*.part*")))
        n = len(self.hub.log)
        self.assertEqual(self.pull("o/r:q4_k_m").stdout, r.stdout)  # it is known now
        self.assertEqual(self.pull("hf:o/r:q4_k_m", "--offline").stdout, r.stdout)
        self.assertEqual(len(self.hub.log), n)
        self.assertEqual(self.pull("o/r").stdout, r.stdout)  # without a code Q4_K_M is the usual one
        self.assertEqual(self.pull("o/r:IQ2_XXS").stdout, f"{self.dir}/o/r/split/b-IQ2_XXS-00001-of-00002.gguf\n")
        self.assertTrue((self.dir / "o/r/split/b-IQ2_XXS-00002-of-00002.gguf").is_file())
        listed = self.pull("o/r", "--list").stdout
        self.assertEqual(len(listed.splitlines()), 6)
        os.remove(self.dir / "o/r/a-Q4_K_M.gguf")
        self.assertEqual(self.pull("o/r:Q4_K_M").returncode, 0)  # the note is older than the disk

    def test_what_is_not_there(self):
        self.fails("o/r:Q5_K_M", "no file of the code 'Q5_K_M'", "a-Q8_0")
        self.fails("o/q", "404")
        self.fails("o", "OWNER/NAME")
        self.fails("../r", "OWNER/NAME")
        self.fails("o/r:Q8_0", "was not pulled before", more=["--offline"])
        self.hub.files = {"split/b-00001-of-00002.gguf": b"1"}
        self.fails("o/r", "1 of the 2 parts")
        self.hub.files = {"x.bin": b"1"}
        self.fails("o/r", "neither GGUF files nor")
        self.hub.shutdown()
        self.hub.server_close()
        self.fails("o/r:Q8_0", "does not answer")

    def test_checkpoint(self):
        self.hub.files = {"config.json": b"{}", "model.safetensors": b"s" * 70000, "tokenizer.json": b"{}", "README.md": b"", "x/y.safetensors": b""}
        r = self.pull("o/r")
        self.assertEqual(r.stdout, f"{self.dir}/o/r\n")
        self.assertEqual(sorted(p.name for p in (self.dir / "o/r").iterdir() if p.name[0] != "."),
                         ["config.json", "model.safetensors", "tokenizer.json"])

    def test_model_by_name(self):
        r = self.ingle("inspect", "--plan", "-m", "hf:o/r:Q4_K_M", "--json")
        self.assertEqual(json.loads(r.stdout)["fits"], True, r.stderr)
        r = self.ingle("tokenize", "-hf", "o/r:Q4_K_M", "Hello")
        self.assertEqual(r.returncode, 0, r.stderr)
        r = self.ingle("inspect", "--plan", "-m", "hf:o/r:Q2_K")
        self.assertEqual(r.returncode, 1)
        self.assertIn("no file of the code 'Q2_K'", r.stderr)

    def test_drafter_by_name(self):
        model = str(ROOT / "tests/data/nano/nano-gemma4-Q4_K_M.gguf")
        self.hub.files["mtp-Q5_0.gguf"] = (ROOT / "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf").read_bytes()
        for option in "--draft=hf:o/r:Q5_0", "--spec-draft-hf=o/r:Q5_0":
            r = self.ingle("inspect", "--plan", "--json", "-m", model, option)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertGreater(json.loads(r.stdout)["items"]["drafter"], 0)
        self.assertTrue((self.dir / "o/r/mtp-Q5_0.gguf").is_file())
        r = self.ingle("inspect", "--plan", "-m", model, "--draft", "off", "--draft", "hf:o/r:Q9_9")
        self.assertEqual(r.returncode, 1)
        self.assertIn("no file of the code 'Q9_9'", r.stderr)

    def test_prompt_drafter_by_name(self):
        model = str(ROOT / "tests/data/nano/nano-gemma4-Q4_K_M.gguf")
        r = self.ingle("inspect", "--plan", "--json", "-m", model, "--draft", "off", "--prompt-drafter", "hf:o/r:Q4_K_M")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertTrue((self.dir / "o/r/a-Q4_K_M.gguf").is_file())

    def test_resume(self):
        self.hub.faults["cut"] = 3
        self.assertEqual(self.pull("o/r:Q4_K_M").returncode, 0)  # cut connections are made again
        os.remove(self.dir / "o/r/a-Q4_K_M.gguf")
        self.hub.faults["always_cut"] = True
        self.fails("o/r:Q8_0", "the connection ended", "the next call goes on")
        self.hub.faults.clear()
        # What is there is not fetched again.
        state = self.dir / "o/r/a-Q8_0.gguf.part.state"
        part = self.dir / "o/r/a-Q8_0.gguf.part"
        with part.open("r+b") as f:
            f.write(b"x" * 65536)
        state.write_bytes(state.read_bytes()[:-5] + b"10000")
        self.hub.log.clear()
        self.assertEqual(self.pull("o/r:Q8_0").returncode, 0)
        ranges = {r for p, _, r in self.hub.log if r}
        self.assertNotIn("bytes=0-65535", ranges)
        self.assertEqual(len(ranges), 4)
        self.assertEqual((self.dir / "o/r/a-Q8_0.gguf").read_bytes(), b"x" * 300000)

    def test_lies(self):
        for fault, words in (({"sha": "0" * 64}, ["SHA-256", "deleted"]), ({"no_ranges": True}, ["no ranges"]), ({"long": True}, ["more than"]),
                             ({"wrong_range": True}, ["another range"]), ({"short": True}, ["connection ended"]), ({"busy": True}, ["503"]),
                             ({"size": 299999}, ["another range"]), ({"size": 300001}, ["another range"]),
                             ({"size": 1 << 49}, ["free", "need"]), ({"listing": b"<html>"}, ["list of files"]),
                             ({"listing": b'[{"type":"file","path":"../x.gguf","size":1}]'}, ["leaves the folder"]),
                             ({"listing": b'[{"type":"file","path":"x.gguf","size":-1}]'}, ["no size"]),
                             ({"pages": "http://127.0.0.1:9"}, ["another server"])):
            with self.subTest(fault):
                self.hub.faults = dict(fault)
                self.fails("o/r:Q8_0", *words)
        self.hub.faults = {"pages": self.hub.url}
        self.assertEqual(self.pull("o/r:Q8_0").returncode, 0)

    def test_full_disk(self):
        r = subprocess.run(["bash", "-c", 'ulimit -f 100; exec "$@"', "x", INGLE, "pull", "o/r:Q8_0", "--hub", self.hub.url, "--hub-dir",
                            str(self.dir), "--hub-piece", "64K"], capture_output=True, text=True, check=False)
        self.assertEqual((r.returncode, r.stdout), (1, ""))
        self.assertIn("File too large", r.stderr)
        self.assertFalse(list(self.dir.rglob("*.gguf")))
        self.assertEqual(self.pull("o/r:Q8_0").returncode, 0)

    def test_token(self):
        token = self.dir / "token"
        token.write_text(TOKEN + "\n")
        self.hub.faults["private"] = True
        self.fails("o/r:Q8_0", "401", "--hub-token-file")
        cdn = self.stack.enter_context(Hub(dict(self.FILES)))
        self.hub.cdn = cdn
        r = self.pull("o/r:Q8_0", "--hub-token-file", str(token), "-v")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertNotIn(TOKEN, r.stdout + r.stderr)
        self.assertTrue(cdn.log)
        self.assertEqual({a for _, a, _ in cdn.log}, {None})  # where it redirects gets none
        self.assertEqual({a for p, a, _ in self.hub.log if "resolve" in p}, {f"Bearer {TOKEN}"})


if __name__ == "__main__":
    INGLE = sys.argv.pop(1)
    unittest.main()
