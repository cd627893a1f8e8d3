/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum - who a model is, by all bytes of its weights, and whether parts of them are zero.
 *
 * Rows of matrices are hashed in the chunks in which they are loaded, by the workers that have just
 * read them; what else is read when names are bound is hashed there.  Tables stay in the file: of
 * them there are samples, one a MiB, with size and times of the file, of which nobody can set that
 * of the last change.
 *
 * A download reserves space and fills it in pieces: one that was not finished leaves zeros where
 * the pieces are missing.
 */
#include "model/load.h"
#include "model/parts.h"

#include "base/attr.h"
#include "base/mem.h"
#include "base/num.h"
#include <string.h>
#include <xxhash.h>

enum {
    SAMPLE = 4096,
    SAMPLE_EVERY = 1 << 20,
    HOLE = 4096,           /* zeros of fewer bytes are numbers */
    HOLE_SHARE = 8,        /* of a matrix: this part of it in one piece is a hole */
    HOLE_LARGE = 8 << 20,  /* or so many bytes */
    WHOLE_SHARE = 100,     /* matrices that are zero as a whole may have this part of all bytes */
    WHOLE_EXPERTS = 1 << 30, /* experts of so many bytes are compared by all of them */
};

/* The same hash with the machine's vectors, where the library has a choice of them. */
ATTR_WEAK XXH64_hash_t XXH3_64bits_dispatch(const void *bytes, size_t n);

static uint64_t hash_of(const void *bytes, size_t n)
{
    return XXH3_64bits_dispatch ? XXH3_64bits_dispatch(bytes, n) : XXH3_64bits(bytes, n);
}

static bool is_zero(const uint8_t *at, uint64_t n)
{
    return !n || (!at[0] && !memcmp(at, at + 1, (size_t)n - 1));
}

void model_see(struct seen *s, const uint8_t *rows, int64_t n, uint64_t row_bytes)
{
    *s = (struct seen){.hash = hash_of(rows, (size_t)((uint64_t)n * row_bytes)), .n = n};
    int64_t run = 0;
    for (int64_t r = 0; r < n; r++) {
        const uint8_t *row = rows + (uint64_t)r * row_bytes;
        if (row[0] || !is_zero(row, row_bytes)) {
            if (run == r)
                s->lead = run;
            run = 0;
            continue;
        }
        if (++run > s->longest) {
            s->longest = run;
            s->longest_at = r + 1 - run;
        }
    }
    s->trail = run;
    if (run == n)
        s->lead = n;
}

/* ---- zeros ---- */

struct hole { int64_t at, n; }; /* rows */

static void grow(struct hole *best, int64_t at, int64_t n)
{
    if (n > best->n)
        *best = (struct hole){at, n};
}

/* The longest run of zero rows in chunks that follow each other in the file. */
static struct hole longest(const struct seen *s, int64_t n_chunks)
{
    struct hole best = {0, 0};
    int64_t run = 0, row = 0;
    for (int64_t i = 0; i < n_chunks; i++) {
        grow(&best, row - run, run + s[i].lead);
        grow(&best, row + s[i].longest_at, s[i].longest);
        run = s[i].trail == s[i].n ? run + s[i].n : s[i].trail;
        row += s[i].n;
        grow(&best, row - run, run);
    }
    return best;
}

/* Rows of an embedding or a head are a token's: unused ones may be zero. */
static bool is_of_tokens(const struct io_tensor *t)
{
    return strstr(t->name, "embd") || strstr(t->name, "embed") ||
           strstr(t->name, "output.weight") || strstr(t->name, "head");
}

/* rows, of row_bytes, of tensor t, which has whole matrices of `out` of them. */
static ingle_status check_part(struct model *m, const struct io_tensor *t, struct hole h,
                               int64_t rows, int64_t out, uint64_t row_bytes, struct err *err)
{
    const uint64_t n = (uint64_t)h.n * row_bytes, all = (uint64_t)rows * row_bytes;
    const bool tokens = is_of_tokens(t), whole = h.at % out == 0 && h.n % out == 0;
    if (n < HOLE || (n < all / HOLE_SHARE && n < HOLE_LARGE) || (tokens && n < all / 2))
        return INGLE_OK;
    if (!whole)
        return err_set(err, INGLE_FORMAT,
                       "'%s': tensor '%s' is zero in %llu of its %llu bytes, from %llu of the file "
                       "on: a part of "
                       "the download is missing, fetch the file again",
                       io_path(m->file), t->name, (unsigned long long)n, (unsigned long long)all,
                       (unsigned long long)(t->offset + (uint64_t)h.at * row_bytes));
    m->zero_bytes += n;
    if (!m->n_zero++)
        m->zero = t->name;
    return INGLE_OK;
}

