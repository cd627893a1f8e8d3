#!/usr/bin/env python3
"""experts.py INGLE - a server whose experts are on disk: answers, statistics, and a file that is damaged while it runs."""
import glob, json, os, re, shutil, subprocess, sys, tempfile, time, unittest

from client import SANITIZED, Case, Server, main
from wait import attempts

INGLE = sys.argv[1]
MODEL = "tests/data/nano-v4/nano-v4-MXFP4.gguf"
QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "temperature": 0}


class Experts(Case):
    def start(self, *options):
        server = Server(INGLE, "-m", MODEL, "-t", "2", "--ctx", "512", "--draft", "off", "--pack-cache", self.folder, *options)
        self.addCleanup(server.close)
        return server

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        os.chmod(self.folder, 0o700)
        self.addCleanup(shutil.rmtree, self.folder)

    def ask(self, server):
        return server.post("/v1/chat/completions", QUESTION)

    def metric(self, server, name):
        return sum(float(line.split()[-1]) for line in server.get("/metrics")[2].splitlines() if line.startswith(name))

    def test_answers_and_statistics(self):
        whole = self.start("--expert-budget", "1G")
        self.assertNotIn("experts", whole.get("/props")[2]["runtime"])
        self.assertNotIn("experts", self.ask(whole)[2]["timings"])
        want = self.ask(whole)[2]["choices"][0]["message"]["content"]
        server = self.start("--expert-budget", "150K", "--pack")
        used = 0
        for _ in range(2):
            status, _, r = self.ask(server)
            self.assertEqual(status, 200, r)
            self.assertEqual(r["choices"][0]["message"]["content"], want)
            t = r["timings"]["experts"]
            self.assertGreater(t["hits"] + t["misses"], 0)
            used += t["hits"] + t["misses"]
        for path, body in (("/v1/completions", {"prompt": "Hello", "max_tokens": 6}), ("/completion", {"prompt": "Hello", "n_predict": 6})):
            status, _, r = server.post(path, body)
            self.assertEqual(status, 200, r)
            t = r["timings"]["experts"]
            self.assertGreaterEqual(t["stall_ms"], 0)
            self.assertGreater(t["read_bytes"], 0)
            used += t["hits"] + t["misses"]
        n = server.get("/props")[2]["runtime"]["experts"]
        self.assertEqual(n["hits"] + n["misses"], n["choices"])
        self.assertEqual(used, n["choices"])  # nobody shared a step
        self.assertLessEqual(n["memory_bytes"], 150 << 10)
        self.assertLess(n["memory_bytes"], n["bytes"])
        self.assertGreater(n["read_bytes"], 0)
        self.assertTrue(n["packed"])
        self.assertEqual(self.metric(server, "ingle_expert_choices_total{"), n["choices"])
        self.assertEqual(self.metric(server, "ingle_expert_hits_total{"), n["hits"])

    def test_kill_leaves_no_broken_file(self):
        """Killed while it packs, while it answers, while it writes its profile: the next start uses what is there."""
        options = ("-t", "2", "--ctx", "512", "--draft", "off", "--expert-budget", "150K", "--pack", "--pack-cache", self.folder,
                   "--experts-profile", self.folder + "/uses")
        run = [INGLE, "run", "-m", MODEL, *options, "-n", "8", "--temp", "0", "Hello"]
        want = subprocess.run(run, check=True, capture_output=True).stdout
        for wait in (0.01, 0.05, 0.1, 0.2, 0.4):
            for path in glob.glob(self.folder + "/*.packed"):
                os.unlink(path)
            with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as p:
                time.sleep(wait)
                p.kill()
            r = subprocess.run(run, check=True, capture_output=True)
            self.assertEqual(r.stdout, want)
            self.assertNotRegex(r.stderr, b"damaged|no profile|checksum")
            subprocess.run([INGLE, "cache", "--verify", "--pack-cache", self.folder], check=True, stdout=subprocess.DEVNULL)

    def test_an_idle_server_reads_nothing(self):
        server = self.start("--expert-budget", "150K", "--pack")
        self.assertEqual(self.ask(server)[0], 200)
        for _ in attempts("half a second without a read", pause=0):  # what is read early comes to an end
            first = self.metric(server, "ingle_expert_read_bytes_total")
            time.sleep(0.5)
            if self.metric(server, "ingle_expert_read_bytes_total") == first:
                break

    def anonymous(self, server):
        """Bytes of memory that is the process's own, when an idle server has filled what it fills then."""
        last = []
        while len(last) < 100 and (len(last) < 4 or len(set(last[-4:])) > 1):
            time.sleep(0.1)
            with open(f"/proc/{server.process.pid}/smaps_rollup") as f:
                last.append(int(re.search(r"^Anonymous:\s+(\d+) kB", f.read(), re.M)[1]) << 10)
        return last[-1]

    @unittest.skipIf(SANITIZED, "what is freed stays in memory there")
    def test_memory_keeps_to_the_budget(self):
        model = f"{self.folder}/model.gguf"
        subprocess.run([sys.executable, "scripts/make_slice.py", "gemma-26b-a4b", "Q4_0", model, "--layers", "2", "--experts", "16",
                        "--vocab", "2048"], check=True, stdout=subprocess.DEVNULL)
        took = []
        for budget in (24 << 20, 24 << 20, 88 << 20):  # the first one packs
            with Server(INGLE, "-m", model, "-t", "2", "--ctx", "512", "--chunk", "32", "--draft", "off", "--cache", "1M",
                        "--pack-cache", self.folder, "--pack", "--expert-budget", str(budget)) as server:
                for n in range(4):
                    status, _, r = server.post("/completion", {"prompt": [(n * 977 + i * 131) % 2000 + 20 for i in range(120)],
                                                               "n_predict": 8, "ignore_eos": True})
                    self.assertEqual(status, 200, r)
                said = server.get("/props")[2]["runtime"]["experts"]["memory_bytes"]
                self.assertLessEqual(said, budget)
                took.append((said, self.anonymous(server)))
        said, more = took[2][0] - took[1][0], took[2][1] - took[1][1]
        self.assertLessEqual(more, 1.02 * said, took)
        self.assertGreater(more, 0.5 * said, took)  # or it measures something else

    def other_dialects_say_so(self, server):
        asked = {"messages": QUESTION["messages"], "max_tokens": 6, "temperature": 0}
        for path, body, kind in (
                ("/v1/completions", {"prompt": "Hello", "max_tokens": 6, "temperature": 0}, "server_error"),
                ("/v1/responses", {"input": "Hello", "max_output_tokens": 16, "temperature": 0}, "server_error"),
                ("/v1/messages", {"model": "m", **asked}, "api_error"),
                ("/api/chat", {"model": "m", "messages": asked["messages"], "stream": False}, None)):
            status, _, r = server.post(path, body)
            self.assertEqual(status, 500, r)
            self.assertRegex(json.dumps(r), r"layer \d+, expert \d+: the file ends")
            if kind:
                self.assertEqual(r["error"]["type"], kind)
                self.assertEqual(r["error"].get("code"), None if kind == "api_error" else "expert_read")

    def test_a_file_that_is_cut_short_ends_requests_only(self):
        server = self.start("--expert-budget", "150K", "--pack")
        want = self.ask(server)[2]["choices"][0]["message"]["content"]
        path, = glob.glob(self.folder + "/*.packed")
        with open(path, "r+b") as f:
            whole = f.read()
            f.truncate(len(whole) - server.get("/props")[2]["runtime"]["experts"]["bytes"])  # they are at its end
            for _ in range(3):
                status, _, r = self.ask(server)
                if status != 200:
                    break
            self.assertEqual(status, 500, r)
            self.assertEqual(r["error"]["type"], "server_error")
            self.assertEqual(r["error"]["code"], "expert_read")
            self.assertRegex(r["error"]["message"], r"layer \d+, expert \d+: the file ends .*cut short")
            self.assertGreater(self.metric(server, "ingle_expert_failed_reads_total"), 0)
            health = server.get("/health")
            self.assertEqual((health[0], health[2]["status"]), (200, "degraded"))
            self.assertEqual(health[2]["bad_experts"], self.metric(server, "ingle_expert_bad"))
            self.assertNotIn(self.folder, json.dumps(health[2]))  # it needs no key
            self.assertIn(path, server.get("/props")[2]["runtime"]["experts"]["trouble"])
            self.other_dialects_say_so(server)
            f.seek(0)
            f.write(whole)
        status, _, r = self.ask(server)
        self.assertEqual(status, 200, r)
        self.assertEqual(r["choices"][0]["message"]["content"], want)


if __name__ == "__main__":
    main()
