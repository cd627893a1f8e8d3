/* SPDX-License-Identifier: Apache-2.0 */
/* Header and table of a file of packed weights: whatever the bytes are, they are refused with a
 * text, or every matrix lies in the image and the image in the file.  The first byte says
 * which fields and checksums are set right before, so that the checks behind them are reached. */
#include "base/mem.h"
#include "model/packed.h"

#include <stdlib.h>
#include <string.h>

static size_t table_bytes(const struct packed_header *h)
{
    return h->n_matrices * sizeof(struct packed_matrix) +
           h->n_groups * sizeof(struct packed_group) + h->n_sources * sizeof(struct io_stamp) +
           h->n_blocks * sizeof(struct packed_sum) + h->n_extents * sizeof(uint64_t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { SET_MAGIC = 1, SET_SIZES = 2, SET_TABLE_SUM = 4, SET_SUM = 8 };

/* Matrices one behind the other, then the extents of groups; matrices in extents are compared with
 * a model's. */
static void check_places(const struct packed_header *h, const struct packed_matrix *m)
{
    const struct packed_group *g = (const struct packed_group *)(const void *)(m + h->n_matrices);
    uint64_t end = 0, n_extents = 0;
    for (uint32_t i = 0; i < h->n_matrices; i++) {
        if (m[i].step)
            continue;
        if (m[i].at < end || m[i].bytes > h->dense_bytes || m[i].at > h->dense_bytes - m[i].bytes)
            abort();
        end = m[i].at + m[i].bytes;
    }
    end = h->dense_bytes;
    for (uint32_t i = 0; i < h->n_groups; i++) {
        if (g[i].at < end || g[i].at > h->image_bytes || g[i].n < 1 || g[i].first != n_extents ||
            g[i].bytes > (h->image_bytes - g[i].at) / (uint64_t)g[i].n)
            abort();
        end = g[i].at + (uint64_t)g[i].n * g[i].bytes;
        n_extents += (uint64_t)g[i].n;
    }
    if (n_extents != h->n_extents)
        abort();
}

static void check(const struct packed_header *h, const uint8_t *table, size_t n_table)
{
    struct err err = {0};
    uint64_t table_bytes;
    if (model_packed_check_head(h, h->file_bytes, "fuzz", &table_bytes, &err)) {
        if (!err.msg[0])
            abort();
        return;
    }
    if (h->image_at < sizeof *h + table_bytes || h->file_bytes < h->image_at)
        abort();
    if (table_bytes > n_table)
        return;
    struct packed_matrix *m = mem_alloc((size_t)table_bytes); /* exactly so much may be read */
    memcpy(m, table, (size_t)table_bytes);
    if (!model_packed_check_table(h, m, "fuzz", &err))
        check_places(h, m);
    else if (!err.msg[0])
        abort();
    mem_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct packed_header h;
    if (n < 1 + sizeof h)
        return 0;
    const int how = data[0];
    memcpy(&h, data + 1, sizeof h);
    const uint8_t *table = data + 1 + sizeof h;
    const size_t n_table = n - 1 - sizeof h;
    if (how & SET_MAGIC) {
        memcpy(h.magic, "ingle packed\r\n\x1a", sizeof h.magic);
        h.format = PACKED_FORMAT;
        h.layout = KERN_LAYOUT;
        h.endian = 0x01020304;
    }
    if (how & SET_SIZES) {
        h.n_sources = 1;
        h.n_matrices %= 8;
        h.image_bytes %= (uint64_t)1 << 40;
        h.n_groups %= 4;
        h.n_extents %= 64;
        h.dense_bytes = h.dense_bytes % (h.image_bytes + 1) / PACKED_ALIGN * PACKED_ALIGN;
        h.n_blocks = (uint32_t)((h.dense_bytes + PACKED_BLOCK - 1) / PACKED_BLOCK);
        const uint64_t head = sizeof h + table_bytes(&h);
        const uint64_t align = model_packed_align(h.image_bytes);
        h.image_at = (head + align - 1) / align * align;
        h.file_bytes = h.image_at + h.image_bytes;
        h.model[sizeof h.model - 1] = 0;
    }
    const size_t n_sum = table_bytes(&h);
    if ((how & SET_TABLE_SUM) && n_sum <= n_table)
        h.table_sum = model_packed_sum_of(table, n_sum);
    if (how & SET_SUM)
        h.sum = model_packed_head_sum(&h);
    check(&h, table, n_table);
    return 0;
}
