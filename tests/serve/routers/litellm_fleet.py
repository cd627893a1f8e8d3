#!/usr/bin/env python3
"""litellm_fleet.py INGLE - replicas as two deployments of one model of LiteLLM's proxy."""
# packages: litellm[proxy]==1.106.2 prometheus-client
import json, os, pathlib, sys

import rolling

LITELLM = os.path.join(os.path.dirname(sys.executable), "litellm")


class LiteLLM(rolling.Fleet):
    test_what_begins_alike_stays_together = None  # it knows no prefixes
    test_prometheus_reads_the_metrics = None      # behind other routers

    def environment(self):
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_MASTER_KEY": "sk-none"}

    def command(self, port, urls, folder):
        config = {"model_list": [{"model_name": "model", "litellm_params": {
            "model": "openai/model", "api_base": url + "/v1", "api_key": "none"}} for url in urls],
            "litellm_settings": {"telemetry": False},
            "router_settings": {"num_retries": 3, "cooldown_time": 1, "allowed_fails": 1}}
        path = pathlib.Path(folder, "config.yaml")
        path.write_text(json.dumps(config))  # JSON is YAML
        return [LITELLM, "--config", str(path), "--port", str(port), "--host", "127.0.0.1"]


if __name__ == "__main__":
    rolling.main()