static ingle_status check_all(struct model *m, struct err *err)
{
    if (!m->n_zero)
        return INGLE_OK;
    if (m->zero_bytes >= m->sum_bytes / WHOLE_SHARE)
        return err_set(err, INGLE_FORMAT,
                       "'%s': tensor '%s'%s is zero, %llu of the %llu bytes of weights: a part of "
                       "the download "
                       "is missing, fetch the file again",
                       io_path(m->file), m->zero, m->n_zero > 1 ? ", with others," : "",
                       (unsigned long long)m->zero_bytes, (unsigned long long)m->sum_bytes);
    report(m->sink, INGLE_REPORT_WARN, "tensor", m->zero,
           "%zu matrices are zero as a whole: if this is not intended, a part of the "
           "download is missing",
           m->n_zero);
    return INGLE_OK;
}

/* ---- the sum ---- */

void model_sum_add(struct model *m, const struct io_tensor *t, const void *bytes, size_t n)
{
    if (m->summed) /* a part that is bound later, and drafts */
        return;
    m->sum = XXH3_64bits_withSeed(t->name, strlen(t->name), m->sum);
    m->sum = XXH3_64bits_withSeed(bytes, n, m->sum);
}

static void add_u64(struct model *m, uint64_t v)
{
    m->sum = XXH3_64bits_withSeed(&v, sizeof v, m->sum);
}

/* Scales and their like, which several chunks share: once more, as a whole. */
struct companions {
    const struct model *m;
    const struct bound_matrix *b;
    uint64_t *hash; /* [n_parts] */
};

static uint64_t hash_tensor(const struct model *m, const struct io_tensor *t, bool *failed)
{
    enum { PIECE = 1 << 20 };
    uint64_t h = t->type;
    uint8_t *buffer = mem_alloc(PIECE);
    *failed = *failed || !buffer;
    for (uint64_t at = 0; buffer && at < t->n_bytes; at += PIECE) {
        const size_t n = t->n_bytes - at < PIECE ? (size_t)(t->n_bytes - at) : PIECE;
        if (io_read(m->file, t, at, buffer, n, NULL)) {
            *failed = true;
            break;
        }
        h = XXH3_64bits_withSeed(buffer, n, h);
    }
    mem_free(buffer);
    return h;
}

static void hash_companions(void *arg, int64_t i, int worker)
{
    struct companions *c = arg;
    bool failed = false;
    (void)worker;
    const struct source *p = &c->b->part[i];
    if (p->scale)
        c->hash[i] = hash_tensor(c->m, p->scale, &failed);
    if (p->zero)
        c->hash[i] = c->hash[i] * 31 + hash_tensor(c->m, p->zero, &failed);
    if (failed)
        c->hash[i] = 0;
}

/* The chunks of a matrix, all of its stack. */
static ingle_status sum_matrix(struct model *m, const struct bound_matrix *b, struct err *err)
{
    const struct seen *s = b->seen;
    const int64_t n_chunks = b->n_seen;
    const uint64_t row_bytes = b->seen_row_bytes;
    const int64_t n_parts = b->n_parts, out = device_matrix_out(b->m),
                  stack = device_matrix_stack(b->m);
    const int64_t per_part = n_chunks / n_parts, rows = n_parts > 1 ? out : out * stack;
    for (int64_t i = 0; i < n_parts; i++) {
        const struct io_tensor *t = b->part[i].t;
        m->sum = XXH3_64bits_withSeed(t->name, strlen(t->name), m->sum);
        for (int64_t k = 0; k < per_part; k++)
            add_u64(m, s[i * per_part + k].hash);
        m->sum_bytes += (uint64_t)rows * row_bytes;
        const ingle_status st =
            check_part(m, t, longest(s + i * per_part, per_part), rows, out, row_bytes, err);
        if (st)
            return st;
    }
    if (!b->part[0].scale && !b->part[0].zero)
        return INGLE_OK;
    struct companions c = {.m = m, .b = b, .hash = mem_calloc((size_t)n_parts, sizeof *c.hash)};
    if (!c.hash)
        return err_set(err, INGLE_NOMEM, "no memory for the sums of tensor '%s'",
                       b->part[0].t->name);
    pool_run(device_pool(m->d), n_parts, hash_companions, &c);
    for (int64_t i = 0; i < n_parts; i++)
        add_u64(m, c.hash[i]);
    mem_free(c.hash);
    return INGLE_OK;
}

/* ---- tables ---- */

struct samples {
    const struct model *m;
    const struct io_tensor *t;
    uint64_t *hash; /* [n] */
    uint8_t *zero;  /* [n] */
};

static void take_sample(void *arg, int64_t i, int worker)
{
    struct samples *s = arg;
    uint8_t bytes[SAMPLE];
    (void)worker;
    const uint64_t from = (uint64_t)i * SAMPLE_EVERY;
    const uint64_t room = s->t->n_bytes - from < SAMPLE_EVERY ? s->t->n_bytes - from : SAMPLE_EVERY;
    const size_t n = room < SAMPLE ? (size_t)room : SAMPLE;
    /* Anywhere in its MiB, but always there. */
    const uint64_t h = XXH3_64bits_withSeed(s->t->name, strlen(s->t->name), (uint64_t)i);
    const uint64_t at = from + h % (room - n + 1);
    if (io_read(s->m->file, s->t, at, bytes, n, NULL))
        return; /* reading such a row is an error */
    s->hash[i] = XXH3_64bits(bytes, n);
    s->zero[i] = is_zero(bytes, n);
}

