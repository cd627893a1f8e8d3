#!/usr/bin/env python3
"""experts.py INGLE - a server whose experts are on disk: answers, statistics, and a file that is damaged while it runs."""
import glob, os, shutil, sys, tempfile, unittest

from client import Case, Server, main

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
        want = self.ask(whole)[2]["choices"][0]["message"]["content"]
        server = self.start("--expert-budget", "150K", "--pack")
        for _ in range(2):
            status, _, r = self.ask(server)
            self.assertEqual(status, 200, r)
            self.assertEqual(r["choices"][0]["message"]["content"], want)
        n = server.get("/props")[2]["runtime"]["experts"]
        self.assertEqual(n["hits"] + n["misses"], n["choices"])
        self.assertLessEqual(n["memory_bytes"], 150 << 10)
        self.assertLess(n["memory_bytes"], n["bytes"])
        self.assertGreater(n["read_bytes"], 0)
        self.assertTrue(n["packed"])
        self.assertEqual(self.metric(server, "ingle_expert_choices_total{"), n["choices"])
        self.assertEqual(self.metric(server, "ingle_expert_hits_total{"), n["hits"])

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
            self.assertRegex(r["error"]["message"], r"layer \d+, expert \d+: the file ends .*cut short")
            self.assertGreater(self.metric(server, "ingle_expert_failed_reads_total"), 0)
            f.seek(0)
            f.write(whole)
        status, _, r = self.ask(server)
        self.assertEqual(status, 200, r)
        self.assertEqual(r["choices"][0]["message"]["content"], want)


if __name__ == "__main__":
    main()
