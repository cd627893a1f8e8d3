#!/usr/bin/env python3
"""proxies.py INGLE - the files of share/deploy as they are, but for ports: two replicas behind nginx and HAProxy,
where these are installed; the options that the Kubernetes file names; and what docs/use/server-deploy.md says to nginx and Caddy."""
import contextlib, http.client, json, os, re, shutil, socket, subprocess, sys, tempfile, unittest

from client import TIMEOUT, Server, main
from wait import LASTS, STAYS, attempts, busy, until

INGLE = sys.argv[1]
CHAT = "/v1/chat/completions"
HEADERS = ("X-Conversation-Id", "X-Claude-Code-Session-Id", "session-id")  # the last: Codex's


def free_ports(n):
    with contextlib.ExitStack() as s:
        return [s.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(n)]


def ask(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


class Proxy:
    """Two replicas and a proxy in front of them."""

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.port, *ports = free_ports(3)
        self.replicas = [self.stack.enter_context(Server(INGLE, "--port", str(p), "--allowed-host", "models.example", *STAYS))
                         for p in ports]
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        with open("share/deploy/" + self.file) as f:
            text = f.read()
        for was, now in zip(("8080", "8081", "8082"), (self.port, *ports)):
            text = re.sub(rf"(listen |:){was}\b", rf"\g<1>{now}", text)
        path = os.path.join(folder, self.file)
        with open(path, "w") as f:
            f.write(text)
        check = subprocess.run(self.command(path, True), capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(check.returncode, 0, check.stderr)
        p = subprocess.Popen(self.command(path, False), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.stack.callback(p.wait)
        self.stack.callback(p.terminate)
        until(lambda: self.request("GET", "/health")[0] == 200)

    def open(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        c.request(method, path, None if body is None else json.dumps(body), headers or {})
        return c, c.getresponse()

    def request(self, *what):
        try:
            c, r = self.open(*what)
            out = r.status, r.read()
            c.close()
            return out
        except OSError:
            return 0, b""

    def asked(self, n):
        """How many answers each replica has given, as soon as there are n."""
        for _ in attempts(f"{n} answers"):
            each = [sum(int(x) for x in re.findall(r'^ingle_requests_total\{[^}]*\} (\d+)$', r.get("/metrics")[2], re.M))
                    for r in self.replicas]
            if sum(each) >= n:
                break
        return each

    def busy(self):
        return any(busy(r) for r in self.replicas)

    def test_streams(self):
        body = ask("Count from 1 to 20.", max_tokens=3000, ignore_eos=True)
        alone = self.replicas[0].post(CHAT, body)[2]["choices"][0]["message"]["content"]
        for _ in attempts("the first event comes before the answer is complete"):
            before = sum(self.asked(1))
            c, r = self.open("POST", CHAT, {**body, "stream": True})
            self.assertEqual(r.getheader("Content-Type"), "text/event-stream")
            first = r.readline()
            # It may be there before the first step, and this test may be stopped here for longer than an answer takes.
            until(lambda: self.busy() or sum(self.asked(1)) > before)
            early = sum(self.asked(1)) == before
            lines = [x[6:] for x in (first + r.read()).decode().split("\n") if x.startswith("data: ")]
            c.close()
            self.assertEqual(lines.pop(), "[DONE]")
            deltas = [x["choices"][0]["delta"] for x in map(json.loads, lines)]
            self.assertEqual("".join(d.get("content") or "" for d in deltas), alone)
            if early:
                break

    def test_who_leaves(self):
        c, r = self.open("POST", CHAT, ask("Hello", **LASTS))
        r.readline()
        c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
        until(lambda: not self.busy())
        self.assertEqual(sum(self.asked(1)), 1)
        metrics = "".join(x.get("/metrics")[2] for x in self.replicas)
        self.assertRegex(metrics, r'ingle_requests_total\{[^}]*cancelled[^}]*\} 1')

    def test_hosts_and_bodies(self):
        for host, status in (("models.example", 200), ("localhost", 200), ("other.example", 403)):
            self.assertEqual(self.request("GET", "/v1/models", None, {"Host": host})[0], status)
        status, r = self.request("POST", CHAT, ask("ab " * 3000000))
        self.assertEqual((status, json.loads(r)["error"]["code"]), (400, "context_length_exceeded"))

    def test_conversations_stay(self):
        where = {}
        for turn in range(2):
            for i in range(48):
                done = turn * 48 + i
                before = self.asked(done)
                self.assertEqual(self.request("POST", CHAT, ask("Hello", max_tokens=1), {HEADERS[i % 3]: f"talk-{i}"})[0], 200)
                went = [a - b for a, b in zip(self.asked(done + 1), before)]
                self.assertEqual(sorted(went), [0, 1])
                self.assertEqual(where.setdefault(i, went), went)
        for k in range(3):  # each header counts
            self.assertEqual({tuple(where[i]) for i in range(k, 48, 3)}, {(0, 1), (1, 0)}, HEADERS[k])
        self.replicas[0].process.kill()  # the other one has them all
        self.replicas[0].process.wait()
        for i in range(48):
            status, r = self.request("POST", CHAT, ask("Hello", max_tokens=1), {HEADERS[i % 3]: f"talk-{i}"})
            self.assertEqual(status, 200, r)


@unittest.skipUnless(shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"), "nginx is not installed")
class Nginx(Proxy, unittest.TestCase):
    file = "nginx.conf"

    def command(self, path, check):
        folder = os.path.dirname(path)
        own = f"pid {folder}/pid; daemon off;"  # nothing outside the folder
        return [shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"), "-e", "stderr", "-p", folder, "-c", path,
                "-g", own, *(["-t"] if check else [])]


@unittest.skipUnless(shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin"), "HAProxy is not installed")
class HAProxy(Proxy, unittest.TestCase):
    file = "haproxy.cfg"

    def command(self, path, check):
        return [shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin"), "-c" if check else "-db", "-f", path]


class Files(unittest.TestCase):
    def test_options_are_there(self):
        with open("share/deploy/k8s.yaml") as f:
            named = re.findall(r"- (--[a-z-]+)=(\S+)", f.read())
        self.assertGreater(len(named), 5)
        r = subprocess.run([INGLE, "serve", "--help-all"], capture_output=True, text=True, timeout=TIMEOUT)
        for option, _ in named:
            self.assertRegex(r.stdout, rf"{option}\b")


class Snippets(unittest.TestCase):
    """Of docs/use/server-deploy.md, with other ports, in front of a server that is started as it says."""

    def behind(self, text, *command):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            keys = os.path.join(folder, "keys")
            with open(keys, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write("secret\n")
            server = stack.enter_context(Server(INGLE, "--allowed-host", "models.example", "--api-key-file", keys))
            port = free_ports(1)[0]
            with open(os.path.join(folder, "file"), "w") as f:
                f.write(text.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}").replace("PORT", str(port)))
            p = subprocess.Popen(command, cwd=folder, env={**os.environ, "HOME": folder}, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
            stack.callback(p.wait)
            stack.callback(p.terminate)
            name = f"models.example:{port}"
            for _ in attempts("the page"):
                try:
                    c = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
                    c.request("GET", "/", None, {"Host": name})
                    r = c.getresponse()
                    self.assertIn(b"<title>ingle</title>", r.read())
                    break
                except ConnectionError:
                    pass
            for origin, status in ((name, 200), ("other.example", 403)):
                c.request("POST", CHAT, json.dumps(ask("Hello", stream=True, max_tokens=2000, ignore_eos=True)),
                          {"Host": name, "Authorization": "Bearer secret", "Origin": f"http://{origin}"})
                r = c.getresponse()
                self.assertEqual(r.status, status)
                if status == 200:
                    first = r.readline()
                    rest = r.read()
                    self.assertTrue(first.startswith(b"data: ") and rest.endswith(b"data: [DONE]\n\n"))
            c.close()

    def part(self, begin):
        with open("docs/use/server-deploy.md") as f:
            return re.search(rf"^    {begin} {{\n.*?^    }}\n", f.read(), re.M | re.S)[0]

    @unittest.skipUnless(shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"), "nginx is not installed")
    def test_nginx(self):
        paths = "".join(f"{m}_temp_path {m};" for m in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        self.behind("daemon off; pid pid; error_log stderr;\nevents {}\nhttp { access_log off; "
                    f"{paths} server {{ listen 127.0.0.1:PORT;\n{self.part('location /')}}} }}\n",
                    shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"), "-p", ".", "-c", "file")

    @unittest.skipUnless(shutil.which("caddy"), "Caddy is not installed")
    def test_caddy(self):
        self.behind("{\n admin off\n}\n" + self.part("models.example").replace(
            "models.example {", "http://models.example:PORT {"),
                    "caddy", "run", "--adapter", "caddyfile", "--config", "file")


if __name__ == "__main__":
    main()
