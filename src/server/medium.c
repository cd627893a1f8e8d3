/* SPDX-License-Identifier: Apache-2.0 */
#include "server/medium.h"

#include "base/mem.h"
#include "server/media_url.h"
#include "server/write.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_BYTES = 25 << 20, MARK = 0xFF, MARK_END = 0xFE };

/* ---- where the bytes are ---- */

/* The value of a part that has its bytes or says where they are. */
struct source {
    struct view t;
    const char *member; /* where it stands: "image_url.url"; "" */
    bool is_raw;        /* base64 without "data:" */
    bool is_id;
    struct json_object *detail;
};

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct view trimmed(struct view t)
{
    while (t.n && is_space(*t.at))
        t = (struct view){t.at + 1, t.n - 1};
    while (t.n && is_space(t.at[t.n - 1]))
        t.n--;
    return t;
}

static bool take(struct json_object *o, const char *name, struct source *s)
{
    static const struct {
        const char *name;
        bool is_raw, is_id;
    } members[] = {
        {"url", false, false},      {"image_url", false, false}, {"file_data", true, false},
        {"file_url", false, false}, {"data", true, false},       {"base64", true, false},
        {"image", true, false},     {"audio", true, false},      {"file_id", false, true}};
    if (!json_object_is_type(o, json_type_object))
        return false;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const struct view t = view_member(o, members[i].name);
        if (!t.at)
            continue;
        *s = (struct source){trimmed(t), *name ? name : members[i].name, members[i].is_raw,
                             members[i].is_id, view_get(o, "detail")};
        return true;
    }
    return false;
}

/* Vendors wrap it in an object of many names, or give it as it is. */
static bool find(struct json_object *part, struct source *s)
{
    static const char *const wraps[] = {"image_url", "input_audio", "audio_url", "source",
                                        "file",      "input_image", "image",     "audio"};
    if (view_of(part).at) {
        *s = (struct source){.t = trimmed(view_of(part)), .member = "images", .is_raw = true};
        return true;
    }
    for (size_t i = 0; i < sizeof wraps / sizeof *wraps; i++)
        if (take(view_get(part, wraps[i]), wraps[i], s)) {
            if (!s->detail)
                s->detail = view_get(part, "detail");
            return true;
        }
    return take(part, "", s);
}

static bool starts(struct view t, const char *word)
{
    return t.n >= strlen(word) && strncasecmp(t.at, word, strlen(word)) == 0;
}

/* The first bytes of base64, as far as they are. */
static size_t peek(struct view t, unsigned char *out, size_t n)
{
    unsigned bits = 0, have = 0;
    size_t done = 0;
    for (size_t i = 0; i < t.n && i < 256 && done < n; i++) {
        const int v = view_base64_value(t.at[i]);
        if (is_space(t.at[i]))
            continue;
        if (v < 0)
            break;
        bits = bits << 6 | (unsigned)v;
        have += 6;
        if (have >= 8)
            out[done++] = (unsigned char)(bits >> (have -= 8));
    }
    return done;
}

/* What the first bytes are: a sound, a picture, or ANY: neither. */
static enum ingle_media_kind sniff(const unsigned char *b, size_t n)
{
    if (n >= 12 && memcmp(b, "RIFF", 4) == 0)
        return memcmp(b + 8, "WAVE", 4) == 0   ? INGLE_MEDIA_AUDIO
               : memcmp(b + 8, "WEBP", 4) == 0 ? INGLE_MEDIA_IMAGE
                                               : INGLE_MEDIA_ANY;
    const bool picture = (n >= 3 && memcmp(b, "\xFF\xD8\xFF", 3) == 0) ||
                         (n >= 4 && memcmp(b, "\x89PNG", 4) == 0) ||
                         (n >= 4 && memcmp(b, "GIF8", 4) == 0);
    return picture ? INGLE_MEDIA_IMAGE : INGLE_MEDIA_ANY;
}

static enum ingle_media_kind sniff_source(const struct source *s)
{
    unsigned char b[16];
    struct view t = s->t;
    if (starts(t, "data:")) {
        const char *comma = memchr(t.at, ',', t.n);
        if (!comma)
            return INGLE_MEDIA_ANY;
        t.n -= (size_t)(comma + 1 - t.at);
        t.at = comma + 1;
    } else if (!s->is_raw)
        return INGLE_MEDIA_ANY;
    return sniff(b, peek(t, b, sizeof b));
}

