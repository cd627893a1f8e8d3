/* SPDX-License-Identifier: Apache-2.0 */
/* name - how a model of a hub is named, which paths and texts of a hub are accepted. */
#include "hub/inner.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_PATH = 512, MOST_NAME = 96 };

static bool is_word(const char *s, size_t n)
{
    if (!n || n > MOST_NAME || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", s[i]) ||
            !s[i])
            return false;
    return true;
}

/* ---- what a terminal or a file system could misread ---- */

/* Controls (C0, DEL, C1), line separators, and marks that turn the direction of text. */
static bool is_control(uint32_t cp)
{
    return cp < ' ' || (cp >= 0x7F && cp <= 0x9F) || cp == 0x061C || cp == 0x200E || cp == 0x200F ||
           (cp >= 0x2028 && cp <= 0x202E) || (cp >= 0x2066 && cp <= 0x2069) || cp == 0xFEFF;
}

bool hub_path_is_safe(const char *path)
{
    const size_t n_path = strlen(path);
    uint32_t cp;
    if (!n_path || n_path > MOST_PATH)
        return false;
    for (size_t i = 0; i < n_path; i += utf8_decode(path + i, n_path - i, &cp))
        if ((void)utf8_decode(path + i, n_path - i, &cp),
            cp == UTF8_BAD || is_control(cp) || cp == '\\')
            return false;
    for (const char *p = path;;) {
        const size_t n = strcspn(p, "/");
        if (!n || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.') ||
            strncmp(p, ".ingle", 6) == 0)
            return false;
        if (!p[n])
            return true;
        p += n + 1;
    }
}

void hub_words(char *out, size_t n_out, const char *text, size_t n)
{
    size_t k = 0;
    bool blank = true; /* none at the beginning, and one at a time */
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t step = utf8_decode(text + i, n - i, &cp);
        const bool is_blank = cp == ' ' || cp == '\n' || cp == '\t' || cp == '\r';
        const bool bad = cp == UTF8_BAD || (!is_blank && is_control(cp));
        if (k + (bad ? 1 : step) + 4 > n_out) {
            k += (size_t)snprintf(out + k, n_out - k, "...");
            break;
        }
        if (bad)
            out[k++] = '?';
        else if (is_blank && !blank)
            out[k++] = ' ';
        else if (!is_blank)
            memcpy(out + k, text + i, step), k += step;
        blank = is_blank;
        i += step;
    }
    while (k && out[k - 1] == ' ')
        k--;
    out[k] = 0;
}

/* ---- names ---- */

static bool begins(const char *s, const char *with)
{
    return strncasecmp(s, with, strlen(with)) == 0;
}

/* "https://HOST:PORT/..." without its scheme; *n: length of the host. */
static const char *host_of(const char *address, size_t *n)
{
    const char *s = strstr(address, "://");
    s = s ? s + 3 : address;
    *n = strcspn(s, "/");
    return s;
}

static bool is_usual_host(const char *s, size_t n)
{
    static const char *const host[] = {"huggingface.co", "www.huggingface.co", "hf.co"};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        if (strlen(host[i]) == n && strncasecmp(s, host[i], n) == 0)
            return true;
    return false;
}

/* Where the repository begins in an address of a page of the hub, text itself if it is none; NULL:
 * of another server. */
static const char *after_host(const char *text, const char *hub)
{
    size_t n, n_hub;
    const bool is_address = begins(text, "https://") || begins(text, "http://");
    const char *s = host_of(text, &n), *own = host_of(hub, &n_hub);
    if (!is_address && (s != text || !is_usual_host(text, n)))
        return text;
    if (!is_usual_host(s, n) && (n != n_hub || strncasecmp(s, own, n) != 0))
        return NULL;
    return s + n + (s[n] == '/');
}

bool hub_is_address(const char *text)
{
    size_t n;
    const char *s = host_of(text, &n);
    return (begins(text, "https://") || begins(text, "http://") || s == text) &&
           is_usual_host(s, n) && s[n] == '/';
}

