/* SPDX-License-Identifier: Apache-2.0 */
/* ask - requests to the hub: what its refusals say, and which of them are tried again. */
#define _GNU_SOURCE
#include "hub/inner.h"

#include "base/clock.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MOST_TRIES = 5, MOST_ERROR_BYTES = 64 << 10, MOST_ERROR_S = 10, SMALL_S = 300, HURRY_S = 8 };

CURL *hub_request(const struct hub_options *o, const char *url)
{
    CURL *e = curl_easy_init();
    bool ok =
        e && curl_easy_setopt(e, CURLOPT_URL, url) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 1L) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_MAXREDIRS, 8L) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_REDIR_PROTOCOLS_STR,
                         strncmp(url, "https:", 6) == 0 ? "https" : "http,https") == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_USERAGENT, "ingle") == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, o->hurry ? 4L : 30L) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 16L) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, 60L) == CURLE_OK;
    /* As a bearer, and no header of ours: libcurl keeps it from other hosts. */
    if (ok && o->token)
        ok = curl_easy_setopt(e, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER) == CURLE_OK &&
             curl_easy_setopt(e, CURLOPT_XOAUTH2_BEARER, o->token) == CURLE_OK;
    if (!ok && e)
        curl_easy_cleanup(e);
    return ok ? e : NULL;
}

void hub_escape(struct str *out, const char *path)
{
    for (const unsigned char *p = (const unsigned char *)path; *p; p++)
        if ((*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') || (*p >= 'a' && *p <= 'z') ||
            strchr("-._~/", *p))
            str_addc(out, (char)*p);
        else
            str_addf(out, "%%%02X", *p);
}

/* ---- what an answer says beside its body ---- */

/* The value of a header of this name. */
static bool header(const char *bytes, size_t n, const char *name, char *out, size_t n_out)
{
    const size_t k = strlen(name);
    if (n <= k || strncasecmp(bytes, name, k) != 0 || bytes[k] != ':')
        return false;
    hub_words(out, n_out, bytes + k + 1, n - k - 1);
    return true;
}

/* Seconds, or a date. */
static double seconds_of(const char *text)
{
    char *end;
    const double s = strtod(text, &end);
    if (end != text && !*end && s >= 0)
        return s;
    const time_t at = curl_getdate(text, NULL);
    const double left = at < 0 ? -1 : difftime(at, time(NULL));
    return at < 0 ? -1 : left > 0 ? left : 0;
}

void hub_reply_header(struct hub_reply *r, const char *bytes, size_t n)
{
    char value[80];
    if (n > 5 && strncasecmp(bytes, "HTTP/", 5) == 0) /* of the next one, after a redirect */
        *r = (struct hub_reply){.retry_s = -1};
    else if (header(bytes, n, "x-error-code", r->code, sizeof r->code) ||
             header(bytes, n, "x-error-message", r->message, sizeof r->message) ||
             header(bytes, n, "content-type", r->type, sizeof r->type))
        return;
    else if (header(bytes, n, "retry-after", value, sizeof value))
        r->retry_s = seconds_of(value);
    else if (header(bytes, n, "ratelimit", value, sizeof value) &&
             r->retry_s < 0) { /* "api";r=0;t=55 */
        const char *t = strstr(value, "t=");
        r->retry_s = t ? strtod(t + 2, NULL) : -1;
    }
}

size_t hub_reply_text(struct hub_reply *r, const char *bytes, size_t n)
{
    const uint64_t now = clock_now();
    const size_t room = sizeof r->text - r->n_text, k = n < room ? n : room;
    memcpy(r->text + r->n_text, bytes, k);
    r->n_text += k;
    r->since = r->n_seen ? r->since : now;
    r->n_seen += n;
    return r->n_seen > MOST_ERROR_BYTES || now - r->since > (uint64_t)MOST_ERROR_S * 1000000000u
               ? 0
               : n;
}

/* {"error": "..."}, {"error": {"message": "..."}}, {"message": "..."} */
bool hub_json_words(const char *text, size_t n, char *out, size_t n_out)
{
    struct json_object *o = NULL, *v = NULL;
    if (json_parse(text, n, NULL, &o, NULL))
        return false;
    if (json_object_is_type(o, json_type_object) && !json_object_object_get_ex(o, "error", &v))
        (void)json_object_object_get_ex(o, "message", &v);
    if (v && json_object_is_type(v, json_type_object))
        (void)json_object_object_get_ex(v, "message", &v);
    const bool is = v && json_object_is_type(v, json_type_string);
    if (is)
        hub_words(out, n_out, json_object_get_string(v), (size_t)json_object_get_string_len(v));
    json_object_put(o);
    return is && out[0];
}

bool hub_is_html(const char *type, const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", text[i]))
        i++;
    return (type && strncasecmp(type, "text/html", 9) == 0) || (i < n && text[i] == '<');
}

void hub_html(char *out, size_t n_out, const char *text, size_t n)
{
    char title[100] = "";
    const char *a = memmem(text, n, "<title>", 7),
               *b = a ? memmem(a, n - (size_t)(a - text), "</", 2) : NULL;
    if (b)
        hub_words(title, sizeof title, a + 7, (size_t)(b - a) - 7);
    snprintf(out, n_out, "a page of HTML%s%s%s, as a login or a proxy sends it",
             title[0] ? " ('" : "", title, title[0] ? "')" : "");
}

void hub_reply_say(const struct hub_reply *r, long status, char *out, size_t n_out)
{
    char words[240] = "";
    if (r->message[0])
        snprintf(words, sizeof words, "%s", r->message);
    else if (r->n_text && hub_is_html(r->type, r->text, r->n_text))
        hub_html(words, sizeof words, r->text, r->n_text);
    else if (r->n_text && !hub_json_words(r->text, r->n_text, words, sizeof words) &&
             r->text[0] != '{')
        hub_words(words, 160, r->text, r->n_text);
    snprintf(out, n_out, "status %ld%s%s%s%s", status, r->code[0] ? ", " : "", r->code,
             words[0] ? ": " : "", words);
}

/* ---- again ---- */

bool hub_is_temporary(long status)
{
    return status == 408 || status == 425 || status == 429 || status == 500 ||
           (status >= 502 && status <= 504);
}

double hub_delay(const struct hub_reply *r, int n_tries)
{
    return r->retry_s >= 0 ? r->retry_s : 0.25 * (double)(1 << (n_tries < 6 ? n_tries : 6));
}

bool hub_wait(const struct hub_options *o, double seconds)
{
    const uint64_t until = clock_now() + (uint64_t)(seconds * 1e9);
    while (clock_now() < until) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        if (report_progress(o->sink, "pull", 0, 0))
            return false;
    }
    return true;
}