static ingle_status sum_table(struct model *m, const struct io_tensor *t, struct err *err)
{
    m->sampled = true;
    const int64_t n = (int64_t)((t->n_bytes + SAMPLE_EVERY - 1) / SAMPLE_EVERY);
    struct samples s = {m, t, mem_calloc((size_t)n, sizeof *s.hash), mem_calloc((size_t)n, 1)};
    struct io_stamp stamp;
    ingle_status st = s.hash && s.zero ? INGLE_OK
                                       : err_set(err, INGLE_NOMEM,
                                                 "no memory for samples of tensor '%s'", t->name);
    if (!st)
        pool_run(device_pool(m->d), n, take_sample, &s);
    int64_t n_zero = 0;
    for (int64_t i = 0; !st && i < n; i++) {
        add_u64(m, s.hash[i]);
        n_zero += s.zero[i];
    }
    if (!st && io_stamp(m->file, t->file, &stamp)) {
        add_u64(m, stamp.n_bytes);
        add_u64(m, (uint64_t)stamp.mtime_s);
        add_u64(m, (uint64_t)stamp.mtime_ns);
        /* programs set the time of modification as they like */
        add_u64(m, (uint64_t)stamp.ctime_s);
        add_u64(m, (uint64_t)stamp.ctime_ns);
    }
    if (!st && n_zero > n / 2)
        st = err_set(err, INGLE_FORMAT,
                     "'%s': tensor '%s' is zero in %lld of %lld places: a part of the download is "
                     "missing, fetch "
                     "the file again",
                     io_path(m->file), t->name, (long long)n_zero, (long long)n);
    mem_free(s.hash);
    mem_free(s.zero);
    return st;
}

ingle_status model_sum_all(struct model *m, struct err *err)
{
    ingle_status s = INGLE_OK;
    for (size_t i = 0; !s && i < m->n_matrices; i++) {
        struct bound_matrix *b = &m->matrix[i];
        if (b->seen)
            s = sum_matrix(m, b, err);
        for (int64_t k = 0; !s && !b->seen && k < b->n_parts; k++)
            s = sum_table(m, b->part[k].t, err);
        mem_free(b->seen);
        b->seen = NULL;
    }
    for (size_t i = 0; !s && i < m->n_tables; i++)
        s = sum_table(m, m->table[i]->t, err);
    m->summed = true;
    return s ? s : check_all(m, err);
}

uint64_t model_exact_sum(const struct model *m)
{
    return m->summed && !m->sampled && !m->n_tables ? m->sum : 0;
}

bool model_experts_mark_is_whole(const struct model *m)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n_matrices; i++)
        for (int64_t k = 0; m->matrix[i].group && k < m->matrix[i].n_parts; k++)
            if (!num_add_u64(sum, m->matrix[i].part[k].t->n_bytes, &sum))
                return false;
    return sum <= WHOLE_EXPERTS;
}

ingle_status model_experts_mark(const struct model *m, uint64_t *out, struct err *err)
{
    uint64_t h = 0;
    const bool whole = model_experts_mark_is_whole(m);
    for (size_t i = 0; i < m->n_matrices; i++) {
        const struct bound_matrix *b = &m->matrix[i];
        for (int64_t k = 0; b->group && k < b->n_parts; k++) {
            const struct io_tensor *t = b->part[k].t;
            if (whole) {
                bool failed = false;
                const uint64_t sum = hash_tensor(m, t, &failed);
                h = XXH3_64bits_withSeed(t->name, strlen(t->name), h + t->type);
                h = XXH3_64bits_withSeed(&sum, sizeof sum, h);
                if (failed)
                    return err_set(err, INGLE_IO, "'%s': tensor '%s' cannot be read",
                                   io_path(m->file), t->name);
                continue;
            }
            const int64_t n = (int64_t)((t->n_bytes + SAMPLE_EVERY - 1) / SAMPLE_EVERY);
            struct samples s = {m, t, mem_calloc((size_t)n, sizeof *s.hash),
                                mem_calloc((size_t)n, 1)};
            const bool ok = s.hash && s.zero;
            if (ok)
                pool_run(device_pool(m->d), n, take_sample, &s);
            h = XXH3_64bits_withSeed(t->name, strlen(t->name), h + t->type);
            if (ok)
                h = XXH3_64bits_withSeed(s.hash, (size_t)n * sizeof *s.hash, h);
            mem_free(s.hash);
            mem_free(s.zero);
            if (!ok)
                return err_set(err, INGLE_NOMEM, "no memory for samples of tensor '%s'", t->name);
        }
    }
    *out = h;
    return INGLE_OK;
}