/* What the part's type says; ANY: it may be either, or a document. */
static enum ingle_media_kind kind_of_type(struct json_object *part)
{
    const struct view type = view_member(part, "type");
    if (view_is(type, "image") || view_is(type, "image_url") || view_is(type, "input_image"))
        return INGLE_MEDIA_IMAGE;
    if (view_is(type, "audio") || view_is(type, "audio_url") || view_is(type, "input_audio"))
        return INGLE_MEDIA_AUDIO;
    return INGLE_MEDIA_ANY;
}

bool medium_is_shown(const struct answer_options *o, struct json_object *part)
{
    const struct view type = view_member(part, "type");
    struct source s = {0};
    enum ingle_media_kind kind = kind_of_type(part);
    if (view_is(type, "video") || view_is(type, "video_url") || view_is(type, "input_video"))
        return false;
    if (kind == INGLE_MEDIA_ANY && find(part, &s)) {
        kind = sniff_source(&s);
        if (kind == INGLE_MEDIA_ANY && view_of(part).at)
            kind = INGLE_MEDIA_IMAGE;
    }
    return kind == INGLE_MEDIA_IMAGE ? o->sees : kind == INGLE_MEDIA_AUDIO && o->hears;
}

const char *medium_readable(const struct answer_options *o)
{
    return o->sees && o->hears ? "text, pictures and sound, no PDF or other documents, no video"
           : o->sees           ? "text and pictures, no sound"
           : o->hears          ? "text and sound, no pictures"
                               : "only text";
}

/* ---- bytes ---- */

bool medium_add_base64(struct str *out, struct view t, struct fault *f, const char *param,
                       const char *where)
{
    unsigned bits = 0, have = 0;
    size_t n = 0, n_pad = 0;
    if (t.n / 4 * 3 > 2 * (size_t)MOST_BYTES) {
        request_fault(f, FAULT_REQUEST, param, "%s: a file of %zu bytes; the limit is %d MiB",
                      where, t.n / 4 * 3, MOST_BYTES >> 20);
        return false;
    }
    for (size_t i = 0; i < t.n; i++) {
        const char c = t.at[i];
        const int v = view_base64_value(c);
        if (is_space(c))
            continue;
        if (c == '=' && n_pad < 2) {
            n_pad++;
            continue;
        }
        if (v < 0 || n_pad) {
            request_fault(f, FAULT_REQUEST, param, "%s: no base64: byte %zu of %zu is 0x%02x",
                          where, i, t.n, (unsigned char)c);
            return false;
        }
        bits = bits << 6 | (unsigned)v;
        have += 6;
        n++;
        if (have >= 8)
            str_addc(out, (char)(bits >> (have -= 8) & 0xFF));
    }
    if (n % 4 == 1)
        request_fault(f, FAULT_REQUEST, param,
                      "%s: base64 of %zu characters is cut short: no bytes have so many", where, n);
    return !f->kind;
}

/* The last parameter of "data:image/png;charset=utf-8; base64". */
static bool is_base64(struct view head)
{
    size_t at = head.n;
    while (at && head.at[at - 1] != ';')
        at--;
    const struct view last = trimmed((struct view){head.at + at, head.n - at});
    return at && last.n == 6 && strncasecmp(last.at, "base64", 6) == 0;
}

bool medium_add_data_url(struct str *out, struct view t, struct fault *f, const char *param,
                         const char *where)
{
    const char *comma = memchr(t.at, ',', t.n);
    if (!comma) {
        request_fault(f, FAULT_REQUEST, param, "%s: the data: URL of %zu bytes has no comma", where,
                      t.n);
        return false;
    }
    const struct view head = {t.at, (size_t)(comma - t.at)}, data = {comma + 1, t.n - head.n - 1};
    if (!is_base64(head)) {
        view_add_percent(out, data);
        return true;
    }
    if (!memchr(data.at, '%', data.n))
        return medium_add_base64(out, data, f, param, where);
    struct str plain; /* "%2B": it is a URL */
    str_init(&plain);
    view_add_percent(&plain, data);
    const bool ok = str_ok(&plain) ? medium_add_base64(out, view_str(&plain), f, param, where)
                                   : (request_fault(f, FAULT_ENGINE, NULL, "no memory for a file "
                                                    "of a request"), false);
    str_release(&plain);
    return ok;
}

/* ---- reading ---- */

