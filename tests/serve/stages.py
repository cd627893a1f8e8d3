#!/usr/bin/env python3
"""stages.py INGLE - a model whose layers are divided: the answers of one process, also when stages are killed, and errors that name
what differs."""
import concurrent.futures, json, os, shutil, signal, subprocess, sys, tempfile, threading, unittest

from client import SANITIZED, TIMEOUT, Case, Server, main
import stages_peer
from stages_kill import Link
from wait import attempts, until
from worker import Proxy, Worker

INGLE = sys.argv[1]
MODEL = "tests/data/nano-v4/nano-v4-MXFP4.gguf"  # of 6 layers
OTHER = "tests/data/nano/nano-gemma4-Q4_K_M.gguf"
PLAIN = ("-t", "1", "--ctx", "512", "--no-pack-cache")


class Stages(Case):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def stage(self, layers, listen=None, *options, **how):
        w = Worker(listen or f"unix:{self.folder}/{layers}", "--stage", layers, "--ctx", "512", "--no-pack-cache", *options, **how)
        self.addCleanup(w.end)
        return w

    def serve(self, *options):
        server = Server(INGLE, "-m", MODEL, *PLAIN, *options)
        self.addCleanup(server.close)
        return server

    def ask(self, server, i=0, n=24):
        status, _, r = server.post("/v1/completions", {"prompt": f"Number {i}: one two three", "max_tokens": n, "temperature": 0, "ignore_eos": True})
        self.assertEqual(status, 200, r)
        return r["choices"][0]["text"]

    def run_it(self, *options):
        r = subprocess.run([INGLE, "run", "-m", MODEL, *PLAIN, "--temp", "0", "-n", "12", *options, "one two three"],
                           capture_output=True, text=True, timeout=TIMEOUT)
        return r.returncode, r.stdout, r.stderr

    def test_answers_and_losses(self):
        plain = self.serve("--draft", "off")
        self.assertNotIn("stages", plain.get("/props")[2]["runtime"])
        want = [self.ask(plain, i) for i in range(4)]
        long = self.ask(plain, 9, 400)
        plain.close()
        first, second = self.stage("2:3"), self.stage("3:6", "127.0.0.1:0")
        addresses = f"{first.address},{second.address}"
        server = self.serve("--stages", addresses, "--layer-ends", "2,3,6", "--parallel", "4")
        self.assertEqual([self.ask(server, i) for i in range(4)], want)
        n = server.get("/props")[2]["runtime"]["stages"]
        self.assertEqual([(s["address"], s["state"], s["from"], s["to"], s["losses"]) for s in n],
                         [(first.address, "ready", 2, 3, 0), (second.address, "ready", 3, 6, 0)])
        self.assertGreater(n[0]["rows"], 0)
        text = server.get("/metrics")[2]
        self.assertIn(f'ingle_stage_ready{{stage="{first.address}",layers="2:3"}} 1\n', text)
        # a stage dies while answers run, and comes back
        for _ in attempts("a loss while answers run"):
            got, steps = [None] * 3, lambda: server.get("/props")[2]["runtime"]["stages"][0]["steps"]
            threads, before = [threading.Thread(target=lambda i=i: got.__setitem__(i, self.ask(server, 9, 400))) for i in range(3)], steps()
            for t in threads:
                t.start()
            until(lambda: steps() > before + 20 or None not in got)
            first.process.kill()
            first.process.wait(TIMEOUT)
            until(lambda: server.get("/readyz")[0] == 503)
            met = None in got
            first = self.stage("2:3")
            for t in threads:
                t.join(TIMEOUT)
            self.assertEqual(got, [long] * 3)
            if met:
                break
        until(lambda: server.get("/readyz")[0] == 200)
        self.assertEqual(self.ask(server, 1), want[1])
        self.assertGreater(server.get("/props")[2]["runtime"]["stages"][0]["losses"], 0)

    def test_prompts_beside_answers(self):
        """Rows of prompts are under way with those of answers: nobody's tokens differ, also if a prompt is cancelled or late, or a stage
        dies."""
        prompts = [f"{i} " + "one two three four " * (12 + 4 * i) for i in range(3)]

        def read(server, i):
            status, _, r = server.post("/v1/completions", {"prompt": prompts[i], "max_tokens": 3, "temperature": 0, "ignore_eos": True,
                                                              "priority": i - 1, "cache_prompt": False})
            self.assertEqual(status, 200, r)
            return r["choices"][0]["text"]
        with self.serve("--draft", "off", "--parallel", "6") as plain:
            want = [self.ask(plain, i, 200) for i in range(2)], [read(plain, i) for i in range(3)]
        first, second = self.stage("2:4"), self.stage("4:6")
        server = self.serve("--stages", f"{first.address},{second.address}", "--layer-ends", "2,4,6", "--draft", "off", "--parallel", "6")
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for way in ("whole", "cancel", "late", "kill"):
                answers = [pool.submit(self.ask, server, i, 200) for i in range(2)]
                if way == "cancel":
                    server.begin("/v1/completions", {"prompt": "9 " + prompts[2], "max_tokens": 3}).close()
                if way == "late":
                    server.begin("/v1/completions", {"prompt": "8 " + prompts[2], "max_tokens": 3, "deadline_seconds": 0.02}).close()
                read_now = [pool.submit(read, server, i) for i in range(3)]
                if way == "kill":
                    first.process.kill()
                    first.process.wait(TIMEOUT)
                    first = self.stage("2:4")
                self.assertEqual(([a.result() for a in answers], [r.result() for r in read_now]), want, way)

    def test_from_stage_to_stage(self):
        """Rows do not cross the engine, unless a stage cannot reach the next one; a connection that breaks changes no answer."""
        want = self.ask(plain := self.serve("--draft", "off"), 1)
        plain.close()
        a, b, c = self.stage("1:3"), self.stage("3:4", "127.0.0.1:0"), self.stage("4:6")
        link = Link(int(b.address.rsplit(":", 1)[1]))
        self.addCleanup(link.close)
        for _ in attempts("three answers without the loss of a stage"):  # one that is stopped for two seconds is lost
            server = self.serve("--stages", f"{a.address},127.0.0.1:{link.port},{c.address}", "--draft", "off")
            for _ in range(3):
                self.assertEqual(self.ask(server, 1), want)
                n = server.get("/props")[2]["runtime"]["stages"]
                self.assertEqual([s["sends_to"] for s in n], ["next", "next", "engine"])
                self.assertLess(n[0]["received_bytes"], n[2]["received_bytes"])
                link.cut(2)  # the first two are the engine's
            if not sum(s["losses"] for s in n):
                break
            server.close()
            link.cut()

    def test_a_next_stage_that_is_not_reached(self):
        """A path that the engine has and the stage has not: one report, the same answers."""
        want = self.run_it("--draft", "off")
        os.makedirs(deep := f"{self.folder}/1/2/3/4/5/6/7/8")
        a = self.stage("2:3", None, model=os.path.abspath(MODEL), cwd=deep)
        b = self.stage("3:6")
        status, out, err = self.run_it("--stages", f"{a.address},unix:{os.path.relpath(b.address[5:])}", "--draft", "off")
        self.assertEqual((status, out), want[:2], err)
        self.assertEqual(err.count("go through the engine: there is no such path"), 1, err)

    def test_a_network_drafts(self):
        """DSpark reads rows after layers that lie at a stage; an assistant of Gemma needs its keys and values."""
        w = self.stage("2:6")
        want = self.run_it("--draft", "off")
        for kind in ("dspark", "mtp0"):
            status, out, err = self.run_it("--stages", w.address, "--draft", f"tests/data/nano-v4/nano-v4-{kind}-Q8_0.gguf")
            self.assertEqual((status, out), want[:2], err)
            self.assertIn(" tokens right", err)
        w.end()
        plain = self.serve("--draft", "off")
        want = [self.ask(plain, i, 48) for i in range(3)]
        plain.close()
        w = self.stage("2:6")
        for kind in ("dspark", "mtp0"):  # answers of several, whose steps are under way together
            server = self.serve("--stages", w.address, "--draft", f"tests/data/nano-v4/nano-v4-{kind}-Q8_0.gguf", "--draft-min", "2")
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                self.assertEqual(list(pool.map(lambda i: self.ask(server, i, 48), range(3))), want)
            self.assertRegex(server.get("/metrics")[2], r"(?m)^llamacpp:spec_decode_num_draft_tokens_total [1-9]")
            server.close()
        gemma = Worker(f"unix:{self.folder}/g", "--stage", "1:6", "--no-pack-cache", model=OTHER)
        self.addCleanup(gemma.end)
        r = subprocess.run([INGLE, "run", "-m", OTHER, "--stages", gemma.address, "--draft",
                            "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf", "hi"], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("reads keys and values", r.stderr)

    def test_pictures(self):
        """The engine has the encoders; a stage has layers of the language model and no other tensor."""
        w = Worker(f"unix:{self.folder}/p", "--stage", "3:6", "--no-pack-cache", model=None)
        self.addCleanup(w.end)
        ask = [INGLE, "run", "-t", "1", "--no-pack-cache", "--temp", "0", "-n", "12", "--image", "tests/data/vision/vision_31b/a.png"]
        plain, divided = (subprocess.run([*ask, *more, "What is this?"], capture_output=True, text=True, timeout=TIMEOUT)
                          for more in ((), ("--stages", w.address)))
        self.assertEqual((divided.returncode, divided.stdout), (0, plain.stdout), divided.stderr)
        self.assertIn("pictures and sounds: 1", divided.stderr)

    def test_layers_are_chosen(self):
        """Stages that take any layers: by memory and speed, by --layer-ends, anew for another engine, and after a restart."""
        a, b = self.stage("auto", f"unix:{self.folder}/a"), self.stage("auto", f"unix:{self.folder}/b", "--memory", "2G")
        want, stages = self.run_it("--draft", "off"), ("--stages", f"{a.address},{b.address}")
        plan = lambda command, *more: json.loads(subprocess.run([INGLE, *command, "--json", "-m", MODEL, "--ctx", "512", *stages, *more],
                                                                capture_output=True, text=True, timeout=TIMEOUT).stdout)
        p = plan(("inspect", "--plan"), "--layer-ends", "1,4,6")
        self.assertEqual([(x["from"], x["to"], x["fits"], x["any_layers"]) for x in p["processes"]],
                         [(0, 1, True, False), (1, 4, True, True), (4, 6, True, True)])
        self.assertEqual(p["processes"][2]["limit_bytes"], 2 << 30)
        for x in p["processes"]:
            self.assertEqual(x["total_bytes"], x["weight_bytes"] + x["kv_bytes"] + x["other_bytes"])
            self.assertGreater(x["token_bytes"], 0)
        p = plan(("doctor",))
        self.assertEqual(p["layer_ends"][-1], 6)
        self.assertEqual([x["cipher"] for x in p["processes"][1:]], ["", ""])
        for x in p["processes"][1:]:
            self.assertGreater(min(x["trip_us"], x["out_bytes_per_s"], x["in_bytes_per_s"], x["read_bytes_per_s"]), 0)
        for ends in ("auto", "1,4,6", "3,4,6"):
            status, out, err = self.run_it(*stages, "-v", "--draft", "off", "--layer-ends", ends)
            self.assertEqual((status, out), want[:2], err)
            if ends == "3,4,6":
                self.assertIn(f"stage '{a.address}': it loads layers 3:4", err)
        # the layers of the last engine stay if nothing is much better; one that is started anew gets its own
        server = self.serve(*stages, "--layer-ends", "1,4,6", "--draft", "off")
        text = self.ask(server, 1)
        a.process.kill()
        a.process.wait(TIMEOUT)
        until(lambda: server.get("/readyz")[0] == 503)
        a = self.stage("auto", f"unix:{self.folder}/a")
        until(lambda: server.get("/readyz")[0] == 200 or self.ask(server, 1) != text)
        self.assertEqual(self.ask(server, 1), text)
        self.assertEqual([(s["from"], s["to"]) for s in server.get("/props")[2]["runtime"]["stages"]], [(1, 4), (4, 6)])
        r = subprocess.run([INGLE, "bench", "-m", MODEL, *PLAIN, "-r", "1", "-p", "16", "-g", "4", "--profile", "--json", "--stages",
                            self.stage("4:6").address], capture_output=True, text=True, timeout=TIMEOUT)
        idle = [x for x in map(json.loads, r.stdout.splitlines()) if "idle" in x]
        self.assertEqual([(x["from"], x["to"]) for x in idle], [(0, 4), (4, 6)] * 2, r.stderr)
        for x in idle:
            self.assertTrue(0 <= x["idle"] <= 1)
        # too little memory, with each plan; more stages than layers
        small = self.stage("auto", f"unix:{self.folder}/c", "--memory", "1M")
        stages = ("--stages", small.address)
        status, _, err = self.run_it(*stages, "--memory", "4M")
        self.assertEqual(status, 1)
        self.assertRegex(err, r"no cut of its 6 layers fits; the nearest: the engine 0:\d needs .* of 4.00 MiB, .* \d:6 needs .* of 1.00 MiB")
        self.assertFalse(plan(("inspect", "--plan"))["fits"])

    def test_never_back(self):
        w = self.stage("3:6")
        server = self.serve("--stages", w.address, "--stage-wait", "8")
        want = self.ask(server)
        w.process.kill()
        w.process.wait(TIMEOUT)
        status, _, r = server.post("/v1/completions", {"prompt": "one two three four", "max_tokens": 4})
        self.assertGreaterEqual(status, 500, r)
        self.assertIn("stage", r["error"]["message"])
        self.assertEqual(r["error"]["code"], "stage_lost")
        self.assertEqual(server.get("/readyz")[0], 503)
        self.stage("3:6")
        until(lambda: server.get("/readyz")[0] == 200)
        self.assertEqual(self.ask(server), want)

    def test_a_stage_that_never_comes(self):
        """Whoever waits for it is told so, and ends at a signal."""
        for command in ("serve", "--port", "0"), ("run", "-n", "1", "x"):
            p = subprocess.Popen([INGLE, *command, "-m", MODEL, *PLAIN, "--stages", f"unix:{self.folder}/none", "--stage-wait", "3600"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            line = next(l for l in p.stderr if "warning" in l)
            self.assertIn("not there yet; ingle waits up to 3600 s", line)
            p.terminate()
            p.communicate(timeout=TIMEOUT)

    def test_the_first_process_dies(self):
        """Its stage, which serves one engine at a time, is free as soon as it sees that."""
        w = self.stage("3:6")
        server = self.serve("--stages", w.address)
        self.ask(server)
        server.process.kill()
        status, out, err = self.run_it("--stages", w.address, "--stage-wait", "100")
        self.assertEqual((status, out), self.run_it()[:2], err)

    def test_damaged_messages(self):
        w = self.stage("2:6", "127.0.0.1:0")
        proxy = Proxy(int(w.address.rsplit(":", 1)[1]))
        self.addCleanup(proxy.close)
        server = self.serve("--stages", f"127.0.0.1:{proxy.port}")
        want = self.ask(server, 3)
        for how in ("delay", "cut", "damage"):
            proxy.how = how
            for _ in range(2):
                got = server.post("/v1/completions", {"prompt": "Number 3: one two three", "max_tokens": 24, "temperature": 0, "ignore_eos": True})
                if got[0] == 200:
                    self.assertEqual(got[2]["choices"][0]["text"], want)
            proxy.how = "pass"
            self.assertEqual(self.ask(server, 3), want)

    def test_a_key_and_a_saved_prefix(self):
        key = f"{self.folder}/key"
        with open(key, "w") as f:
            f.write("ab" * 32)
        os.chmod(key, 0o600)
        os.mkdir(f"{self.folder}/store", 0o700)
        w = self.stage("1:6", "127.0.0.1:0", "--worker-key", key)
        prompt = {"prompt": "one two three four five " * 40, "max_tokens": 8, "temperature": 0}
        store = ("--store", f"{self.folder}/store", "--store-tokens", "128", "--draft", "off")
        answers = []
        for stages in (("--stages", w.address, "--worker-key", key), (), ("--stages", w.address, "--worker-key", key)):
            server = self.serve(*stages, *store)
            status, _, r = server.post("/v1/completions", prompt)
            self.assertEqual(status, 200, r)
            answers.append((r["choices"][0]["text"], r["timings"]["cache_n"] > 0 if "timings" in r else None))
            server.close()
        self.assertEqual(len({a[0] for a in answers}), 1)
        def refused(words, *more):
            for _ in attempts(words):  # a second is too short where one of the two is stopped
                status, _, err = self.run_it("--stages", w.address, "--stage-wait", "1", *more)
                self.assertEqual(status, 1)
                if words in err:
                    break
        refused("the other end has a key")
        r = subprocess.run([INGLE, "doctor", "-m", MODEL, "--stages", w.address, "--worker-key", key], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertRegex(r.stdout, "connection     round trip .*; rows .* there, .* back; key yes, (AES-256-GCM|ChaCha20)")
        with open(key, "w") as f:
            f.write("cd" * 32)
        refused("one end has another key", "--worker-key", key)

    def test_a_store_at_each_stage(self):
        """What all processes have saved is taken up again after all of them have ended or were killed; what one has lost is computed."""
        body = lambda i: {"prompt": f"{i} " + "one two three four five " * 40, "max_tokens": 8, "temperature": 0}
        stores = [os.path.join(self.folder, f"store-{x}") for x in "abc"]
        layers, keep = ("2:4", "4:6"), ("--store-tokens", "64", "--draft", "off")
        def start(without=()):
            w = [self.stage(x, None, *(("--store", stores[k]) if k not in without else ())) for k, x in enumerate(layers)]
            return w, self.serve("--stages", ",".join(x.address for x in w), "--store", stores[2], *keep)
        def ask(server, i=0):
            status, _, r = server.post("/v1/completions", body(i))
            self.assertEqual(status, 200, r)
            return r["choices"][0]["text"], r["timings"]["cache_n"]
        def end(w, server):
            server.close()
            for x in w:
                self.assertEqual(x.end(), 0)
        plain = self.serve("--draft", "off")
        want = [ask(plain, i)[0] for i in range(6)]
        plain.close()
        w, server = start()
        self.assertEqual(ask(server), (want[0], 0))
        end(w, server)
        w, server = start()
        text, again = ask(server)
        self.assertEqual(text, want[0])
        self.assertGreater(again, 100)
        # what is lost is read from files, too, and only the rest is computed
        rows = lambda: server.get("/props")[2]["runtime"]["stages"][0]["rows"]
        before = rows()
        w[1].process.kill()
        w[1].process.wait(TIMEOUT)
        w[1] = self.stage(layers[1], None, "--store", stores[1])
        self.assertEqual(ask(server)[0], want[0])
        self.assertLess(rows() - before, 100)
        # a stage is killed while it saves, perhaps; what is taken up afterwards is never wrong
        for i in range(1, 6):
            self.assertEqual(ask(server, i)[0], want[i])
            w[i % 2].process.kill()
            w[i % 2].process.wait(TIMEOUT)
            w[i % 2] = self.stage(layers[i % 2], None, "--store", stores[i % 2])
        server.process.kill()
        for x in w:
            x.process.kill()
            x.process.wait(TIMEOUT)
        w, server = start()
        self.assertEqual([ask(server, i)[0] for i in range(6)], want)
        end(w, server)
        w, server = start()
        self.assertEqual([ask(server, i) for i in range(6)], [(text, again) for text in want])
        end(w, server)
        for name in os.listdir(stores[1]):
            os.unlink(os.path.join(stores[1], name))
        w, server = start()
        self.assertEqual(ask(server), (want[0], 0))
        self.assertIn(" 0 of them where its other layers are", "".join(server.log))
        end(w, server)
        w, server = start(without=(0,))
        self.assertEqual(ask(server), (want[0], 0))
        self.assertIn("this stage has no store", "".join(server.log))
        end(w, server)

    def test_wrong_peers(self):
        """Messages with right checksums that are wrong, once and always: the right answer, or an error; then the right answer again."""
        peers = stages_peer.Peers()
        self.addCleanup(peers.close)
        before = [stages_peer.memory(x.process.pid) for x in (peers.stage, peers.server)]
        for says, to_engine, names in ((stages_peer.STAGE_SAYS, True, ("a row that is no number", "4 GB", "centuries", "an old answer", "4 G keys", "it ends",
                                                                        "a JOIN")),
                                       (stages_peer.ENGINE_SAYS, False, ("65,536 rows", "4 G mirrors", "other tokens before", "pages of 1 TB",
                                                                         "pages of a byte", "a test of 4 GB", "rows", "a KEEP of 8 MB",
                                                                         "4 G groups", "a thousand are kept"))):
            for name in names:
                kind, change = says[name]
                self.assertEqual(peers.one(stages_peer.only(kind, change, to_engine, 1)), peers.want, name)
                got = peers.one(stages_peer.only(kind, change, to_engine))
                if got != peers.want:
                    self.assertEqual(got[0], 500, (name, got))
                    self.assertRegex(got[1], "^(stage '.|the stream after .* is no number)", name)
        if not SANITIZED:  # what is freed stays there
            after = [stages_peer.memory(x.process.pid) for x in (peers.stage, peers.server)]
            self.assertLess(max(b - a for a, b in zip(before, after)), 32 << 20)
        for name, fmt, at, value, text in stages_peer.GREETINGS:
            between = stages_peer.Between(int(peers.stage.address.rsplit(":", 1)[1]))
            between.edit = stages_peer.only(stages_peer.JOIN, stages_peer.put(fmt, at, value), True)
            status, _, err = self.run_it("--stages", f"127.0.0.1:{between.port}", "--stage-wait", "20")
            between.close()
            self.assertEqual(status, 1, name)
            self.assertRegex(err, text)

    def test_launchers(self):
        """The same command twice, of which one says its rank: both processes start, and the answer is that of one."""
        want = self.run_it("--draft", "off")
        for other, first in (("--nnodes 2 --node-rank 1 --master-addr 127.0.0.1", "--nnodes 2 --node-rank 0 --master-addr 127.0.0.1"),
                             ("--role worker --layers 3:output", "--role coordinator --layers 0:2")):
            w = Worker(f"unix:{self.folder}/l", *other.split(), *PLAIN, command="worker")
            self.addCleanup(w.end)
            status, out, err = self.run_it(*first.split(), "--stages", w.address, "--draft", "off")
            self.assertEqual((status, out), want[:2], err)
            self.assertEqual(w.end(), 0)

    def test_a_launcher_s_job_ends(self):
        """mpirun's variables: the second process ends with the first one, whose command is the same."""
        want, ranks = self.run_it("--draft", "off"), lambda i: {**os.environ, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(i)}
        w = Worker(f"unix:{self.folder}/l", *PLAIN, "--pipeline-parallel-size", "2", command="worker", env=ranks(1))
        self.addCleanup(w.end)
        r = subprocess.run([INGLE, "run", "-m", MODEL, *PLAIN, "--temp", "0", "-n", "12", "--draft", "off", "--pipeline-parallel-size", "2",
                            "--stages", w.address, "one two three"], capture_output=True, text=True, timeout=TIMEOUT, env=ranks(0))
        self.assertEqual((r.returncode, r.stdout), want[:2], r.stderr)
        self.assertEqual(w.process.wait(TIMEOUT), 0)

    def test_bad_input(self):
        a, b, c = self.stage("2:3"), self.stage("3:6"), self.stage("4:6")
        both = f"{a.address},{b.address}"
        for options, text in (
                (("--stages", both, "--layer-ends", "0,3,6"), "layer end 0 is not above 0"),
                (("--stages", both, "--layer-ends", "3,2,6"), "layer end 2 is not above 3"),
                (("--stages", both, "--layer-ends", "2,3,7"), "beyond the model's 6 layers"),
                (("--stages", both, "--layer-ends", "2,3"), "a stage is missing"),
                (("--stages", both, "--layer-ends", "2,6"), "3 are needed"),
                (("--stages", both, "--layer-ends", "2,4,6"), "stage 1 has layers 2:3"),
                (("--stages", both, "--layer-ends", "two"), "neither auto nor"),
                (("--layer-ends", "2,6"), "--stages"),
                (("--stages", f"{b.address},{a.address}"), "overlap"),
                (("--stages", a.address), "ends at layer 3, the model has 6"),
                (("--stages", f"{a.address},{c.address}"), "leave a gap"),
                (("--stages", f"{a.address},{a.address.replace('/2', '//2')},{b.address}"), "are one process, which is named twice"),
                (("--stages", both, "--numerics", "reference"), "the numerics are 'reference' here, 'exact' there"),
                (("--stages", f"{a.address},{a.address}"), "named twice"),
                (("--stages", both, "--kv", "fp8"), "keys and values are 'fp8' here"),
                (("--stages", both, "--ctx", "1024"), "at most 512 tokens"),
                (("--stages", both, "--kv-disk", self.folder), "'kv-disk' does not go together"),
                (("--stages", both, "--lock"), "'lock' does not go together"),
                (("--stages", "10.0.0.1:7"), "a key is needed"),
                (("--stages", ","), "has an empty address"),
                (("--stages", f"unix:{self.folder}/none", "--stage-wait", "0.2"), "is not there")):
            status, _, err = self.run_it(*options)
            self.assertNotEqual(status, 0, options)
            self.assertIn(text, err)
        r = subprocess.run([INGLE, "run", "-m", OTHER, "--stages", both, "hi"], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertIn("another model", r.stderr)
        r = subprocess.run([INGLE, "run", "-m", MODEL, "--experts-worker", a.address, "-n", "2", "hi"], capture_output=True, text=True,
                           timeout=TIMEOUT)
        self.assertIn("this is a stage", r.stderr)
        # longer steps than a stage has memory for, unless nobody asks for them
        small = ("--stages", self.stage("3:6", f"unix:{self.folder}/small", "--memory", "20M").address, "--draft", "off")
        status, _, err = self.run_it(*small, "--chunk", "8192")
        self.assertEqual(status, 1)
        self.assertRegex(err, r"steps of 8192 rows take \d+ MiB, 12 MiB are there \(512 rows\): a smaller --chunk")
        self.assertEqual(self.run_it(*small)[0], 0)
        shard = ("--backend-ipc-mode=deepseek4-target-shard", MODEL)
        for options, text in (
                ((*shard, "--layer-begins=0", "--layer-ends=3"), "the engine itself"),
                ((*shard, "--layer-begins=2,4", "--layer-ends=3,6"), "shards of a process join"),
                ((*shard, "--layer-begins=2", "--layer-ends=6", "--hidden=64"), "'64' is not 128"),
                (("-m", MODEL, "--stage", "2:6", "--listen", "0.0.0.0:7"), "a key is needed"),
                (("-m", MODEL, "--stage", "2:6", "--memory", "1M", "--listen", f"unix:{self.folder}/x"), "1.00 MiB were allowed"),
                (("-m", MODEL, "--store", self.folder, "--listen", f"unix:{self.folder}/x"), "a worker for experts has none of"),
                (("-m", MODEL, "--stage", "auto", "--lock", "--listen", f"unix:{self.folder}/x"), "'lock' does not go together")):
            r = subprocess.run([INGLE, "worker", *options], capture_output=True, text=True, timeout=TIMEOUT)
            self.assertEqual(r.returncode, 1, options)
            self.assertIn(text, r.stderr)
        for layers, text in (("0:3", "begin with layer 0"), ("3:9", "the model has 6"), ("4:4", "A < B"), ("x", "A < B"), ("all", "A:B")):
            r = subprocess.run([INGLE, "worker", "-m", MODEL, "--stage", layers, "--listen", f"unix:{self.folder}/x"], capture_output=True,
                               text=True, timeout=TIMEOUT)
            self.assertEqual(r.returncode, 1)
            self.assertIn(text, r.stderr)


if __name__ == "__main__":
    main()
