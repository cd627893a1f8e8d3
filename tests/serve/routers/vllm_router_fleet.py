#!/usr/bin/env python3
"""vllm_router_fleet.py INGLE - replicas behind vllm-router, with the options of share/deploy/vllm-router.service."""
# packages: vllm-router==0.1.17 prometheus-client
import os, re, sys

import rolling

ROUTER = os.path.join(os.path.dirname(sys.executable), "vllm-router")


class VllmRouter(rolling.Fleet):
    def options(self, i):
        return ["--kv-events", f"127.0.0.1:{self.events[i]}"]

    def command(self, port, urls, folder):
        text = (rolling.ROOT / "share/deploy/vllm-router.service").read_text()
        line = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.M)[1].replace("\\\n", " ")
        words = [ROUTER, *line.split()[1:]]
        words[words.index("--port") + 1] = str(port)
        for i, url in enumerate(urls):
            words = [w.replace(f"http://10.0.0.{i + 1}:8080", url)
                     .replace(f"tcp://10.0.0.{i + 1}:5557", f"tcp://127.0.0.1:{self.events[i]}") for w in words]
        return [*words, "--prometheus-port", str(rolling.free_ports(1)[0])]


if __name__ == "__main__":
    rolling.main()
