/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The web page at "/": one file without outside resources (page.html).  Its policy allows
 * the page's own script by hash, its own styles, and requests to this server; nothing else.
 */
#include "base/sha256.h"
#include "server/serve.h"

#include <stdio.h>
#include <string.h>

extern const unsigned char page_html[];
extern const unsigned char page_html_end[];
extern const unsigned char page_openapi[];
extern const unsigned char page_openapi_end[];

enum { HASH_TEXT = 45 }; /* base64 of 32 bytes and a 0 */

static void base64(const uint8_t *in, size_t n, char *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t v = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
                           (left > 2 ? in[i + 2] : 0);
        *out++ = digit[v >> 18];
        *out++ = digit[v >> 12 & 63];
        *out++ = left > 1 ? digit[v >> 6 & 63] : '=';
        *out++ = left > 2 ? digit[v & 63] : '=';
    }
    *out = 0;
}

/* The hash of what stands between the page's only <script> and its end; the page ends in a 0. */
static void script_hash(const char *page, char out[HASH_TEXT])
{
    static const char begin[] = "<script>";
    struct sha256 sha;
    uint8_t digest[SHA256_BYTES];
    const char *from = strstr(page, begin);
    from = from ? from + sizeof begin - 1 : page;
    const char *to = strstr(from, "</script>");
    sha256_init(&sha);
    sha256_add(&sha, from, to ? (size_t)(to - from) : strlen(from));
    sha256_end(&sha, digest);
    base64(digest, sizeof digest, out);
}

void page_get(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const size_t n = (size_t)(page_html_end - page_html);
    char hash[HASH_TEXT], policy[320];
    if (ingle_config_flag(s->config, "no-ui")) {
        serve_fail(x, rq, &(struct serve_error){.status = 404}, "the web page is turned off (--no-ui)");
        return;
    }
    script_hash((const char *)page_html, hash);
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'sha256-%s'; style-src 'unsafe-inline'; img-src data:; "
             "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'", hash);
    http_header(x, "Content-Security-Policy", policy);
    http_header(x, "Referrer-Policy", "no-referrer");
    http_reply(x, 200, "text/html; charset=utf-8", page_html, n);
}

void page_openapi_get(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    (void)s;
    (void)rq;
    http_reply(x, 200, "application/json", page_openapi,
               (size_t)(page_openapi_end - page_openapi));
}
