/* SPDX-License-Identifier: Apache-2.0 */
/* hello - who an end is, as bytes, and whether two of them can compute together. */
#define _POSIX_C_SOURCE 200809L
#include "link/link.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- layers ---- */

static bool read_number(const char **at, uint32_t most, uint32_t *out)
{
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    const unsigned long v = strtoul(*at, &end, 10);
    if (v > most)
        return false;
    *at = end;
    *out = (uint32_t)v;
    return true;
}

ingle_status link_range_parse(const char *text, struct link_range *out, struct err *err)
{
    struct link_range r = {false, 0, 0};
    const char *at = text;
    if (strcmp(text, "all") == 0) {
        *out = (struct link_range){true, 0, 0};
        return INGLE_OK;
    }
    if (!read_number(&at, LINK_MAX_LAYERS, &r.from) || *at++ != ':' ||
        !read_number(&at, LINK_MAX_LAYERS, &r.to) || *at || r.from >= r.to)
        return err_set(err, INGLE_ARG,
                       "layers '%s' are neither 'all' nor A:B with A < B <= %d (A to B - 1)", text,
                       LINK_MAX_LAYERS);
    *out = r;
    return INGLE_OK;
}

bool link_range_has(const struct link_range *r, int64_t layer)
{
    return r->all || (layer >= r->from && layer < r->to);
}

bool link_range_meets(const struct link_range *a, const struct link_range *b)
{
    return a->all || b->all || (a->from < b->to && b->from < a->to);
}

void link_range_text(const struct link_range *r, char *out, size_t n)
{
    if (r->all)
        snprintf(out, n, "all");
    else
        snprintf(out, n, "%u:%u", r->from, r->to);
}

/* ---- bytes ---- */

/* Writes or reads fields one after the other, so that both have one order. */
struct cursor { uint8_t *to; const uint8_t *from; };

static void u32(struct cursor *c, uint32_t *v)
{
    if (c->to) {
        link_put_u32(c->to, *v);
        c->to += 4;
    } else {
        *v = link_u32(c->from);
        c->from += 4;
    }
}

static void u64(struct cursor *c, uint64_t *v)
{
    uint32_t lo = (uint32_t)*v, hi = (uint32_t)(*v >> 32);
    u32(c, &lo);
    u32(c, &hi);
    *v = (uint64_t)hi << 32 | lo;
}

static void text(struct cursor *c, char *s, size_t n)
{
    if (c->to) {
        memset(c->to, 0, n);
        memcpy(c->to, s, strnlen(s, n - 1));
        c->to += n;
    } else {
        memcpy(s, c->from, n);
        s[n - 1] = 0;
        c->from += n;
    }
}

/* A range is a word, 'all' or 'some', and two numbers. */
static const char word_all[4] = {'a', 'l', 'l', 0}, word_some[4] = {'s', 'o', 'm', 'e'};

static bool pass(struct cursor *c, struct link_hello *h)
{
    uint32_t versions = h->version_min | (uint32_t)h->version_max << 16, word, zero = 0;
    memcpy(&word, h->range.all ? word_all : word_some, sizeof word);
    u32(c, &versions);
    h->version_min = (uint16_t)versions;
    h->version_max = (uint16_t)(versions >> 16);
    u32(c, &h->arithmetic);
    u32(c, &h->layout);
    u32(c, &word);
    h->range.all = memcmp(&word, word_all, sizeof word) == 0;
    u32(c, &h->range.from);
    u32(c, &h->range.to);
    u64(c, &h->form);
    u64(c, &h->mark);
    u64(c, &h->sum);
    uint32_t *const numbers[] = {&h->n_layers, &h->n_experts, &h->n_used,     &h->hidden,
                                 &h->width,    &h->most_rows, &h->most_pairs, &h->threads};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        u32(c, numbers[i]);
    u64(c, &h->slots);
    u64(c, &h->budget_bytes);
    text(c, h->numerics, sizeof h->numerics);
    text(c, h->family, sizeof h->family);
    text(c, h->cpu, sizeof h->cpu);
    text(c, h->engine, sizeof h->engine);
    for (int i = 0; i < 10; i++) /* room for what a later version says */
        u32(c, &zero);
    return h->range.all || memcmp(&word, word_some, sizeof word) == 0;
}

void link_hello_write(const struct link_hello *h, uint8_t out[LINK_HELLO_BYTES])
{
    struct link_hello copy = *h;
    struct cursor c = {.to = out};
    memset(out, 0, LINK_HELLO_BYTES);
    (void)pass(&c, &copy);
}

static ingle_status bound(const char *what, uint64_t v, uint64_t least, uint64_t most,
                          struct err *err)
{
    if (v >= least && v <= most)
        return INGLE_OK;
    return err_set(err, INGLE_FORMAT, "a HELLO has '%s' %llu outside %llu to %llu", what,
                   (unsigned long long)v, (unsigned long long)least, (unsigned long long)most);
}