static bool is_passing(CURLcode code)
{
    return code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR || code == CURLE_GOT_NOTHING ||
           code == CURLE_PARTIAL_FILE;
}

/* ---- a whole small answer ---- */

struct get {
    const struct hub_options *o;
    struct hub_reply reply;
    struct str *body;
    size_t most;
    char *next; /* [2048], or NULL */
    CURL *easy;
    bool too_much;
};

static size_t on_body(char *bytes, size_t size, size_t n, void *arg)
{
    struct get *g = arg;
    long status = 0;
    const size_t all = size * n;
    (void)curl_easy_getinfo(g->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206)
        return hub_reply_text(&g->reply, bytes, all);
    if (all > g->most - g->body->n) {
        g->too_much = true;
        return 0;
    }
    str_add(g->body, bytes, all);
    return str_ok(g->body) ? all : 0;
}

/* Link: <https://...>; rel="next" */
static size_t on_header(char *bytes, size_t size, size_t n, void *arg)
{
    struct get *g = arg;
    const size_t all = size * n;
    const char *open = memchr(bytes, '<', all),
               *close = open ? memchr(open, '>', all - (size_t)(open - bytes)) : NULL;
    hub_reply_header(&g->reply, bytes, all);
    if (g->next && all > 5 && strncasecmp(bytes, "link:", 5) == 0 && close &&
        memmem(close, all - (size_t)(close - bytes), "\"next\"", 6))
        snprintf(g->next, HUB_MOST_URL, "%.*s", (int)(close - open - 1), open + 1);
    return all;
}

