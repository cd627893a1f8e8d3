#!/usr/bin/env python3
"""worker.py INGLE - a server whose experts a worker computes: the same answers, also while workers are killed, and through a
proxy that delays, cuts, damages and swallows what they say."""
import json, os, random, re, shutil, signal, socket, subprocess, sys, tempfile, threading, time, unittest, unittest.mock

from client import SANITIZED, TIMEOUT, Case, Server, main
from wait import attempts

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from modelfile import Gguf

INGLE = os.path.abspath(sys.argv[1])
MODEL = "tests/data/nano-v4/nano-v4-MXFP4.gguf"
KILLS = int(os.environ.get("WORKER_KILLS", "4"))


class Worker:
    def __init__(self, listen, *options, command="worker", model=MODEL, **how):
        which = ("-m", model) if model else ()  # None: the built-in one
        self.process = subprocess.Popen([INGLE, command, *which, "-t", "1", "--listen", listen, *options], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **how)
        line = self.process.stdout.readline()
        if "listening on " not in line:
            raise RuntimeError("the worker did not start")
        self.address = line.split()[-1]

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.stdout.close()
        return self.process.wait(TIMEOUT)


def end_both(*sockets):
    """Both directions end at once, also for who reads one of them."""
    for s in sockets:
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        s.close()


