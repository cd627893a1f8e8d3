/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/kv.h"

#include "base/num.h"
#include "base/str.h"
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

struct kv_scope kv_scope_at(struct kv_scope s, int64_t length)
{
    const bool shortened = s.shorten.name && length > s.shorten.from;
    return (struct kv_scope){.sparse = kv_sparse_at(s.sparse, length),
                             .select = s.select,
                             .shorten = shortened ? s.shorten : (struct kv_shorten){0, 0}};
}

struct kv_scope kv_way_scope(const struct kv_way *w, uint64_t salt)
{
    return (struct kv_scope){.salt = kv_select_salt(salt, &w->select),
                             .select = kv_select_of(&w->select),
                             .shorten = kv_gaps_shorten(w->gaps),
                             .sparse = w->sparse};
}

int64_t kv_way_same(const struct kv_way *a, const struct kv_way *b)
{
    const int64_t sparse = a->sparse == b->sparse
                               ? INT64_MAX
                               : num_min(a->sparse ? kv_sparse_from(a->sparse) : INT64_MAX,
                                         b->sparse ? kv_sparse_from(b->sparse) : INT64_MAX);
    if (kv_select_salt(0, &a->select) != kv_select_salt(0, &b->select))
        return 0;
    return num_min(sparse, kv_gaps_same(a->gaps, b->gaps));
}

/* ---- text ---- */

enum { USUAL_BITS = 3, USUAL_FROM = 4096, MOST_FROM = 16777216 };

static bool read_number(const char *text, size_t n, int64_t least, int64_t most, int64_t *out)
{
    int64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || v > most)
            return false;
        v = v * 10 + (text[i] - '0');
    }
    *out = v;
    return n && v >= least && v <= most;
}

/* "1/8", or a number such as 0.125. */
static bool read_eps(const char *text, size_t n_text, int *bits)
{
    char copy[32], *end;
    if (!n_text || n_text >= sizeof copy)
        return false;
    memcpy(copy, text, n_text);
    copy[n_text] = 0;
    const bool inverse = n_text > 2 && memcmp(copy, "1/", 2) == 0;
    const double v = str_to_double(inverse ? copy + 2 : copy, &end);
    if (*end || end == copy || *copy == ' ')
        return false;
    for (int i = 0; i <= KERN_SPARSE_EPS_MOST; i++) {
        const double n_parts = (double)(1 << i), one = inverse ? v / n_parts : v * n_parts;
        if (one >= 1 && one <= 1) {
            *bits = i;
            return true;
        }
    }
    return false;
}

static ingle_status parse_sparse(const char *what, const char *text, struct kv_way *w,
                                 struct err *err)
{
    int bits = USUAL_BITS;
    int64_t from = USUAL_FROM;
    if (strcmp(text, "on") != 0 && strncmp(text, "on:", 3) != 0)
        return err_set(err, INGLE_ARG, "%s: '%.60s' is none of off, on and on:eps=1/8,from=4096",
                       what, text);
    for (const char *p = text + 2; *p;) {
        p++;
        const size_t n = strcspn(p, ",");
        if (n > 4 && memcmp(p, "eps=", 4) == 0) {
            if (!read_eps(p + 4, n - 4, &bits))
                return err_set(err, INGLE_ARG, "%s: eps '%.*s' is no power of two from 1/%d to 1",
                               what, (int)(n < 40 ? n : 40) - 4, p + 4, 1 << KERN_SPARSE_EPS_MOST);
        } else if (n > 5 && memcmp(p, "from=", 5) == 0) {
            if (!read_number(p + 5, n - 5, 0, MOST_FROM, &from))
                return err_set(err, INGLE_ARG, "%s: from '%.*s' is no position from 0 to %d", what,
                               (int)(n < 40 ? n : 40) - 5, p + 5, MOST_FROM);
        } else {
            return err_set(err, INGLE_ARG, "%s: '%.*s' is neither eps=1/N nor from=POSITION", what,
                           (int)(n < 40 ? n : 40), p);
        }
        p += n;
    }
    w->sparse = kv_sparse_of(bits, from);
    return INGLE_OK;
}

static ingle_status parse_select(const char *what, const char *text,
                                 const struct kern_select *usual, struct kv_way *w,
                                 struct err *err)
{
    static const char least[] = ",least=";
    struct kern_select p = {.part = 0, .least = KERN_SELECT_LEAST};
    if (usual && strcmp(text, "on") == 0) {
        w->select = *usual;
        return INGLE_OK;
    }
    const size_t n = strcspn(text, ","), n_least = sizeof least - 1;
    if (n < 3 || memcmp(text, "1/", 2) != 0 ||
        !read_number(text + 2, n - 2, 1, KERN_SELECT_PART_MOST, &p.part))
        return err_set(err, INGLE_ARG, "%s: '%.60s' is neither off nor 1/N with N from 1 to %d",
                       what, text, KERN_SELECT_PART_MOST);
    if (text[n] && (strncmp(text + n, least, n_least) != 0 ||
                    !read_number(text + n + n_least, strlen(text + n + n_least), KERN_SELECT_ALWAYS,
                                 KERN_SELECT_LEAST_MOST, &p.least)))
        return err_set(err, INGLE_ARG, "%s: '%.60s' is not least=PAGES with %d to %d pages", what,
                       text + n + 1, KERN_SELECT_ALWAYS, KERN_SELECT_LEAST_MOST);
    w->select = p;
    return INGLE_OK;
}