static void read_detail(struct request_medium *m, struct json_object *v, const char *where,
                        struct fault *f)
{
    static const struct {
        const char *word;
        int32_t budget;
    } detail[] = {{"low", 70},
                  {"auto", INGLE_MEDIA_BUDGET},
                  {"high", 560},
                  {"original", 1120},
                  {"", INGLE_MEDIA_BUDGET}};
    const struct view t = view_of(v);
    if (!v)
        return;
    for (size_t i = 0; i < sizeof detail / sizeof *detail; i++)
        if (t.at && view_is(t, detail[i].word)) {
            m->budget = detail[i].budget;
            m->has_detail = m->budget != INGLE_MEDIA_BUDGET;
            return;
        }
    request_fault(f, FAULT_REQUEST, m->param,
                  "%s: 'detail' is %.40s, not low, auto, high or original", where,
                  json_object_get_string(v));
}

/* The scheme of an address, with its colon; "": it has none. */
static struct view scheme_of(struct view t)
{
    size_t n = 0;
    while (n < t.n && n < 20 && ((t.at[n] | 32) >= 'a' && (t.at[n] | 32) <= 'z'))
        n++;
    return n && n < t.n && t.at[n] == ':' ? (struct view){t.at, n + 1} : (struct view){t.at, 0};
}

static void read_link(struct request_medium *m, const struct source *s,
                      const struct answer_options *o, struct fault *f)
{
    const struct view scheme = scheme_of(s->t);
    if (starts(s->t, "http:") || starts(s->t, "https:")) {
        if (!o->media_urls) {
            request_fault(f, FAULT_REQUEST, m->param,
                          "%s: '%s' is an address: this server fetches none; send a data: URL, or "
                          "start it with --media-urls HOSTS",
                          m->name, s->member);
            return;
        }
        m->url = mem_strndup(s->t.at, s->t.n);
        if (!m->url)
            request_fault(f, FAULT_ENGINE, NULL, "no memory for an address");
        else
            media_url_check(m->url, o->media_urls, m->name, m->param, f);
    } else if (scheme.n)
        request_fault(f, FAULT_REQUEST, m->param,
                      "%s: '%s' begins with '%.*s'; data: URLs are read%s", m->name, s->member,
                      (int)scheme.n, scheme.at, o->media_urls ? ", and https:" : "");
    else
        request_fault(f, FAULT_REQUEST, m->param,
                      "%s: '%s' is no data: URL; files of the server are never read", m->name,
                      s->member);
}

static void read_source(struct request_medium *m, const struct source *s,
                        const struct answer_options *o, struct fault *f)
{
    if (s->is_id)
        request_fault(f, FAULT_REQUEST, m->param,
                      "%s: 'file_id' names a file, but none are kept here; send a data: URL",
                      m->name);
    else if (starts(s->t, "data:"))
        (void)medium_add_data_url(&m->bytes, s->t, f, m->param, m->name);
    else if (s->is_raw)
        (void)medium_add_base64(&m->bytes, s->t, f, m->param, m->name);
    else
        read_link(m, s, o, f);
    if (!str_ok(&m->bytes))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a file of a request");
    if (!f->kind && !m->url && !m->bytes.n)
        request_fault(f, FAULT_REQUEST, m->param, "%s: the file is empty", m->name);
}

static struct request_medium *add(struct chat_request *r, struct fault *f)
{
    if (!mem_grow(&r->medium, &r->cap_media, r->n_media + 1, sizeof *r->medium)) {
        request_fault(f, FAULT_ENGINE, NULL, "no memory for the media of a request");
        return NULL;
    }
    struct request_medium *m = &r->medium[r->n_media++];
    *m = (struct request_medium){0};
    str_init(&m->bytes);
    return m;
}

/* Where nothing is found: what is there instead. */
static void say_found(struct json_object *part, const char *name, const char *param,
                      struct fault *f)
{
    if (json_object_is_type(part, json_type_object)) {
        json_object_object_foreach(part, key, v) {
            if (strcmp(key, "type") == 0 || strcmp(key, "detail") == 0)
                continue;
            request_fault(f, FAULT_REQUEST, param,
                          "%s: '%.40s' is %.60s: it has no data: URL and no base64", name, key,
                          v ? json_object_to_json_string_ext(v, JSON_C_TO_STRING_PLAIN) : "null");
            return;
        }
    }
    request_fault(f, FAULT_REQUEST, param,
                  "%s: it has neither an image_url nor data: there are no bytes", name);
}

