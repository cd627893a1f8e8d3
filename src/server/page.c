/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The web page at "/" and its files under "/page/": all in the program, none from elsewhere.  Its
 * policy allows scripts, styles and fonts of this server, and requests to it; nothing else.  Only
 * attributes may have styles (formulas are set with them), and no script is in the page's text.
 * The files are kept compressed (scripts/pack_page.cmake); every browser takes them so.
 */
#include "server/serve.h"

#include <string.h>
#include <strings.h>

extern const unsigned char page_openapi[];
extern const unsigned char page_openapi_end[];

#define PAGE_FILE(name, type, symbol, tag) extern const unsigned char symbol[], symbol##_end[];
#include "server/page_files.inc"
#undef PAGE_FILE

struct page_file {
    const char *name, *type, *tag;
    const unsigned char *at, *end;
};
static const struct page_file files[] = {
#define PAGE_FILE(name, type, symbol, tag) {name, type, tag, symbol, symbol##_end},
#include "server/page_files.inc"
#undef PAGE_FILE
};

static const char policy[] =
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; font-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'";

/* A document of an answer, shown on request: an origin of its own, and no address at all. */
static const char preview_policy[] =
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; media-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; webrtc 'block'";

static const struct page_file *find(const char *name)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strcmp(files[i].name, name) == 0)
            return &files[i];
    return NULL;
}

/* Whether a list of tags, or "*", names this one; W/"x" is "x" here. */
static bool has_tag(const char *list, const char *tag)
{
    return list && (strcmp(list, "*") == 0 || strstr(list, tag));
}

/* Whether the client takes gzip: one that names no coding takes any (RFC 9110). */
static bool takes_gzip(const char *accept)
{
    const char *p = accept;
    if (!p)
        return true;
    while (*p) {
        p += strspn(p, " \t,");
        const size_t n = strcspn(p, ",");
        const bool named = *p == '*' || strncasecmp(p, "gzip", 4) == 0;
        const char *q = memchr(p, '=', n);
        const bool zero = q && strspn(q + 1, "0. \t") == n - (size_t)(q + 1 - p);
        if (named && !zero)
            return true;
        p += n;
    }
    return false;
}

static void send_file(struct http_exchange *x, const struct http_request *rq,
                      const struct page_file *f, bool packed)
{
    const bool preview = strcmp(f->name, "preview.html") == 0;
    http_header(x, "Content-Security-Policy", preview ? preview_policy : policy);
    if (preview)
        http_header(x, "X-DNS-Prefetch-Control", "off");
    http_header(x, "Referrer-Policy", "no-referrer");
    http_header(x, "X-Content-Type-Options", "nosniff");
    http_header(x, "ETag", f->tag);
    http_header(x, "Cache-Control", "no-cache"); /* kept, and asked for again by its tag */
    if (packed)
        http_header(x, "Vary", "Accept-Encoding");
    if (has_tag(http_request_header(rq, "if-none-match"), f->tag)) {
        http_reply(x, 304, NULL, "", 0);
        return;
    }
    if (packed)
        http_header(x, "Content-Encoding", "gzip");
    http_reply(x, 200, f->type, f->at, (size_t)(f->end - f->at));
}

static bool is_off(const struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const bool off = ingle_config_flag(s->config, "no-ui");
    if (off)
        serve_fail(x, rq, &(struct serve_error){.status = 404},
                   "the web page is turned off (--no-ui)");
    return off;
}

void page_get(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    if (!is_off(s, x, rq))
        send_file(x, rq, find("index.html"), false);
}

void page_file_get(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const char *name = serve_path(rq) + strlen("/page/");
    const struct page_file *f = find(name);
    if (is_off(s, x, rq))
        return;
    if (!f || strcmp(name, "index.html") == 0)
        serve_fail(x, rq, &(struct serve_error){.status = 404}, "the web page has no file '%.100s'",
                   name);
    else if (!takes_gzip(http_request_header(rq, "accept-encoding")))
        serve_fail(
            x, rq, &(struct serve_error){.status = 406},
            "'/page/%s' is sent with Content-Encoding gzip, which Accept-Encoding does not allow",
            name);
    else
        send_file(x, rq, f, true);
}

void page_openapi_get(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    (void)s;
    (void)rq;
    http_reply(x, 200, "application/json", page_openapi, (size_t)(page_openapi_end - page_openapi));
}