static int on_time(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct get *g = arg;
    (void)a, (void)b, (void)c, (void)d;
    return report_progress(g->o->sink, "pull", 0, 0);
}

static bool prepare(struct get *g, const char *url, const char *range)
{
    CURL *e = g->easy = hub_request(g->o, url);
    return e && curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_WRITEDATA, g) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_HEADERDATA, g) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_XFERINFOFUNCTION, on_time) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_XFERINFODATA, g) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_NOPROGRESS, 0L) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_TIMEOUT, g->o->hurry ? (long)HURRY_S : (long)SMALL_S) ==
               CURLE_OK &&
           (!range || curl_easy_setopt(e, CURLOPT_RANGE, range) == CURLE_OK);
}

/* Of an answer that is none of these. */
static ingle_status refused(const struct get *g, const char *what, long status, struct err *err)
{
    char says[400];
    hub_reply_say(&g->reply, status, says, sizeof says);
    return hub_refuses(g->o, what, status, says, err);
}

ingle_status hub_refuses(const struct hub_options *o, const char *what, long status,
                         const char *says, struct err *err)
{
    if (status == 401 || status == 403)
        return err_set(
            err, INGLE_IO, "%.120s: the hub refuses it (%.250s)%s", what, says,
            o->token ? "; the token was sent"
                     : ": there is no such repository, or a token is needed (--hub-token-file)");
    if (status == 404)
        return err_set(
            err, INGLE_NOTFOUND,
            "%.120s: the hub answers with %.250s: there is no such repository or revision", what,
            says);
    return err_set(err, INGLE_IO, "%.120s: the hub answers with %.300s", what, says);
}

static ingle_status judge(struct get *g, const char *what, CURLcode code, long status, bool *again,
                          struct err *err)
{
    *again = is_passing(code) || (code == CURLE_OK && hub_is_temporary(status));
    if (code == CURLE_ABORTED_BY_CALLBACK) {
        *again = false;
        return err_set(err, INGLE_CANCEL, "interrupted: the next call goes on");
    }
    if (g->too_much)
        return err_set(err, INGLE_LIMIT, "%.200s: the hub sends more than %zu bytes", what,
                       g->most);
    if (status >= 300) { /* its text may have been cut */
        *again = hub_is_temporary(status);
        return refused(g, what, status, err);
    }
    if (code != CURLE_OK)
        return err_set(err, INGLE_IO, "%.200s: the hub at %.100s does not answer: %s", what,
                       g->o->address, curl_easy_strerror(code));
    return status == 200 || status == 206 ? INGLE_OK : refused(g, what, status, err);
}

ingle_status hub_get(const struct hub_options *o, const char *what, const char *url,
                     const char *range, size_t most, struct str *body, char *next, struct err *err)
{
    double waited = 0;
    for (int n_tries = 0;; n_tries++) {
        struct get g = {.o = o, .reply.retry_s = -1, .body = body, .most = most, .next = next};
        long status = 0;
        bool again = false;
        str_clear(body);
        if (next)
            next[0] = 0;
        if (!prepare(&g, url, range)) {
            if (g.easy)
                curl_easy_cleanup(g.easy);
            return err_set(err, INGLE_NOMEM, "no memory for a request");
        }
        const CURLcode code = curl_easy_perform(g.easy);
        (void)curl_easy_getinfo(g.easy, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_cleanup(g.easy);
        const ingle_status st = judge(&g, what, code, status, &again, err);
        const double delay = hub_delay(&g.reply, n_tries);
        if (!st || !again || o->hurry || n_tries + 1 == MOST_TRIES)
            return st;
        if (delay > HUB_MOST_WAIT_S - waited)
            return err_prefix(err, "come again in %.0f s", delay);
        report(o->sink, INGLE_REPORT_NOTE, "hub", what,
               "status %ld: again in %.1f s (try %d of %d)", status, delay, n_tries + 2,
               MOST_TRIES);
        waited += delay;
        if (!hub_wait(o, delay))
            return err_set(err, INGLE_CANCEL, "interrupted: the next call goes on");
    }
}
