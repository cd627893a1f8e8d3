#!/usr/bin/env python3
"""pull.py INGLE - a hub of its own on this machine: list, choose, resume, hashes, and a hub that lies, cuts, redirects."""
import contextlib, hashlib, http.server, json, os, pathlib, re, signal, socket, subprocess, sys, tempfile, threading, time, unittest, urllib.error, urllib.parse, urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = (ROOT / "tests/data/nano/nano-gemma4-Q4_K_M.gguf").read_bytes()
TOKEN = "hf_0123456789secret"


class Hub(http.server.ThreadingHTTPServer):
    """Files of one repository, o/r; what it does wrong is in `faults`."""
    daemon_threads = True

    def __init__(self, files, cdn=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cdn, self.faults, self.log, self.lock = files, cdn, {}, [], threading.Lock()
        self.revisions = {}  # other files of a revision
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *error):
        self.shutdown()  # else its thread goes on, without a socket and without rest
        super().__exit__(*error)

    def handle_error(self, request, client_address):
        pass  # who was told a lie hangs up

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def entry(self, path, files):
        data = files[path]
        e = {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
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
        if hub.faults.get("says"):  # an error in the hub's words
            with hub.lock:
                status, headers, body, hub.faults["says"] = *hub.faults["says"][:3], None if hub.faults["says"][3] <= 1 else (*hub.faults["says"][:3], hub.faults["says"][3] - 1)
            return self.send(status, body, **headers)
        if hub.faults.get("private") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send(401, b"no")
        place = re.fullmatch(r"/(api/models/)?o/r/(tree|resolve)/(main|v2|a/b|a_b)(/.*)?", path)
        if not place:
            return self.send(404, b"{}")
        if place[2] == "tree":
            return self.listing(query, hub.revisions.get(place[3], hub.files))
        if hub.cdn:
            return self.send(302, b"", Location=hub.cdn.url + self.path)
        if hub.faults.get("endless"):
            return self.endless()
        self.file(hub.revisions.get(place[3], hub.files)[place[4][1:]])

    def endless(self):
        self.send_response(404)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"x" * 65536)
                time.sleep(.01)

    def listing(self, query, files):
        hub = self.server
        if "listing" in hub.faults:
            return self.send(200, hub.faults["listing"])
        entries = [{"type": "directory", "path": "x"}] + [hub.entry(p, files) for p in files]
        if hub.faults.get("pages") and "cursor" not in query:
            link = f'<{hub.faults["pages"] or hub.url}/api/models/o/r/tree/main?recursive=true&cursor=2>; rel="next"'
            return self.send(200, json.dumps(entries[:2]).encode(), Link=link)
        return self.send(200, json.dumps(entries[2:] if "cursor" in query else entries).encode())

    def file(self, data):
        hub = self.server
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
        if hub.faults.get("slow"):
            part = part[:65536]
            time.sleep(hub.faults["slow"])
        if hub.faults.get("busy"):
            return self.send(503, b"busy")
        return self.send(206, part, Content_Range=told)