ingle_status kv_way_parse(enum kv_way_kind kind, const char *what, const char *text,
                          const struct kern_select *usual, struct kv_way *w, struct err *err)
{
    static const int longest[] = {[KV_WAY_SPARSE] = KV_WAY_TEXT - 1, [KV_WAY_SELECT] = 31};
    if (!text || strcmp(text, "off") == 0) {
        if (kind == KV_WAY_SPARSE)
            w->sparse = 0;
        else
            w->select = (struct kern_select){0};
        return INGLE_OK;
    }
    if (strlen(text) > (size_t)longest[kind])
        return err_set(err, INGLE_ARG, "%s: '%.60s' has %zu bytes, more than %d", what, text,
                       strlen(text), longest[kind]);
    return kind == KV_WAY_SPARSE ? parse_sparse(what, text, w, err)
                                 : parse_select(what, text, usual, w, err);
}

void kv_way_text(enum kv_way_kind kind, const struct kv_way *w, char *out, size_t n)
{
    const struct kern_select *p = &w->select;
    if (kind == KV_WAY_SPARSE ? !w->sparse : !p->part)
        snprintf(out, n, "off");
    else if (kind == KV_WAY_SPARSE)
        snprintf(out, n, "on:eps=1/%d,from=%lld", 1 << kv_sparse_bits(w->sparse),
                 (long long)kv_sparse_from(w->sparse));
    else if (p->least == KERN_SELECT_LEAST)
        snprintf(out, n, "1/%lld", (long long)p->part);
    else
        snprintf(out, n, "1/%lld,least=%lld", (long long)p->part, (long long)p->least);
}

/* ---- names ---- */

struct kv_name kv_sparse_name(uint32_t sparse)
{
    struct kv_name t = {""};
    if (sparse)
        snprintf(t.at, sizeof t.at, "few%d-w%d-f%lld", kv_sparse_bits(sparse), KV_SPARSE_PAGES,
                 (long long)kv_sparse_from(sparse));
    return t;
}

struct kv_name kv_select_name(const struct kern_select *p)
{
    struct kv_name t = {""};
    if (p->part > 1 && p->least == KERN_SELECT_LEAST)
        snprintf(t.at, sizeof t.at, "sel%lld", (long long)p->part);
    else if (p->part > 1)
        snprintf(t.at, sizeof t.at, "sel%lld-p%lld", (long long)p->part, (long long)p->least);
    return t;
}

uint64_t kv_select_salt(uint64_t salt, const struct kern_select *p)
{
    const struct kv_name name = kv_select_name(p);
    return name.at[0] ? XXH3_64bits_withSeed(name.at, strlen(name.at), salt) : salt;
}

/* ---- files ---- */

/* The mark of a file whose session is not computed as most are; after it the gaps between its
 * positions (kv_gaps_write()). */
struct mark {
    char magic[8];
    int64_t part, least; /* as in struct kern_select; 0: its answers see all */
};
static_assert(sizeof(struct mark) == 24 && offsetof(struct mark, part) == 8,
              "a file format: do not pad");
static const char magic[8] = {'i', 'n', 'g', 'l', 'e', 'w', 'a', 'y'};

size_t kv_way_bytes(const struct kv_way *w)
{
    return w->select.part > 1 || w->gaps ? sizeof(struct mark) + kv_gaps_bytes(w->gaps) : 0;
}

void kv_way_write(const struct kv_way *w, void *to)
{
    const bool chooses = w->select.part > 1;
    struct mark m = {.part = chooses ? w->select.part : 0, .least = chooses ? w->select.least : 0};
    memcpy(m.magic, magic, sizeof m.magic);
    memcpy(to, &m, sizeof m);
    kv_gaps_write(w->gaps, (char *)to + sizeof m);
}

ingle_status kv_way_read(struct kv_way *w, const void *mark, size_t n, struct err *err)
{
    struct mark m = {{0}, 0, 0};
    *w = (struct kv_way){0};
    if (!n)
        return INGLE_OK;
    if (n >= sizeof m)
        memcpy(&m, mark, sizeof m);
    const bool chooses = m.part > 1 && m.part <= KERN_SELECT_PART_MOST &&
                         m.least >= KERN_SELECT_ALWAYS && m.least <= KERN_SELECT_LEAST_MOST;
    if (memcmp(m.magic, magic, sizeof magic) != 0 || !(chooses || (!m.part && !m.least)))
        return err_set(err, INGLE_FORMAT,
                       "damaged: %zu bytes say in no known way how it was computed", n);
    w->select = (struct kern_select){m.part, m.least};
    return kv_gaps_read(&w->gaps, (const char *)mark + sizeof m, n - sizeof m, err);
}
