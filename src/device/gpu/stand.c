/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stand - the processor in the place of the card, and beside it.
 *
 * Pages of the card have a place in the host's memory where the processor reads and writes them:
 * what an operation may look at comes there before, and what it wrote goes back.
 */
#include "base/num.h"
#include "device/cpu_rows.h"
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"
#include <string.h>

/* ---- pages ---- */

/* The spans of an operation that have one page table each, and what it looks at in a page. */
struct paged {
    const struct device_span *span;
    struct device_span *copy;
    int64_t n;
    size_t at, n_bytes;
    bool reads, writes;
};
enum { MOST_PAGED = 2 };

static struct paged of_kv(const struct device_kv *kv, const struct device_span *s, int64_t n)
{
    return (struct paged){.span = s, .n = n, .at = kv->at,
                          .n_bytes = (size_t)kv->n_heads * kv->head_bytes, .reads = true};
}

static struct paged of_stream(const struct device_stream *t, const struct device_span *s,
                              int64_t n)
{
    const size_t row = kern_row_bytes(t->codec, t->width, t->tail);
    return (struct paged){.span = s, .n = n, .at = t->at,
                          .n_bytes = (size_t)(KERN_PAGE / t->every) * row, .reads = true};
}

static int pages_of(enum device_op op, const void *args, struct paged p[MOST_PAGED])
{
    switch (op) {
    case DEVICE_OP_kv_append: {
        const struct device_kv_append_args *a = args;
        p[0] = of_kv(a->kv, a->span, a->n_spans);
        p[0].writes = true;
        return 1;
    }
    case DEVICE_OP_attend: {
        const struct device_attend_args *a = args;
        p[0] = of_kv(a->kv, a->span, a->n_spans);
        return 1;
    }
    case DEVICE_OP_rows_append: {
        const struct device_rows_append_args *a = args;
        p[0] = of_stream(a->s, a->span, a->n_spans);
        p[0].writes = true;
        return 1;
    }
    case DEVICE_OP_rows_read: {
        const struct device_rows_read_args *a = args;
        p[0] = of_stream(a->s, a->span, a->n_spans);
        return 1;
    }
    case DEVICE_OP_compress: {
        const struct device_compress_args *a = args;
        p[0] = of_stream(&a->c->in, a->in, a->n_spans);
        p[1] = of_stream(&a->c->out, a->out, a->n_spans);
        p[1].writes = true;
        return 2;
    }
    case DEVICE_OP_select: {
        const struct device_select_args *a = args;
        p[0] = of_stream(&a->s->keys, a->span, a->n_spans);
        return 1;
    }
    case DEVICE_OP_attend_latent: {
        const struct device_attend_latent_args *a = args;
        p[0] = of_stream(&a->a->near, a->near, a->n_spans);
        if (!a->far || !a->a->far.width)
            return 1;
        p[1] = of_stream(&a->a->far, a->far, a->n_spans);
        return 2;
    }
    default:
        return 0;
    }
}

static int64_t last_page(const struct device_span *s)
{
    const int64_t end = num_max(s->pos0 + s->n, s->through);
    return s->n > 0 && end > 0 ? (end - 1) / KERN_PAGE : -1;
}

static bool is_own(struct device *d, const struct paged *p)
{
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t k = last_page(&p->span[i]); k >= 0; k--)
            if (p->span[i].page[k])
                return device_gpu_own_of(d->gpu, p->span[i].page[k]) != NULL;
    return false;
}

static size_t room_of(const struct paged *p)
{
    size_t n = (size_t)p->n * sizeof *p->copy;
    for (int64_t i = 0; i < p->n; i++)
        n += (size_t)(last_page(&p->span[i]) + 1) * sizeof(uint8_t *);
    return n;
}

/* Copies of the spans with pages of the host, in room. */
static bool open_pages(struct device *d, struct paged *p, uint8_t *room)
{
    uint8_t **page = (uint8_t **)(void *)(room + (size_t)p->n * sizeof *p->copy);
    p->copy = (struct device_span *)(void *)room;
    for (int64_t i = 0; i < p->n; i++) {
        p->copy[i] = p->span[i];
        p->copy[i].page = page;
        for (int64_t k = 0; k <= last_page(&p->span[i]); k++, page++) {
            uint8_t *own = p->span[i].page[k];
            *page = own ? device_gpu_stand(d, own) : NULL;
            if (own && !*page)
                return false;
            if (own && !d->gpu->lost && !device_gpu_own_is_host(d->gpu, own) &&
                !device_gpu_get(d, *page + p->at, own + p->at, p->n_bytes))
                return false;
        }
    }
    return true;
}

static void close_pages(struct device *d, const struct paged *p)
{
    for (int64_t i = 0; p->writes && !d->gpu->lost && i < p->n; i++)
        for (int64_t k = p->span[i].pos0 / KERN_PAGE; k <= last_page(&p->span[i]); k++)
            if (p->span[i].page[k] && !device_gpu_own_is_host(d->gpu, p->span[i].page[k]))
                (void)device_gpu_put(d, p->span[i].page[k] + p->at, p->copy[i].page[k] + p->at,
                                     p->n_bytes);
}

