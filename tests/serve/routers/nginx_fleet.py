#!/usr/bin/env python3
"""nginx_fleet.py INGLE - replicas behind nginx with share/deploy/nginx.conf."""
# packages: prometheus-client
import rolling

NGINX = rolling.program("nginx")


class Nginx(rolling.Fleet):
    def command(self, port, urls, folder):
        path = rolling.deployed("nginx.conf", (port, *self.ports), folder)
        paths = "".join(f"    {x}_temp_path {folder}/{x};\n" for x in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:  # nothing outside the folder
            f.write(text.replace("http {\n", "http {\n" + paths))
        return [NGINX, "-e", "stderr", "-p", folder, "-c", path, "-g", f"pid {folder}/pid; daemon off;"]


if __name__ == "__main__":
    rolling.main()
