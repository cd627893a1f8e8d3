# Replicas of ingle as a Nomad job: nomad job run ingle.nomad
# To be filled in: the model's folder on each client (host_volume "models"), and the keys
# (nomad var put nomad/jobs/ingle keys=...).
job "ingle" {
  datacenters = ["*"]

  update {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "10s"
    healthy_deadline = "15m" # a large model is loaded
  }

  group "ingle" {
    count = 2

    constraint {
      distinct_hosts = true
    }

    network {
      port "http" {}
      port "metrics" {}
    }

    volume "models" {
      type      = "host"
      source    = "models"
      read_only = true
    }

    service {
      name     = "ingle"
      port     = "http"
      provider = "nomad"
      check {
        type     = "http"
        path     = "/readyz"
        interval = "2s"
        timeout  = "2s"
      }
    }

    task "ingle" {
      driver       = "exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "70s" # longer than --linger and --drain together

      volume_mount {
        volume      = "models"
        destination = "/models"
        read_only   = true
      }

      template {
        destination = "secrets/keys"
        perms       = "600"
        data        = "{{ with nomadVar \"nomad/jobs/ingle\" }}{{ .keys }}{{ end }}\n"
      }

      config {
        command = "/usr/bin/ingle"
        args = ["serve", "-m", "/models/model.gguf", "--host", "0.0.0.0", "--port", "${NOMAD_PORT_http}",
          "--metrics-address", "0.0.0.0:${NOMAD_PORT_metrics}",
          "--api-key-file", "${NOMAD_SECRETS_DIR}/keys", "--replica", "r${NOMAD_ALLOC_INDEX}",
          "--limit", "per-address=1024", "--linger", "10", "--drain", "45"]
      }

      resources {
        cpu    = 8000
        memory = 24576
      }
    }
  }
}