class Proxy:
    """Passes bytes on; `how` says what happens to those of the worker."""

    def __init__(self, port):
        self.to, self.how, self.random, self.done = port, "pass", random.Random(7), False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self):
        while True:
            try:
                a = self.listener.accept()[0]
                b = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            threading.Thread(target=self.copy, args=(a, b, False), daemon=True).start()
            threading.Thread(target=self.copy, args=(b, a, True), daemon=True).start()

    def spoil(self, data):
        """What goes on of what the worker said; None: the connection ends."""
        chance = self.random.random()
        if self.how == "delay":
            time.sleep(chance * 0.02)
        elif self.how == "cut" and chance < 0.1:
            return None
        elif self.how == "damage" and len(data) > 200 and chance < 0.3:
            data = bytearray(data)
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        elif self.how == "swallow" and len(data) > 200 and chance < 0.1:
            return data[:self.random.randrange(len(data))]
        return bytes(data)

    def copy(self, source, to, spoils):
        try:
            while data := source.recv(65536):
                data = self.spoil(data) if spoils else data
                if data is None:
                    break
                to.sendall(data)
        except OSError:
            pass
        end_both(source, to)

    def close(self):
        """The thread has ended before the descriptor is free: else it might accept for the next socket of that number."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()


class Workers(Case):
    def serve(self, *options):
        server = Server(INGLE, "-m", MODEL, "-t", "1", "--ctx", "512", "--draft", "off", "--no-pack-cache", *options)
        self.addCleanup(server.close)
        return server

    def worker(self, listen="127.0.0.1:0", *options, **how):
        w = Worker(listen, *options, **how)
        self.addCleanup(w.end)
        return w

    def ask(self, server, i=0, n=24):
        status, _, r = server.post("/v1/completions", {"prompt": f"Number {i}: one two three", "max_tokens": n, "temperature": 0})
        self.assertEqual(status, 200, r)
        return r["choices"][0]["text"]

    def info(self, server):
        return server.get("/props")[2]["runtime"]["workers"][0]

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def doctor(self, address):
        """What it says from outside; a model that is not its own would be refused."""
        def look(*options):
            return subprocess.run([INGLE, "doctor", "--experts-worker", address, *options], capture_output=True, text=True, timeout=TIMEOUT)
        r = look("-m", MODEL, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        n = json.loads(r.stdout)
        self.assertEqual((n["address"], n["layers"], n["refused"], n["no_rates"]), (address, "all", "", ""))
        self.assertTrue(0 < n["slots"] < n["experts"] and n["trip_us"] > 0 and n["socket_bytes_per_s"] > 0, n)
        r = look("-m", "tests/data/goldens/gemma4_moe/model-F32.gguf")
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, "would be refused: another model")
        r = subprocess.run([INGLE, "doctor", "--experts-worker", f"unix:{self.folder}/nobody,{address}"], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(r.returncode, 1)
        self.assertIn("cannot be reached", r.stderr)
        self.assertIn("its share", r.stdout)

    def test_a_step_that_hangs(self):
        """/livez says no as soon as systemd's watchdog would get no more good news, and yes when steps go on."""
        w = self.worker()
        with unittest.mock.patch.dict(os.environ, {"WATCHDOG_USEC": "400000", "WATCHDOG_PID": ""}):
            os.environ.pop("WATCHDOG_PID")
            server = self.serve("--experts-worker", w.address, "--experts-share", "100")
        want = self.ask(server)
        self.assertEqual(server.get("/livez")[0], 200)
        for _ in attempts("a step that hangs is seen"):  # for a second and a half: this test may be stopped for longer
            os.kill(w.process.pid, signal.SIGSTOP)  # its heartbeat ends, too: it is lost after 2 s
            try:
                got, seen = [], []
                asked = threading.Thread(target=lambda: got.append(self.ask(server)))
                asked.start()
                for _ in attempts("the answer"):
                    status, _, r = server.get("/livez")
                    seen.append(status)
                    if status == 503:
                        self.assertIn("a step takes longer than 0.4 seconds", r["error"]["message"])
                    if not asked.is_alive():
                        break
                self.assertEqual(got, [want])
            finally:
                os.kill(w.process.pid, signal.SIGCONT)
            self.assertEqual(server.get("/livez")[0], 200)
            if 503 in seen:
                break

    def test_answers_numbers_and_names(self):
        plain = self.serve()
        self.assertNotIn("workers", plain.get("/props")[2]["runtime"])
        want = [self.ask(plain, i) for i in range(3)]
        path = f"unix:{self.folder}/w"
        for command in ("moe-expert", "deepseek4-expert"):  # what others call it
            w = self.worker(path, "--expert-budget", "150K", command=command)
            self.assertEqual(w.address, path)
            self.assertEqual(w.end(), 0)
        w = self.worker(path, "--expert-budget", "150K")
        self.doctor(path)
        for share in ("100", "50", "auto"):
            server = self.serve("--experts-worker", path, "--experts-share", share)
            self.assertEqual([self.ask(server, i) for i in range(3)], want)
            n = self.info(server)
            self.assertEqual((n["address"], n["state"], n["layers"], n["losses"], n["trouble"]), (path, "ready", "all", 0, None))
            self.assertLessEqual(n["memory_bytes"], 150 << 10)
            text = server.get("/metrics")[2]
            self.assertIn(f'ingle_worker_ready{{worker="{path}"}} 1\n', text)
            self.assertIn(f'ingle_worker_experts_total{{worker="{path}"}} {n["experts"]}\n', text)
            if share != "auto":
                self.assertGreater(n["experts"], 0)
                self.assertGreater(n["hits"] + n["misses"], 0)
                self.assertEqual(n["experts_here"] > 0, share == "50")
            server.close()

    def test_a_socket_that_is_handed_over(self):
        with socket.create_server(("127.0.0.1", 0)) as s:
            w = self.worker(f"fd:{s.fileno()}", pass_fds=[s.fileno()])
            server = self.serve("--experts-worker", f"127.0.0.1:{s.getsockname()[1]}", "--experts-share", "100")
            self.ask(server)
            self.assertGreater(self.info(server)["experts"], 0)
            self.assertEqual(w.end(), 0)

    def test_killed_workers_change_no_answer(self):
        plain = self.serve()
        want = [self.ask(plain, i, 100) for i in range(4)]
        path, wrong, rounds = f"unix:{self.folder}/w", [], random.Random(3)
        w = Worker(path)
        server = self.serve("--experts-worker", path, "--experts-share", "60")
        done = threading.Event()

        def talk():
            i = 0
            while not done.is_set():
                got = self.ask(server, i % 4, 100)
                if got != want[i % 4]:
                    wrong.append((i, got))
                i += 1

        talker = threading.Thread(target=talk)
        talker.start()
        try:
            for _ in range(KILLS):
                before = self.info(server)["evals"]
                for _ in range(1000):  # it is at work
                    if self.info(server)["evals"] > before:
                        break
                    time.sleep(0.005)
                time.sleep(rounds.random() * 0.01)
                w.end(signal.SIGKILL)
                w = Worker(path)
        finally:
            done.set()
            talker.join()
            w.end()
        self.assertEqual(wrong, [])
        self.assertGreater(self.info(server)["losses"], 0)
        self.assertEqual(self.ask(server, 0, 100), want[0])

    def test_a_proxy_that_spoils_changes_no_answer(self):
        want = [self.ask(self.serve(), i) for i in range(3)]
        w = self.worker()
        proxy = Proxy(int(w.address.split(":")[1]))
        self.addCleanup(proxy.close)
        server = self.serve("--experts-worker", f"127.0.0.1:{proxy.port}", "--experts-share", "100")
        for how in ("pass", "delay", "cut", "damage"):
            proxy.how = how
            for i in range(3):
                self.assertEqual(self.ask(server, i), want[i], how)
        proxy.how = "swallow"  # found by heartbeats
        self.assertEqual(self.ask(server, 0), want[0])
        self.assertGreater(self.info(server)["losses"], 0)

    def test_strangers_take_no_memory(self):
        """Whoever reaches the port without having greeted, with and without a key; an engine goes on beside them."""
        begin = b"ingleend\x01" + bytes(55)

        def frame(kind, n):
            return b"ing" + bytes([kind]) + n.to_bytes(4, "little")

        zmtp = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00NULL" + bytes(48) + b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
        floods = ((zmtp, b"\x01\0" * 50000), (begin, frame(1, 0) * 10000), (begin, (frame(2, 4096) + bytes(48 + 4096)) * 20),
                  (begin, frame(2, 4000) + bytes(3000)), (begin, frame(2, 1 << 30) + bytes(100000)), (begin, (frame(2, 0) + bytes(48)) * 2000),
                  (begin[:9] + b"\1" + begin[10:], bytes(100000)), (b"", b"x" * 100000))
        key = os.path.join(self.folder, "key")
        with open(key, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write("ab" * 32)
        for options in ((), ("--worker-key", key)):
            w = self.worker("127.0.0.1:0", *options)
            server = self.serve("--experts-worker", w.address, "--experts-share", "100", *options)
            want, to = self.ask(server), ("127.0.0.1", int(w.address.split(":")[1]))

            def memory():
                with open(f"/proc/{w.process.pid}/status") as f:
                    return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) << 10

            before, until, open_ones, n = memory(), time.monotonic() + 4, [], 0
            while time.monotonic() < until:
                hello, flood = floods[n % len(floods)]
                n += 1
                try:
                    s = socket.create_connection(to)
                    s.settimeout(0.1)
                    open_ones.append(s)
                    s.sendall(hello)
                    for _ in range(20):
                        s.sendall(flood)
                except OSError:
                    pass
                if len(open_ones) > 200:
                    open_ones.pop(0).close()
            self.assertGreater(n, 20)
            if not SANITIZED:  # what is freed stays, so that its use is seen
                self.assertLess(memory() - before, 32 << 20)
            self.assertEqual(self.ask(server), want)
            now = self.info(server)
            self.assertEqual((now["state"], now["losses"], now["trouble"]), ("ready", 0, None))
            for s in open_ones:
                s.close()
            self.assertEqual(w.end(), 0)
            server.close()

    def test_experts_that_differ_in_a_byte_are_refused(self):
        model = Gguf(MODEL)
        for name in ("blk.3.ffn_down_exps.weight", "blk.5.ffn_gate_exps.weight"):
            copy, at = os.path.join(self.folder, "copy.gguf"), model.raw.index(model.tensors[name][2])
            shutil.copy(MODEL, copy)
            with open(copy, "r+b") as f:
                f.seek(at + 5003)
                byte = f.read(1)[0] ^ 1
                f.seek(at + 5003)
                f.write(bytes([byte]))
            w = self.worker("127.0.0.1:0")
            r = subprocess.run([INGLE, "run", "-m", copy, "--no-pack-cache", "--experts-worker", w.address, "-n", "1", "x"], capture_output=True, text=True,
                               timeout=TIMEOUT)
            self.assertEqual(r.returncode, 1, r.stderr)
            self.assertIn("another model", r.stderr)
            self.assertEqual(w.end(), 0)

    def test_what_cannot_be(self):
        for options, text in (
                (("--listen", "0.0.0.0:0"), "a key is needed"), (("--listen", "fd:77"), "is no socket"), (("--listen", "nowhere"), "is none of HOST:PORT"),
                (("--layers", "3:3"), "neither 'all' nor A:B"), (("--layers", "900:901"), "none of these has experts"),
                (("--worker-key", "/dev/null/x"), "x"), (("--expert-budget", "1K"), "the least is")):
            r = subprocess.run([INGLE, "worker", "-m", MODEL, "--listen", "127.0.0.1:0", *options], capture_output=True, text=True, timeout=TIMEOUT)
            self.assertEqual(r.returncode, 1, (options, r.stderr))
            self.assertRegex(r.stderr, "ingle: error: .*" + re.escape(text))
        r = subprocess.run([INGLE, "worker", "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(r.returncode, 1)  # the built-in model has no experts
        self.assertIn("no experts", r.stderr)


if __name__ == "__main__":
    main()
