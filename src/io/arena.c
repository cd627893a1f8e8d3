/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for copies of what a file says, and the reader that the copies come from. */
#include "io/inner.h"
#include "io/table.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 << 10, BUFFER = 256 << 10 };

struct io_chunk {
    struct io_chunk *next;
    char bytes[];
};

void io_arena_init(struct io_arena *a, size_t n_budget)
{
    *a = (struct io_arena){.n_left = n_budget, .n_budget = n_budget};
}

void io_arena_release(struct io_arena *a)
{
    for (struct io_chunk *c = a->chunk; c;) {
        struct io_chunk *next = c->next;
        mem_free(c);
        c = next;
    }
    io_arena_init(a, a->n_budget);
}

ingle_status io_arena_take(struct io_arena *a, size_t n, void **out, struct err *err)
{
    size_t n8, n_chunk;
    *out = NULL;
    if (!num_align(n, 8, &n8) || n8 > a->n_left)
        return err_set(err, INGLE_LIMIT, "%zu bytes more than the limit of %zu bytes of metadata",
                       n, a->n_budget);
    if (!a->chunk || n8 > a->cap - a->n_used) {
        const size_t cap = n8 > CHUNK ? n8 : CHUNK;
        struct io_chunk *c =
            num_add(cap, sizeof(struct io_chunk), &n_chunk) ? mem_alloc(n_chunk) : NULL;
        if (!c)
            return err_set(err, INGLE_NOMEM, "no %zu bytes for metadata", cap);
        c->next = a->chunk;
        a->chunk = c;
        a->cap = cap;
        a->n_used = 0;
    }
    *out = a->chunk->bytes + a->n_used;
    a->n_used += n8;
    a->n_left -= n8;
    return INGLE_OK;
}

ingle_status io_arena_copy(struct io_arena *a, const char *s, size_t n, const char **out,
                           struct err *err)
{
    void *at;
    size_t n1;
    if (!num_add(n, 1, &n1))
        return err_set(err, INGLE_LIMIT, "a string of %zu bytes", n);
    ingle_status st = io_arena_take(a, n1, &at, err);
    if (st)
        return st;
    if (n)
        memcpy(at, s, n);
    ((char *)at)[n] = 0;
    *out = at;
    return INGLE_OK;
}

ingle_status io_reader_init(struct io_reader *r, const char *name, int fd, const void *memory,
                            uint64_t n_bytes, struct err *err)
{
    *r = (struct io_reader){.name = name, .fd = fd, .memory = memory, .n_bytes = n_bytes};
    if (fd < 0)
        return INGLE_OK;
    r->buf = mem_alloc(BUFFER);
    if (!r->buf)
        return err_set(err, INGLE_NOMEM, "%s: no %d bytes to read it", name, BUFFER);
    return INGLE_OK;
}

void io_reader_release(struct io_reader *r)
{
    mem_free(r->buf);
    r->buf = NULL;
}

static ingle_status reader_fill(struct io_reader *r, struct err *err)
{
    const uint64_t left = io_reader_left(r);
    const size_t n = left < BUFFER ? (size_t)left : BUFFER;
    r->buf_n = 0;
    ingle_status s = file_read_at(r->fd, r->name, r->pos, r->buf, n, err);
    if (s)
        return s;
    r->buf_at = r->pos;
    r->buf_n = n;
    return INGLE_OK;
}

ingle_status io_reader_take(struct io_reader *r, void *dst, size_t n, const char *what,
                            struct err *err)
{
    if (n > io_reader_left(r))
        return err_set(err, INGLE_FORMAT,
                       "%s: %s at byte %llu needs %zu bytes but only %llu are left", r->name, what,
                       (unsigned long long)r->pos, n, (unsigned long long)io_reader_left(r));
    if (r->fd < 0) {
        if (n)
            memcpy(dst, r->memory + r->pos, n);
        r->pos += n;
        return INGLE_OK;
    }
    char *to = dst;
    while (n) {
        if (r->pos < r->buf_at || r->pos - r->buf_at >= r->buf_n) {
            ingle_status s = reader_fill(r, err);
            if (s)
                return s;
        }
        const size_t at = (size_t)(r->pos - r->buf_at), have = r->buf_n - at;
        const size_t part = n < have ? n : have;
        memcpy(to, r->buf + at, part);
        to += part;
        r->pos += part;
        n -= part;
    }
    return INGLE_OK;
}

static int span_order(const void *a, const void *b)
{
    const struct io_span *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

void io_spans_sort(struct io_span *s, size_t n)
{
    if (n > 1)
        qsort(s, n, sizeof *s, span_order);
}

struct io_shown io_show(const char *s, size_t n)
{
    struct io_shown out;
    size_t k = 0;
    for (size_t i = 0; i < n && k < sizeof out.text - 4; i++)
        out.text[k++] = s[i] >= 0x20 && s[i] < 0x7F ? s[i] : '?';
    if (n > k) {
        memcpy(out.text + k, "...", 3);
        k += 3;
    }
    out.text[k] = 0;
    return out;
}