static bool is_plain(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || (unsigned char)*s > 126)
            return false;
    return true;
}

ingle_status link_hello_read(const uint8_t *at, size_t n, struct link_hello *out, struct err *err)
{
    struct link_hello h = {0};
    struct cursor c = {.from = at};
    if (n != LINK_HELLO_BYTES)
        return err_set(err, INGLE_FORMAT, "a HELLO has %zu bytes, not %d", n, LINK_HELLO_BYTES);
    if (!pass(&c, &h))
        return err_set(err, INGLE_FORMAT,
                       "a HELLO has a range of layers that is neither 'all' nor 'some'");
    const struct { const char *name; uint64_t v, least, most;
    } field[] = {
        {"version", h.version_min, 1, h.version_max},
        {"layers", h.n_layers, 1, LINK_MAX_LAYERS},
        {"experts", h.n_experts, 1, LINK_MAX_EXPERTS},
        {"experts a row", h.n_used, 1, LINK_MAX_USED},
        {"hidden", h.hidden, 1, LINK_MAX_WIDTH},
        {"width", h.width, 1, LINK_MAX_WIDTH},
        {"rows", h.most_rows, 1, LINK_MAX_ROWS},
        {"pairs", h.most_pairs, 1, LINK_MAX_PAIRS},
        {"threads", h.threads, 1, 65536},
        {"first layer", h.range.from, 0, h.range.all ? 0 : h.range.to - (uint64_t)(h.range.to > 0)},
        {"last layer", h.range.to, h.range.all ? 0 : 1, h.range.all ? 0 : LINK_MAX_LAYERS},
    };
    ingle_status st = INGLE_OK;
    for (size_t i = 0; !st && i < sizeof field / sizeof *field; i++)
        st = bound(field[i].name, field[i].v, field[i].least, field[i].most, err);
    if (!st &&
        !(is_plain(h.numerics) && is_plain(h.family) && is_plain(h.cpu) && is_plain(h.engine)))
        st = err_set(err, INGLE_FORMAT, "a HELLO has a name that is no printable ASCII");
    if (!st)
        *out = h;
    return st;
}

/* ---- together ---- */

ingle_status link_hello_agree(const struct link_hello *mine, const struct link_hello *theirs,
                              struct err *err)
{
    if (mine->version_min > theirs->version_max || theirs->version_min > mine->version_max)
        return err_set(err, INGLE_UNSUP, "the protocol is %u to %u here, %u to %u there",
                       mine->version_min, mine->version_max, theirs->version_min,
                       theirs->version_max);
    if (strcmp(mine->family, theirs->family) != 0)
        return err_set(err, INGLE_UNSUP, "another model: the family is '%s' here, '%s' there",
                       mine->family, theirs->family);
    const struct { const char *name; uint64_t a, b; bool hash;
    } field[] = {
        {"layers", mine->n_layers, theirs->n_layers, false},
        {"experts", mine->n_experts, theirs->n_experts, false},
        {"experts a row", mine->n_used, theirs->n_used, false},
        {"hidden size", mine->hidden, theirs->hidden, false},
        {"width of an expert", mine->width, theirs->width, false},
        {"hash of shapes and parameters", mine->form, theirs->form, true},
        {"hash of samples of the experts", mine->mark, theirs->mark, true},
        {"hash of all weights", theirs->sum ? mine->sum : 0, mine->sum ? theirs->sum : 0, true},
    };
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        if (field[i].a != field[i].b)
            return err_set(err, INGLE_UNSUP,
                           field[i].hash ? "another model: the %s is %016llx here, %016llx there"
                                         : "another model: '%s' is %llu here, %llu there",
                           field[i].name, (unsigned long long)field[i].a,
                           (unsigned long long)field[i].b);
    if (strcmp(mine->numerics, theirs->numerics) != 0)
        return err_set(
            err, INGLE_UNSUP,
            "the numerics are '%s' here, '%s' there: both ends need the same (--numerics)",
            mine->numerics, theirs->numerics);
    if (mine->arithmetic != theirs->arithmetic || mine->layout != theirs->layout)
        return err_set(err, INGLE_UNSUP,
                       "another version of ingle: the arithmetic is %u and the layout %u here, %u "
                       "and %u there",
                       mine->arithmetic, mine->layout, theirs->arithmetic, theirs->layout);
    char a[32], b[32];
    link_range_text(&mine->range, a, sizeof a);
    link_range_text(&theirs->range, b, sizeof b);
    if (!link_range_meets(&mine->range, &theirs->range))
        return err_set(err, INGLE_UNSUP, "no layer in common: %s here, %s there", a, b);
    return INGLE_OK;
}