/* The arguments with those spans. */
union paged_args {
    struct device_kv_append_args kv_append;
    struct device_attend_args attend;
    struct device_rows_append_args rows_append;
    struct device_rows_read_args rows_read;
    struct device_compress_args compress;
    struct device_select_args select;
    struct device_attend_latent_args attend_latent;
};

static const void *with_pages(enum device_op op, const void *args, const struct paged p[MOST_PAGED],
                              int n, union paged_args *to)
{
#define WITH(name, member)                            \
    case DEVICE_OP_##name:                            \
        memcpy(&to->name, args, sizeof to->name);     \
        to->name.member = p[0].copy;                  \
        return &to->name;
    switch (op) {
        WITH(kv_append, span)
        WITH(attend, span)
        WITH(rows_append, span)
        WITH(rows_read, span)
        WITH(select, span)
    case DEVICE_OP_compress:
        memcpy(&to->compress, args, sizeof to->compress);
        to->compress.in = p[0].copy;
        to->compress.out = p[1].copy;
        return &to->compress;
    case DEVICE_OP_attend_latent:
        memcpy(&to->attend_latent, args, sizeof to->attend_latent);
        to->attend_latent.near = p[0].copy;
        if (n > 1)
            to->attend_latent.far = p[1].copy;
        return &to->attend_latent;
    default:
        return args;
    }
#undef WITH
}

void device_gpu_on_host(struct device *d, enum device_op op, const void *args, void *scratch)
{
    struct paged p[MOST_PAGED];
    union paged_args copy;
    const int n = pages_of(op, args, p);
    bool own = false;
    size_t bytes = 0;
    if (!device_gpu_home(d, op, args))
        return;
    for (int i = 0; i < n; i++) {
        own = own || is_own(d, &p[i]);
        bytes += room_of(&p[i]);
    }
    if (!own) {
        device_cpu_ops.run[op](d, args, scratch);
        return;
    }
    uint8_t *room = device_gpu_room(d->gpu, bytes);
    bool ok = room != NULL;
    for (int i = 0; ok && i < n; i++) {
        ok = open_pages(d, &p[i], room);
        room += room_of(&p[i]);
    }
    if (!ok) {
        struct err e;
        err_set(&e, INGLE_NOMEM, "no memory for pages of the card");
        device_fail(d, &e);
        return;
    }
    device_cpu_ops.run[op](d, with_pages(op, args, p, n, &copy), scratch);
    for (int i = 0; i < n; i++)
        close_pages(d, &p[i]);
}

/* ---- beside it ---- */

static void divide_products(struct device *d, const struct device_matmul_args *a, void *scratch)
{
    struct device_product *p = device_gpu_room(d->gpu, (size_t)a->n * sizeof *p);
    int64_t n = 0, host = a->n;
    if (!p)
        return;
    for (int64_t i = 0; i < a->n; i++)
        if (device_gpu_weights(a->p[i].w, a->p[i].index))
            p[n++] = a->p[i];
        else
            p[--host] = a->p[i];
    const struct device_matmul_args card = {p, n, NULL, 0}, rest = {p + n, a->n - n, NULL, 0};
    device_gpu_on_side(d, DEVICE_OP_matmul, &card, scratch, DEVICE_CARD);
    device_gpu_on_side(d, DEVICE_OP_matmul, &rest, scratch, DEVICE_HOST);
}

static void divide_experts(struct device *d, const struct device_mlp_args *a, void *scratch)
{
    const size_t n = (size_t)a->m->gate->n_stack;
    uint8_t *only = device_gpu_room(d->gpu, 2 * n);
    struct device_mlp card = *a->m, host = *a->m;
    if (!only)
        return;
    device_gpu_read(d, a->m->first, (n + 1) * sizeof *a->m->first);
    device_gpu_read(d, a->m->only, n);
    for (size_t i = 0; i < n; i++) {
        const bool wanted = !a->m->only || a->m->only[i];
        only[i] = wanted && device_gpu_weights(a->m->gate, (int64_t)i);
        only[n + i] = wanted && !only[i];
    }
    card.only = only;
    host.only = only + n;
    device_gpu_on_side(d, DEVICE_OP_mlp,
                       &(struct device_mlp_args){.m = &card, .x = a->x, .y = a->y}, scratch,
                       DEVICE_CARD);
    device_gpu_on_side(d, DEVICE_OP_mlp,
                       &(struct device_mlp_args){.m = &host, .x = a->x, .y = a->y}, scratch,
                       DEVICE_HOST);
}

void device_gpu_divide(struct device *d, enum device_op op, const void *args, void *scratch)
{
    if (op == DEVICE_OP_matmul)
        divide_products(d, args, scratch);
    else
        divide_experts(d, args, scratch);
}
