#!/usr/bin/env python3
"""media.py INGLE - pictures and sounds in every dialect, with a small model that sees and hears; what is refused, and that the server lives."""
import base64, concurrent.futures, http.server, json, os, pathlib, shutil, socket, ssl, struct, subprocess, sys, tempfile, threading, time, unittest, zlib

from client import SANITIZED, Case, Server, main
from wait import read_until, until

INGLE = sys.argv[1]
DATA = pathlib.Path("tests/data/vision")
SEES = ["-m", str(DATA / "vision_12b/model-BF16.gguf"), "--mmproj", str(DATA / "vision_12b/mmproj-BF16.gguf"), "-c", "4096", "--parallel", "2"]
CASES = json.loads((DATA / "requests.json").read_text())["cases"]
CHAT = "/v1/chat/completions"


def png(w, h, rows=None, kind=2, depth=8):
    chunk = lambda t, d: struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))
    data = zlib.compress(rows if rows is not None else b"".join(b"\0" + bytes((x * 7 + y) & 255 for x in range(3 * w)) for y in range(h)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, kind, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def wav(n, rate=16000, channels=1, bits=16, code=1, data=None):
    body = bytes((i * 37) & 255 for i in range(n * channels * bits // 8)) if data is None else data
    frame = channels * bits // 8
    return b"RIFF" + struct.pack("<I", 36 + len(body)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, code, channels, rate, rate * frame, frame, bits) \
        + b"data" + struct.pack("<I", len(body)) + body


def url(data, kind="image/png"):
    return f"data:{kind};base64," + base64.b64encode(data).decode()


def image(data, **more):
    return {"type": "image_url", "image_url": {"url": data if isinstance(data, str) else url(data), **more}}


def sound(data):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def text(t):
    return {"type": "text", "text": t}


class Media(Case):
    options = [*SEES, "--cache", "32M"]  # for the prompts of all tests

    def ask(self, parts, status=200, path=CHAT, **more):
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0, **more}
        got, _, r = self.server.post(path, body)
        self.assertEqual(got, status, r)
        return r

    def refused(self, part, *words, where="message 1, part 1"):
        r = self.ask([part], 400)["error"]
        for w in (where, *words):
            self.assertIn(w, r["message"])
        self.assertEqual(r["param"], "messages[0].content[0]", r)

    def usage(self, *parts, **more):
        return self.ask(list(parts), **more)["usage"]["prompt_tokens_details"]

    def test_requests(self):
        """The 48 requests: their status, what errors name, and that pictures and sounds count."""
        self.assertEqual(len(CASES), 48)
        for c in CASES:
            with self.subTest(c["name"]):
                body = {**c["body"]}
                if "messages" in body or c["path"] == "/completion":
                    body.setdefault("max_tokens", 1)
                if c["path"] == "/v1/responses":
                    body["max_output_tokens"] = 1
                if c["path"].startswith("/api/"):
                    body.update(stream=False, options={"num_predict": 1})
                status, _, r = self.server.post(c["path"], body)
                self.assertEqual(status, c["status"], r)
                if "error_names" in c:
                    self.assertIn(c["error_names"], json.dumps(r))
                elif c["path"] == CHAT:
                    n = sum(p.startswith("image:") for p in c["parts"])
                    details = r["usage"]["prompt_tokens_details"]
                    self.assertEqual("image_tokens" in details, n > 0, r["usage"])
                    self.assertEqual("audio_tokens" in details, any(p.startswith("sound:") for p in c["parts"]), r["usage"])

    def test_budgets(self):
        """A picture of 640 x 480 in blocks, with its markers."""
        picture = image(png(640, 480))
        want = {"low": 9 * 7 + 2, "high": 27 * 20 + 2, "original": 38 * 28 + 2}
        for detail, n in want.items():
            self.assertEqual(self.usage(image(png(640, 480), detail=detail))["image_tokens"], n, detail)
        self.assertEqual(self.usage(picture, image_tokens=70)["image_tokens"], want["low"])
        r = self.ask([picture], 400, image_tokens=71)["error"]
        self.assertEqual(r["param"], "image_tokens")

    def test_the_same_picture_is_known(self):
        """As PNG with other filters, under another name, in another turn: nothing is computed again; another pixel is another picture."""
        rows = bytearray(b"".join(b"\0" + bytes((x * 5 + y) & 255 for x in range(3 * 60)) for y in range(60)))
        first = self.ask([image(png(60, 60, bytes(rows))), text("what is it?")])["usage"]["prompt_tokens_details"]
        again = self.ask([image(url(png(60, 60, bytes(rows)), "image/jpeg")), text("what is it?")])
        known = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreaterEqual(known, first["image_tokens"], again["usage"])
        self.assertEqual(again["timings"]["media"]["encoded"], 0, again["timings"])
        rows[100] ^= 1
        other = self.ask([image(png(60, 60, bytes(rows))), text("what is it?")])["usage"]["prompt_tokens_details"]
        self.assertLess(other["cached_tokens"], first["image_tokens"])

    def test_echo(self):
        """Soft tokens of an echoed prompt have no probability; the others but the first have one."""
        n, _, r = self.server.post("/v1/completions", {"prompt": {"prompt_string": "Look: <__media__> what?", "multimodal_data": [base64.b64encode(png(9, 9)).decode()]},
                                                       "max_tokens": 1, "echo": True, "logprobs": 1})
        self.assertEqual(n, 200, r)
        lp = r["choices"][0]["logprobs"]
        soft = [i for i, t in enumerate(lp["tokens"]) if t == "<|image|>"]
        self.assertGreater(len(soft), 60)
        for key in "token_logprobs", "top_logprobs":
            self.assertEqual([i for i, x in enumerate(lp[key]) if x is None], [0, *soft])

    def test_every_role(self):
        """Pictures of the system, of the assistant and in an answer that goes on are shown."""
        data = base64.b64encode(png(30, 20)).decode()
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        item = {"type": "input_image", "image_url": url(png(30, 20)), "detail": "low"}
        user, small = {"role": "user", "content": "u"}, image(png(30, 20), detail="low")
        says = lambda *parts, role="assistant": {"role": role, "content": list(parts)}
        for path, want, body in (
                (CHAT, 1, {"messages": [says(text("a"), small, role="system"), user]}),
                (CHAT, 1, {"messages": [says(small, role="developer"), user]}),
                (CHAT, 2, {"messages": [user, says(small, role="system"), user, says(small, text("b")), user]}),
                (CHAT, 2, {"messages": [user, says(small), user, says(text("it is"), small, text("and"))]}),
                ("/v1/messages", 2, {"system": [{"type": "text", "text": "s"}, block], "messages": [user, says(block), user]}),
                ("/v1/messages", 2, {"messages": [user, says(block, role="system"), user, says({"type": "text", "text": "k"}, block)]}),
                ("/v1/responses", 3, {"instructions": [item], "input": [says(item, role="developer"), user, says(item), user]}),
                ("/api/chat", 2, {"messages": [{"role": "system", "content": "s", "images": [data]}, user,
                                               {"role": "assistant", "content": "a", "images": [data]}, user]})):
            with self.subTest(path=path, body=body):
                body.update({"max_output_tokens": 1} if "input" in body else {"max_tokens": 1, "image_tokens": 70})
                body.update({"stream": False, "options": {"num_predict": 1}} if path == "/api/chat" else {})
                status, _, r = self.server.post(path, body)
                self.assertEqual(status, 200, r)
                if path != "/api/chat":
                    self.assertIn(f'"image_tokens": {want * (10 * 6 + 2)}', json.dumps(r["usage"]))
        for path, where, body in ((CHAT, "message 2, part 2", {"messages": [user, says(text("a"), image("data:,z"))]}),
                                  ("/v1/messages", "system, block 1", {"system": [{"type": "image", "source": {"data": "AAAA"}}], "messages": [user], "max_tokens": 1}),
                                  ("/v1/responses", "instructions, part 1", {"instructions": [{"type": "input_image", "image_url": "data:,z"}], "input": "x"})):
            status, _, r = self.server.post(path, body)
            self.assertEqual(status, 400, r)
            self.assertIn(where, r["error"]["message"])

    def test_models(self):
        self.assertEqual(self.server.get("/v1/models")[2]["data"][0]["architecture"]["input_modalities"], ["text", "image", "audio"])
        self.assertEqual(self.server.get("/props")[2]["modalities"], {"vision": True, "audio": True})
        self.assertTrue({"vision", "audio"} <= set(self.server.post("/api/show", {"model": "x"})[2]["capabilities"]))
        n = self.server.post(CHAT + "/input_tokens", {"messages": [{"role": "user", "content": [image(png(9, 9))]}]})[2]["input_tokens"]
        self.assertGreater(n, 60)

    def test_bad_pictures(self):
        good = png(8, 8)
        webp = base64.b64decode(next(c for c in CASES if "webp" in c["name"])["body"]["messages"][0]["content"][0]["image_url"]["url"].partition(",")[2])
        animated = b"RIFF" + struct.pack("<I", 4 + 18 + len(webp) - 12) + b"WEBPVP8X" + struct.pack("<II", 10, 2) + b"\6\0\0\4\0\0" + webp[12:]
        for data, words in ((good[:40], ("PNG", "cut short")), (good[:-20], ("PNG", "cut short")), (b"", ("empty",)),
                            (png(20001, 1, b""), ("20001 x 1", "20000")), (png(1, 20001, b""), ("1 x 20001", "20000")),
                            (png(8000, 8001, b""), ("8000 x 8001", "64 megapixels")), (png(20000, 20000, bytes(300)), ("20000 x 20000", "64 megapixels")),
                            (png(5, 5, b""), ("PNG",)), (animated, ("WebP", "animation")), (b"%PDF-1.4", ("format", "PDF")),
                            (b"<svg xmlns='x'/>", ("format", "SVG")), (b"\0\0\0\x18ftypheic", ("format", "HEIC")), (b"PK\3\4" + bytes(30), ("format", "ZIP")),
                            (b"\xff\xd8\xff\xe0\0\x10JFIF", ("JPEG",)), (b"GIF89a\1\0\1\0\0\0\0", ("GIF",)), (wav(1000), ("",))):
            with self.subTest(words):
                self.refused(image(data), *words)
        for ok in (png(1, 1), png(1, 20000), png(300, 1)):
            self.ask([image(url(ok, "image/jpeg"), detail="low")])

    def test_bad_sounds(self):
        for data, words in ((wav(0), ("WAV", "empty")), (wav(1), ("1 samples", "161")), (wav(160), ("160 samples", "161")),
                            (wav(31 * 8000, 8000, bits=8), ("31.00 seconds", "30")), (wav(200)[:100], ("WAV", "cut short")),
                            (wav(200)[:40] + b"\xff\xff\xff\xff" + wav(200)[44:], ("WAV", "4294967295")), (wav(200, code=7), ("format 7",)),
                            (b"ID3\4" + bytes(40), ("format", "MP3")), (png(3, 3), ("",))):
            with self.subTest(words):
                self.refused(sound(data), *words)
        for ok in (wav(161), wav(3000, bits=8), wav(3000, bits=24), wav(9000, 96000), wav(3000, channels=6), wav(4410, 44100)):
            self.assertGreater(self.usage(sound(ok))["audio_tokens"], 2)

    def test_bad_addresses(self):
        for address, word in (("http://127.0.0.1/x", "--media-urls"), ("http://[::ffff:10.0.0.1]/x", "--media-urls"), ("https://example.org/x", "--media-urls"),
                              ("file:///etc/passwd", "file:"), ("/etc/passwd", "image_url"), ("data:image/png;base64", "data:"), ("data:image/png;base64,%%", "base64"),
                              ("data:image/png;base64,A", "base64"), ("data:image/png;base64,", "empty")):
            with self.subTest(address):
                self.refused(image(address), word)

    def test_forms(self):
        """One picture in every form of an address with data."""
        data = png(9, 9)
        plain = base64.b64encode(data).decode()
        coded = "".join(c if c.isalnum() else "%%%02X" % ord(c) for c in plain)
        want = self.usage(image(data), text("x"))["image_tokens"]
        for form in (f"data:image/png;charset=utf-8;base64,{plain}", f"data:image/png; base64,{plain}", f"DATA:;BASE64 ,{plain}", f" \n data:;base64,{plain}\n",
                     f"data:image/jpeg;base64,{coded}", "data:image/png," + "".join("%%%02x" % b for b in data), f"data:;base64,{plain.rstrip('=')}",
                     "data:;base64," + "\r\n ".join(plain[i:i + 50] for i in range(0, len(plain), 50)), "data:;base64," + base64.urlsafe_b64encode(data).decode()):
            with self.subTest(form[:40]):
                details = self.usage(image(form), text("x"))
                self.assertEqual(details["image_tokens"], want)
                self.assertGreaterEqual(details["cached_tokens"], want)

    def test_too_much(self):
        r = self.ask([image(png(2, 2))] * 17, 400)["error"]
        self.assertIn("16", r["message"])
        r = self.ask([image(png(640, 480), detail="original")] * 4, 400)["error"]
        self.assertIn("of 4 pictures and sounds", r["message"])
        self.assertIn("4096", r["message"])
        self.ask([text("still here")])

    def test_progress(self):
        body = {"messages": [{"role": "user", "content": [image(png(641, 480), detail="original"), image(png(600, 481)), text("x")]}], "max_tokens": 1}
        told = [e[1]["prompt_progress"] for e in self.server.stream(CHAT, {**body, "return_progress": True}) if e[1] != "[DONE]" and "prompt_progress" in e[1]]
        self.assertEqual(told[-1]["media"], 2)
        self.assertEqual([p["processed"] for p in told], sorted(p["processed"] for p in told))
        encoded = [p["media_encoded"] for p in told if "media" in p]
        self.assertEqual(encoded, sorted(encoded))

    def test_second_turn(self):
        """The picture of the first turn is neither decoded into another prefix nor encoded again."""
        turns = [{"role": "user", "content": [image(png(50, 40)), text("a")]}]
        body = {"messages": turns, "max_tokens": 3, "temperature": 0}
        first = self.server.post(CHAT, body)[2]
        turns += [{"role": "assistant", "content": first["choices"][0]["message"]["content"] or "x"}, {"role": "user", "content": "b"}]
        second = self.server.post(CHAT, body)[2]
        self.assertGreaterEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], second["usage"]["prompt_tokens_details"]["image_tokens"], second["usage"])
        self.assertEqual(second["timings"]["media"]["encoded"], 0)


class Encoding(Case):
    """What happens while pictures are encoded, which takes a while: 1,120 tokens each."""
    options = ["-c", "8192", "--parallel", "2", "--limit", "retry-grace=0"]
    seen = 0

    def body(self, n, detail="high" if SANITIZED else "original", **more):
        """Pictures that nobody has shown yet."""
        Encoding.seen += n
        pictures = [image(png(200 + Encoding.seen + i, 200), detail=detail) for i in range(n)]
        return {"messages": [{"role": "user", "content": [*pictures, text("x")]}], "max_tokens": 1, **more}

    def count(self, name):
        lines = [x for x in self.server.get("/metrics")[2].splitlines() if x.startswith(name + " ")]
        return float(lines[0].split()[1])

    def ends(self, before, n):
        """Nothing runs any more, and not all of n pictures were encoded."""
        until(lambda: self.count("llamacpp:requests_processing") == 0)
        self.assertLess(self.count("ingle_media_encoded_total") - before, n)
        status, _, r = self.server.post(CHAT, self.body(1, "low"))
        self.assertEqual((status, r["timings"]["media"]["encoded"]), (200, 1), r)

    def test_a_client_leaves(self):
        for stream in (True, False)[SANITIZED:]:
            before = self.count("ingle_media_encoded_total")
            s = self.server.begin(CHAT, self.body(7, stream=stream, return_progress=stream))
            if stream:
                read_until(s, b'"media"')
            else:
                until(lambda: self.count("llamacpp:requests_processing") or self.count("ingle_media_encoded_total") - before == 7)
            s.close()
            self.ends(before, 7)

    def test_its_time_is_up(self):
        before = self.count("ingle_media_encoded_total")
        status, _, r = self.server.post(CHAT, self.body(7, deadline_seconds=0.05))
        self.assertEqual((status, r["error"]["code"]), (504, "deadline_exceeded"), r)
        self.ends(before, 7)

    def test_others_go_on(self):
        # each token has text, and hardly any ends it
        s = self.server.begin("/completion", {"prompt": "Once", "stream": True, "grammar": "root ::= [a-z ]+ [A]", "n_predict": 7000, "ignore_eos": True})
        read_until(s, b"content")
        got, over = [b""], threading.Event()

        def read():
            while not over.is_set():
                got[0] += s.recv(65536)
        t = threading.Thread(target=read)
        t.start()
        status, _, r = self.server.post(CHAT, self.body(2, "high"))
        over.set()
        t.join()
        s.close()
        self.assertEqual((status, r["timings"]["media"]["encoded"]), (200, 2), r)
        self.assertGreater(got[0].count(b"data: "), 9)


class Blind(Case):
    """A model that reads text only."""
    options = ["-c", "1024", "--mmproj", "off"]

    def test_refused(self):
        for part, word in ((image(png(2, 2)), "image_url"), (sound(wav(200)), "input_audio")):
            status, _, r = self.server.post(CHAT, {"messages": [{"role": "user", "content": [part]}]})
            self.assertEqual(status, 400, r)
            self.assertIn(word, r["error"]["message"])
            self.assertIn("reads only text", r["error"]["message"])
        self.assertEqual(self.server.get("/props")[2]["modalities"], {"vision": False, "audio": False})


class Deaf(Case):
    """31B sees and does not hear."""
    options = ["-m", str(DATA / "vision_31b/model-BF16.gguf"), "--mmproj", str(DATA / "vision_31b/mmproj-BF16.gguf"), "-c", "1024", "--image-tokens", "70"]

    def test_sound(self):
        status, _, r = self.server.post(CHAT, {"messages": [{"role": "user", "content": [sound(wav(2000))]}]})
        self.assertEqual(status, 400, r)
        self.assertIn("text and pictures, no sound", r["error"]["message"])
        status, _, r = self.server.post(CHAT, {"messages": [{"role": "user", "content": [image(png(9, 9))]}], "max_tokens": 1})
        self.assertEqual((status, r["usage"]["prompt_tokens_details"]["image_tokens"]), (200, 66), r)
        self.assertEqual(self.server.get("/v1/models")[2]["data"][0]["architecture"]["input_modalities"], ["text", "image"])


class Addresses(unittest.TestCase):
    def test_hosts(self):
        with self.assertRaisesRegex(RuntimeError, "media-urls"):
            Server(INGLE, "--media-urls", "https://a.org")
        with Server(INGLE, *SEES, "--media-urls", "localhost,127.0.0.1,a.invalid") as s:
            for address, word in (("https://localhost/x", "not of the open internet"), ("https://127.0.0.1/x", "not of the open internet"),
                                  ("http://localhost/x", "only https:"), ("https://b.org/x", "not among"), ("https://a.invalid/x", "no address"),
                                  ("https://u@localhost/x", "user name"), ("file:///etc/passwd", "file:")):
                status, _, r = s.post(CHAT, {"messages": [{"role": "user", "content": [image(address)]}]})
                self.assertEqual(status, 400, r)
                self.assertIn(word, r["error"]["message"])
                self.assertIn("message 1, part 1", r["error"]["message"])


def has_namespaces():
    return all(map(shutil.which, ("unshare", "ip", "mount", "openssl"))) and os.path.exists("/etc/ssl/certs/ca-certificates.crt") and \
        subprocess.run(["unshare", "-rmn", "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0


class Fetches(unittest.TestCase):
    @unittest.skipUnless(has_namespaces(), "namespaces of network and files are needed")
    def test_in_a_network_of_its_own(self):
        """Addresses of the open internet that are this machine's, in a namespace: class Inside."""
        r = subprocess.run(["unshare", "-rmn", sys.executable, __file__, INGLE, "Inside"], env={**os.environ, "MEDIA_INSIDE": "1"},
                           capture_output=True, text=True, timeout=300)
        self.assertEqual(r.returncode, 0, r.stderr[-3000:])
        self.assertNotIn("skipped", r.stderr)


class Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen, now, most, lock, four = [], 0, 0, threading.Lock(), threading.Barrier(4)
    good = png(9, 9)

    def log_message(self, *_):
        pass

    def give(self, body, status=200, **headers):
        self.send_response(status)
        for k, v in {"Content-Length": str(len(body)), "Content-Type": "text/html", **headers}.items():
            self.send_header(k.replace("_", "-"), v)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass  # the client has had enough

    def do_GET(self):
        Files.seen.append((self.headers["Host"], self.path, dict(self.headers)))
        name = self.path.split("?")[0]
        if name == "/wait":
            with Files.lock:
                Files.now += 1
                Files.most = max(Files.most, Files.now)
            try:
                Files.four.wait(8)
            except threading.BrokenBarrierError:
                pass
            with Files.lock:
                Files.now -= 1
        if name == "/slow":
            time.sleep(12)
        elif name == "/redirect":
            self.give(b"", 302, Location="https://files.example.org/a", Set_Cookie="a=b")
        elif name == "/gone":
            self.give(b"SECRET of the reply", 404)
        elif name == "/large":
            self.give(b"", Content_Length=str((20 << 20) + 1))
            self.close_connection = True
        elif name == "/endless":  # it does not say how much there is
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            try:
                for _ in range(25):
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                pass
        elif name == "/cut":
            self.give(Files.good[:30], Content_Length=str(len(Files.good)))
            self.close_connection = True
        elif name == "/text":
            self.give(b"SECRET of the reply", Content_Type="image/png")
        else:
            self.give(Files.good, Set_Cookie="a=b")


@unittest.skipUnless(os.environ.get("MEDIA_INSIDE"), "run by class Fetches")
class Inside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(tempfile.TemporaryDirectory())
        do = lambda *args: subprocess.run(args, check=True, capture_output=True)
        key, cert, hosts = (f"{cls.stack}/{n}" for n in ("key", "cert", "hosts"))
        do("ip", "link", "set", "lo", "up")
        do("ip", "address", "add", "93.184.216.34/32", "dev", "lo")
        names = ("files.example.org", "in.example.com", "both.example.com", "other.org")
        do("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=x",
           "-addext", "subjectAltName=" + ",".join("DNS:" + n for n in names[:3]))
        pathlib.Path(hosts).write_text("".join(f"93.184.216.34 {n}\n" for n in (*names, "wrong.example.com")) + "10.0.0.1 both.example.com\n127.0.0.1 localhost\n")
        do("mount", "--bind", hosts, "/etc/hosts")
        cls.silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # a name server that does not answer
        cls.silent.bind(("127.0.0.1", 53))
        pathlib.Path(f"{cls.stack}/resolv").write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:1\n")
        do("mount", "--bind", f"{cls.stack}/resolv", "/etc/resolv.conf")
        do("mount", "--bind", cert, "/etc/ssl/certs/ca-certificates.crt")
        httpd = http.server.ThreadingHTTPServer(("93.184.216.34", 443), Files)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        os.environ.update(https_proxy="http://127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9", ALL_PROXY="http://127.0.0.1:9")
        cls.server = cls.enterClassContext(Server(INGLE, *SEES, "--image-tokens", "70", "--media-urls", "files.example.org,*.example.com", "--parallel", "8"))

    def ask(self, address, status):
        got, _, r = self.server.post(CHAT, {"messages": [{"role": "user", "content": [image(address)]}], "max_tokens": 1})
        self.assertEqual(got, status, (address, r))
        return r

    def test_fetched(self):
        r = self.ask("https://files.example.org/a?b=c", 200)
        self.assertEqual(r["usage"]["prompt_tokens_details"]["image_tokens"], self.ask(url(Files.good), 200)["usage"]["prompt_tokens_details"]["image_tokens"])
        self.ask("HTTPS://FILES.example.org:443/a#part", 200)
        self.ask("https://in.example.com/a", 200)
        for _, _, headers in Files.seen:
            self.assertEqual(headers["User-Agent"], "ingle")
            self.assertFalse({"Cookie", "Authorization", "Referer"} & set(headers), headers)

    def test_refused(self):
        for address, word in (("https://files.example.org/redirect", "redirects"), ("https://files.example.org/gone", "does not have it"),
                              ("https://files.example.org/large", "20 MiB"), ("https://files.example.org/endless", "20 MiB"),
                              ("https://files.example.org/cut", "not fetched"), ("https://files.example.org/text", "format"),
                              ("https://files.example.org:444/a", "not fetched"), ("https://wrong.example.com/a", "not fetched"),
                              ("https://both.example.com/a", "open internet"), ("https://other.org/a", "not among"), ("https://example.com/a", "not among"),
                              ("https://93.184.216.34/a", "not among"), ("https://files.example.org.other.org/a", "not among"),
                              ("https://files.example.org@other.org/a", "user name"), ("http://files.example.org/a", "only https:")):
            n = len(Files.seen)
            message = self.ask(address, 400)["error"]["message"]
            self.assertIn("message 1, part 1", message)
            self.assertIn(word, message)
            self.assertNotIn("SECRET", message)
            self.assertLessEqual(len(Files.seen), n + 1, "redirects are not followed")
        self.ask("https://files.example.org/a", 200)

    def test_four_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for f in [pool.submit(self.ask, f"https://files.example.org/wait?{i}", 200) for i in range(8)]:
                f.result()
        self.assertEqual(Files.most, 4)

    def test_time(self):
        def late(address):
            began = time.monotonic()
            self.assertIn("10 s", self.ask(address, 400)["error"]["message"])
            return time.monotonic() - began

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for took in pool.map(late, ("https://files.example.org/slow", "https://lost.example.com/a")):
                self.assertGreaterEqual(took, 9.9)
                self.assertLess(took, 200)


def lacks_libraries():
    """A build without libjpeg-turbo, libpng or libwebp."""
    with tempfile.TemporaryDirectory() as d:
        for case, name in (("data url", "PNG"), ("lossless webp is the same picture", "WebP")):
            part = next(c for c in CASES if c["name"] == case)["body"]["messages"][0]["content"]
            data = next(p["image_url"]["url"] for p in part if p["type"] == "image_url").partition(",")[2]
            pathlib.Path(d, "a").write_bytes(base64.b64decode(data))
            r = subprocess.run([INGLE, "run", *SEES[:4], "-n", "1", "--image", f"{d}/a", "x"], capture_output=True, text=True, errors="replace")
            if "this build reads no such files" in r.stderr:
                return r.stderr
    return ""


if __name__ == "__main__":
    if why := lacks_libraries():
        sys.exit(print("skipped:", why))
    main()
