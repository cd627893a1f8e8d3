#!/usr/bin/env python3
"""sglang_router_fleet.py INGLE - replicas behind sglang-router, by prefixes of text."""
# packages: sglang-router==0.3.2 prometheus-client
import sys

import rolling


class SglangRouter(rolling.Fleet):
    def command(self, port, urls, folder):
        return [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
                "--policy", "cache_aware", "--worker-urls", *urls, "--health-check-endpoint", "/readyz",
                "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1",
                "--cb-timeout-duration-secs", "2", "--prometheus-port", str(rolling.free_ports(1)[0])]


if __name__ == "__main__":
    rolling.main()