class Pull(unittest.TestCase):
    FILES = {"README.md": b"# r", "a-Q4_K_M.gguf": MODEL, "a-Q8_0.gguf": b"x" * 300000, "encoders/mmproj-F16.gguf": b"y",
             "split/b-IQ2_XXS-00001-of-00002.gguf": b"1" * 70000, "split/b-IQ2_XXS-00002-of-00002.gguf": b"2" * 50}

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.hub = stack.enter_context(Hub(dict(self.FILES)))
        self.stack = stack

    def ingle(self, *words, hub=None, loud=False, env=None):
        # Progress is told after a second, on a busy machine also here.
        hub = ["--hub", hub or self.hub.url + "/"] if not (env and "HF_ENDPOINT" in env) else []
        return subprocess.run([INGLE, *words, *([] if "-v" in words or loud else ["-q"]), *hub, "--hub-dir", str(self.dir), "--hub-piece", "64K"],
                              capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                              env={**{k: v for k, v in os.environ.items() if not k.startswith("HF_")}, "no_proxy": "*", "HF_HOME": str(self.dir / "hf"), **(env or {})})

    def pull(self, name, *more, **how):
        return self.ingle("pull", name, *more, **how)

    def bytes_of(self, *words, **how):
        r = self.pull(*words, **how)
        self.assertEqual(r.returncode, 0, r.stderr)
        return pathlib.Path(r.stdout.strip()).read_bytes()

    def fails(self, name, *words, more=()):
        r = self.pull(name, *more)
        self.assertEqual((r.returncode, r.stdout), (1, ""), r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        for w in words:
            self.assertIn(w, r.stderr)
        self.assertFalse([p for p in self.dir.rglob("*.gguf")], "nothing may look whole")
        return r

    def test_encoders_come_with_their_model(self):
        self.hub.files = {"a-Q4_K_M.gguf": MODEL, "a-Q8_0.gguf": MODEL, "mmproj-F32.gguf": b"f", "a-mmproj-BF16.gguf": b"b", "mmproj-Q8_0.gguf": b"q",
                          "sub/mmproj-BF16.gguf": b"s", "sub/c-Q2_K.gguf": MODEL}
        there = lambda: sorted(p.relative_to(self.dir / "o/r").as_posix() for p in (self.dir / "o/r").rglob("*.gguf"))
        self.assertEqual(self.ingle("pull", "o/r:Q8_0", "--mmproj-type", "off").returncode, 0)
        self.assertEqual(there(), ["a-Q8_0.gguf"])
        got = self.ingle("pull", "o/r:Q4_K_M")
        self.assertTrue(got.stdout.endswith("a-Q4_K_M.gguf\n"), got)
        self.assertEqual(there(), ["a-Q4_K_M.gguf", "a-Q8_0.gguf", "a-mmproj-BF16.gguf"])
        (self.dir / "o/r/a-mmproj-BF16.gguf").unlink()  # it belongs to the model: it is fetched again
        self.assertEqual(self.ingle("pull", "o/r:Q4_K_M").returncode, 0)
        self.assertIn("a-mmproj-BF16.gguf", there())
        self.assertEqual(self.ingle("pull", "o/r:c-Q2_K.gguf").returncode, 0)
        self.assertIn("sub/mmproj-BF16.gguf", there())
        self.assertEqual(self.ingle("pull", "o/r:a-Q4_K_M.gguf", "--mmproj-type", "q8_0").returncode, 0)
        self.assertIn("mmproj-Q8_0.gguf", there())
        got = self.ingle("pull", "o/r:Q8_0", "--mmproj-type", "Q4_0")
        self.assertEqual(got.returncode, 1)
        self.assertIn("no mmproj file of the type 'Q4_0'", got.stderr)
        # encoders are deleted with the last model beside them
        for name, left in (("o/r:Q8_0", ["a-Q4_K_M.gguf", "a-mmproj-BF16.gguf", "mmproj-Q8_0.gguf", "sub/c-Q2_K.gguf", "sub/mmproj-BF16.gguf"]),
                           ("o/r:Q2_K", ["a-Q4_K_M.gguf", "a-mmproj-BF16.gguf", "mmproj-Q8_0.gguf"]), ("o/r:mmproj-Q8_0.gguf", ["a-Q4_K_M.gguf", "a-mmproj-BF16.gguf"]), ("o/r", [])):
            got = self.ingle("pull", name, "--delete")
            self.assertEqual((got.returncode, there()), (0, left), got.stderr)

    def test_encoders_are_no_models(self):
        """Wherever their names say so."""
        self.hub.files = {"g-26B_q4_0-it.gguf": MODEL, "g-26B-it-mmproj.gguf": b"y"}
        r = self.pull("o/r")
        self.assertEqual((r.stdout, r.stderr), (f"{self.dir}/o/r/g-26B_q4_0-it.gguf\n", ""))

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
                             ({"size": 1 << 49}, ["free", "need 563 TB"]), ({"listing": b"<html>"}, ["list of files"]),
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

    def test_spellings(self):
        """What was pulled is found without the hub, whatever it is called."""
        self.hub.files = {"größe (v1) Q4_K_M.gguf": MODEL, "b [Q8_0].gguf": b"8", "b-UD-Q8_0.gguf": b"ud"}
        path = self.pull("o/r").stdout
        self.assertEqual(path, f"{self.dir}/o/r/größe (v1) Q4_K_M.gguf\n")
        self.assertEqual(self.bytes_of("o/r:q8_0"), b"8")  # the plain one of two
        n = len(self.hub.log)
        names = ["o/r", "o/r:Q4_K_M", "hf:o/r:q4_k_m", "hf://o/r", "o/r:größe (v1) Q4_K_M.gguf", "o/r:latest", "hf.co/o/r:Q4_K_M",
                 "https://huggingface.co/o/r", "https://huggingface.co/o/r/tree/main", self.hub.url + "/o/r",
                 "https://huggingface.co/o/r/blob/main/gr%C3%B6%C3%9Fe%20(v1)%20Q4_K_M.gguf?x=1"]
        for name in names:
            for more in [], ["--offline"]:
                r = self.pull(name, *more)
                self.assertEqual((r.stdout, r.stderr), (path, ""), name)
        self.assertEqual(len(self.hub.log), n)
        self.assertEqual(self.pull("o/r:q4", "--offline").stdout, path)  # the beginning of a code
        for name in "https://evil.example/o/r", "https://huggingface.co/o", "o/r:../x.gguf", "o/r:", "o/r:a\x9bb", "o/r:\u202eb":
            self.assertEqual(self.pull(name).returncode, 1, name)

    def test_drafters(self):
        self.hub.files = {"g-Q4_K_M.gguf": MODEL, "mtp-g-Q8_0.gguf": b"d", "MTP/g-BF16.gguf": b"e"}
        r = self.pull("o/r", loud=True)
        self.assertEqual((r.returncode, r.stdout), (0, f"{self.dir}/o/r/g-Q4_K_M.gguf\n"))
        self.assertIn("--draft hf:o/r:", r.stderr)
        for code in ":Q8_0", ":BF16":
            r = self.pull("o/r" + code)
            self.assertEqual((r.returncode, r.stdout), (1, ""))
            self.assertRegex(r.stderr, "no model of the code '.*', but a drafter: --draft hf:o/r:.*g-")
        self.assertEqual(self.bytes_of("o/r:mtp-g-Q8_0.gguf"), b"d")
        for word in "dflash", "DSpark", "x-assistant", "draft":
            self.hub.files = {f"{word}.gguf": b"d"}
            r = self.pull("o/r", "--update")
            self.assertEqual(r.returncode, 1)
            self.assertIn("but a drafter", r.stderr)
            self.assertNotIn("''", r.stderr)

    def test_revisions(self):
        """A file counts with the hash of its revision only."""
        self.hub.files = {"m.gguf": b"1" * 70000}
        self.hub.revisions = {"v2": {"m.gguf": b"2" * 70000}, "a/b": {"m.gguf": b"3" * 70000}, "a_b": {"m.gguf": b"4" * 70000}}
        for _ in range(2):
            self.assertEqual(self.bytes_of("o/r")[:1], b"1")
            for revision, byte in ("v2", b"2"), ("a/b", b"3"), ("a_b", b"4"):
                self.assertEqual(self.bytes_of("o/r", "--hub-revision", revision)[:1], byte)
        self.assertEqual(self.bytes_of("https://huggingface.co/o/r/resolve/v2/m.gguf")[:1], b"2")
        own = self.dir / "o/r/m.gguf"
        own.write_bytes(b"0" * 70000)  # as large, and wrong
        self.assertEqual(self.pull("o/r", "--offline").returncode, 1)
        self.assertEqual(self.bytes_of("o/r")[:1], b"1")
        os.remove(self.dir / "o/r/.ingle-hub")  # without a note it is hashed, and not fetched
        self.hub.log.clear()
        self.assertEqual(self.bytes_of("o/r")[:1], b"1")
        self.assertFalse([p for p, _, _ in self.hub.log if "resolve" in p])
        self.hub.revisions["v2"] = self.hub.files  # the same bytes under another name
        self.assertEqual(self.bytes_of("o/r", "--hub-revision", "v2", "--update")[:1], b"1")
        self.assertFalse([p for p, _, _ in self.hub.log if "resolve" in p])

    def test_hubs(self):
        """Two hubs with one OWNER/NAME do not share."""
        other = self.stack.enter_context(Hub({"a-Q8_0.gguf": b"z" * 300000}))
        first = self.pull("o/r:Q8_0").stdout
        self.assertEqual(self.ingle("pull", "o/r:Q8_0", "--offline", hub=other.url).returncode, 1)
        self.assertEqual(self.bytes_of("o/r:Q8_0", hub=other.url)[:1], b"z")
        self.assertEqual(pathlib.Path(first.strip()).read_bytes()[:1], b"x")
        self.assertEqual(self.pull("o/r:Q8_0", "--offline").stdout, first)

    def test_old_folder(self):
        """Notes of earlier versions have no hashes: found without the hub, verified once with it."""
        folder = self.dir / "o/r"
        folder.mkdir(parents=True)
        (folder / "a-Q4_K_M.gguf").write_bytes(MODEL)
        (folder / ".ingle-only-main").write_text(f"a-Q4_K_M.gguf\n{len(MODEL)} a-Q4_K_M.gguf\n")
        for name in "o/r", "o/r:q4_k_m":
            r = self.pull(name, "--offline", loud=True)
            self.assertEqual((r.returncode, r.stdout), (0, f"{folder}/a-Q4_K_M.gguf\n"), r.stderr)
            self.assertIn("earlier version", r.stderr)
        other = folder / ".ingle-only-v2"  # that version had one folder for all revisions: whose file is it?
        other.write_text(f"a-Q4_K_M.gguf\n{len(MODEL)} a-Q4_K_M.gguf\n")
        for more in [], ["--hub-revision", "v2"]:
            self.assertEqual(self.pull("o/r", "--offline", *more).returncode, 1)
        other.unlink()
        self.assertEqual(self.pull("o/r").stdout, f"{folder}/a-Q4_K_M.gguf\n")
        self.assertFalse([p for p, _, _ in self.hub.log if "resolve" in p])
        n = len(self.hub.log)
        self.assertEqual(self.pull("o/r").returncode, 0)
        self.assertEqual(len(self.hub.log), n)

    def test_update(self):
        self.assertEqual(self.bytes_of("o/r:Q8_0")[:1], b"x")
        self.assertNotIn("newer", self.pull("o/r:Q8_0", loud=True).stderr)
        self.hub.files["a-Q8_0.gguf"] = b"y" * 300000
        r = self.pull("o/r:Q8_0", loud=True)
        self.assertEqual(r.returncode, 0)
        self.assertRegex(r.stderr, "newer 'a-Q8_0.gguf': --update")
        self.assertEqual(self.bytes_of("o/r:Q8_0")[:1], b"x")
        self.assertEqual(self.bytes_of("o/r:Q8_0", "--update")[:1], b"y")
        self.assertEqual(self.bytes_of("o/r:Q8_0", "--offline")[:1], b"y")
        self.assertEqual(self.pull("o/r:Q8_0", "--update", "--offline").returncode, 1)

    def test_words_of_the_hub(self):
        gated = {"X_Error_Code": "GatedRepo", "X_Error_Message": "Access to model o/r is restricted. Ask for access\x1b[31m at https://x/o/r."}
        html = b"<!DOCTYPE html><html><head><title>Sign in</title></head>"
        for status, headers, body, words in ((403, gated, b"", ["403, GatedRepo: Access to model o/r is restricted", "https://x/o/r"]),
                                             (401, {}, b'{"error": "Invalid username or password."}', ["Invalid username"]),
                                             (404, {}, b'{"error": {"message": "no such revision"}}', ["no such revision"]),
                                             (200, {"Content_Type": "text/html"}, html, ["a page of HTML ('Sign in')"]),
                                             (403, {"Content_Type": "text/html"}, html, ["a page of HTML ('Sign in')"]),
                                             (429, {"Retry_After": "3600"}, b"slow down", ["slow down", "come again in 3600 s"])):
            with self.subTest(status=status, body=body):
                self.hub.faults = {"says": (status, headers, body, 9)}
                r = self.fails("o/r:Q8_0", *words)
                self.assertNotIn("\x1b", r.stderr)
        for status, headers in (503, {}), (429, {"Retry_After": "1"}), (500, {"Retry_After": "0"}):
            self.hub.faults = {"says": (status, headers, b"", 2)}
            start = time.monotonic()
            self.assertEqual(self.pull("o/r:Q8_0", "--update").returncode, 0)
            self.assertGreater(time.monotonic() - start, 2 * float(headers.get("Retry_After", .2)))
        self.hub.faults = {"endless": True}
        self.assertIn("404", self.pull("o/r:Q4_K_M").stderr)

    def test_names_and_parts(self):
        for path in "a\u009b31mred.gguf", "a\u202egnp.gguf", "a\u2066.gguf", "a\x7f.gguf", "a\x1b]0;x\x07/../m.gguf", "\u061c.gguf":
            self.hub.faults = {"listing": json.dumps([{"type": "file", "path": path, "size": 1}]).encode()}
            r = self.fails("o/r", "list of files")
            self.assertFalse(set(r.stderr[:-1]) & set("\u009b\u202e\u2066\x7f\x1b\x07\u061c"), r.stderr)
        self.hub.faults = {}
        for numbers in ("1/2", "7/2"), ("1/2", "1/3"), ("2/2",), ("0/2", "1/2"), ("1/99999",):
            names = [f"a-{int(n.split('/')[0]):05}-of-{int(n.split('/')[1]):05}.gguf" for n in numbers]
            self.hub.files = dict.fromkeys(names, b"1")
            self.assertEqual(self.fails("o/r").returncode, 1)
        self.hub.files = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"1", "model-00003-of-00002.safetensors": b"3"}
        self.fails("o/r", "1 of the 2 parts")

    def test_variables(self):
        """Those of Hugging Face's tools, and their cache."""
        env = {"HF_ENDPOINT": self.hub.url}
        self.hub.faults["private"] = True
        r = self.pull("o/r:Q8_0", loud=True, env={**env, "HF_TOKEN": TOKEN})
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("$HF_ENDPOINT", r.stderr)
        self.assertIn("$HF_TOKEN", r.stderr)
        self.assertNotIn(TOKEN, r.stderr)
        (self.dir / "hf").mkdir()
        (self.dir / "hf/token").write_text(TOKEN)
        self.assertEqual(self.pull("o/r:Q4_K_M", env=env).returncode, 0)
        self.assertEqual(self.pull("o/r:IQ2_XXS").returncode, 1)  # that file is for its own hub
        r = self.pull("o/r:IQ2_XXS", env={"HF_HUB_OFFLINE": "1"})
        self.assertIn("$HF_HUB_OFFLINE", r.stderr)
        cache = self.dir / "hf/hub/models--u--n"
        (cache / "blobs").mkdir(parents=True)
        (cache / "refs").mkdir()
        (cache / "refs/main").write_text("c0ffee")
        (cache / "snapshots/c0ffee").mkdir(parents=True)
        (cache / "blobs" / hashlib.sha256(MODEL).hexdigest()).write_bytes(MODEL)
        (cache / "snapshots/c0ffee/n-Q8_0.gguf").symlink_to("../../blobs/" + hashlib.sha256(MODEL).hexdigest())
        (cache / "snapshots/c0ffee/n-Q4_K_M.gguf").symlink_to("../../blobs/none")  # was not fetched
        for more in ["--offline"], []:
            r = self.pull("u/n:q8_0", *more, loud=True, env=env)
            self.assertEqual(r.stdout, f"{cache}/snapshots/c0ffee/n-Q8_0.gguf\n", r.stderr)
            self.assertIn("cache of Hugging Face's tools", r.stderr)
        self.assertEqual(self.pull("u/n:Q4_K_M", "--offline", env=env).returncode, 1)
        (cache / "blobs/d").write_bytes((ROOT / "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf").read_bytes())
        (cache / "snapshots/c0ffee/mtp-n.gguf").symlink_to("../../blobs/d")
        r = self.ingle("inspect", "--plan", "--json", "-m", "hf:u/n:q8_0", "--draft", "auto", env=env)  # it lies beside the link
        self.assertGreater(json.loads(r.stdout)["items"]["drafter"], 0)
        r = self.pull("u/n:Q8_0", "--offline", env={**env, "HF_HOME": "/nonexistent", "HF_HUB_CACHE": str(self.dir / "hf/hub")})
        self.assertEqual(r.returncode, 0, r.stderr)

    def test_plan_by_header(self):
        self.hub.files["big-Q2_K.gguf"] = MODEL + b"\0" * 1500000  # a plan does not read what is behind
        r = self.ingle("inspect", "--plan", "--json", "-m", "hf:o/r:Q4_K_M", loud=True)
        self.assertTrue(json.loads(r.stdout)["fits"], r.stderr)
        self.assertIn("headers", r.stderr)
        self.assertFalse([p for p in self.dir.rglob("*") if p.is_file()])
        self.assertTrue(all(r for p, _, r in self.hub.log if "resolve" in p))
        self.assertEqual(self.ingle("serve", "--plan", "-m", "hf:o/r:Q4_K_M").returncode, 0)
        self.assertEqual(self.pull("o/r:Q4_K_M").returncode, 0)
        whole = self.ingle("inspect", "--plan", "--json", "-m", "hf:o/r:Q4_K_M")
        self.assertEqual(json.loads(whole.stdout)["items"], json.loads(r.stdout)["items"])

    def ask_router(self, *options):
        presets = self.dir / "presets.ini"
        presets.write_text("[m]\nmodel = hf:o/r:Q4_K_M\nc = 512\nthreads = 1\n")
        p = subprocess.Popen([INGLE, "serve", "-q", "--models", str(presets), "--hub", self.hub.url, "--hub-dir", str(self.dir), "--port", "0",
                              *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            url = p.stdout.readline().split()[-1]
            body = json.dumps({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}).encode()
            with self.assertRaises(urllib.error.HTTPError) as e:
                urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"}))
            return json.loads(e.exception.read())["error"]["message"]
        finally:
            p.terminate()
            p.communicate()
            presets.unlink()

    def test_a_client_pulls(self):
        """POST /models/pull of a router, where it is allowed."""
        for options, status, word in ((["--page-pull", "--insecure-no-auth"], 1, "--insecure-no-auth"), ([], 0, "")):
            presets = self.dir / "presets.ini"
            presets.write_text(f"[m]\nmodel = {ROOT}/tests/data/nano/nano-gemma4-Q4_K_M.gguf\nthreads = 1\n")
            with subprocess.Popen([INGLE, "serve", "-q", "--models", str(presets), "--port", "0", *options], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) as p:
                if word:
                    self.assertIn(word, p.communicate()[1])
                    self.assertEqual(p.returncode, status)
                    continue
                url = p.stdout.readline().split()[-1]
                self.assertEqual(self.ask(f"{url}/models/pull", {"model": "o/r"})[0], 403)
                p.terminate()
        with subprocess.Popen([INGLE, "serve", "-q", "--models", str(presets), "--hub", self.hub.url, "--hub-dir", str(self.dir), "--port", "0",
                               "--page-pull", "-c", "512"], stdout=subprocess.PIPE, text=True) as p:
            try:
                url = p.stdout.readline().split()[-1]
                for name in "r", "https://h/o/r", "o/r\n", 5, "o/" + "r" * 200:
                    self.assertEqual(self.ask(f"{url}/models/pull", {"model": name})[0], 400, name)
                self.assertTrue(self.ask(f"{url}/props")[1]["page_pull"])
                for _ in range(2):  # it is there the second time
                    self.assertEqual(self.ask(f"{url}/models/pull", {"model": "hf:o/r:Q4_K_M"}), (200, {"success": True}))
                chat = {"model": "o/r:Q4_K_M", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
                self.assertEqual(self.ask(f"{url}/v1/chat/completions", chat)[0], 200)
                self.assertEqual([m["id"] for m in self.ask(f"{url}/v1/models?reload=1")[1]["data"]], ["m", "o/r:Q4_K_M"])
                self.assertEqual(self.ask(f"{url}/models/pull", {"model": "o/none"})[0], 200)
                status, body = self.ask(f"{url}/v1/chat/completions", dict(chat, model="o/none"))
                self.assertIn(status, (500, 503))
                self.assertIn("404", body["error"]["message"])
            finally:
                p.terminate()

    def ask(self, url, body=None):
        rq = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(rq) as r:
                return r.status, json.loads(r.read())
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read())

    def test_what_cannot_fit_is_not_fetched(self):
        say = "-n", "2", "--temp", "0", "-p", "Hello"
        r = self.ingle("run", "-m", "hf:o/r:Q4_K_M", "--memory", "2M", *say)
        self.assertEqual((r.returncode, r.stdout), (1, ""), r.stderr)
        for words in "'hf:o/r:Q4_K_M' is not fetched: it needs ", " and there are 2.00 MiB", "--force fetches it":
            self.assertIn(words, r.stderr)
        self.assertFalse([p for p in self.dir.rglob("*") if p.is_file()])
        self.assertIn("is not fetched: it needs", self.ask_router("--memory", "2M"))
        self.assertFalse([p for p in self.dir.rglob("*.gguf")])
        r = self.ingle("run", "-m", "hf:o/r:Q4_K_M", *say)
        self.assertEqual(r.returncode, 0, r.stderr)
        os.remove(self.dir / "o/r/a-Q4_K_M.gguf")
        r = self.ingle("run", "-m", "hf:o/r:Q4_K_M", "--memory", "2M", "--force", *say)
        self.assertTrue((self.dir / "o/r/a-Q4_K_M.gguf").is_file(), r.stderr)

    def test_codes_within_a_name(self):
        self.hub.files = {"g-Q4_0-it.gguf": b"4", "g-Q4_0-pt.gguf": b"5"}
        self.assertIn("2 files of the repository fit Q4_0", self.pull("o/r:Q4_0").stderr)
        self.hub.files = {"g-4-E4B_q4_0-it.gguf": b"4", "g-4-E4B_q8_0-it.gguf": b"8", "g-4-E4B-it-Q6_K.gguf": b"6"}
        for code, content in ("Q4_0", b"4"), ("q8_0", b"8"), ("Q6_K", b"6"):
            self.assertEqual(self.bytes_of(f"o/r:{code}"), content)

    def test_json(self):
        listed = json.loads(self.pull("o/r", "--list", "--json").stdout)["files"]
        self.assertEqual({f["path"]: f["bytes"] for f in listed}, {k: len(v) for k, v in self.FILES.items()})
        self.assertEqual(json.loads(self.ingle("pull", "--have", "--json").stdout), {"folder": str(self.dir), "models": [], "bytes": 0})
        path = json.loads(self.pull("o/r:Q4_K_M", "--json").stdout)["path"]
        self.assertEqual(path, f"{self.dir}/o/r/a-Q4_K_M.gguf")
        have = json.loads(self.ingle("pull", "--have", "--json").stdout)
        self.assertEqual(have["bytes"], len(MODEL))
        self.assertEqual(have["models"], [{"name": "o/r:a-Q4_K_M.gguf", "kind": "model", "bytes": len(MODEL), "revision": "main",
                                           "hub": self.hub.url, "folder": have["models"][0]["folder"]}])
        self.assertEqual(self.pull("o/r:Q4_K_M", "--delete", "--json").returncode, 2)

    def test_have_and_delete(self):
        outside = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        (outside / "x-Q8_0.gguf").write_bytes(b"mine")
        self.hub.files["mtp-a-Q8_0.gguf"] = b"d"
        for name in "o/r:Q4_K_M", "o/r:IQ2_XXS", "o/r:mtp-a-Q8_0.gguf":
            self.assertEqual(self.pull(name).returncode, 0)
        (self.dir / "o/link").symlink_to(outside)
        have = self.ingle("pull", "--have").stdout
        for words in ("1.62 MB  model       o/r:a-Q4_K_M.gguf", "70.0 kB  model       o/r:split/b-IQ2_XXS-00001-of-00002.gguf", "drafter     o/r:mtp-a-Q8_0.gguf"):
            self.assertIn(words, have)
        self.assertEqual(self.pull("o/r", "--delete").returncode, 1)  # which one?
        with (self.dir / "o/r/a-Q4_K_M.gguf").open("rb"):
            self.assertIn("is used by", self.pull("o/r:q4_k_m", "--delete").stderr)
        self.assertIn("outside", self.pull("o/link", "--delete").stderr)
        for name in "../r", "o/r:../../outside/x-Q8_0.gguf", "o/none":
            self.assertEqual(self.pull(name, "--delete").returncode, 1)
        for name in "o/r:q4_k_m", "o/r:IQ2_XXS", "o/r:mtp-a-Q8_0.gguf":
            r = self.pull(name, "--delete")
            self.assertEqual(r.returncode, 0, r.stderr)
        self.assertFalse((self.dir / "o/r").exists())
        self.assertTrue((outside / "x-Q8_0.gguf").is_file())
        self.assertEqual(self.pull("o/r:Q4_K_M", "--offline").returncode, 1)

    def test_serve_while_fetching(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        for number, status in (signal.SIGTERM, 0), (signal.SIGINT, 130), (None, 0):
            self.hub.faults["slow"] = 0 if number is None else 30
            p = subprocess.Popen([INGLE, "serve", "-q", "-m", "hf:o/r:Q4_K_M", "--hub", self.hub.url, "--hub-dir", str(self.dir), "--port", str(port),
                                  "--hub-connections", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                p.stdout.readline()
                if number is None:  # it goes on to the end
                    self.assertIn("listens", p.stdout.readline())
                    models = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"))
                    self.assertEqual(models["data"][0]["id"], "a-Q4_K_M")
                else:
                    with self.assertRaises(urllib.error.HTTPError) as e:
                        urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
                    self.assertEqual(e.exception.code, 503)
                    self.assertIn("Loading model", e.exception.read().decode())
                p.send_signal(number or signal.SIGTERM)
                self.assertEqual(p.wait(300), status)
            finally:
                p.kill()
                p.communicate()
        self.assertFalse(list(self.dir.rglob("*.part")))

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
