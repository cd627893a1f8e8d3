"""rolling.py - what the tests of a fleet share: two replicas, a router in front of them, clients that never stop, and
replicas that are replaced one after the other.  A test names the router's command."""
import contextlib, http.client, json, os, pathlib, re, shutil, socket, subprocess, sys, tempfile, threading, time, unittest

from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from client import TIMEOUT, Server

ROOT = pathlib.Path(__file__).resolve().parents[3]
INGLE = os.path.abspath(sys.argv[1])
DEBIAN = ROOT / "out/clients/debian"  # packages of the distribution, unpacked (scripts/test_all.py)
CHAT = "/v1/chat/completions"
NAMES = ("one", "two")


def program(name):
    """A program of the distribution; without it this script counts as skipped."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:{DEBIAN}/usr/sbin")
    if not found:
        print(f"{name} is not installed")
        sys.exit(77)
    return found


def free_ports(n):
    with contextlib.ExitStack() as s:
        return [s.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(n)]


def deployed(name, ports, folder):
    """A file of share/deploy with other ports."""
    text = (ROOT / "share/deploy" / name).read_text()
    for was, now in zip(("8080", "8081", "8082"), ports):
        text = re.sub(rf"(listen |:){was}\b", rf"\g<1>{now}", text)
    path = pathlib.Path(folder, name)
    path.write_text(text)
    return str(path)


class Fleet(unittest.TestCase):
    settle = 3  # seconds until the router knows that a replica is back

    def command(self, port, urls, folder):
        raise NotImplementedError

    def options(self, i):
        return []

    def replica(self, i):
        return Server(INGLE, "--port", str(self.ports[i]), "--replica", NAMES[i], "--alias", "model", "--temp", "0",
                      "--linger", "4", "--drain", "60", "--limit", "per-address=1024", *self.options(i))

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.port, *self.ports = free_ports(3)
        self.events = free_ports(2)
        self.replicas = [self.replica(i) for i in range(2)]
        self.stack.callback(lambda: [r.close() for r in self.replicas])
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        log = self.stack.enter_context(open(f"{folder}/log", "w+"))
        libraries = f"{DEBIAN}/usr/lib/x86_64-linux-gnu"
        p = subprocess.Popen(self.command(self.port, [r.url for r in self.replicas], folder), stdin=subprocess.DEVNULL,
                             stdout=log, stderr=log, cwd=folder, start_new_session=True,
                             env=dict(os.environ, LD_LIBRARY_PATH=libraries, NO_PROXY="*", **self.environment()))
        self.stack.callback(p.wait)
        self.stack.callback(p.terminate)
        end = time.monotonic() + TIMEOUT
        while self.ask("Hello")[0] != 200:
            self.assertIsNone(p.poll(), pathlib.Path(folder, "log").read_text()[-3000:])
            self.assertLess(time.monotonic(), end, pathlib.Path(folder, "log").read_text()[-3000:])
            time.sleep(0.2)

    def environment(self):
        return {}

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body), or (0, {}, why not)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            c.request(method, path, None if body is None else json.dumps(body),
                      {"Content-Type": "application/json", "Authorization": "Bearer sk-none", **(headers or {})})
            r = c.getresponse()
            return r.status, r.headers, r.read().decode()
        except (OSError, http.client.HTTPException) as e:
            return 0, {}, repr(e)
        finally:
            c.close()

    def ask(self, text, n=4, headers=None, **more):
        return self.request("POST", CHAT, {"model": "model", "messages": [{"role": "user", "content": text}],
                                           "max_tokens": n, **more}, headers)

    def loop(self, done, lost, stop, i):
        while not stop.is_set():
            status, _, text = self.ask(f"Client {i} says hello.", headers={"X-Conversation-Id": f"client-{i}"})
            done.append(i)
            if status != 200:
                lost.append((status, text[:300]))

    def stream(self, done, lost, stop, i):
        while not stop.is_set():
            status, _, text = self.ask("Count from 1 to 20.", 600, {"X-Conversation-Id": f"stream-{i}"}, stream=True,
                                       ignore_eos=True)
            lines = [x[6:] for x in text.split("\n") if x.startswith("data: ")]
            whole = status == 200 and lines and lines[-1].strip() == "[DONE]"
            said = ""
            if whole:
                choices = [c for x in lines[:-1] for c in json.loads(x).get("choices", [])]
                said = "".join((c.get("delta") or {}).get("content") or "" for c in choices)
            done.append(i)
            if said != self.whole:
                lost.append((status, text[-300:]))

    def test_a_rolling_restart_loses_nothing(self):
        body = {"messages": [{"role": "user", "content": "Count from 1 to 20."}], "max_tokens": 600, "ignore_eos": True}
        self.whole = self.replicas[0].post(CHAT, body)[2]["choices"][0]["message"]["content"]
        asked, streamed, lost, stop = [], [], [], threading.Event()
        threads = [threading.Thread(target=f, args=(d, lost, stop, i))
                   for f, d, n in ((self.loop, asked, 3), (self.stream, streamed, 2)) for i in range(n)]
        for t in threads:
            t.start()
        try:
            time.sleep(2)
            for i in range(2):
                self.assertEqual(self.replicas[i].close(), 0)
                self.replicas[i] = self.replica(i)
                time.sleep(self.settle)
        finally:
            stop.set()
            for t in threads:
                t.join()
        print(f"{len(asked)} requests, {len(streamed)} streams, {len(lost)} lost")
        self.assertEqual(lost, [])
        self.assertGreater(len(asked), 20)
        self.assertGreater(len(streamed), 3)

    def test_what_begins_alike_stays_together(self):
        talks = [[{"role": "user", "content": f"Session {i} is about {i * 7919} and what comes after it. " * 20}]
                 for i in range(8)]
        for turn in range(3):
            for i, talk in enumerate(talks):
                status, _, r = self.request("POST", CHAT, {"model": "model", "messages": talk, "max_tokens": 4},
                                            {"X-Conversation-Id": f"talk-{i}"})
                self.assertEqual(status, 200, r)
                r = json.loads(r)
                cached = (r["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                if turn:
                    self.assertGreater(cached, 0.9 * (r["usage"]["prompt_tokens"] - 24), (turn, i, r["usage"]))
                talk.append({"role": "assistant", "content": r["choices"][0]["message"]["content"] or "Well."})
                talk.append({"role": "user", "content": f"And {turn}?"})
            time.sleep(0.5)

    def test_prometheus_reads_the_metrics(self):
        self.assertEqual(self.ask("Hello")[0], 200)
        for r in self.replicas:
            status, headers, text = r.get("/metrics")
            self.assertEqual(status, 200)
            self.assertIn("version=0.0.4", headers["Content-Type"])
            families = list(text_string_to_metric_families(text))
            self.assertEqual([f.name for f in families if f.type == "unknown" or not f.documentation], [])
            names = [f.name for f in families]
            self.assertEqual(len(names), len(set(names)))
            for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens",
                         "vllm:time_to_first_token_seconds"):
                self.assertIn(name, names)
            for f in families:
                keys = [(s.name, tuple(sorted(s.labels.items()))) for s in f.samples]
                self.assertEqual(len(keys), len(set(keys)), f.name)
                if f.type == "histogram":
                    self.check_histogram(f)

    def check_histogram(self, family):
        """Buckets rise, the last one is +Inf and equals the count."""
        of = {}
        for s in family.samples:
            labels = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
            of.setdefault(labels, {})[s.labels.get("le", s.name.rsplit("_", 1)[1])] = s.value
        for labels, v in of.items():
            self.assertEqual(v["+Inf"], v["count"], (family.name, labels))
            rising = [v[k] for k in sorted((k for k in v if k not in ("sum", "count")), key=float)]
            self.assertEqual(rising, sorted(rising), (family.name, labels))


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