/* The n bytes of a part of an address without its escapes; false: it has no room or a wrong one. */
static bool unescape(char *out, size_t n_out, const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '%' && i + 2 < n + 0 && str_hex_value(s[i + 1]) >= 0 &&
            str_hex_value(s[i + 2]) >= 0) {
            c = (char)(str_hex_value(s[i + 1]) * 16 + str_hex_value(s[i + 2]));
            i += 2;
        }
        if (!c || k + 1 >= n_out)
            return false;
        out[k++] = c;
    }
    out[k] = 0;
    return true;
}

/* "/tree/REVISION", "/blob/REVISION/PATH", "/resolve/..." and "/raw/...", of n bytes. */
static bool read_place(struct hub_name *out, const char *s, size_t n)
{
    const size_t verb = strcspn(s + 1, "/") + 1;
    const bool tree = verb == 5 && strncmp(s, "/tree", 5) == 0;
    const bool file = (verb == 5 && strncmp(s, "/blob", 5) == 0) ||
                      (verb == 8 && strncmp(s, "/resolve", 8) == 0) ||
                      (verb == 4 && strncmp(s, "/raw", 4) == 0);
    if ((!tree && !file) || verb >= n)
        return false;
    const char *revision = s + verb + 1, *end = s + n;
    const size_t k = strcspn(revision, "/");
    const char *path = revision + k < end ? revision + k + 1 : end;
    if (!k || !unescape(out->revision, sizeof out->revision, revision,
                        revision + k < end ? k : (size_t)(end - revision)))
        return false;
    while (end > path && end[-1] == '/')
        end--;
    return (tree || path < end) &&
           unescape(out->code, sizeof out->code, path, (size_t)(end - path));
}

static ingle_status wrong(const char *text, struct err *err)
{
    char shown[220];
    hub_words(shown, sizeof shown, text, strlen(text));
    return err_set(
        err, INGLE_ARG,
        "'%s' is not a repository name: OWNER/NAME, OWNER/NAME:CODE or OWNER/NAME:FILE.gguf",
        shown);
}

ingle_status hub_name_read(const char *text, const char *hub, struct hub_name *out, struct err *err)
{
    if (begins(text, "hf:"))
        text += 3;
    if (strncmp(text, "//", 2) == 0) /* hf://OWNER/NAME */
        text += 2;
    const char *s = after_host(text, hub);
    if (!s)
        return err_set(
            err, INGLE_ARG,
            "'%.200s' is an address of another server than the hub %.100s: --hub says which one",
            text, hub);
    const bool address = s != text;
    const size_t n_owner = strcspn(s, "/"), all = address ? strcspn(s, "?#") : strlen(s);
    if (n_owner >= all || !is_word(s, n_owner))
        return wrong(text, err);
    const size_t n_name = strcspn(s + n_owner + 1, address ? "/:?#" : ":"),
                 n = n_owner + 1 + n_name;
    if (!is_word(s + n_owner + 1, n_name) || n >= sizeof out->repository)
        return wrong(text, err);
    *out = (struct hub_name){.code = ""};
    snprintf(out->repository, sizeof out->repository, "%.*s", (int)n, s);
    if (address && s[n] == '/' && n + 1 < all && !read_place(out, s + n, all - n))
        return wrong(text, err);
    if (s[n] == ':' && strlen(s + n + 1) >= sizeof out->code)
        return wrong(text, err);
    if (s[n] == ':')
        snprintf(out->code, sizeof out->code, "%s", s + n + 1);
    if ((s[n] == ':' && !s[n + 1]) || (out->code[0] && !hub_path_is_safe(out->code)) ||
        (out->revision[0] && !hub_revision_is_safe(out->revision)))
        return wrong(text, err);
    return INGLE_OK;
}

bool hub_revision_is_safe(const char *s)
{
    return *s && strlen(s) <= 200 && hub_path_is_safe(s);
}