int medium_read(struct chat_request *r, struct json_object *part, const struct medium_place *at,
                const struct answer_options *o, struct fault *f)
{
    struct source s = {0};
    char name[64];
    if (at->i == MEDIUM_UNNUMBERED)
        snprintf(name, sizeof name, "%s, %s %zu", at->of, at->part, at->k + 1);
    else
        snprintf(name, sizeof name, "%s %zu, %s %zu", at->of, at->i + 1, at->part, at->k + 1);
    if (f->kind)
        return -1;
    if (r->n_media == MEDIUM_MOST) {
        request_fault(f, FAULT_REQUEST, at->param,
                      "%s: a request has at most %d pictures and sounds", name, MEDIUM_MOST);
        return -1;
    }
    struct request_medium *m = add(r, f);
    if (!m)
        return -1;
    memcpy(m->name, name, sizeof name);
    snprintf(m->param, sizeof m->param, "%s", at->param);
    if (!find(part, &s)) {
        say_found(part, name, at->param, f);
        return -1;
    }
    read_source(m, &s, o, f);
    m->kind = kind_of_type(part);
    if (m->kind == INGLE_MEDIA_ANY)
        m->kind = sniff((unsigned char *)m->bytes.at, m->bytes.n);
    m->is_sound = m->kind == INGLE_MEDIA_AUDIO;
    read_detail(m, s.detail, name, f);
    return f->kind ? -1 : (int)r->n_media - 1;
}

/* ---- in messages and texts ---- */

void medium_put_part(struct str *out, const struct chat_request *r, int i)
{
    view_put_comma(out);
    str_addf(out, "{\"type\":\"%s\",\"medium\":%d}", r->medium[i].is_sound ? "audio" : "image", i);
}

void medium_put_mark(struct str *out, const struct chat_request *r, int i)
{
    str_addf(out, "%c%c%02d%c", MARK, r->medium[i].is_sound ? 'a' : 'i', i, MARK_END);
}

bool medium_joins(const struct str *s, struct view t)
{
    return (s->n && (unsigned char)s->at[s->n - 1] == MARK_END) ||
           (t.n && (unsigned char)t.at[0] == MARK);
}

static void put_piece(struct str *out, struct view t)
{
    if (!t.n)
        return;
    view_put_comma(out);
    str_adds(out, "{\"type\":\"text\",\"text\":");
    view_put(out, t);
    str_addc(out, '}');
}

void medium_put_content(struct str *out, struct view t)
{
    enum { N_MARK = 5 };
    size_t begin = 0;
    if (!t.n || !memchr(t.at, MARK, t.n)) {
        str_add_json(out, t.at ? t.at : "", t.n);
        return;
    }
    str_addc(out, '[');
    for (size_t i = 0; i < t.n;)
        if ((unsigned char)t.at[i] == MARK && t.n - i >= N_MARK) {
            put_piece(out, (struct view){t.at + begin, i - begin});
            view_put_comma(out);
            str_addf(out, "{\"type\":\"%s\",\"medium\":%d}", t.at[i + 1] == 'a' ? "audio" : "image",
                     (t.at[i + 2] - '0') * 10 + (t.at[i + 3] - '0'));
            begin = i += N_MARK;
        } else
            i++;
    put_piece(out, (struct view){t.at + begin, t.n - begin});
    str_addc(out, ']');
}

/* ---- opening ---- */

void medium_open_all(struct chat_request *r, const struct answer_options *o,
                     struct ingle_medium **out, struct fault *f)
{
    for (size_t i = 0; i < r->n_media && request_go_on(f); i++) {
        struct request_medium *m = &r->medium[i];
        struct ingle_error e;
        if (m->url && !m->bytes.n &&
            !media_url_fetch(m->url, o->media_urls, o->media_gate, m->name, m->param, &m->bytes,
                             f))
            return;
        const struct ingle_media in = {.kind = m->kind,
                                       .bytes = m->bytes.at,
                                       .n_bytes = m->bytes.n,
                                       .budget = m->is_sound     ? INGLE_MEDIA_BUDGET
                                                 : m->has_detail ? m->budget
                                                                 : r->image_tokens,
                                       .name = m->name};
        const ingle_status st = ingle_medium_open(&out[i], o->engine, &in, &e);
        if (st)
            request_fault_from(f, st, m->param, e.text);
    }
}
